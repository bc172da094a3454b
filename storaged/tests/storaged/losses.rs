//! Chunks that a target has lost or never had: how that is told, and that they are made anew where
//! there is room and the drive keeps them.

use crate::daemon::{damage, damaged, header_of, put, run};
use crate::failing::fill;
use crate::metadata::Metadata;
use crate::power::{Drive, Faults, copy_index, runtime, start, superblock};
use crate::support::{data, id, make};
use std::fs;
use tempfile::tempdir;
use weft_proto::{ChunkId, ErrorKind};
use weft_storaged::engine::Engine;
use weft_storaged::{Config, Target};

const SIZE: u64 = 32 << 20;

/// Its header does not read as it was written, and the index did not know of it yet.
#[test]
fn a_chunk_that_is_dropped_when_a_target_is_opened_is_named_once() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (index, old) = (dir.path().join("index"), dir.path().join("old"));
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &index).unwrap();
    assert!(engine.take_dropped().is_empty());
    copy_index(&index, &old).unwrap();
    runtime().block_on(async {
        for seq in 1..=3 {
            let (bytes, sums) = data(id(0, seq, 0), 5, 0);
            engine.put(id(0, seq, 0), bytes, sums).await.unwrap();
        }
    });
    drop(engine);
    let (mut image, lost) = (recorder.contents(), id(0, 2, 0));
    let is =
        |block: &&mut [u8]| block.starts_with(b"WEFTCHK\n") && block[24..41] == lost.to_bytes();
    image.chunks_mut(4096).find(is).expect("it is there")[100] ^= 1;
    let (drive, _) = Drive::new(image, 1, None);
    let engine = start(drive, &superblock, &old).unwrap();
    assert_eq!(engine.stat().chunks, 2);
    assert_eq!(engine.take_dropped(), [lost]);
    assert!(engine.take_dropped().is_empty(), "it may be there again by now");
}

/// Nobody else would notice before it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_is_dropped_when_a_target_is_opened_is_told_of() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let drive = dir.path().join("a");
    let mut config = Config::new("s1", "127.0.0.1:0", vec![metadata.serve().await]);
    config.targets = vec![Target::new(&drive, Some(SIZE))];
    config.scrub_period = 0;
    make(&config.targets[0].options());
    let daemon = run(config.clone()).await;
    metadata.wait_for_beat(|b| b.targets.len() == 1).await;
    // As a crash would leave the index.
    let (index, old) = (dir.path().join("a.index"), dir.path().join("old"));
    copy_index(&index, &old).unwrap();
    for seq in 1..=3 {
        put(&daemon.peer(), 1, seq, 3).await.unwrap();
    }
    daemon.stop().await.unwrap();
    fs::remove_dir_all(&index).unwrap();
    fs::rename(&old, &index).unwrap();
    damage(&drive, &[b"WEFTCHK\n", &header_of(&drive, id(1, 2, 0))[..]].concat());
    metadata.1.beats.send_modify(Vec::clear);
    let daemon = run(config).await;
    let beat = metadata.wait_for_beat(|b| !b.damaged.is_empty()).await;
    assert_eq!(damaged(&beat), [id(1, 2, 0)]);
    daemon.stop().await.unwrap();
}

/// What is kept back from puts is for what should be here already, and not for what may as well go
/// to another target.
#[test]
fn a_full_target_has_room_for_a_chunk_that_it_has_lost() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    let lost = id(1, 1, 0);
    let (bytes, sums) = data(lost, 1, 0);
    runtime().block_on(async {
        let mut seq = 0;
        for blocks in [5, 1] {
            let full = loop {
                seq += 1;
                let (bytes, sums) = data(id(0, seq, 0), blocks, 0);
                if let Err(e) = engine.put(id(0, seq, 0), bytes, sums).await {
                    break e;
                }
            };
            assert_eq!(full.kind, ErrorKind::NoSpace, "{full}");
        }
        let refused = engine.restore(lost, bytes.clone(), sums.clone()).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoSpace, "{refused}");
        engine.put_back(lost, bytes.clone(), sums).await.unwrap();
    });
    drop(engine);
    let (drive, _) = Drive::new(recorder.contents(), 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    let found = runtime().block_on(engine.get(lost, 0, 4096)).unwrap();
    assert_eq!(found.data.concat(), bytes[..]);
}

/// The power went, and the index was lost, before all of a chunk was there that was to be made
/// anew: its header makes it no chunk. One that was there is none the less for a block that has
/// rotted since.
#[test]
fn a_chunk_that_was_never_whole_is_not_there_when_the_index_is_made_anew() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    let [rotten, whole, never] = [1, 2, 3].map(|seq| id(0, seq, 0));
    runtime().block_on(async {
        for chunk in [rotten, whole, never] {
            recorder.fail(Faults { commits: chunk == never, ..Faults::default() });
            let (bytes, sums) = data(chunk, 5, 0);
            assert_eq!(engine.restore(chunk, bytes, sums).await.is_err(), chunk == never);
        }
    });
    drop(engine);
    for cut in [None, Some(1), Some(4)] {
        let mut image = recorder.contents();
        let mut zero = |chunk, block| block_of(&mut image, chunk, 0, block).fill(0);
        zero(rotten, 2);
        if let Some(block) = cut {
            zero(never, block);
        }
        let (drive, _) = Drive::new(image, 2, None);
        let index = dir.path().join(format!("none-{cut:?}"));
        let engine = start(drive, &superblock, &index).unwrap();
        runtime().block_on(async {
            assert!(engine.has(whole).await.unwrap() && engine.has(rotten).await.unwrap());
            assert_eq!(engine.has(never).await.unwrap(), cut.is_none(), "{cut:?}");
        });
    }
}

/// The power went before all of it was there, which the next start saw; what is put after that says
/// nothing of it.
#[test]
fn a_chunk_that_a_start_has_dropped_does_not_come_back_with_a_new_index() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (index, old) = (dir.path().join("index"), dir.path().join("old"));
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &index).unwrap();
    copy_index(&index, &old).unwrap();
    let [gone, whole, torn, later] = [1, 2, 3, 4].map(|seq| id(0, seq, 0));
    let restore = |engine: &Engine, chunk, blocks| {
        let (bytes, sums) = data(chunk, blocks, 0);
        runtime().block_on(engine.restore(chunk, bytes, sums)).unwrap();
    };
    for (chunk, blocks) in [(gone, 2), (whole, 5), (torn, 5)] {
        restore(&engine, chunk, blocks);
    }
    drop(engine);
    let mut image = recorder.contents();
    block_of(&mut image, torn, 0, 2).fill(0);
    for first in [old, dir.path().join("none")] {
        let (drive, recorder) = Drive::new(image.clone(), 2, None);
        let engine = start(drive, &superblock, &first).unwrap();
        assert!(!runtime().block_on(engine.has(torn)).unwrap());
        // What is put later goes there, and not where the header of the torn one is.
        let used = engine.stat().used_bytes;
        assert_eq!(runtime().block_on(engine.delete(vec![gone])).unwrap(), 1);
        while engine.stat().used_bytes == used {
            std::thread::yield_now();
        }
        restore(&engine, later, 2);
        drop(engine);
        let (drive, _) = Drive::new(recorder.contents(), 2, None);
        let engine = start(drive, &superblock, &first.with_extension("anew")).unwrap();
        for (chunk, there) in [(whole, true), (torn, false), (later, true)] {
            assert_eq!(runtime().block_on(engine.has(chunk)).unwrap(), there, "{chunk}");
        }
    }
}

/// What was put in its place has rotted, and is missing: it can be made again.
#[test]
fn a_chunk_that_was_replaced_does_not_come_back_with_a_new_index() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    let chunk = id(0, 1, 0);
    let (bytes, sums) = data(chunk, 5, 0);
    runtime().block_on(engine.put(chunk, bytes, sums)).unwrap();
    let before = recorder.contents();
    let (bytes, sums) = data(chunk, 7, 1);
    runtime().block_on(engine.supersede(chunk, bytes, sums)).unwrap();
    drop(engine);
    // It discards nothing, as hard disks do.
    let old = (superblock.data_block * 4096) as usize;
    let old = old..old + 6 * 4096;
    for rotten in [false, true] {
        let mut image = recorder.contents();
        image[old.clone()].copy_from_slice(&before[old.clone()]);
        let block = if rotten { block_of(&mut image, chunk, 1, 2) } else { &mut [] };
        block.iter_mut().for_each(|byte| *byte ^= 1);
        let (drive, _) = Drive::new(image, 2, None);
        let index = dir.path().join(format!("anew-{rotten}"));
        let engine = start(drive, &superblock, &index).unwrap();
        let length = runtime().block_on(engine.length(chunk)).unwrap();
        assert_eq!(length, (!rotten).then_some(7 * 4096));
    }
}

/// A block of a chunk's data on a drive.
fn block_of(image: &mut [u8], chunk: ChunkId, version: u64, block: usize) -> &mut [u8] {
    let (bytes, _) = data(chunk, 7, version);
    let is = |on_drive: &&mut [u8]| **on_drive == bytes[block * 4096..][..4096];
    image.chunks_mut(4096).find(is).expect("it is on the drive")
}

/// Where a chunk is healed does not read back, either: it is healed elsewhere, and nothing is put
/// there any more.
#[test]
fn a_chunk_is_healed_where_the_drive_keeps_it() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    let chunk = id(0, 2, 0);
    let (bytes, sums) = data(chunk, 5, 0);
    runtime().block_on(async {
        for seq in 1..=3 {
            let (bytes, sums) = data(id(0, seq, 0), 5, 0);
            engine.put(id(0, seq, 0), bytes, sums).await.unwrap();
        }
    });
    drop(engine);
    let headers = |image: &[u8]| -> Vec<usize> {
        let is =
            |block: &[u8]| block.starts_with(b"WEFTCHK\n") && block[24..41] == chunk.to_bytes();
        let all = image.chunks(4096).enumerate();
        all.filter(|(_, block)| is(block)).map(|(at, _)| at).collect()
    };
    let mut image = recorder.contents();
    let old = headers(&image)[0];
    image[(old + 2) * 4096] ^= 1;
    let heal = |name: &str, faults: Faults| {
        let index = dir.path().join(name);
        copy_index(&dir.path().join("index"), &index).unwrap();
        let (drive, recorder) = Drive::new(image.clone(), 1, None);
        let engine = start(drive, &superblock, &index).unwrap();
        recorder.fail(faults);
        let healed = runtime().block_on(engine.heal(chunk, bytes.clone(), sums.clone()));
        assert!(healed.unwrap());
        (engine, headers(&recorder.contents()))
    };
    let (engine, found) = heal("first", Faults::default());
    drop(engine);
    let first = found.into_iter().find(|&at| at != old).expect("it was written anew") as u64;
    let unreadable = ((first + 2) * 4096, (first + 3) * 4096);
    let (engine, _) = heal("second", Faults { unreadable, ..Faults::default() });
    runtime().block_on(async {
        assert_eq!(engine.verify(chunk, 0, 0).await.unwrap(), None);
        fill(&engine).await;
    });
}

/// A bad track: too much to be tried block by block.
#[test]
fn a_chunk_of_which_much_does_not_read_is_healed() {
    let (dir, superblock) = (tempdir().unwrap(), superblock());
    let (drive, recorder) = Drive::new(vec![0; superblock.size as usize], 1, None);
    let engine = start(drive, &superblock, &dir.path().join("index")).unwrap();
    let (first, blocks) = (superblock.data_block, 100);
    let chunk = id(0, 1, 0);
    let (bytes, sums) = data(chunk, blocks, 0);
    runtime().block_on(async {
        engine.put(chunk, bytes.clone(), sums.clone()).await.unwrap();
        // A drive of which nothing reads keeps what it has.
        recorder.fail(Faults { reads: true, ..Faults::default() });
        let refused = engine.heal(chunk, bytes.clone(), sums.clone()).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Io);
        recorder.fail(Faults::default());
        assert_eq!(engine.verify(chunk, 0, 0).await.unwrap(), None);
        // Its header and most of the rest.
        let unreadable = (first * 4096, (first + blocks as u64 - 10) * 4096);
        recorder.fail(Faults { unreadable, ..Faults::default() });
        assert_eq!(engine.verify(chunk, 0, 0).await.unwrap_err().kind, ErrorKind::Io);
        assert!(engine.heal(chunk, bytes, sums).await.unwrap());
        assert_eq!(engine.verify(chunk, 0, 0).await.unwrap(), None);
        // Nothing is put there any more.
        for seq in 2.. {
            let (bytes, sums) = data(id(0, seq, 0), 5, 0);
            if engine.put(id(0, seq, 0), bytes, sums).await.is_err() {
                assert!(seq > 10, "it is full");
                break;
            }
            assert_eq!(engine.verify(id(0, seq, 0), 0, 0).await.unwrap(), None);
        }
    });
}
