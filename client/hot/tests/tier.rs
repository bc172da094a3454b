//! What was put is found, also after a restart; what a crash, a worn drive or somebody else left is
//! not.

use bytes::Bytes;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use weft_hot::{Hot, HotOptions, PIECE, Piece, pieces};
use weft_proto::{SegmentId, SessionId, Uuid};

const CLUSTER: Uuid = Uuid([7; 16]);
const WHOLE: u32 = PIECE as u32;
const SOON: Duration = Duration::from_secs(60);

fn piece(seq: u64) -> Piece {
    Piece { segment: SegmentId { session: SessionId(3), seq }, number: 1 }
}

fn content(seq: u64, len: usize) -> Bytes {
    let byte =
        |at: usize| (at as u64).wrapping_mul(seq.wrapping_mul(2) + 1).to_le_bytes()[1] ^ seq as u8;
    (0..len).map(byte).collect::<Vec<_>>().into()
}

async fn open_of(dir: &Path, cluster: Uuid, size: u64) -> Arc<Hot> {
    let hot = Hot::start(HotOptions { dir: dir.to_owned(), size }, cluster);
    let opened = async {
        while !hot.is_open() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, opened).await.expect("it is not opened");
    hot
}

async fn open(dir: &Path) -> Arc<Hot> {
    open_of(dir, CLUSTER, HotOptions::MIN_SIZE).await
}

fn file(dir: &Path) -> PathBuf {
    let mut files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.next().expect("there is no file")
}

async fn get(hot: &Hot, seq: u64, within: std::ops::Range<u32>) -> Option<Vec<u8>> {
    Some(hot.get(piece(seq), within).await?.to_vec())
}

#[tokio::test(start_paused = true)]
async fn every_part_of_what_was_put_is_found() {
    let dir = TempDir::new().unwrap();
    let hot = open(&dir.path().join("a/b")).await;
    for (seq, len) in [(1, 1), (2, 4096), (3, 4097), (4, 100 << 10), (5, WHOLE as usize)] {
        let all = content(seq, len);
        assert_eq!(get(&hot, seq, 0..1).await, None);
        assert!(hot.put(piece(seq), all.clone()).await);
        assert!(hot.has(&piece(seq)));
        let cuts = [0, 1, 4095, 4096, 5000, 40_000, 65_536, 300_000, len].map(|cut| cut.min(len));
        for (start, end) in cuts.iter().flat_map(|s| cuts.iter().map(move |e| (*s, *e))) {
            let found = get(&hot, seq, start as u32..end.max(start) as u32).await;
            let want = (start < end).then(|| all[start..end].to_vec());
            assert!(found == want, "{start}..{end} of {len}");
        }
        assert_eq!(get(&hot, seq, 0..len as u32 + 1).await, None, "there is no more");
    }
    let other = Piece { number: 2, ..piece(1) };
    assert!(hot.get(other, 0..1).await.is_none() && !hot.has(&other));
}

#[tokio::test(start_paused = true)]
async fn what_was_put_is_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let hot = open(dir.path()).await;
    // More than a region.
    for seq in 0..200 {
        assert!(hot.put(piece(seq), content(seq, WHOLE as usize - seq as usize)).await);
    }
    hot.close().await;
    assert_eq!(get(&hot, 0, 0..1).await, None, "it was let go of");
    assert!(!hot.put(piece(999), content(9, 9)).await);
    let hot = open(dir.path()).await;
    for seq in 0..200 {
        let want = content(seq, WHOLE as usize - seq as usize);
        assert!(get(&hot, seq, 0..want.len() as u32).await.as_deref() == Some(&want[..]), "{seq}");
    }
    // Of a process that dies, what it was filling is lost, and no more.
    assert!(hot.put(piece(500), content(500, 5000)).await);
    let copy = TempDir::new().unwrap();
    let name = file(dir.path()).file_name().unwrap().to_owned();
    fs::copy(file(dir.path()), copy.path().join(name)).unwrap();
    let hot = open(copy.path()).await;
    assert_eq!(get(&hot, 500, 0..5000).await, None);
    assert!(get(&hot, 7, 0..100).await.unwrap() == content(7, WHOLE as usize)[..100]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_as_it_was_put_is_a_miss() {
    let dir = TempDir::new().unwrap();
    let hot = open(dir.path()).await;
    for seq in 0..8 {
        assert!(hot.put(piece(seq), content(seq, WHOLE as usize)).await);
    }
    // One byte of each, in the middle.
    let drive = OpenOptions::new().read(true).write(true).open(file(dir.path())).unwrap();
    for record in 0..8u64 {
        let at = 4096 + record * (PIECE + 4096) + 4096 + PIECE / 2 + 5;
        let mut byte = [0];
        drive.read_exact_at(&mut byte, at).unwrap();
        drive.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    drive.sync_all().unwrap();
    let near = WHOLE / 2 - 4096;
    assert!(
        get(&hot, 0, near..near + 4096).await.unwrap()
            == content(0, WHOLE as usize)[near as usize..][..4096]
    );
    assert_eq!(get(&hot, 0, near..near + 4097 + 5).await, None, "the block after it is touched");
    assert!(!hot.has(&piece(0)), "it is not tried again");
    assert_eq!(get(&hot, 1, 0..WHOLE).await, None);
    assert_eq!(get(&hot, 2, WHOLE / 2 + 5..WHOLE / 2 + 6).await, None);
    // It is put anew.
    assert!(hot.put(piece(1), content(1, WHOLE as usize)).await);
    assert!(get(&hot, 1, 0..WHOLE).await.unwrap() == content(1, WHOLE as usize));
}

#[tokio::test(start_paused = true)]
async fn the_oldest_make_room_and_none_is_mistaken_for_another() {
    let dir = TempDir::new().unwrap();
    let hot = open(dir.path()).await;
    // Four regions of 127 pieces: twice what fits.
    let count = 1000;
    for seq in 0..count {
        assert!(hot.put(piece(seq), content(seq, WHOLE as usize)).await);
    }
    let mut found = 0;
    for seq in 0..count {
        let Some(bytes) = get(&hot, seq, 100_000..100_100).await else { continue };
        assert!(bytes == content(seq, WHOLE as usize)[100_000..100_100], "{seq}");
        found += 1;
    }
    assert!((370..=508).contains(&found), "{found} of {count} are kept");
    assert!(hot.has(&piece(count - 1)) && !hot.has(&piece(0)));
}

#[tokio::test(start_paused = true)]
async fn readers_see_whole_pieces_or_none_while_all_is_replaced() {
    let dir = TempDir::new().unwrap();
    let hot = open(dir.path()).await;
    let writer = tokio::spawn({
        let hot = hot.clone();
        async move {
            for round in 0..3 {
                for seq in 0..400 {
                    assert!(hot.put(piece(1000 * round + seq), content(seq, WHOLE as usize)).await);
                }
            }
        }
    });
    let (mut found, mut at) = (0, 0);
    while !writer.is_finished() || found == 0 {
        let (round, seq) = (at / 400 % 3, at % 400);
        if let Some(bytes) = get(&hot, 1000 * round + seq, 0..WHOLE).await {
            assert!(bytes == content(seq, WHOLE as usize), "{round} {seq}");
            found += 1;
        }
        at += 37;
        // What is not kept is answered without waiting.
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_at_a_time_has_it() {
    let dir = TempDir::new().unwrap();
    let hot = open(dir.path()).await;
    assert!(hot.put(piece(1), content(1, 10)).await);
    let options = HotOptions { dir: dir.path().to_owned(), size: HotOptions::MIN_SIZE };
    let second = Hot::start(options, CLUSTER);
    assert!(!second.put(piece(2), content(2, 10)).await, "the first has it");
    assert!(!second.is_open());
    // Another cluster's is another.
    let other = open_of(dir.path(), Uuid([8; 16]), HotOptions::MIN_SIZE).await;
    assert!(!other.has(&piece(1)));
    hot.close().await;
    let opened = async {
        while !second.is_open() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, opened).await.expect("it is free");
    assert_eq!(get(&second, 1, 0..10).await.unwrap(), content(1, 10));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_none_or_of_another_size_is_made_one() {
    let dir = TempDir::new().unwrap();
    let hot = open(dir.path()).await;
    for seq in 0..600 {
        assert!(hot.put(piece(seq), content(seq, WHOLE as usize)).await);
    }
    hot.close().await;
    let size = HotOptions::MIN_SIZE;
    let larger = open_of(dir.path(), CLUSTER, 2 * size).await;
    assert!(larger.has(&piece(599)));
    for seq in 1000..1600 {
        assert!(larger.put(piece(seq), content(seq, WHOLE as usize)).await);
    }
    larger.close().await;
    let smaller = open_of(dir.path(), CLUSTER, size).await;
    assert!(fs::metadata(file(dir.path())).unwrap().len() <= size + 4096);
    for seq in (0..600).chain(1000..1600) {
        if let Some(bytes) = get(&smaller, seq, 5..50).await {
            assert!(bytes == content(seq, WHOLE as usize)[5..50]);
        }
    }
    smaller.close().await;
    // Garbage in place of what it says of itself: all else is of no use.
    let drive = OpenOptions::new().write(true).open(file(dir.path())).unwrap();
    drive.write_all_at(&[0xa5; 4096], 0).unwrap();
    drop(drive);
    let anew = open(dir.path()).await;
    assert!((0..2000).all(|seq| !anew.has(&piece(seq))));
    assert!(anew.put(piece(1), content(1, 77)).await);
    assert_eq!(get(&anew, 1, 0..77).await.unwrap(), content(1, 77));
}

/// Each goes on where the one before has ended: short-lived mounts do not use a region each.
#[tokio::test(start_paused = true)]
async fn short_lived_mounts_fill_one_region_together() {
    let dir = TempDir::new().unwrap();
    for seq in 0..12 {
        let hot = open(dir.path()).await;
        hot.offer(piece(seq), content(seq, 5000));
        hot.close().await;
    }
    let hot = open(dir.path()).await;
    for seq in 0..12 {
        assert_eq!(get(&hot, seq, 0..5000).await.unwrap(), content(seq, 5000));
    }
}

/// Who could write to it could have any content shown.
#[tokio::test(start_paused = true)]
async fn a_file_that_others_may_use_is_not_used() {
    let dir = TempDir::new().unwrap();
    open(dir.path()).await.close().await;
    let store = file(dir.path());
    fs::set_permissions(&store, fs::Permissions::from_mode(0o666)).unwrap();
    let options = HotOptions { dir: dir.path().to_owned(), size: HotOptions::MIN_SIZE };
    let hot = Hot::start(options, CLUSTER);
    // Time goes by when nothing is done any more.
    sleep(Duration::from_secs(1)).await;
    assert!(!hot.put(piece(1), content(1, 10)).await && !hot.is_open());
    hot.close().await;
    fs::set_permissions(&store, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(open(dir.path()).await.put(piece(1), content(1, 10)).await);
}

/// Parts that are read bring the whole by chance, as often as not when half of it was read.
#[tokio::test(start_paused = true)]
async fn what_is_read_in_parts_is_worth_fetching_now_and_then() {
    let dir = TempDir::new().unwrap();
    let hot = open(dir.path()).await;
    let worth = (0..4000).filter(|seq| hot.miss(piece(*seq), PIECE / 8, PIECE)).count();
    assert!((800..1200).contains(&worth), "{worth} of 4000 by an eighth each");
    assert!(!hot.miss(piece(1), PIECE, PIECE), "it was fetched");
}

/// More than there is on the drive: the mount goes without.
#[tokio::test(start_paused = true)]
async fn a_drive_that_is_too_small_keeps_nothing() {
    let dir = TempDir::new().unwrap();
    let options = HotOptions { dir: dir.path().to_owned(), size: 1 << 60 };
    let hot = Hot::start(options, CLUSTER);
    for _ in 0..9 {
        sleep(Duration::from_secs(30)).await;
        assert!(!hot.is_open() && !hot.put(piece(1), content(1, 10)).await);
        hot.offer(piece(1), content(1, 10));
    }
    assert_eq!(fs::metadata(file(dir.path())).unwrap().len(), 0, "nothing of it stays taken");
    timeout(SOON, hot.close()).await.expect("it ends");
}

#[test]
fn ranges_are_cut_into_pieces() {
    let segment = SegmentId { session: SessionId(1), seq: 1 };
    let numbers = |range| pieces(segment, range).map(|p| p.number).collect::<Vec<_>>();
    assert_eq!(numbers(5..5), [0; 0]);
    assert_eq!(numbers(0..1), [0]);
    assert_eq!(numbers(PIECE - 1..PIECE), [0]);
    assert_eq!(numbers(PIECE - 1..PIECE + 1), [0, 1]);
    assert_eq!(numbers(PIECE..3 * PIECE), [1, 2]);
    let last = Piece { segment, number: 2 };
    assert_eq!(last.range(2 * PIECE + 9), 2 * PIECE..2 * PIECE + 9);
}
