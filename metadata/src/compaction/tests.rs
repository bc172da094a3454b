//! Which parts of files are written again, and that this comes to an end.

use super::*;
use crate::schema::{Group, Inode};
use crate::store::{Memory, Txn};
use crate::tables::content::Edit;
use proptest::prelude::*;
use weft_proto::{Profile, SessionId};

const INO: InodeId = InodeId(9);
const BLOCK: u64 = 4096;

fn layout() -> Layout {
    let layout = Layout::for_profile(Profile::ec(4, 2).unwrap());
    Layout { segment_len: 1 << 20, ..layout }
}

fn info(seq: u64, length: u64, seats: usize) -> v1::SegmentInfo {
    let layout = layout();
    let profile = layout.profile.fit(length, layout.unit, seats).unwrap();
    let id = Some(SegmentId { session: SessionId(1), seq }.into());
    let unit = layout.unit;
    let profile = Some(profile.into());
    v1::SegmentInfo { id, profile, unit, length, pg: 1, ..Default::default() }
}

fn piece(info: &v1::SegmentInfo, file_off: u64, off: u64, len: u64) -> v1::Extent {
    let source = Some(Source::Segment(v1::SegmentPart { id: info.id, off }));
    v1::Extent { file_off, len, source }
}

/// Commits these pieces.
fn commit(memory: &Memory, pieces: Vec<v1::Extent>, new: &[v1::SegmentInfo]) {
    let base = memory.snapshot();
    let mut tx = Txn::new(&*base);
    let state: &dyn Read = &*base;
    let pg = v1::PgInfo { id: 1, targets: (1..=6).collect(), ..Default::default() };
    tx.put(schema::group(1), &Group { info: pg, ..Default::default() });
    let attr = v1::Attr { ino: INO.0, nlink: 1, ..Default::default() };
    let made = Inode { attr, layout: Some(layout().into()), ..Default::default() };
    let mut edit = Edit::new(state.inode(INO).unwrap().unwrap_or(made));
    for piece in pieces {
        edit.insert(&mut tx, piece).unwrap();
    }
    edit.finish(&mut tx, new).unwrap();
    memory.write(tx.into_changes());
}

fn look(memory: &Memory, now: usize) -> Page {
    page(&*memory.snapshot(), INO, 0, Seats { now, all: 6 }).unwrap().unwrap()
}

fn is_listed(memory: &Memory) -> bool {
    Read::get(&*memory.snapshot(), &schema::scattered(INO)).unwrap().is_some()
}

/// Writes every part again, as a storage daemon does; answers how many bytes.
fn write_again(memory: &Memory, page: Page, seq: &mut u64, seats: usize) -> u64 {
    let mut bytes = 0;
    for part in page.parts {
        *seq += 1;
        let new = info(*seq, part.bytes, seats);
        let mut at = 0;
        let pieces = part.extents.iter().map(|e| {
            at += e.len;
            piece(&new, e.file_off, at - e.len, e.len)
        });
        commit(memory, pieces.collect(), std::slice::from_ref(&new));
        bytes += part.bytes;
    }
    bytes
}

#[test]
fn a_file_that_was_written_in_one_go_is_left_alone() {
    let memory = Memory::default();
    for at in 0..4 {
        let info = info(at + 1, 1 << 20, 6);
        commit(&memory, vec![piece(&info, at << 20, 0, 1 << 20)], &[info]);
    }
    assert!(!is_listed(&memory));
    let tail = info(9, 5000, 6);
    commit(&memory, vec![piece(&tail, 4 << 20, 0, 5000)], &[tail]);
    assert!(look(&memory, 6).parts.is_empty(), "a short end alone is nothing");
}

#[test]
fn small_appends_become_one_and_dead_bytes_go() {
    let memory = Memory::default();
    for at in 0..50 {
        let info = info(at + 1, BLOCK, 6);
        commit(&memory, vec![piece(&info, at * BLOCK, 0, BLOCK)], &[info]);
    }
    assert!(is_listed(&memory));
    let found = look(&memory, 6);
    assert_eq!((found.parts.len(), found.parts[0].extents.len()), (1, 50));
    // Half of a long segment is overwritten by another.
    let (one, other) = (info(100, 1 << 20, 6), info(101, 1 << 19, 6));
    let memory = Memory::default();
    commit(&memory, vec![piece(&one, 0, 0, 1 << 20)], std::slice::from_ref(&one));
    commit(&memory, vec![piece(&other, 0, 0, 1 << 19)], &[other]);
    assert!(is_listed(&memory));
    let found = look(&memory, 6);
    assert_eq!(found.parts.len(), 1);
    assert_eq!(found.parts[0].extents[0].file_off, 1 << 19);
}

/// Else all of a log would be written again at each line.
#[test]
fn what_lies_in_one_place_for_the_most_part_waits_for_more() {
    let memory = Memory::default();
    let (long, lines) = (info(1, 25 * BLOCK, 6), [2, 3].map(|seq| info(seq, 5 * BLOCK, 6)));
    commit(&memory, vec![piece(&long, 0, 0, 25 * BLOCK)], &[long]);
    for (line, at) in lines.iter().zip([25, 30]) {
        commit(&memory, vec![piece(line, at * BLOCK, 0, 5 * BLOCK)], std::slice::from_ref(line));
        assert!(look(&memory, 6).parts.is_empty());
    }
    let more = info(4, 16 * BLOCK, 6);
    commit(&memory, vec![piece(&more, 35 * BLOCK, 0, 16 * BLOCK)], &[more]);
    assert_eq!(look(&memory, 6).parts.len(), 1);
}

#[test]
fn what_was_written_with_few_targets_waits_for_more() {
    let memory = Memory::default();
    let narrow = info(1, 1 << 20, 4);
    commit(&memory, vec![piece(&narrow, 0, 0, 1 << 20)], &[narrow]);
    assert!(is_listed(&memory));
    let found = look(&memory, 4);
    assert!(found.parts.is_empty() && found.waits);
    let found = look(&memory, 6);
    assert!(found.parts.len() == 1 && !found.waits);
}

#[test]
fn what_several_files_show_is_shared_still() {
    let memory = Memory::default();
    let info = info(1, 1 << 20, 6);
    let twice = [0, 1 << 20].map(|at| piece(&info, at, 0, 1 << 20)).to_vec();
    commit(&memory, twice, std::slice::from_ref(&info));
    let tails = [(2 << 20), (3 << 20)].map(|at| piece(&info, at, 100, BLOCK)).to_vec();
    commit(&memory, tails, &[]);
    assert!(look(&memory, 6).parts.is_empty());
}

/// Two segments that cannot become one took from each other for ever.
#[test]
fn two_segments_do_not_take_from_each_other_for_ever() {
    let memory = Memory::default();
    for (seq, (at, blocks, pieces, seats)) in
        (1..).zip([(136, 39, 1, 4), (301, 59, 2, 6), (157, 59, 2, 4)])
    {
        write(&memory, seq, at, blocks, pieces, seats);
    }
    let mut seq = 3;
    let turns = (0..10).take_while(|_| write_again(&memory, look(&memory, 6), &mut seq, 6) > 0);
    assert!(turns.count() < 4);
}

/// One segment whose pieces lie apart in the file.
fn write(memory: &Memory, seq: u64, at: u64, blocks: u64, pieces: u64, seats: usize) {
    let len = blocks * BLOCK;
    let info = info(seq, len * pieces, seats);
    let at = |i: u64| (at + i * (blocks + 7)) * BLOCK;
    let all = (0..pieces).map(|i| piece(&info, at(i), i * len, len)).collect();
    commit(memory, all, std::slice::from_ref(&info));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever a file is made of, after some looks nothing is worth it any more, and little
    /// room is taken by what nobody shows.
    #[test]
    fn it_comes_to_an_end(
        writes in prop::collection::vec((0u64..600, 1u64..260, 1usize..4, 4usize..7), 1..60),
    ) {
        let memory = Memory::default();
        let mut seq = 0;
        for (at, blocks, pieces, seats) in writes {
            seq += 1;
            write(&memory, seq, at, blocks, pieces as u64, seats);
        }
        let mut turns = 0;
        loop {
            let found = look(&memory, 6);
            let full = found.next.is_none();
            let bytes = write_again(&memory, found, &mut seq, 6);
            if bytes == 0 && full {
                break;
            }
            turns += 1;
            prop_assert!(turns < 40, "it goes on and on");
        }
        let (mut live, mut held) = (0, 0);
        let state = memory.snapshot();
        let state: &dyn Read = &*state;
        state.records(schema::all(schema::Tag::Segment), |_, s: Segment| {
            (live, held) = (live + s.live_bytes, held + s.info.length);
            Ok(true)
        }).unwrap();
        prop_assert!(held * 10 <= live * 13, "{held} bytes are held for {live}");
    }
}
