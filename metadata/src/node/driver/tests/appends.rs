//! What leaves for a follower, and what is taken from a leader, is the log in one piece.

use super::*;
use proptest::prelude::*;

/// What reaches a leader between two looks at what it sends.
#[derive(Clone, Debug)]
enum Event {
    Propose,
    /// Server 2 hears that there is a leader.
    Hears,
    /// Server 2 has this much, in percent, of what it does not yet have.
    Takes(u64),
    /// Server 2 has not got an append.
    Misses,
    /// What was sent to server 2 is lost.
    Lost,
    Settle,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Propose),
        Just(Event::Hears),
        (0..=100_u64).prop_map(Event::Takes),
        Just(Event::Misses),
        Just(Event::Lost),
        Just(Event::Settle),
    ]
}

fn in_one_piece_to_2(rig: &mut Rig) -> Result<(), String> {
    match rig.sent_to(2).into_iter().find(|m| !in_one_piece(m)) {
        Some(message) => Err(format!("{message:?}")),
        None => Ok(()),
    }
}

/// A follower takes what it is told to follow `index`: with entries that do not, it would say that
/// it has others than it has, and the leader would count on them.
async fn sends_whole_appends(events: Vec<Event>) -> Result<(), String> {
    let mut rig = Rig::leading().await;
    let mut has = rig.driver.raw.raft.raft_log.last_index();
    let mut answers = Vec::new();
    for event in events {
        let term = rig.driver.raw.raft.term;
        let last = rig.driver.raw.raft.raft_log.last_index();
        let answer = Message { term, ..message(2, MessageType::MsgAppendResponse) };
        let step = match event {
            Event::Propose => {
                answers.push(rig.propose(admit(9)));
                continue;
            }
            Event::Hears => Message { term, ..message(2, MessageType::MsgHeartbeatResponse) },
            Event::Takes(percent) => {
                has += (last - has) * percent / 100;
                Message { index: has, ..answer }
            }
            Event::Misses => {
                let log_term = term;
                Message { index: last, reject: true, reject_hint: has, log_term, ..answer }
            }
            Event::Lost => {
                rig.driver.on_lost(&replication::Lost { peer: NodeId(2), snapshot: false });
                continue;
            }
            Event::Settle => {
                rig.settle().await;
                in_one_piece_to_2(&mut rig)?;
                continue;
            }
        };
        rig.driver.on_messages(vec![step]).unwrap();
    }
    rig.settle().await;
    in_one_piece_to_2(&mut rig)
}

#[test]
fn a_leader_sends_its_log_in_one_piece() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let check = |events| runtime.block_on(sends_whole_appends(events));
    // It says how far it has committed, and a moment later what the follower has missed.
    let missed = [Event::Propose, Event::Settle, Event::Hears, Event::Lost, Event::Hears];
    check(missed.to_vec()).unwrap();
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() };
    proptest!(config, |(events in prop::collection::vec(event(), 1..40))| {
        check(events).map_err(TestCaseError::fail)?;
    });
}

#[tokio::test(start_paused = true)]
async fn an_append_that_is_not_in_one_piece_is_not_taken() {
    let mut rig = Rig::following(3, |_| {}).await;
    let whole = || append(3, &[Vec::new(), Vec::new()]);
    let change = |change: fn(&mut Message)| {
        let mut message = whole();
        change(&mut message);
        message
    };
    for broken in [
        // One that it has, said to come after that very one.
        Message { commit: 4, entries: append(2, &[Vec::new()]).entries, ..append(3, &[]) },
        change(|m| drop(m.entries.remove(0))),
        change(|m| m.entries.swap(0, 1)),
        change(|m| m.entries[0].term = 6),
        change(|m| m.entries[1].term = 4),
        change(|m| m.entries[0].term = 0),
        Message { index: u64::MAX, ..whole() },
    ] {
        rig.sent_to(2);
        rig.receive(broken.clone()).await;
        let log = &rig.driver.raw.raft.raft_log;
        assert_eq!((log.last_index(), log.committed), (3, 3), "{broken:?}");
        assert!(rig.sent_to(2).iter().all(|m| m.reject), "{broken:?}");
    }
    rig.receive(whole()).await;
    assert_eq!(rig.driver.raw.raft.raft_log.applied, 5);
}
