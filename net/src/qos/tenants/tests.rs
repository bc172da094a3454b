//! Who is told apart, forgotten, and kept back for how long.

use super::*;

fn policy(name: &str, limits: Limits) -> Policy {
    Policy { named: [(name.to_owned(), limits)].into(), ..Policy::default() }
}

#[tokio::test(start_paused = true)]
async fn only_who_has_a_rate_waits_and_no_longer_than_it_can() {
    let tenants = Tenants::default();
    tenants.set_policy(policy("slow", Limits { bytes: Some(1 << 20), ..Limits::default() }));
    let (slow, other) = (tenants.get("slow"), tenants.get("other"));
    let begun = Instant::now();
    let far = begun + Duration::from_secs(100);
    for _ in 0..10 {
        other.keep_pace(1, 1 << 30, far).await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    for _ in 0..10 {
        slow.keep_pace(1, 1 << 20, far).await;
    }
    let took = begun.elapsed();
    assert!((8.8..=9.0).contains(&took.as_secs_f64()), "{took:?}");
    slow.keep_pace(1, 64 << 20, Instant::now()).await;
    assert_eq!(begun.elapsed(), took, "it cannot wait");
    tenants.set_policy(Policy::default());
    slow.keep_pace(1, 1 << 30, far).await;
    assert_eq!(begun.elapsed(), took, "it has no rate any more");
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_owes_nothing() {
    let tenants = Tenants::default();
    let limits = Limits { requests: Some(10), ..Limits::default() };
    tenants.set_policy(Policy { default: limits, ..Policy::default() });
    let tenant = tenants.get("any");
    let far = Instant::now() + Duration::from_secs(100);
    tenant.keep_pace(2, 0, far).await;
    for _ in 0..50 {
        let soon = tokio::time::timeout(Duration::from_millis(1), tenant.keep_pace(5, 0, far));
        assert!(soon.await.is_err());
    }
    let begun = Instant::now();
    tenant.keep_pace(1, 0, far).await;
    assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
}

#[test]
fn so_many_are_told_apart_and_reported_the_most_first() {
    let tenants = Tenants::default();
    for n in 0..2 * MAX_TENANTS {
        tenants.get(&n.to_string()).note_served(1, n as u64, 0);
    }
    let report = tenants.report(64);
    assert_eq!((report.len(), &report[0].tenant[..]), (64, OTHERS));
    assert_eq!(report[1].tenant, (MAX_TENANTS - 1).to_string());
    assert!(tenants.report(64).is_empty(), "nothing since");
}

#[tokio::test(start_paused = true)]
async fn who_was_idle_is_forgotten_and_others_are_told_apart_again() {
    let tenants = Tenants::default();
    let kept = tenants.get("0");
    (0..2 * MAX_TENANTS).for_each(|n| drop(tenants.get(&n.to_string())));
    let names = |tenants: &Tenants| {
        let by_name = tenants.by_name.read();
        by_name.keys().map(|name| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&tenants).len(), MAX_TENANTS + 1);
    tokio::time::advance(IDLE - SWEEP).await;
    assert_eq!(&*tenants.get("late").name, OTHERS);
    tenants.get("7");
    tokio::time::advance(SWEEP).await;
    // Nobody has asked for a report.
    assert_eq!(&*tenants.get("late").name, "late");
    let mut left = names(&tenants);
    left.sort();
    assert_eq!(left, [OTHERS, "0", "7", "late"], "who is at work is not idle");
    drop(kept);
    tokio::time::advance(IDLE).await;
    tenants.report(64);
    assert!(names(&tenants).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_default_does_not_bind_daemons_at_work_but_a_rule_of_theirs_does() {
    let slow = Limits { weight: 7, bytes: Some(1), requests: Some(1) };
    let tenants = Tenants::default();
    tenants.set_policy(Policy { default: slow, ..policy("weft:other", slow) });
    let begun = Instant::now();
    let until = begun + Duration::from_secs(5);
    let rebuild = tenants.get("weft:rebuild");
    for _ in 0..10 {
        rebuild.keep_pace(1, 1 << 20, until).await;
    }
    assert_eq!((begun.elapsed(), rebuild.weight()), (Duration::ZERO, USUAL_WEIGHT));
    tenants.get("weft:other").keep_pace(1, 1 << 20, until).await;
    assert_eq!(begun.elapsed(), Duration::ZERO, "the first is free");
    tenants.get("weft:other").keep_pace(1, 1 << 20, until).await;
    assert_eq!(Instant::now(), until);
    tenants.get("any").owe(5, 0);
    tenants.get("any").keep_pace(1, 0, until + Duration::from_secs(3)).await;
    assert_eq!(Instant::now(), until + Duration::from_secs(3), "what was owed is paid");
}
