//! Tests of queue.

use super::*;
use crate::frame::{Header, Kind};
use std::sync::atomic::AtomicUsize;

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
