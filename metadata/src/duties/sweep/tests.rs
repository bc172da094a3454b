//! Tests of sweep.

use super::*;

#[test]
fn what_a_target_lacks_and_did_not_fit_is_looked_for_again_when_there_is_room() {
    let (mut swept, now, target) = (Swept::default(), Instant::now(), TargetId(1));
    let up = |opened| BTreeMap::from([(target, Up { address: String::new(), opened })]);
    let later = now + SUSPECT_INTERVAL;
    assert_eq!(swept.whole_due(now, &up(3), |_| false), [target], "never looked at");
    swept.looked(now, target, 3, false);
    assert!(!swept.known.contains_key(&target));
    assert!(swept.whole_due(now, &up(3), |_| true).is_empty(), "a moment ago");
    assert!(swept.whole_due(later, &up(3), |_| false).is_empty(), "it would not fit");
    assert_eq!(swept.whole_due(later, &up(3), |_| true), [target]);
    swept.looked(later, target, 3, true);
    let much_later = later + SUSPECT_INTERVAL;
    assert!(swept.whole_due(much_later, &up(3), |_| true).is_empty(), "all is known");
    assert_eq!(swept.whole_due(much_later, &up(4), |_| false), [target], "opened anew");
}

#[test]
fn who_does_not_live_lies_between_who_does() {
    let ended = |live: &[u64], next| {
        let live = live.iter().copied().map(SessionId).collect();
        between(&live, next)
    };
    assert_eq!(ended(&[], 1), [0..=0]);
    assert_eq!(ended(&[1, 2], 3), [0..=0]);
    assert_eq!(ended(&[2, 5], 9), [0..=1, 3..=4, 6..=8]);
    // Some began after the number of the next one was read.
    assert_eq!(ended(&[2, 9, 11], 9), [0..=1, 3..=8]);
    assert_eq!(ended(&[u64::MAX], u64::MAX), [0..=u64::MAX - 1]);
}
