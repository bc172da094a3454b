//! What answers requests, whichever channel they came by.

use crate::abi::{Answer, Header, Reply, Request};
use crate::root::Root;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// The rest of the work of a request that may have to wait.
pub type Work = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// How a request goes on.
pub enum Outcome {
    Done(Answer),
    /// Is tried at once on the thread that took the request, and goes on in the runtime only if it
    /// has to wait.
    Working(Work),
    /// As `Working`; notified when the caller gets a signal, and should then end soon.
    Waiting(Work, Arc<Notify>),
}

impl Outcome {
    pub fn working(work: impl Future<Output = Answer> + Send + 'static) -> Self {
        Self::Working(Box::pin(work))
    }

    /// Work that a signal to the caller should end.
    pub fn waiting<W>(work: impl FnOnce(Arc<Notify>) -> W) -> Self
    where
        W: Future<Output = Answer> + Send + 'static,
    {
        let signal = Arc::new(Notify::new());
        Self::Waiting(Box::pin(work(signal.clone())), signal)
    }
}

/// Answers requests. Called on threads that must not block, inside a runtime; each request is
/// answered exactly once.
///
/// A request whose caller was killed is answered without it while its work goes on to the end: what
/// was begun is never cut off. Only waiting for a lock hears of signals, and ends by itself.
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
