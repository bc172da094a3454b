//! Tests of fsck.

use super::*;

#[test]
fn what_lies_on_a_target_that_is_away_is_not_mended() {
    let chunk = ChunkId::default();
    let missing = |id| Finding::Missing { chunk, target: TargetId(id), expected: 4096 };
    let away = |why: &str| Finding::Unreachable { target: TargetId(1), why: why.into() };
    let now = FsckReport { findings: vec![away("refused")], ..Default::default() };
    assert!(is_left(&missing(1), &now) && is_left(&away("connection lost"), &now));
    assert!(!is_left(&missing(2), &now));
    let now = FsckReport { findings: vec![missing(2)], ..Default::default() };
    assert!(is_left(&missing(2), &now) && !is_left(&missing(1), &now));
}

#[test]
fn how_long_it_takes_follows_from_how_far_it_is() {
    let second = Duration::from_secs(1);
    let listing = |listed| FsckProgress::Chunks { target: TargetId(3), listed };
    let said = |listed, expected, elapsed| describe(&listing(listed), expected, elapsed);
    assert_eq!(said(10, 0, 9 * second), "listing chunks, at target 3: 10");
    assert_eq!(said(10, 40, second), "listing chunks, at target 3: 10, 25 %");
    assert_eq!(said(10, 40, 9 * second), "listing chunks, at target 3: 10, 25 %, 27 s left");
    assert_eq!(said(41, 40, 9 * second), "listing chunks, at target 3: 41, 100 %, 0 s left");
    assert_eq!(said(0, 40, 9 * second), "listing chunks, at target 3: 0");
    let comparing = FsckProgress::Segments { segments: 7, explained: 30, chunks: 40 };
    let said = describe(&comparing, u64::MAX, 9 * second);
    assert_eq!(said, "comparing segments: 7, 75 %, 3 s left");
}
