//! Chunks that a target has lost: how that is told, and that there is room to make them anew.

use crate::daemon::{damage, damaged, header_of, put, run};
use crate::metadata::Metadata;
use crate::power::{Drive, copy_index, runtime, start, superblock};
use crate::support::{data, id, make};
use std::fs;
use tempfile::tempdir;
use weft_proto::ErrorKind;
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
