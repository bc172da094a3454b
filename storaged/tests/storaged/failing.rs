//! A drive that answers with errors, behind the engine.

use crate::power::{Drive, Faults, Recorder, copy_index, runtime, start, start_again, superblock};
use crate::support::{data, id};
use std::path::Path;
use tempfile::tempdir;
use weft_proto::{ErrorKind, TargetId, Uuid};
use weft_storaged::engine::{Engine, Superblock, Unread};

async fn put(engine: &Engine, seq: u64, version: u64) -> weft_proto::Result<()> {
    let (bytes, sums) = data(id(0, seq, 0), 5, version);
    engine.put(id(0, seq, 0), bytes, sums).await
}

/// The chunks that [`worked`] leaves.
const LEFT: std::ops::Range<u64> = 2..6;

/// A drive that took puts and deletes, in `<dir>/old` its index as a crash left it, which knows
/// nothing of them, and in `<dir>/whole` one that knows.
fn worked(dir: &Path, superblock: &Superblock) -> Vec<u8> {
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, superblock, &dir.join("whole")).unwrap();
    copy_index(&dir.join("whole"), &dir.join("old")).unwrap();
    runtime().block_on(async {
        for seq in (1..LEFT.end - 1).chain([LEFT.end]) {
            put(&engine, seq, 0).await.unwrap();
        }
        engine.delete(vec![id(0, 1, 0), id(0, LEFT.end, 0)]).await.unwrap();
        put(&engine, LEFT.end - 1, 0).await.unwrap();
        engine.join(Uuid([3; 16]), TargetId(1)).await.unwrap();
    });
    drop(engine);
    recorder.contents()
}

/// Whether all chunks are there, whole.
fn has_all(engine: &Engine) -> bool {
    runtime().block_on(async {
        for seq in LEFT {
            let (bytes, _) = data(id(0, seq, 0), 5, 0);
            let found = engine.get(id(0, seq, 0), 0, bytes.len() as u64).await;
            if !found.is_ok_and(|range| range.data.concat() == bytes[..]) {
                return false;
            }
        }
        true
    })
}

/// Whatever cannot be read at start, a chunk is not taken for absent: the target does not open, and
/// once the drive is well it has all chunks. With an index to be replayed, and with none.
#[test]
fn a_read_error_at_start_drops_nothing() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let image = worked(dir.path(), &superblock);
    let member = Superblock { cluster: Uuid([3; 16]), ..superblock.clone() };
    let used = superblock.data_block + 7 * 6;
    let mut refused = [0, 0];
    for block in superblock.journal_block..used {
        for (lost, refused) in [false, true].into_iter().zip(&mut refused) {
            let index = dir.path().join("index");
            if !lost {
                copy_index(&dir.path().join("old"), &index).unwrap();
            }
            let (drive, recorder) = Drive::new(image.clone(), 1, None);
            recorder.fail(Faults {
                unreadable: (block * 4096, block * 4096 + 4096),
                ..Faults::default()
            });
            match start(drive, &member, &index) {
                Ok(engine) => {
                    recorder.fail(Faults::default());
                    assert!(has_all(&engine), "block {block}, index lost: {lost}");
                }
                Err(e) => {
                    assert_eq!(e.kind, ErrorKind::Io, "{e}");
                    *refused += 1;
                }
            }
            let (drive, _) = Drive::new(image.clone(), 1, None);
            let engine = start(drive, &member, &index).unwrap();
            assert!(has_all(&engine), "after an error at block {block}, index lost: {lost}");
            drop(engine);
            std::fs::remove_dir_all(&index).unwrap();
        }
    }
    // All headers, and the data of the last put.
    let needed = superblock.journal_blocks + (LEFT.end - LEFT.start) + 5;
    assert_eq!(refused[0], needed, "a replay reads what it needs");
    assert_eq!(refused[1], used - superblock.journal_block, "a rebuild reads everything");
}

fn unreadable(recorder: &Recorder, block: u64) {
    let unreadable = (block * 4096, block * 4096 + 4096);
    recorder.fail(Faults { unreadable, ..Faults::default() });
}

/// Which chunks can be read, and are whole then.
async fn readable(engine: &Engine, seqs: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut found = Vec::new();
    for seq in seqs {
        let (bytes, _) = data(id(0, seq, 0), 5, 0);
        if let Ok(range) = engine.get(id(0, seq, 0), 0, bytes.len() as u64).await {
            assert!(range.data.concat() == bytes[..], "chunk {seq} is another");
            found.push(seq);
        }
    }
    found
}

/// Puts chunks from number 100 on until there is no room; all of them read.
pub async fn fill(engine: &Engine) -> std::ops::Range<u64> {
    let mut last = 100;
    while put(engine, last, 0).await.is_ok() {
        last += 1;
    }
    assert!(last > 150, "it is full");
    assert_eq!(readable(engine, 100..last).await.len() as u64, last - 100);
    100..last
}

/// A block that can never be read keeps no target away: one chunk is lost with it, no other, and
/// the block is used no more. With an index to be replayed, and with none.
#[test]
fn a_block_that_can_never_be_read_is_given_up() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let image = worked(dir.path(), &superblock);
    let member = Superblock { cluster: Uuid([3; 16]), ..superblock.clone() };
    let index = dir.path().join("index");
    let mut given_up = [0, 0];
    for block in superblock.data_block..superblock.data_block + 7 * 6 {
        for (lost, given_up) in [false, true].into_iter().zip(&mut given_up) {
            if !lost {
                copy_index(&dir.path().join("old"), &index).unwrap();
            }
            let (mut unread, mut tries) = (Unread::default(), 0);
            let (engine, recorder) = loop {
                let (drive, recorder) = Drive::new(image.clone(), 1, None);
                unreadable(&recorder, block);
                tries += 1;
                match start_again(drive, &member, &index, &mut unread) {
                    Ok(engine) => break (engine, recorder),
                    Err(e) => assert!(e.kind == ErrorKind::Io && tries < 4, "{e}"),
                }
            };
            // What is not read in a replay is met later.
            let met = tries > 1;
            assert!(tries == 4 || !met && !lost, "{tries} tries");
            let found = runtime().block_on(async {
                let found = readable(&engine, LEFT).await;
                assert!(found.len() >= 3, "block {block}, index lost: {lost}: {found:?}");
                if !met {
                    return found;
                }
                *given_up += 1;
                // Nothing that is put now lies there, whatever is given back before.
                engine.delete(LEFT.map(|seq| id(0, seq, 0)).collect()).await.unwrap();
                fill(&engine).await.collect()
            });
            drop(engine);
            // The next start has nothing to find out.
            let (drive, again) = Drive::new(recorder.contents(), 2, None);
            unreadable(&again, block);
            let engine = start(drive, &member, &index).unwrap();
            assert_eq!(runtime().block_on(readable(&engine, found.iter().copied())), found);
            assert_eq!(engine.stat().read_errors, u64::from(met));
            drop(engine);
            std::fs::remove_dir_all(&index).unwrap();
        }
    }
    // All headers, and the data of the last put; or everything.
    assert_eq!(given_up, [LEFT.end - LEFT.start + 5, 7 * 6]);
}

/// Nor does a bad block of the journal: no chunk is lost with it, since headers tell of all.
#[test]
fn a_block_of_the_journal_that_can_never_be_read_is_written_anew() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let image = worked(dir.path(), &superblock);
    let member = Superblock { cluster: Uuid([3; 16]), ..superblock.clone() };
    let index = dir.path().join("index");
    for block in superblock.journal_block..superblock.data_block {
        for (lost, heals) in [(false, true), (true, true), (false, false)] {
            if !lost {
                copy_index(&dir.path().join("old"), &index).unwrap();
            }
            let unreadable = (block * 4096, block * 4096 + 4096);
            let (mut unread, mut tries) = (Unread::default(), 0);
            let recorder = loop {
                let (drive, recorder) = Drive::new(image.clone(), 1, None);
                recorder.fail(Faults { unreadable, heals, ..Faults::default() });
                tries += 1;
                match start_again(drive, &member, &index, &mut unread) {
                    Ok(engine) => {
                        assert!(heals && has_all(&engine), "block {block}, index lost: {lost}");
                        runtime().block_on(put(&engine, 50, 0)).unwrap();
                        break recorder;
                    }
                    Err(e) => assert!(e.kind == ErrorKind::Io && (tries < 4 || !heals), "{e}"),
                }
                if !heals && tries == 9 {
                    break recorder;
                }
            };
            assert_eq!(tries, if heals { 4 } else { 9 });
            // What was put since is there, too, and nothing of the records from before is done
            // again.
            let (drive, _) = Drive::new(recorder.contents(), 2, None);
            let engine = start(drive, &member, &index).unwrap();
            assert!(has_all(&engine), "block {block}, index lost: {lost}");
            let later = runtime().block_on(readable(&engine, 50..51));
            assert_eq!(later.len(), usize::from(heals));
            drop(engine);
            std::fs::remove_dir_all(&index).unwrap();
        }
    }
}

/// A chunk is healed in a place that holds it, and what did not is not written to again.
#[test]
fn a_bad_block_is_not_given_to_the_next() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let image = worked(dir.path(), &superblock);
    let member = Superblock { cluster: Uuid([3; 16]), ..superblock.clone() };
    let index = dir.path().join("index");
    copy_index(&dir.path().join("whole"), &index).unwrap();
    let (drive, recorder) = Drive::new(image, 1, None);
    let engine = start(drive, &member, &index).unwrap();
    let chunk = id(0, LEFT.start, 0);
    runtime().block_on(async {
        let (bytes, sums) = data(chunk, 5, 0);
        assert!(!engine.heal(chunk, bytes.clone(), sums.clone()).await.unwrap(), "it is whole");
        // Whichever of its blocks it is: the chunk lies in the first that are taken.
        let mut place = superblock.data_block;
        loop {
            unreadable(&recorder, place);
            if engine.get(chunk, 0, 5 * 4096).await.is_err() {
                break;
            }
            place += 1;
        }
        assert!(engine.heal(chunk, bytes.clone(), sums.clone()).await.unwrap());
        assert_eq!(readable(&engine, LEFT).await.len(), 4);
        // All the space there is: none of it lands there.
        fill(&engine).await;
    });
}

/// Data is whole; but a lost index would be made anew without the chunk.
#[test]
fn a_chunk_whose_header_is_damaged_is_healed() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let mut image = worked(dir.path(), &superblock);
    let member = Superblock { cluster: Uuid([3; 16]), ..superblock.clone() };
    let index = dir.path().join("index");
    copy_index(&dir.path().join("whole"), &index).unwrap();
    let chunk = id(0, LEFT.start, 0);
    let is =
        |block: &&mut [u8]| block.starts_with(b"WEFTCHK\n") && block[24..41] == chunk.to_bytes();
    let header = image.chunks_mut(4096).find(is).expect("it is there");
    header[100] ^= 1;
    let (drive, recorder) = Drive::new(image, 1, None);
    let engine = start(drive, &member, &index).unwrap();
    runtime().block_on(async {
        let (bytes, sums) = data(chunk, 5, 0);
        assert_eq!(engine.verify(chunk, 0, 5 * 4096).await.unwrap(), None, "its data");
        assert_eq!(engine.verify(chunk, 0, 0).await.unwrap(), Some(0));
        assert!(engine.heal(chunk, bytes.clone(), sums.clone()).await.unwrap());
        assert_eq!(engine.verify(chunk, 0, 0).await.unwrap(), None);
        assert!(!engine.heal(chunk, bytes, sums).await.unwrap(), "it is whole");
    });
    drop(engine);
    let (drive, _) = Drive::new(recorder.contents(), 1, None);
    assert!(has_all(&start(drive, &member, &dir.path().join("none")).unwrap()));
}

/// What is under its name is not what it should be, if only by its length.
#[test]
fn a_chunk_of_another_length_is_superseded_at_once() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    let chunk = id(0, 1, 0);
    let (bytes, sums) = data(chunk, 7, 1);
    runtime().block_on(async {
        let none = engine.supersede(chunk, bytes.clone(), sums.clone()).await.unwrap_err();
        assert_eq!(none.kind, ErrorKind::NotFound);
        put(&engine, 1, 0).await.unwrap();
        assert_eq!(engine.length(chunk).await.unwrap(), Some(5 * 4096));
        engine.supersede(chunk, bytes.clone(), sums.clone()).await.unwrap();
        assert_eq!(engine.length(chunk).await.unwrap(), Some(7 * 4096));
    });
    drop(engine);
    let (drive, _) = Drive::new(recorder.contents(), 1, None);
    let engine = start(drive, &superblock, &dir.path().join("none")).unwrap();
    let found = runtime().block_on(engine.get(chunk, 0, 7 * 4096)).unwrap();
    assert_eq!(found.data.concat(), bytes[..]);
}

/// It is not tried for the next chunk, as the first place that fits, again and again.
#[test]
fn a_place_that_cannot_be_written_is_passed_over() {
    let (dir, superblock) = (tempdir().unwrap(), Superblock::new(16 << 20));
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    let first = superblock.data_block * 4096;
    let unwritable = (first + 2 * 4096, first + 3 * 4096);
    recorder.fail(Faults { unwritable, ..Faults::default() });
    runtime().block_on(async {
        put(&engine, 1, 0).await.unwrap();
        assert_eq!(engine.stat().write_errors, 1);
        put(&engine, 2, 0).await.unwrap();
        assert_eq!(engine.stat().write_errors, 1, "the same place was tried again");
        // With more of these it is the drive that fails, and its space is not used up for that.
        recorder.fail(Faults { writes: true, ..Faults::default() });
        let used = engine.stat().used_bytes;
        for seq in 3..20 {
            assert_eq!(put(&engine, seq, 0).await.unwrap_err().kind, ErrorKind::Io);
        }
        let kept_out = engine.stat().used_bytes - used;
        assert!((1..superblock.size / 128).contains(&kept_out), "{kept_out}");
        recorder.fail(Faults::default());
        put(&engine, 3, 0).await.unwrap();
    });
}

/// It was written by a process that was killed before it flushed the drive: a power cut would take
/// what the next tells to be there. What was acknowledged can be read all the same.
#[test]
fn what_a_start_finds_is_flushed_before_it_is_relied_on() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let image = worked(dir.path(), &superblock);
    for (index, old) in [("replayed", true), ("none", false)] {
        let index = dir.path().join(index);
        if old {
            copy_index(&dir.path().join("old"), &index).unwrap();
        }
        let (drive, recorder) = Drive::new(image.clone(), 1, None);
        recorder.fail(Faults { commits: true, ..Faults::default() });
        let engine = start(drive, &superblock, &index).unwrap();
        assert!(engine.failure().is_some(), "it was not flushed");
        runtime().block_on(async {
            assert_eq!(put(&engine, 9, 0).await.unwrap_err().kind, ErrorKind::Io);
            // The last put, of which the journal does not say that it was acknowledged.
            let last = engine.length(id(0, LEFT.end - 1, 0)).await.unwrap();
            assert_eq!(last.is_none(), old);
            assert!(engine.length(id(0, LEFT.start, 0)).await.unwrap().is_some());
        });
        drop(engine);
        // The power took it.
        let (last, after) = (id(0, LEFT.end - 1, 0), index.with_extension("after"));
        copy_index(&index, &after).unwrap();
        let is = |b: &[u8]| b.starts_with(b"WEFTCHK\n") && b[24..41] == last.to_bytes();
        let header = image.chunks(4096).position(is).expect("it is there");
        let mut cut = image.clone();
        cut[(header + 1) * 4096..][..4096].fill(0);
        let engine = start(Drive::new(cut, 1, None).0, &superblock, &after).unwrap();
        for (chunk, there) in [(last, false), (id(0, LEFT.start, 0), true)] {
            assert_eq!(runtime().block_on(engine.has(chunk)).unwrap(), there, "{chunk}");
        }
        drop(engine);
        let (drive, _) = Drive::new(image.clone(), 1, None);
        assert!(has_all(&start(drive, &superblock, &index).unwrap()));
    }
}

/// What fails here and there, or all over the drive, or in a large part of it, may come back.
#[test]
fn what_fails_otherwise_is_tried_for_ever() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let image = worked(dir.path(), &superblock);
    let member = Superblock { cluster: Uuid([3; 16]), ..superblock.clone() };
    let first = superblock.data_block;
    let all_data = (superblock.data_block * 4096, superblock.data_end * 4096);
    let a_part = (first * 4096, (first + 64) * 4096);
    for (old_index, away) in
        [false, true].into_iter().flat_map(|i| [None, Some(all_data), Some(a_part)].map(|a| (i, a)))
    {
        let mut unread = Unread::default();
        let index = dir.path().join(format!("index-{old_index}-{away:?}"));
        if old_index {
            copy_index(&dir.path().join("old"), &index).unwrap();
        }
        for try_number in 0..12 {
            let (drive, recorder) = Drive::new(image.clone(), 1, None);
            match try_number % 4 {
                _ if away.is_some() => recorder
                    .fail(Faults { unreadable: away.unwrap_or_default(), ..Faults::default() }),
                3 => recorder.fail(Faults { reads: true, ..Faults::default() }),
                // Headers of two chunks in turns.
                n => unreadable(&recorder, first + 6 * (1 + n % 2)),
            }
            let e = start_again(drive, &member, &index, &mut unread).err().expect("not given up");
            assert_eq!(e.kind, ErrorKind::Io, "{e}");
        }
        let (drive, _) = Drive::new(image.clone(), 1, None);
        assert!(has_all(&start_again(drive, &member, &index, &mut unread).unwrap()));
    }
}

/// One copy of the superblock that cannot be read keeps no target away, whether it can be written
/// anew or not; nor is one believed that may be older: where it knows of no cluster, the other may.
#[test]
fn a_superblock_that_cannot_be_read_is_taken_from_the_other_copy() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let whole = worked(dir.path(), &superblock);
    let (cluster, target) = (Uuid([3; 16]), TargetId(1));
    let joined = Superblock { cluster, target, sequence: 2, ..superblock.clone() };
    let image = |first: &[u8], last: &[u8]| {
        let mut image = whole.clone();
        let end = image.len() - 4096;
        image[..4096].copy_from_slice(first);
        image[end..].copy_from_slice(last);
        image
    };
    let find = |image: Vec<u8>, faults| {
        let (drive, recorder) = Drive::new(image, 1, None);
        recorder.fail(faults);
        (Superblock::find(&*drive, "drive"), recorder)
    };
    let unreadable = |at| Faults { unreadable: (at, at + 4096), ..Faults::default() };
    let (first, last) = (0, superblock.size - 4096);
    let (new, old) = (joined.encode(), superblock.encode());
    let (new, old) = (new.as_ref(), old.as_ref());
    let whole = image(new, new);
    for at in [first, last] {
        let (found, recorder) = find(whole.clone(), Faults { heals: true, ..unreadable(at) });
        assert_eq!(found.unwrap().unwrap(), joined);
        assert!(recorder.contents() == whole);
        let (found, _) = find(whole.clone(), Faults { commits: true, ..unreadable(at) });
        assert_eq!(found.unwrap().unwrap(), joined, "though it cannot be written anew");
    }
    // What is in the other is not known, and is written anew.
    let (found, recorder) = find(image(new, old), Faults { heals: true, ..unreadable(last) });
    assert_eq!(found.unwrap().unwrap(), joined);
    assert!(recorder.contents() == whole);
    // Power was cut while it joined, and what it holds since then is known to the first copy only.
    let (refused, recorder) = find(image(new, old), Faults { heals: true, ..unreadable(first) });
    let refused = refused.unwrap_err();
    assert!(refused.kind == ErrorKind::Io && refused.message.contains("older"), "{refused}");
    assert!(recorder.contents() == image(new, old), "nothing was written");
    assert_eq!(find(image(new, old), Faults::default()).0.unwrap().unwrap(), joined);
    // Neither can be told.
    let both = Faults { unreadable: (0, superblock.size), ..Faults::default() };
    let none = [0; 4096];
    for (image, faults) in [
        (image(new, new), both),
        (image(new, &none), unreadable(first)),
        (image(&none, new), unreadable(last)),
    ] {
        assert_eq!(find(image, faults).0.unwrap_err().kind, ErrorKind::Io, "not blank either");
    }
    assert!(find(image(&none, &none), Faults::default()).0.unwrap().is_err());
}

/// A record that does not read as it was written hides those behind it: the chunks are found by
/// their headers.
#[test]
fn a_damaged_journal_record_hides_no_chunk() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let image = worked(dir.path(), &superblock);
    for record in 0..LEFT.end {
        let mut image = image.clone();
        let at = (superblock.journal_block + record) as usize * 4096;
        assert!(image[at..].starts_with(b"WEFTJNL"), "a record a block");
        image[at + 50] ^= 1;
        let index = dir.path().join(record.to_string());
        copy_index(&dir.path().join("old"), &index).unwrap();
        let (drive, _) = Drive::new(image, 1, None);
        assert!(has_all(&start(drive, &superblock, &index).unwrap()), "record {record}");
    }
}

/// A put that nobody was told of leaves a header; a later put of the same chunk is the one that
/// counts.
#[test]
fn headers_of_unacknowledged_puts_do_not_win_a_rebuild() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let index = |n: u32| dir.path().join(n.to_string());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &index(0)).unwrap();
    runtime().block_on(async {
        put(&engine, 1, 0).await.unwrap();
        recorder.fail(Faults { writes: true, ..Faults::default() });
        for _ in 0..5 {
            put(&engine, 2, 0).await.unwrap_err();
        }
        recorder.fail(Faults { commits: true, ..Faults::default() });
        put(&engine, 2, 1).await.unwrap_err();
    });
    drop(engine);

    let (drive, again) = Drive::new(recorder.contents(), 2, None);
    let engine = start(drive, &superblock, &index(0)).unwrap();
    runtime().block_on(async {
        // Into the gap before the header that was left.
        engine.delete(vec![id(0, 1, 0)]).await.unwrap();
        put(&engine, 2, 2).await.unwrap();
    });
    drop(engine);

    let (drive, _) = Drive::new(again.contents(), 3, None);
    let engine = start(drive, &superblock, &index(1)).unwrap();
    let (bytes, _) = data(id(0, 2, 0), 5, 2);
    let range = runtime().block_on(engine.get(id(0, 2, 0), 0, bytes.len() as u64)).unwrap();
    assert!(range.data.concat() == bytes[..], "the chunk is not what was put last");
}

#[test]
fn failed_writes_give_space_back_failed_flushes_end_writes_failed_reads_count() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    runtime().block_on(async {
        recorder.fail(Faults { writes: true, ..Faults::default() });
        assert_eq!(put(&engine, 1, 0).await.unwrap_err().kind, ErrorKind::Io);
        let stat = engine.stat();
        assert_eq!((stat.used_bytes, stat.chunks, stat.write_errors), (0, 0, 1));
        assert_eq!(engine.failure(), None);
        recorder.fail(Faults::default());
        put(&engine, 1, 0).await.unwrap();

        // The data write succeeds, the journal write meets a dead drive.
        recorder.fail(Faults { commits: true, ..Faults::default() });
        assert_eq!(put(&engine, 2, 0).await.unwrap_err().kind, ErrorKind::Io);
        recorder.fail(Faults::default());
        let refused = put(&engine, 3, 0).await.unwrap_err();
        assert!(refused.message.contains("takes no writes"), "{refused}");
        assert!(engine.delete(vec![id(0, 1, 0)]).await.is_err());
        assert!(engine.failure().is_some());
        let range = engine.get(id(0, 1, 0), 0, 5 * 4096).await.unwrap();
        assert!(range.data.concat() == data(id(0, 1, 0), 5, 0).0);
        recorder.fail(Faults { reads: true, ..Faults::default() });
        let unread = engine.get(id(0, 1, 0), 0, 5 * 4096).await.unwrap_err();
        assert_eq!((unread.kind, engine.stat().read_errors), (ErrorKind::Io, 1));
    });
}

/// A sparse file lies in a filesystem that others fill: that is no damage.
#[test]
fn a_full_filesystem_is_a_full_target_and_no_failing_drive() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    runtime().block_on(async {
        recorder.fail(Faults { writes: true, errno: libc::ENOSPC, ..Faults::default() });
        assert_eq!(put(&engine, 1, 0).await.unwrap_err().kind, ErrorKind::NoSpace);
        let stat = engine.stat();
        assert_eq!((stat.used_bytes, stat.chunks, stat.write_errors), (0, 0, 0));
        assert_eq!(engine.failure(), None);
        recorder.fail(Faults::default());
        put(&engine, 1, 0).await.unwrap();
    });
}

/// Reads that fail count; when not even the superblock can be read, the target is given up.
#[test]
fn a_drive_that_is_gone_takes_its_target_down() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    runtime().block_on(async {
        put(&engine, 1, 0).await.unwrap();
        let gone = Faults { reads: true, writes: true, commits: true, ..Faults::default() };
        recorder.fail(Faults { errno: libc::ENODEV, ..gone });
        let lost = engine.get(id(0, 1, 0), 0, 4096).await.unwrap_err();
        assert_eq!(lost.kind, ErrorKind::Io);
        assert!(engine.failure().unwrap().contains("gone"));
        assert_eq!(engine.stat().read_errors, 1);
        assert!(put(&engine, 2, 0).await.unwrap_err().message.contains("takes no writes"));
    });
}

#[test]
fn a_drive_that_turned_read_only_is_still_read() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    runtime().block_on(async {
        put(&engine, 1, 0).await.unwrap();
        recorder.fail(Faults { writes: true, errno: libc::EROFS, ..Faults::default() });
        assert_eq!(put(&engine, 2, 0).await.unwrap_err().kind, ErrorKind::Io);
        assert!(engine.failure().unwrap().contains("read-only"));
        let range = engine.get(id(0, 1, 0), 0, 5 * 4096).await.unwrap();
        assert!(range.data.concat() == data(id(0, 1, 0), 5, 0).0);
    });
}
