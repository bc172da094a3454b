//! How much one connection may have in flight. Above that it is not read: TCP then holds the peer
//! back.
//!
//! Room is [`Entered`]'s, and is given back when that is dropped: a request may end at any
//! `.await`, as when its other side is gone before all of it has come. Only what an answer takes is
//! given back by who sends it ([`Window::left`]).
//!
//! A little memory is each connection's own, so that small requests never wait for those of others;
//! what it holds beyond that, it draws on what all connections share ([`super::budget`]).

use super::budget::Account;
use crate::sync::Mutex;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

/// Most requests of one connection that are served at once.
const MAX_REQUESTS: usize = 4096;
/// Bytes that every connection may hold without drawing on what is shared.
pub(super) const OWN: usize = 64 << 10;

#[derive(Default)]
struct Used {
    requests: usize,
    bytes: usize,
    /// Of these bytes, those that are drawn on the account.
    drawn: usize,
    /// Requests so far.
    entered: u64,
    /// The reader, if it waits for room in the window.
    reader: Option<Waker>,
    /// It waits for room, there or in what is shared.
    waits: bool,
}

pub(super) struct Window {
    max_bytes: usize,
    used: Mutex<Used>,
    /// Known after the hello, which is small.
    account: OnceLock<Account>,
}

impl Window {
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, used: Mutex::default(), account: OnceLock::new() }
    }

    /// From now on what is held beyond the connection's own is drawn on this. To be called once.
    pub fn draw_on(&self, account: Account) {
        let _ = self.account.set(account);
    }

    /// Takes room for a request if there is; a request larger than the window gets it alone.
    pub fn try_enter(self: &Arc<Self>, bytes: usize) -> Option<Entered> {
        let mut used = self.used.lock();
        if !used.has_room(bytes, self.max_bytes) {
            return None;
        }
        let (lacks, account) = (used.lacks(bytes), self.account.get());
        if lacks > 0 && account.is_some_and(|account| !account.try_take(lacks)) {
            return None;
        }
        used.drawn += lacks;
        Some(self.enter_now(&mut used, bytes))
    }

    /// Waits for room for a request and takes it. For one task at a time; who gives up has taken
    /// nothing.
    pub async fn enter(self: &Arc<Self>, bytes: usize) -> Entered {
        let _waits = Waits::begin(&self.used);
        let lacks = poll_fn(|cx| {
            let mut used = self.used.lock();
            if used.has_room(bytes, self.max_bytes) {
                return Poll::Ready(used.lacks(bytes));
            }
            used.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        if let Some(account) = self.account.get().filter(|_| lacks > 0) {
            account.take(lacks).await;
        }
        // Answers may have come and gone meanwhile.
        let mut used = self.used.lock();
        used.drawn += lacks;
        self.enter_now(&mut used, bytes)
    }

    fn enter_now(self: &Arc<Self>, used: &mut Used, bytes: usize) -> Entered {
        used.requests += 1;
        used.entered += 1;
        used.bytes += bytes;
        self.balance(used);
        Entered { window: Some(self.clone()), bytes }
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

    /// Whether there are requests whose answers have not left yet, or one that waits for room.
    pub fn is_at_work(&self) -> bool {
        let used = self.used.lock();
        used.requests > 0 || used.waits
    }

    /// Requests so far.
    pub fn entered(&self) -> u64 {
        self.used.lock().entered
    }

    fn change(&self, change: impl FnOnce(&mut Used)) {
        let mut used = self.used.lock();
        change(&mut used);
        self.balance(&mut used);
        let reader = used.reader.take();
        drop(used);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Draws what is held, no more and no less.
    fn balance(&self, used: &mut Used) {
        let held = used.bytes.saturating_sub(OWN);
        let drawn = std::mem::replace(&mut used.drawn, held);
        let Some(account) = self.account.get() else { return };
        if held < drawn {
            account.give(drawn - held);
        } else if held > drawn {
            account.overdraw(held - drawn);
        }
    }
}

/// A request that has room, until this is dropped.
pub(super) struct Entered {
    /// Nothing: its answer has the room.
    window: Option<Arc<Window>>,
    bytes: usize,
}

impl Entered {
    /// The request was served: from now on its answer of so many bytes has the room, until that has
    /// [`Window::left`].
    pub fn answered(mut self, bytes: usize) {
        if let Some(window) = self.window.take() {
            window.change(|used| used.bytes = used.bytes + bytes - self.bytes);
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(window) = self.window.take() {
            window.left(1, self.bytes);
        }
    }
}

/// As long as it lives, a request waits.
struct Waits<'a>(&'a Mutex<Used>);

impl<'a> Waits<'a> {
    fn begin(used: &'a Mutex<Used>) -> Self {
        used.lock().waits = true;
        Self(used)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.lock().waits = false;
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(account) = self.account.get() {
            account.give(self.used.get_mut().drawn);
        }
    }
}

impl Used {
    fn has_room(&self, bytes: usize, max_bytes: usize) -> bool {
        self.requests < MAX_REQUESTS
            && (self.bytes == 0 || self.bytes.saturating_add(bytes) <= max_bytes)
    }

    /// What must be drawn for `bytes` more.
    fn lacks(&self, bytes: usize) -> usize {
        (self.bytes + bytes).saturating_sub(OWN).saturating_sub(self.drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::Budget;
    use super::*;
    use std::sync::Arc;

    fn window(max_bytes: usize) -> Arc<Window> {
        Arc::new(Window::new(max_bytes))
    }

    #[test]
    fn a_window_bounds_requests_and_bytes_but_lets_one_large_request_through() {
        let window = window(100);
        let large = window.try_enter(1000).unwrap();
        assert!(window.try_enter(1).is_none());
        large.answered(0);
        let (first, second) = (window.try_enter(60).unwrap(), window.try_enter(40).unwrap());
        assert!(window.try_enter(1).is_none());
        first.answered(10);
        let third = window.try_enter(50).unwrap();
        assert!(window.try_enter(1).is_none());
        drop((second, third));
        assert_eq!(window.requests(), 2, "answers that have not left");
        window.left(2, 10);
        assert_eq!(window.requests(), 0);

        let window = self::window(100);
        let all: Vec<_> = (0..MAX_REQUESTS).map_while(|_| window.try_enter(0)).collect();
        assert!(all.len() == MAX_REQUESTS && window.try_enter(0).is_none());
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let window = window(10);
        for answered in [true, false] {
            let first = window.enter(10).await;
            let waiting = tokio::spawn({
                let window = window.clone();
                async move { drop(window.enter(5).await) }
            });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            match answered {
                true => first.answered(0),
                false => drop(first),
            }
            waiting.await.unwrap();
        }
    }

    #[tokio::test]
    async fn only_what_is_not_its_own_is_drawn_and_all_of_it_is_given_back() {
        let budget = Budget::new(4 * OWN);
        let window = |host| {
            let window = window(usize::MAX);
            window.draw_on(budget.account(host));
            window
        };
        let (hog, other) = (window("hog"), window("other"));
        let own = hog.try_enter(OWN).unwrap();
        assert_eq!(budget.used(), 0);
        let more = hog.try_enter(2 * OWN).unwrap();
        assert_eq!(budget.used(), 2 * OWN);
        assert!(hog.try_enter(1).is_none(), "it leaves as much as it holds");
        // An answer is there already, whether there is room for it or not.
        own.answered(3 * OWN);
        assert_eq!(budget.used(), 4 * OWN);
        let others = other.try_enter(OWN).unwrap();
        assert!(other.try_enter(1).is_none(), "its own, and no more");
        let large = {
            let mut waiting = std::pin::pin!(other.enter(2 * OWN));
            assert!(futures_poll(waiting.as_mut()).await.is_none());
            hog.left(1, 3 * OWN);
            waiting.await
        };
        assert_eq!(budget.used(), OWN + 2 * OWN);
        drop(more);
        assert_eq!(budget.used(), 2 * OWN, "it never came");
        large.answered(2 * OWN);
        drop((hog, other));
        assert_eq!(budget.used(), 2 * OWN, "a request is at work still");
        drop(others);
        assert_eq!(budget.used(), 0, "whatever a lost connection held");
    }

    async fn futures_poll<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }
}
