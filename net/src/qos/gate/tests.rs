//! The gate under a clock that stands still unless everybody waits.

use super::super::tenants::Tenants;
use super::*;
use proptest::prelude::*;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::task::JoinSet;
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);
const MIB: u64 = 1 << 20;

fn window(start: u64) -> Window {
    Window { start, min: MIB, max: 64 * MIB, aim: 10 * MS }
}

fn gate() -> Gate {
    Gate::new(window(8 * MIB), window(8 * MIB))
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_one_does_not_hold_up_another() {
    let (gate, tenants) = (gate(), Arc::new(Tenants::default()));
    let mut storm = JoinSet::new();
    for n in 0..400 {
        let (gate, tenants) = (gate.clone(), tenants.clone());
        storm.spawn(async move {
            let tenant = tenants.get(&format!("writer {}", n % 4));
            let pass = gate.enter(&tenant, Class::Write, 4 * MIB).await;
            sleep(10 * MS).await;
            drop(pass);
        });
    }
    // Until each of them has had something.
    sleep(51 * MS).await;
    let victim = tenants.get("victim");
    for _ in 0..20 {
        let begun = Instant::now();
        drop(gate.enter(&victim, Class::Read, 4096).await);
        assert_eq!(begun.elapsed(), Duration::ZERO, "a read waits for no writes");
        drop(gate.enter(&victim, Class::Write, 4096).await);
        assert!(begun.elapsed() <= 10 * MS, "a write is next: {:?}", begun.elapsed());
    }
    while storm.join_next().await.is_some() {}
    let begun = Instant::now();
    drop(gate.enter(&victim, Class::Write, 64 * MIB).await);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn who_is_dropped_at_any_moment_gives_its_place_back() {
    let (gate, tenants) = (gate(), Tenants::default());
    let tenant = tenants.get("any");
    let first = gate.enter(&tenant, Class::Write, 16 * MIB).await;
    let mut waiting: Vec<_> =
        (0..10).map(|_| Box::pin(gate.enter(&tenant, Class::Write, 16 * MIB))).collect();
    for wait in &mut waiting {
        assert!(tokio::time::timeout(MS, wait).await.is_err());
    }
    // Some before they were let in, and one that was, and does not know it yet.
    waiting.drain(..5);
    drop(first);
    drop(waiting.remove(0));
    let second = tokio::time::timeout(MS, waiting.remove(0)).await.unwrap();
    assert!(tokio::time::timeout(MS, &mut waiting[0]).await.is_err());
    drop((second, waiting));
    let all = tokio::time::timeout(MS, gate.enter(&tenant, Class::Write, 1));
    drop(all.await.unwrap());
    assert!(!gate.0.state.lock().queue.is_short(1));
}

/// What happens next to somebody, who may have gone meanwhile.
#[derive(Clone, Debug)]
enum Step {
    Come { tenant: u8, write: bool, cost: u64 },
    Look(usize),
    Leave(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let come = (0..4u8, any::<bool>(), 1..=4 * MIB);
    let step = prop_oneof![
        3 => come.prop_map(|(tenant, write, cost)| Step::Come { tenant, write, cost }),
        3 => any::<usize>().prop_map(Step::Look),
        2 => any::<usize>().prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 1..300)
}

/// Somebody who waits, or is inside and has a pass.
struct Guest<'a> {
    waits: Pin<Box<dyn Future<Output = Pass> + 'a>>,
    pass: Option<Pass>,
}

impl Guest<'_> {
    /// Whether it is inside.
    fn look(&mut self) -> bool {
        if self.pass.is_none()
            && let Poll::Ready(pass) =
                self.waits.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.pass = Some(pass);
        }
        self.pass.is_some()
    }
}

proptest! {
    #[test]
    fn whoever_goes_at_whatever_moment_all_others_are_let_in(steps in steps()) {
        let (gate, tenants) = (gate(), Tenants::default());
        let tenants: Vec<_> = (0..4).map(|n| tenants.get(&n.to_string())).collect();
        let mut guests: Vec<Guest<'_>> = Vec::new();
        for step in steps {
            let count = guests.len().max(1);
            match step {
                Step::Come { tenant, write, cost } => {
                    let class = if write { Class::Write } else { Class::Read };
                    let waits = gate.enter(&tenants[usize::from(tenant)], class, cost);
                    guests.push(Guest { waits: Box::pin(waits), pass: None });
                }
                Step::Look(at) if !guests.is_empty() => _ = guests[at % count].look(),
                // One that waits, one that was let in and has not heard of it, or one inside.
                Step::Leave(at) if !guests.is_empty() => drop(guests.swap_remove(at % count)),
                Step::Look(_) | Step::Leave(_) => {}
            }
        }
        // Who is inside goes; then all others have been there some time.
        while !guests.is_empty() {
            let before = guests.len();
            guests.retain_mut(|guest| !guest.look());
            prop_assert!(guests.len() < before, "{before} wait for ever");
        }
        let state = gate.0.state.lock();
        prop_assert!(!state.queue.is_short(0) && !state.queue.is_short(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_absurd_length_waits_and_ends_as_others_do() {
    let (gate, tenants) = (gate(), Tenants::default());
    let tenant = tenants.get("any");
    let all: Vec<_> = (0..8).map(|_| gate.enter(&tenant, Class::Read, u64::MAX)).collect();
    for enter in all {
        drop(tokio::time::timeout(MS, enter).await.unwrap());
    }
    let pass = gate.enter(&tenant, Class::Read, u64::MAX).await;
    let mut waits = Box::pin(gate.enter(&tenant, Class::Read, u64::MAX));
    assert!(tokio::time::timeout(MS, &mut waits).await.is_err());
    drop(pass);
    drop(tokio::time::timeout(MS, waits).await.unwrap());
}

/// Has so many write through a gate to something that does so many bytes a second, one request
/// after the other. Answers the window at the end.
async fn drive(rate: u64) -> u64 {
    let (gate, tenants) = (gate(), Arc::new(Tenants::default()));
    let busy = Arc::new(tokio::sync::Mutex::new(()));
    let mut all = JoinSet::new();
    for n in 0..64 {
        let (gate, tenants, busy) = (gate.clone(), tenants.clone(), busy.clone());
        all.spawn(async move {
            let tenant = tenants.get(&n.to_string());
            let mut window = 0;
            for _ in 0..40 {
                window = gate.window(Class::Write);
                let _pass = gate.enter(&tenant, Class::Write, MIB).await;
                let _drive = busy.lock().await;
                sleep(Duration::from_secs_f64(MIB as f64 / rate as f64)).await;
            }
            window
        });
    }
    // All others still want something when the first has all it wanted.
    all.join_next().await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_window_is_what_is_done_in_the_time_that_requests_are_to_take() {
    for rate in [200 * MIB, 500 * MIB, 1000 * MIB] {
        let (window, wanted) = (drive(rate).await, rate / 100);
        assert!((wanted / 2..wanted * 2).contains(&window), "{rate}: {window}, not {wanted}");
    }
    assert!(drive(20 * MIB).await <= 2 * MIB, "no less than the least");
}
