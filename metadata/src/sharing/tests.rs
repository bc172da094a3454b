//! Whose turn it is at the leader, and what is told of tenants.

use super::*;
use std::future::pending;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use v1::lock::Kind;

const MS: Duration = Duration::from_millis(1);
const ALL: [Urgency; 3] = [Urgency::Common, Urgency::Freeing, Urgency::SignOfLife];

struct Rig {
    sharing: Sharing,
    state: StateMachine,
    /// Others have come to wait for who asks.
    awaited: Notify,
}

impl Rig {
    fn new(rules: Vec<v1::QosRule>) -> Arc<Self> {
        let (sharing, state) = (Sharing::default(), StateMachine::open_in_memory());
        let rig = Self { sharing, state, awaited: Notify::new() };
        rig.sharing.refresh(&rig.state).unwrap();
        rig.sharing.tenants.set_policy(of_leader(&v1::QosPolicy { version: 1, rules }));
        Arc::new(rig)
    }

    async fn answer<T>(
        &self,
        tenant: &str,
        urgency: Urgency,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let awaited = || self.awaited.notified();
        let turn = Turn { tenant, count: 1, urgency };
        self.sharing.in_turn(&self.state, turn, deadline, awaited, answer).await
    }

    /// Asks for something that takes so long; answers how long it took then.
    async fn ask(&self, tenant: &str, urgency: Urgency, works: Duration) -> Duration {
        let begun = Instant::now();
        let answer = async {
            sleep(works).await;
            Ok(())
        };
        self.answer(tenant, urgency, answer).await.unwrap();
        begun.elapsed()
    }
}

fn at_most(metadata: u64) -> Vec<v1::QosRule> {
    let limits = v1::QosLimits { metadata: Some(metadata), ..Default::default() };
    vec![v1::QosRule { tenant: "slow".into(), limits: Some(limits) }]
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_little_does_not_stand_behind_who_asks_for_much() {
    let rig = Rig::new(Vec::new());
    let mut storm = JoinSet::new();
    for _ in 0..2000 {
        let rig = rig.clone();
        storm.spawn(async move { rig.ask("storm", Urgency::Common, 4 * MS).await });
    }
    sleep(MS).await;
    let took = rig.ask("victim", Urgency::Common, MS).await;
    assert!(took <= 6 * MS, "{took:?}");
    let longest = storm.join_all().await.into_iter().max().unwrap();
    assert!(longest > 25 * MS, "the storm waits for itself: {longest:?}");
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_for_others_keep_no_places() {
    for says_so in [true, false] {
        let rig = Rig::new(Vec::new());
        let mut stuck = JoinSet::new();
        for _ in 0..1000 {
            let rig = rig.clone();
            stuck.spawn(async move {
                let waits = async {
                    if says_so {
                        give_place_back();
                    }
                    pending::<Result<()>>().await
                };
                rig.answer("stuck", Urgency::Common, waits).await
            });
        }
        // What they wait for, and another that does not.
        for urgency in [Urgency::Freeing, Urgency::SignOfLife] {
            assert_eq!(rig.ask("stuck", urgency, Duration::ZERO).await, Duration::ZERO);
        }
        let took = rig.ask("stuck", Urgency::Common, Duration::ZERO).await;
        let most = if says_so { Duration::ZERO } else { 20 * HOLD };
        assert!(took <= most, "{took:?}");
        assert_eq!(stuck.len(), 1000);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept_but_not_by_what_others_wait_for() {
    let rig = Rig::new(at_most(10));
    let begun = Instant::now();
    for _ in 0..21 {
        rig.ask("slow", Urgency::Common, Duration::ZERO).await;
    }
    let took = begun.elapsed();
    assert!((1900..=2000).contains(&took.as_millis()), "{took:?}");
    for urgency in [Urgency::SignOfLife, Urgency::Freeing] {
        for _ in 0..20 {
            assert_eq!(rig.ask("slow", urgency, Duration::ZERO).await, Duration::ZERO);
            let other = rig.ask("other", Urgency::Common, Duration::ZERO).await;
            assert_eq!(other, Duration::ZERO);
        }
    }
    let paid = rig.ask("slow", Urgency::Common, Duration::ZERO).await;
    assert!((2000..=2100).contains(&paid.as_millis()), "what was freed is paid for: {paid:?}");
}

#[tokio::test(start_paused = true)]
async fn who_others_wait_for_waits_neither_for_a_rate_nor_for_a_turn() {
    let rig = Rig::new(at_most(1));
    rig.ask("slow", Urgency::Common, Duration::ZERO).await;
    let ask = |tenant: &'static str| {
        let rig = rig.clone();
        tokio::spawn(async move { rig.ask(tenant, Urgency::Common, Duration::ZERO).await })
    };
    let paced = ask("slow");
    sleep(MS).await;
    rig.awaited.notify_waiters();
    assert!(paced.await.unwrap() <= 2 * MS);
    // All places are taken by those that do not let go of them.
    let tenant = rig.sharing.tenants.get("hog");
    let all = rig.sharing.gate.enter(&tenant, Class::Read, PLACES).await;
    let queued = ask("hog");
    sleep(MS).await;
    assert!(!queued.is_finished());
    rig.awaited.notify_waiters();
    assert!(queued.await.unwrap() <= 2 * MS);
    drop(all);
}

#[test]
fn what_others_may_wait_for_is_told_by_what_is_asked() {
    let lock = |kind: Kind, ticket, held| {
        let lock = v1::Lock { kind: kind.into(), ..Default::default() };
        Op::SetLock(v1::SetLockOp { lock: Some(lock), ticket, held })
    };
    // The waiter with this ticket has its turn.
    let of = |op: &Op| Urgency::of(Some(op), |op| op.ticket == 7);
    assert_eq!(of(&lock(Kind::None, 0, false)), Urgency::Freeing);
    assert_eq!(of(&lock(Kind::Write, 0, true)), Urgency::Freeing);
    assert_eq!(of(&lock(Kind::Write, 7, false)), Urgency::Freeing);
    for ticket in [0, 8] {
        assert_eq!(of(&lock(Kind::Write, ticket, false)), Urgency::Common);
    }
    let count = |urgency| {
        let every = Op::every();
        every.iter().filter(|op| of(op) == urgency).count()
    };
    let counts = ALL.map(count);
    // Close, CloseSession, EndSession and SetLock of nothing; Renew, Recalls, ReturnLeases and
    // CancelLock.
    assert_eq!(counts, [Op::every().len() - 8, 4, 4]);
    for (op, urgency) in [
        (Op::Renew(Default::default()), Urgency::SignOfLife),
        (Op::Recalls(Default::default()), Urgency::SignOfLife),
        (Op::ReturnLeases(Default::default()), Urgency::SignOfLife),
        (Op::CancelLock(Default::default()), Urgency::SignOfLife),
        (Op::Close(Default::default()), Urgency::Freeing),
        (Op::CloseSession(Default::default()), Urgency::Freeing),
        (Op::EndSession(Default::default()), Urgency::Freeing),
    ] {
        assert_eq!(of(&op), urgency, "{op:?}");
    }
}
