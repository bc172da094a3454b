//! Tests of queue.

use super::*;
use crate::frame::{HEADER_LEN, Header, Kind};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::advance;

#[derive(Default)]
struct Left {
    frames: AtomicUsize,
    cost: AtomicUsize,
}

impl User for Left {
    fn crowded(&self) -> bool {
        false
    }

    fn left(&self, frames: usize, cost: usize) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
        self.cost.fetch_add(cost, Ordering::Relaxed);
    }
}

fn push(queue: &SendQueue, cost: usize) -> bool {
    let payload = vec![Bytes::from(vec![0; cost])];
    let header = Header::new(Kind::Answer, 100, 1);
    queue.push(Frame::new(header, Head::Bytes(Bytes::new()), payload), Some(cost))
}

#[tokio::test]
async fn what_never_leaves_is_let_go_when_the_writer_ends() {
    let (queue, left) = (SendQueue::default(), Left::default());
    let (io, reader) = tokio::io::duplex(4096);
    let progress = AtomicU64::new(0);
    assert!(push(&queue, 10_000));
    {
        let mut writing = std::pin::pin!(queue.write_to(io, &progress, &left));
        let mut cx = std::task::Context::from_waker(Waker::noop());
        assert!(writing.as_mut().poll(&mut cx).is_pending(), "nobody reads");
        assert!(push(&queue, 20_000), "it waits behind");
        assert_eq!(left.frames.load(Ordering::Relaxed), 0);
    }
    drop(reader);
    let all = (left.frames.load(Ordering::Relaxed), left.cost.load(Ordering::Relaxed));
    assert_eq!(all, (2, 30_000));
    assert!(!push(&queue, 1) && queue.rests());
}

fn ask(queue: &SendQueue, id: u64, payload: Bytes, patience: Duration) -> bool {
    let (header, until) = (Header::new(Kind::Request, 100, id), Instant::now() + patience);
    let times = (Instant::now(), until);
    queue.push(Frame::asked(header, Head::Bytes(Bytes::new()), vec![payload], times), None)
}

/// Its answer would be nobody's, and it may be carried out after what undoes it.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_given_up_is_not_begun_and_others_say_what_is_left() {
    let (queue, left) = (Arc::new(SendQueue::default()), Left::default());
    let (io, mut reader) = tokio::io::duplex(4096);
    let second = Duration::from_secs(1);
    let begun = Bytes::from(vec![1; TOGETHER]);
    assert!(ask(&queue, 1, begun, second));
    let writing = tokio::spawn({
        let queue = queue.clone();
        async move { queue.write_to(io, &AtomicU64::new(0), &left).await }
    });
    // It has begun when something of it comes, and goes on to its end.
    let mut header = [0; HEADER_LEN];
    reader.read_exact(&mut header).await.unwrap();
    let mut next = Header::decode(&header).unwrap();
    for (id, patience) in [(2, 2), (3, 60), (4, 3), (5, 61), (6, 2)] {
        assert!(ask(&queue, id, Bytes::from(vec![1; 5000]), patience * second));
    }
    advance(3 * second).await;
    let mut seen = Vec::new();
    loop {
        seen.push((next.id, next.deadline_ms));
        reader.read_exact(&mut vec![0; next.payload_len as usize]).await.unwrap();
        if next.id == 5 {
            break;
        }
        reader.read_exact(&mut header).await.unwrap();
        next = Header::decode(&header).unwrap();
    }
    assert_eq!(seen, [(1, 1000), (3, 57_000), (5, 58_000)]);
    queue.end();
    assert_eq!(reader.read(&mut header).await.unwrap(), 0, "nothing else leaves");
    writing.await.unwrap().unwrap();
}

/// A payload, of which is known how many there are.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn bytes(len: usize, all: &Arc<AtomicUsize>) -> Bytes {
        all.fetch_add(len, Ordering::Relaxed);
        Bytes::from_owner(Self(vec![0; len], all.clone()))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// It may take nothing for long, and say all the while that it lives.
#[tokio::test(start_paused = true)]
async fn what_was_given_up_does_not_wait_for_the_other_side_to_take_it() {
    const LEN: usize = 64 << 10;
    const PATIENCE: usize = 50;
    let (queue, left, all) = (SendQueue::default(), Left::default(), Arc::default());
    let (io, _reader) = tokio::io::duplex(4096);
    let progress = AtomicU64::new(0);
    let mut writing = std::pin::pin!(queue.write_to(io, &progress, &left));
    for id in 1..2000 {
        assert!(ask(&queue, id, Counted::bytes(LEN, &all), Duration::from_millis(PATIENCE as u64)));
        let mut cx = std::task::Context::from_waker(Waker::noop());
        assert!(writing.as_mut().poll(&mut cx).is_pending(), "nobody reads");
        // Twice what is waited for, and what is being written.
        let most = 2 * PATIENCE * LEN + UNSEEN + TOGETHER;
        assert!(all.load(Ordering::Relaxed) <= most + 2 * LEN, "{all:?} bytes after {id}");
        advance(Duration::from_millis(1)).await;
    }
}

/// It would be carried out for nobody, and perhaps after what undoes it, however long its caller
/// could have waited.
#[tokio::test]
async fn a_request_that_is_taken_back_does_not_leave_unless_it_was_begun() {
    let (queue, left, all) = (Arc::new(SendQueue::default()), Left::default(), Arc::default());
    let (io, mut reader) = tokio::io::duplex(4096);
    let hour = Duration::from_secs(3600);
    assert!(ask(&queue, 1, Bytes::from(vec![1; TOGETHER]), hour));
    let writing = tokio::spawn({
        let queue = queue.clone();
        async move { queue.write_to(io, &AtomicU64::new(0), &left).await }
    });
    let mut header = [0; HEADER_LEN];
    reader.read_exact(&mut header).await.unwrap();
    for id in 2..=5 {
        assert!(ask(&queue, id, Counted::bytes(5000, &all), hour));
    }
    for id in [3, 1, 5, 3, 99] {
        queue.take_back(id);
    }
    assert_eq!(all.load(Ordering::Relaxed), 2 * 5000, "their memory is free at once");
    {
        let state = queue.0.lock();
        assert_eq!(state.bytes, state.waiting.iter().map(Waiting::len).sum::<usize>());
    }
    queue.end();
    let mut seen = Vec::new();
    loop {
        let next = Header::decode(&header).unwrap();
        seen.push(next.id);
        reader.read_exact(&mut vec![0; next.payload_len as usize]).await.unwrap();
        if reader.read(&mut header[..1]).await.unwrap() == 0 {
            break;
        }
        reader.read_exact(&mut header[1..]).await.unwrap();
    }
    assert_eq!(seen, [1, 2, 4]);
    writing.await.unwrap().unwrap();
}
