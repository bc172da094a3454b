//! What answers requests, whichever channel they came by.

use crate::abi::{Answer, Header, Reply, Request};
use crate::root::Root;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// The rest of the work of a request that may have to wait.
pub type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// How a request goes on.
pub enum Outcome {
    Done(Answer),
    /// Is tried at once on the thread that took the request, and goes on in the runtime only if it
    /// has to wait.
    Working(Work),
    /// As `Working`, by work that takes a lock: it hears of its caller.
    Waiting(Work, Arc<LockCaller>),
}

impl Outcome {
    pub fn working(work: impl Future<Output = Answer> + Send + 'static) -> Self {
        Self::Working(Box::pin(work))
    }

    /// Work that takes a lock. If it waits for that, a signal to the caller should end it.
    pub fn waiting<W>(work: impl FnOnce(Arc<LockCaller>) -> W) -> Self
    where
        W: Future<Output = Answer> + Send + 'static,
    {
        let caller = Arc::new(LockCaller::default());
        Self::Waiting(Box::pin(work(caller.clone())), caller)
    }
}

/// Whoever asked for a lock.
#[derive(Default, Debug)]
pub struct LockCaller {
    signal: Notify,
    let_go: AtomicBool,
}

impl LockCaller {
    /// Returns when it gets a signal.
    pub async fn notified(&self) {
        self.signal.notified().await;
    }

    /// Whether it waits for the answer. No from before it is answered without its work, since it
    /// was killed: what it has open is closed only after that.
    pub fn waits(&self) -> bool {
        // In one order with what is entered before this is asked, and found by that close.
        !self.let_go.load(Ordering::SeqCst)
    }

    pub(crate) fn signal(&self) {
        self.signal.notify_one();
    }

    pub(crate) fn let_go(&self) {
        self.let_go.store(true, Ordering::SeqCst);
    }
}

/// Answers requests. Called on threads that must not block, inside a runtime; each request is
/// answered exactly once.
///
/// A request whose caller was killed is answered without it while its work goes on to the end: what
/// was begun is never cut off. Only waiting for a lock hears of signals, and ends by itself; and no
/// lock is taken any more for who is killed.
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
