//! Tests of sweep.

use super::*;

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
