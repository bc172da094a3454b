//! Targets that are encrypted: what lies on the drive, and whom they open for.

use crate::support::{data, encrypted, id, key, make, open_made, open_with, options};
use bytes::Bytes;
use std::fs;
use std::path::Path;
use tempfile::tempdir;
use weft_net::AlignedBuf;
use weft_proto::{ErrorKind, TargetId, Uuid};
use weft_storaged::engine::{Content, Engine, KeySource, Superblock, TargetOptions, inspect};

const SIZE: u64 = Superblock::MIN_SIZE;
/// Runs of it would be seen wherever they lie.
const SECRET: &[u8; 32] = b"the quick brown fox, top secret!";
/// More than is encrypted at once, and a chunk that takes several writes of the drive.
const LENGTHS: [usize; 3] = [1, 100, 700];

fn secret(blocks: usize) -> (Bytes, Vec<u32>) {
    let mut buffer = AlignedBuf::take(blocks * 4096);
    buffer.as_mut_slice().chunks_mut(32).for_each(|chunk| chunk.copy_from_slice(SECRET));
    let sums = weft_erasure::block_checksums(buffer.as_ref());
    (buffer.into(), sums)
}

fn holds(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// Works on a target, and answers what then lies on its drive.
async fn drive_after_work(options: &TargetOptions) -> Vec<u8> {
    let engine = open_made(options);
    engine.join(Uuid([9; 16]), TargetId(1)).await.unwrap();
    for (seq, blocks) in LENGTHS.into_iter().enumerate() {
        let (bytes, sums) = secret(blocks);
        engine.put(id(1, seq as u64, 0), bytes, sums).await.unwrap();
    }
    engine.delete(vec![id(1, 0, 0)]).await.unwrap();
    for (seq, blocks) in LENGTHS.into_iter().enumerate().skip(1) {
        let range = engine.get(id(1, seq as u64, 0), 0, blocks as u64 * 4096).await.unwrap();
        assert!(range.data.concat() == secret(blocks).0, "{blocks} blocks");
    }
    engine.close().await.unwrap();
    drop(engine);
    fs::read(&options.path).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_can_be_read_from_the_drive() {
    let (plain, hidden) = (tempdir().unwrap(), tempdir().unwrap());
    let all = drive_after_work(&options(plain.path(), SIZE)).await;
    for shown in [SECRET.as_slice(), b"WEFTCHK\n", b"WEFTJNL\n", &id(1, 2, 0).to_bytes()] {
        assert!(holds(&all, shown), "the test would see it");
    }
    let options = encrypted(hidden.path(), SIZE);
    let all = drive_after_work(&options).await;
    for shown in [&SECRET[..16], b"WEFTCHK\n", b"WEFTJNL\n", &id(1, 2, 0).to_bytes()[..16]] {
        assert!(!holds(&all, shown));
    }
    // Equal blocks differ on the drive, and so does the same in another target.
    let mut blocks: Vec<_> =
        all.chunks(4096).filter(|block| block.iter().any(|b| *b != 0)).collect();
    let written = blocks.len();
    blocks.sort_unstable();
    blocks.dedup();
    assert!(written > 800 && written - blocks.len() <= 1, "but the two superblocks");
    let again = tempdir().unwrap();
    fs::copy(hidden.path().join("key"), again.path().join("key")).unwrap();
    let other = drive_after_work(&encrypted(again.path(), SIZE)).await;
    assert!(other.chunks(4096).all(|block| blocks.binary_search(&block).is_err()));

    let Content::Target(superblock) = inspect(&options.path).unwrap().content else {
        panic!("it is seen to be a target")
    };
    assert!(superblock.key_check.is_some() && superblock.target == TargetId(1));
}

fn refused(options: &TargetOptions) -> (ErrorKind, String) {
    let error = open_with(options).err().expect("it is not opened");
    (error.kind, error.message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_key_a_target_is_refused_and_stays_as_it_is() {
    let dir = tempdir().unwrap();
    let right = encrypted(dir.path(), SIZE);
    let before = drive_after_work(&right).await;
    let with = |encryption: Option<KeySource>| TargetOptions { encryption, ..right.clone() };
    let wrong = key(&dir.path().join("wrong"), 8);
    let command = |words: &[&str]| KeySource {
        key_file: None,
        key_command: Some(words.iter().map(|word| word.to_string()).collect()),
    };
    let gone = KeySource { key_file: Some(dir.path().join("none")), key_command: None };
    for (source, kind, says) in [
        (Some(wrong), ErrorKind::Invalid, "not that with which"),
        (None, ErrorKind::Invalid, "it is encrypted"),
        (Some(gone), ErrorKind::NotFound, "none"),
        (Some(command(&["/bin/false"])), ErrorKind::Unavailable, "/bin/false"),
    ] {
        // With the index as it was, and as if it were to be made anew.
        for index in [None, Some(dir.path().join("other"))] {
            let (found, said) = refused(&TargetOptions { index, ..with(source.clone()) });
            assert!(found == kind && said.contains(says), "{said}");
            assert!(said.contains(right.path.to_str().unwrap()), "{said}");
        }
    }
    assert!(fs::read(&right.path).unwrap() == before && !dir.path().join("other").exists());
    let given = command(&["/bin/cat", dir.path().join("key").to_str().unwrap()]);
    let engine = open_with(&with(Some(given))).unwrap();
    assert_eq!(engine.stat().chunks, 2);
    engine.close().await.unwrap();
    drop(engine);

    // One that is not encrypted stays so, and is not taken for one that is.
    let plain = tempdir().unwrap();
    make(&options(plain.path(), SIZE));
    let (kind, said) = refused(&encrypted(plain.path(), SIZE));
    assert!(kind == ErrorKind::Invalid && said.contains("it is not encrypted"), "{said}");
    // A key that cannot be had makes no target, and destroys none.
    let other = tempdir().unwrap();
    let nowhere = Some(command(&["/bin/false"]));
    let new = TargetOptions { encryption: nowhere.clone(), ..options(other.path(), SIZE) };
    assert!(Engine::format(&new, &Content::Blank).is_err());
    assert!(!new.path.exists());
    let over = inspect(&right.path).unwrap().content;
    let before = fs::read(&right.path).unwrap();
    assert!(Engine::format(&with(nowhere), &over).is_err());
    assert!(fs::read(&right.path).unwrap() == before);
}

/// Requests of all lengths, at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_chunks_come_back_whole_and_in_parts() {
    let dir = tempdir().unwrap();
    let options = encrypted(dir.path(), 4 * SIZE);
    let engine = open_made(&options);
    let puts = (0..12u64).map(|seq| {
        let engine = engine.clone();
        tokio::spawn(async move {
            let (bytes, sums) = data(id(1, seq, 0), 60 * seq as usize + 1, 0);
            engine.put(id(1, seq, 0), bytes, sums).await.unwrap();
        })
    });
    for put in puts.collect::<Vec<_>>() {
        put.await.unwrap();
    }
    for seq in 0..12u64 {
        let blocks = 60 * seq + 1;
        let (bytes, _) = data(id(1, seq, 0), blocks as usize, 0);
        for (from, to) in [(0, blocks), (blocks / 2, blocks), (blocks - 1, blocks)] {
            let (from, to) = (from * 4096, to * 4096);
            let range = engine.get(id(1, seq, 0), from, to - from).await.unwrap();
            assert!(range.data.concat() == bytes[from as usize..to as usize], "{seq}");
        }
    }
    engine.close().await.unwrap();
}

#[test]
fn keys_are_files_of_their_owner() {
    let dir = tempdir().unwrap();
    let options = encrypted(dir.path(), SIZE);
    make(&options);
    let path = dir.path().join("key");
    let set = |mode| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set(0o644);
    assert!(refused(&options).1.contains("chmod 600"));
    set(0o400);
    assert!(open_with(&options).is_ok() && Path::new(&options.path).exists());
}
