//! Ranges in the table of leases.

// One range is asked for.
#![allow(clippy::single_range_in_vec_init)]

use super::*;
use crate::soft::leases::tests::{A, B, C, INO, recalls, table};
use crate::soft::leases::{COOL, Use};
use proptest::prelude::*;

/// `Some(None)`: something has to be given back first. Else how many records were granted.
fn ask(l: &mut Leases, now: Instant, of: SessionId, records: &[Range<u64>]) -> Option<Option<u32>> {
    l.serve_ranges(now, of, INO, records).map(|granted| granted.map(|grant| grant.records))
}

fn bytes(ranges: &[Range<u64>]) -> ByteRanges {
    let mut all = ByteRanges::default();
    ranges.iter().for_each(|range| all.insert(range.clone()));
    all
}

fn give_back(l: &mut Leases, of: SessionId) {
    for (seq, keep_read) in recalls(l, of) {
        l.returned(of, INO, seq, keep_read);
    }
}

#[test]
fn ranges_lie_side_by_side_as_far_as_they_are_free() {
    let (mut l, now) = table();
    assert_eq!(ask(&mut l, now, A, &[0..10, 20..30, 40..50]), Some(Some(3)));
    // The third of these is held: so it ends before that.
    assert_eq!(ask(&mut l, now, B, &[10..20, 30..40, 45..55, 60..70]), Some(Some(2)));
    assert!(recalls(&l, A).is_empty() && recalls(&l, B).is_empty());
    // What is wanted first is recalled, and all of it goes.
    assert_eq!(ask(&mut l, now, B, &[45..55]), None);
    assert!(!recalls(&l, A)[0].1 && recalls(&l, B).is_empty());
    assert_eq!(ask(&mut l, now, A, &[80..90]), Some(None), "it has to give back first");
    give_back(&mut l, A);
    assert_eq!(ask(&mut l, now, B, &[45..55]), Some(Some(1)));
    assert_eq!(ask(&mut l, now, A, &[0..10]), Some(Some(1)));
}

#[test]
fn who_reads_or_changes_the_file_has_all_ranges_recalled() {
    let (mut l, now) = table();
    for what in [Use::Read, Use::Change] {
        ask(&mut l, now, A, &[0..10]).flatten().unwrap();
        ask(&mut l, now, B, &[10..20]).flatten().unwrap();
        assert!(l.grant(now, C, INO, Mode::Read, true).is_none());
        assert!(!l.recall(now, C, INO, what));
        // Nothing is left of ranges to read with.
        assert!([A, B].iter().all(|s| !recalls(&l, *s)[0].1));
        give_back(&mut l, A);
        assert!(!l.recall(now, C, INO, what));
        give_back(&mut l, B);
        assert!(l.recall(now, C, INO, what));
        let seq = l.grant(now, C, INO, Mode::Read, true).unwrap().seq;
        // And whoever reads gives that back before somebody writes.
        assert_eq!(ask(&mut l, now, A, &[0..10]), None);
        l.returned(C, INO, seq + 1, false);
    }
    // Who gave ranges back is not given the whole file right after.
    ask(&mut l, now, A, &[0..10]).flatten().unwrap();
    l.returned(A, INO, u64::MAX, false);
    let later = Instant::now();
    assert!(l.grant(later, A, INO, Mode::Write, false).is_none());
    assert!(l.grant(later + COOL, A, INO, Mode::Write, false).is_some());
}

/// However many write it: they would hold others up for as long as they go on.
#[test]
fn who_maps_the_file_has_no_ranges_recalled() {
    let (mut l, now) = table();
    ask(&mut l, now, A, &[0..10]).flatten().unwrap();
    let mut asked = 0;
    assert_eq!(l.map(now, B, INO, &mut asked), Some(true));
    assert_eq!(l.map(now, C, INO, &mut asked), None);
    assert!(recalls(&l, A).is_empty());
    assert_eq!(recalls(&l, B), [(asked, true)], "who has the right is asked");
    l.map_answered(B, INO, asked, true);
    assert_eq!(l.map(now, C, INO, &mut asked), Some(false));
    // With a lease to write all comes the right to map it.
    l.returned(A, INO, u64::MAX, false);
    l.map_answered(B, INO, u64::MAX, false);
    let later = Instant::now() + COOL;
    l.grant(later, A, INO, Mode::Write, true).unwrap();
    assert_eq!(l.map(later, C, INO, &mut asked), None);
    let (seq, keep_read) = recalls(&l, A)[0];
    assert!(keep_read);
    l.returned(A, INO, seq, keep_read);
    assert_eq!(l.map(later, C, INO, &mut asked), Some(true));
}

#[test]
fn who_reads_what_it_writes_keeps_reading_when_others_read() {
    let (mut l, now) = table();
    ask(&mut l, now, A, &[0..10]).flatten().unwrap();
    assert!(!l.grant(now, A, INO, Mode::Read, true).unwrap().write);
    // It knows of all bytes, so nobody else may write any.
    assert_eq!(ask(&mut l, now, B, &[10..20]), None);
    let (seq, keep_read) = recalls(&l, A)[0];
    assert!(!keep_read);
    l.returned(A, INO, seq, false);
    assert_eq!(ask(&mut l, now, B, &[10..20]), Some(Some(1)));
    give_back(&mut l, B);
    l.returned(B, INO, u64::MAX, false);
    ask(&mut l, now, A, &[0..10]).flatten().unwrap();
    l.grant(now, A, INO, Mode::Read, true).unwrap();
    assert!(!l.recall(now, B, INO, Use::Read));
    let (seq, keep_read) = recalls(&l, A).pop().unwrap();
    assert!(keep_read);
    l.returned(A, INO, seq, true);
    assert!(l.recall(now, B, INO, Use::Read) && !l.recall(now, B, INO, Use::Change));
}

#[test]
fn what_is_being_committed_keeps_readers_away_and_no_writer() {
    let (mut l, now) = table();
    ask(&mut l, now, A, &[0..10]).flatten().unwrap();
    let (number, is_own) = l.begin_write(A, INO, &bytes(&[0..5, 5..10]), true).unwrap();
    assert!(is_own);
    assert_eq!(ask(&mut l, now, B, &[10..20]), Some(Some(1)));
    // The answer was lost, and it gives them back: that can still take effect.
    l.recall(now, C, INO, Use::Read);
    give_back(&mut l, A);
    give_back(&mut l, B);
    assert!(l.recall(now, C, INO, Use::Read));
    assert!(l.grant(now, C, INO, Mode::Read, true).is_none());
    assert_eq!(ask(&mut l, now, B, &[10..20]), Some(Some(1)));
    assert_eq!(ask(&mut l, now, B, &[20..30, 5..6]), Some(Some(1)));
    assert_eq!(ask(&mut l, now, B, &[5..6]), None, "what is written there then comes later");
    l.returned(B, INO, u64::MAX, false);
    l.written(INO, number);
    assert!(l.grant(now, C, INO, Mode::Read, true).is_some());
}

#[test]
fn what_is_committed_without_a_right_has_only_those_bytes_recalled() {
    let (mut l, now) = table();
    assert_eq!(l.begin_write(C, INO, &bytes(&[0..5]), false), None, "nobody holds ranges");
    ask(&mut l, now, A, &[0..10]).flatten().unwrap();
    ask(&mut l, now, B, &[10..20]).flatten().unwrap();
    // Neither what nobody holds, nor what is partly its own.
    for (by, range) in [(C, 20..30), (A, 5..10), (A, 30..40)] {
        let written = bytes(std::slice::from_ref(&range));
        let (number, _) = l.begin_write(by, INO, &written, false).unwrap();
        assert!(l.recall_ranges(now, by, INO, &written));
        // Nobody else is granted these bytes meanwhile, or may read.
        assert_eq!(ask(&mut l, now, B, &[18..19, range.start..range.end]), Some(Some(1)));
        assert_eq!(ask(&mut l, now, B, &[range]), None);
        assert!(l.grant(now, B, INO, Mode::Read, true).is_none());
        l.written(INO, number);
        give_back(&mut l, A);
        ask(&mut l, now, A, &[0..10]).flatten().unwrap();
    }
    assert!(recalls(&l, B).is_empty());
    assert_eq!(l.begin_write(A, INO, &bytes(&[8..12]), true), None);
    let (number, is_own) = l.begin_write(A, INO, &bytes(&[8..12]), false).unwrap();
    assert!(!is_own && !l.recall_ranges(now, A, INO, &bytes(&[8..12])));
    assert!(recalls(&l, A).is_empty() && !recalls(&l, B).is_empty());
    give_back(&mut l, B);
    assert!(l.recall_ranges(now, A, INO, &bytes(&[8..12])));
    l.written(INO, number);
    // Who reads knows all of it.
    give_back(&mut l, A);
    l.returned(A, INO, u64::MAX, false);
    l.grant(now, C, INO, Mode::Read, true).unwrap();
    assert_eq!(l.begin_write(A, INO, &bytes(&[0..5]), false), None);
    assert!(!l.recall_ranges(now, A, INO, &bytes(&[0..5])) && !recalls(&l, C).is_empty());
}

#[test]
fn a_change_under_way_keeps_ranges_from_being_granted() {
    let (mut l, now) = table();
    l.claim(C, &[INO]);
    assert_eq!(ask(&mut l, now, A, &[0..10]), None);
    l.unclaim(C, &[INO]);
    assert_eq!(ask(&mut l, now, A, &[0..10]), Some(Some(1)));
}

#[test]
fn too_many_are_recalled_from_who_holds_them() {
    let (mut l, now) = table();
    let all: Vec<_> = (0..MAX_RANGES as u64).map(|n| 2 * n..2 * n + 1).collect();
    assert_eq!(ask(&mut l, now, A, &all), Some(Some(MAX_RANGES as u32)));
    assert_eq!(ask(&mut l, now, A, &[u64::MAX - 1..u64::MAX]), Some(None));
    give_back(&mut l, A);
    assert_eq!(ask(&mut l, now, A, &[u64::MAX - 1..u64::MAX]), Some(Some(1)));
}

#[test]
fn a_new_leader_is_told() {
    let (mut l, now) = table();
    l.declared_ranges(A, &[(INO, 0..10), (INO, 20..30)], 2);
    assert_eq!(ask(&mut l, now, B, &[10..20, 20..30]), Some(Some(1)));
    assert!(!l.recall(now, C, INO, Use::Read));
    assert_eq!((recalls(&l, A).len(), recalls(&l, B).len()), (1, 1));
}

#[derive(Clone, Debug)]
enum Step {
    Ranges(u64, Vec<Range<u64>>),
    Lease(u64, bool),
    Answer(u64),
    Return(u64),
    /// Writes what it need not hold, or ends the oldest that does.
    Write(u64, Range<u64>),
    Written,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = (0..40_u64, 1..8_u64).prop_map(|(at, len)| at..at + len);
    let who = || 1..4_u64;
    let step = prop_oneof![
        3 => (who(), range.clone()).prop_map(|(s, range)| Step::Write(s, range)),
        2 => Just(Step::Written),
        4 => (who(), prop::collection::vec(range, 1..4)).prop_map(|(s, r)| Step::Ranges(s, r)),
        2 => (who(), any::<bool>()).prop_map(|(s, write)| Step::Lease(s, write)),
        4 => who().prop_map(Step::Answer),
        1 => who().prop_map(Step::Return),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Whatever is asked for and given back, in whatever order.
    #[test]
    fn no_two_sessions_may_buffer_the_same_bytes_or_read_what_another_buffers(steps in steps()) {
        let (mut l, now) = table();
        let mut writes: Vec<(u64, SessionId, ByteRanges, bool)> = Vec::new();
        for step in steps {
            match step {
                Step::Write(s, range) => {
                    let (by, written) = (SessionId(s), bytes(&[range]));
                    if let Some((number, _)) = l.begin_write(by, INO, &written, false) {
                        writes.push((number, by, written, false));
                    }
                }
                Step::Written if !writes.is_empty() => l.written(INO, writes.remove(0).0),
                Step::Written => {}
                Step::Ranges(s, records) => {
                    let _ = l.serve_ranges(now, SessionId(s), INO, &records);
                }
                Step::Lease(s, write) => {
                    let mode = if write { Mode::Write } else { Mode::Read };
                    let _ = l.serve(now, SessionId(s), INO, mode);
                }
                Step::Answer(s) => give_back(&mut l, SessionId(s)),
                Step::Return(s) => l.returned(SessionId(s), INO, u64::MAX, false),
            }
            // Who may go on to write stays the only one who may.
            for (_, by, written, clear) in &mut writes {
                let is_clear = l.recall_ranges(now, *by, INO, written);
                prop_assert!(is_clear || !*clear);
                *clear = is_clear;
            }
            let holders = l.inodes.get(&INO).map_or(&[][..], |lease| &lease.holders);
            for (n, a) in holders.iter().enumerate() {
                for b in &holders[n + 1..] {
                    prop_assert!(a.mode != Mode::Write && b.mode != Mode::Write);
                    let overlap = a.ranges.iter().any(|range| b.ranges.overlaps(&range));
                    prop_assert!(!overlap);
                    let reads = |h: &Holder| h.mode == Mode::Read;
                    prop_assert!(!(reads(a) && b.buffers() || reads(b) && a.buffers()));
                }
            }
        }
        // Everybody answers, and nobody is left waiting.
        [A, B, C].into_iter().for_each(|s| give_back(&mut l, s));
        prop_assert!([A, B, C].iter().all(|s| recalls(&l, *s).is_empty()));
        prop_assert!([A, B, C].iter().all(|s| !l.owes(*s, INO)));
    }
}
