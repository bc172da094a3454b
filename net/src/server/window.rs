//! How much one connection may have in flight. Above that it is not read: TCP then holds the peer
//! back.

use parking_lot::Mutex;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Most requests of one connection that are served at once.
const MAX_REQUESTS: usize = 4096;

#[derive(Default)]
struct Used {
    requests: usize,
    bytes: usize,
    /// The reader, if it waits for room.
    reader: Option<Waker>,
}

pub(super) struct Window {
    max_bytes: usize,
    used: Mutex<Used>,
}

impl Window {
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, used: Mutex::default() }
    }

    /// Takes room for a request if there is; a request larger than the window gets it alone.
    pub fn try_enter(&self, bytes: usize) -> bool {
        self.used.lock().enter(bytes, self.max_bytes)
    }

    /// Waits for room for a request and takes it. For one task at a time.
    pub async fn enter(&self, bytes: usize) {
        poll_fn(|cx| {
            let mut used = self.used.lock();
            if used.enter(bytes, self.max_bytes) {
                return Poll::Ready(());
            }
            used.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// A request of `bytes` was served; now its answer of `answer` bytes is held.
    pub fn served(&self, bytes: usize, answer: usize) {
        self.change(|used| used.bytes = used.bytes + answer - bytes);
    }

    /// Answers left, `bytes` in all.
    pub fn left(&self, requests: usize, bytes: usize) {
        self.change(|used| {
            used.requests -= requests;
            used.bytes -= bytes;
        });
    }

    /// Requests whose answers have not left yet.
    pub fn requests(&self) -> usize {
        self.used.lock().requests
    }

    fn change(&self, change: impl FnOnce(&mut Used)) {
        let mut used = self.used.lock();
        change(&mut used);
        let reader = used.reader.take();
        drop(used);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Used {
    fn enter(&mut self, bytes: usize, max_bytes: usize) -> bool {
        let fits = self.requests < MAX_REQUESTS
            && (self.bytes == 0 || self.bytes.saturating_add(bytes) <= max_bytes);
        if fits {
            self.requests += 1;
            self.bytes += bytes;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_window_bounds_requests_and_bytes_but_lets_one_large_request_through() {
        let window = Window::new(100);
        assert!(window.try_enter(1000));
        assert!(!window.try_enter(1));
        window.served(1000, 0);
        assert!(window.try_enter(60) && window.try_enter(40) && !window.try_enter(1));
        window.served(60, 10);
        assert!(window.try_enter(50) && !window.try_enter(1));
        window.left(4, 0);
        assert_eq!(window.requests(), 0);

        let window = Window::new(100);
        assert!((0..MAX_REQUESTS).all(|_| window.try_enter(0)));
        assert!(!window.try_enter(0));
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let window = Arc::new(Window::new(10));
        window.enter(10).await;
        let waiting = tokio::spawn({
            let window = window.clone();
            async move { window.enter(5).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        window.served(10, 0);
        waiting.await.unwrap();
    }
}
