//! What reads and puts do while the drive, or the writer, does nothing.

use super::*;
use crate::index::Index;
use crate::shared::Open;
use crate::store::Store;
use crate::writer::HANG_TIMEOUT;
use std::collections::HashSet;
use tempfile::TempDir;
use tokio::time::{Instant, advance, sleep};
use weft_proto::{SegmentId, SessionId};

const CLUSTER: Uuid = Uuid([7; 16]);

fn piece(seq: u64) -> Piece {
    Piece { segment: SegmentId { session: SessionId(3), seq }, number: 1 }
}

fn options(dir: &TempDir) -> HotOptions {
    HotOptions { dir: dir.path().to_owned(), size: HotOptions::MIN_SIZE }
}

#[tokio::test(start_paused = true)]
async fn a_drive_whose_reads_never_end_is_not_waited_for_by_each() {
    let dir = TempDir::new().unwrap();
    let hot = Hot::start(options(&dir), CLUSTER);
    while !hot.is_open() {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(hot.put(piece(1), Bytes::from_static(b"abc")).await);
    let hung = hot.reads.clone().acquire_many_owned(READS as u32).await.unwrap();
    let begun = Instant::now();
    assert!(hot.get(piece(1), 0..3).await.is_none());
    assert!(begun.elapsed() >= READ_TIMEOUT, "those before it may end");
    let begun = Instant::now();
    assert!(!hot.has(&piece(1)), "the drive rests");
    assert!(hot.get(piece(1), 0..3).await.is_none());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    drop(hung);
    while hot.shared.rests(Use::Read) {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(hot.get(piece(1), 0..3).await.unwrap() == b"abc");
}

/// As on a drive that has died, or a file server that is away: that of a list hangs, or of a piece.
#[tokio::test(start_paused = true)]
async fn a_write_that_does_not_end_keeps_nobody() {
    for has_list in [false, true] {
        let dir = TempDir::new().unwrap();
        let hot = Hot::start(options(&dir), CLUSTER);
        while !hot.is_open() {
            sleep(Duration::from_millis(1)).await;
        }
        if has_list {
            assert!(hot.put(piece(1), Bytes::from_static(b"abc")).await);
        }
        let (ends, hangs) = std::sync::mpsc::channel::<()>();
        *hot.shared.open.lock().as_ref().unwrap().store.hangs.lock() = Some(hangs);
        let rests = async {
            // The clock stands while a thread is at work.
            let mut waited = Duration::ZERO;
            while !hot.shared.rests(Use::Write) {
                advance(Duration::from_secs(1)).await;
                waited += Duration::from_secs(1);
                assert!(waited <= 2 * HANG_TIMEOUT, "the tier does not rest");
            }
        };
        let (kept, ()) = tokio::join!(hot.put(piece(3), Bytes::from_static(b"ghi")), rests);
        assert!(!kept, "who put it is not kept");
        assert!(hot.is_open() && !hot.takes(), "nothing is worth being fetched to be put");
        // The queue is full of what waits for the write.
        let queued = hot.queue.clone().try_acquire_many_owned(QUEUE as u32 - 3).unwrap();
        let begun = Instant::now();
        assert!(!hot.has(&piece(1)) && hot.get(piece(1), 0..3).await.is_none(), "the targets do");
        assert!(!hot.miss(piece(2), 1 << 19, 1 << 20), "nothing is fetched in vain");
        assert!(!hot.put(piece(2), Bytes::from_static(b"def")).await);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // As long as it takes.
        for _ in 0..60 {
            advance(Duration::from_secs(1)).await;
            tokio::task::yield_now().await;
            assert!(hot.shared.rests(Use::Write) && hot.shared.rests(Use::Read));
        }
        drop(queued);
        ends.send(()).unwrap();
        while hot.shared.rests(Use::Read) {
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(hot.get(piece(1), 0..3).await.is_some(), has_list);
        assert!(hot.get(piece(3), 0..3).await.unwrap() == b"ghi" && hot.takes());
        assert!(hot.put(piece(2), Bytes::from_static(b"def")).await);
    }
}

/// What parts of it are offered of.
struct Whole(Arc<Vec<u8>>);

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A part of a large buffer would have the whole of it wait.
#[tokio::test]
async fn what_waits_to_be_written_takes_no_more_memory_than_is_counted() {
    const LEN: usize = 512 << 10;
    let dir = TempDir::new().unwrap();
    let shared = Arc::new(Shared::new(options(&dir), CLUSTER));
    let store = Arc::new(Store::open(dir.path(), CLUSTER, HotOptions::MIN_SIZE).unwrap());
    let index = Index::new(REGION, (0..store.regions).map(|_| None).collect());
    *shared.open.lock() = Some(Open { store, index, pending: HashSet::new() });
    // Nothing is written.
    let (jobs, mut queued) = mpsc::unbounded_channel();
    let places = |count| Arc::new(Semaphore::new(count));
    let (reads, fetches, queue) = (places(READS), places(FETCHES), places(QUEUE));
    let read = Arc::default();
    let hot = Arc::new(Hot { shared, jobs, reads, read, fetches, queue });
    let memory = Arc::new((0..8 * LEN).map(|at| (at / LEN) as u8).collect::<Vec<_>>());
    let part = |seq: usize| {
        let from = seq % 8 * LEN;
        Bytes::from_owner(Whole(memory.clone())).slice(from..from + LEN)
    };
    let many = 2 * QUEUE / LEN;
    (0..many).for_each(|seq| hot.offer(piece(seq as u64), part(seq)));
    assert_eq!(Arc::strong_count(&memory), 1, "whole buffers wait");
    let mut bytes = 0;
    while let Ok(Job::Put { piece, content, .. }) = queued.try_recv() {
        assert!(content.iter().all(|byte| u64::from(*byte) == piece.segment.seq % 8));
        bytes += content.len();
    }
    assert_eq!(bytes, QUEUE);
    let content = part(3);
    let put = tokio::spawn(async move { hot.put(piece(9999), content).await });
    let Some(Job::Put { content, done, .. }) = queued.recv().await else { panic!("no put") };
    assert_eq!(Arc::strong_count(&memory), 1, "a whole buffer waits");
    assert!(content.iter().all(|byte| *byte == 3));
    done.send(true).unwrap();
    assert!(put.await.unwrap());
}
