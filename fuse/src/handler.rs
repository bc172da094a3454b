//! What answers requests, whichever channel they came by.

use crate::abi::{Answer, Header, Reply, Request};
use crate::root::Root;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::Notify;

/// The rest of the work of a request that may have to wait.
pub type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// How a request goes on.
pub enum Outcome {
    Done(Answer),
    /// Is tried at once on the thread that took the request, and goes on in the runtime only if it
    /// has to wait.
    Working(Work),
    /// As `Working`, by work that takes a lock, or writes: it hears of its caller.
    Waiting(Work, Arc<Waiter>),
}

impl Outcome {
    pub fn working(work: impl Future<Output = Answer> + Send + 'static) -> Self {
        Self::Working(Box::pin(work))
    }

    /// Work that takes a lock. If it waits for that, a signal to the caller should end it.
    pub fn waiting<W>(work: impl FnOnce(Arc<Waiter>) -> W) -> Self
    where
        W: Future<Output = Answer> + Send + 'static,
    {
        Self::heard(work, true)
    }

    /// Work that writes. A signal ends nothing.
    pub fn writing<W>(work: impl FnOnce(Arc<Waiter>) -> W) -> Self
    where
        W: Future<Output = Answer> + Send + 'static,
    {
        Self::heard(work, false)
    }

    fn heard<W>(work: impl FnOnce(Arc<Waiter>) -> W, locks: bool) -> Self
    where
        W: Future<Output = Answer> + Send + 'static,
    {
        let waiter = Arc::new(Waiter::new(locks));
        Self::Waiting(Box::pin(work(waiter.clone())), waiter)
    }
}

/// Whoever waits for a lock, or for what it writes.
#[derive(Debug)]
pub struct Waiter {
    signal: Notify,
    end: AtomicU8,
    /// For a lock: a signal ends the work.
    pub(crate) locks: bool,
}

/// What [`Waiter::end`] is: nothing has ended the wait, it was let go, or its answer is there.
const WAITS: u8 = 0;
const LET_GO: u8 = 1;
const ANSWERED: u8 = 2;

impl Waiter {
    pub(crate) fn new(locks: bool) -> Self {
        Self { signal: Notify::new(), end: AtomicU8::new(WAITS), locks }
    }

    /// Returns when it gets a signal.
    pub async fn notified(&self) {
        self.signal.notified().await;
    }

    /// Whether it waits for the answer. No from before it is answered without its work, since it
    /// was killed: what it has open is closed only after that.
    pub fn waits(&self) -> bool {
        // In one order with what is entered before this is asked, and found by that close.
        self.end.load(Ordering::SeqCst) != LET_GO
    }

    /// Its answer is there: it is not let go any more. No if it was.
    pub(crate) fn answered(&self) -> bool {
        self.ends(ANSWERED)
    }

    pub(crate) fn signal(&self) {
        self.signal.notify_one();
    }

    /// It is let go, unless its answer is there.
    pub(crate) fn let_go(&self) -> bool {
        self.ends(LET_GO)
    }

    /// Whether the wait has ended so.
    fn ends(&self, how: u8) -> bool {
        let was = self.end.compare_exchange(WAITS, how, Ordering::SeqCst, Ordering::SeqCst);
        was.map_or_else(|was| was == how, |_| true)
    }
}

/// Answers requests. Called on threads that must not block, inside a runtime; each request is
/// answered exactly once.
///
/// A request whose caller was killed is answered without it while its work goes on to the end: what
/// was begun is never cut off. Only waiting for a lock hears of signals, and ends by itself. No
/// lock is taken any more for who is killed, and nothing that it was writing is taken in: others
/// may have its locks.
pub trait Handler: Send + Sync + 'static {
    /// The request borrows the channel's buffer, which is used again when this returns.
    fn handle(&self, request: &Request<'_>) -> Outcome;

    /// The caller was killed before its request had this reply: the kernel does not hear of it,
    /// will never close what was opened, and has not done to its caches what it does when such a
    /// request succeeds.
    fn unwanted(&self, header: &Header, reply: &Reply);

    /// Which inode is the root, in the numbers that notices are to be given in.
    fn root(&self) -> Root {
        Root::default()
    }

    /// The kernel has dropped an inode that it was told of in so many answers.
    fn forgotten(&self, _ino: u64, _answers: u64) {}

    /// Whether nothing goes on that [`Self::unwanted`] has begun.
    fn rests(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_once() {
        let waiter = Waiter::new(false);
        assert!(waiter.waits() && waiter.answered());
        assert!(waiter.waits() && !waiter.let_go() && waiter.answered());
        let waiter = Waiter::new(false);
        assert!(waiter.let_go() && !waiter.waits());
        assert!(!waiter.answered() && waiter.let_go());
    }
}
