//! The seam to the network card: queue pairs, and memory that it knows.
//!
//! What is posted to a queue pair is done in order; what it is done with is told by completions.
//! [`verbs`](super::verbs) are real cards, [`Fabric`](crate::Fabric) is one in memory.

use super::wire::Piece;
use crate::dma_buf::DmaBuf;
use std::io;
use std::task::{Context, Poll};

/// Memory of this process that the card may use, and what it is called in requests to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// In requests of this side.
    pub local: u32,
    /// In requests of the other side.
    pub remote: u32,
    /// What the card calls it.
    pub handle: usize,
}

/// A run of this process's memory, known to the card under a local key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub start: *mut u8,
    pub len: usize,
    pub key: u32,
}

// SAFETY: an address; who posts it keeps the memory.
unsafe impl Send for Local {}

/// Makes memory known to a card.
pub(crate) trait Nic: Send + Sync {
    /// Makes memory known, which must stay where it is until [`Self::deregister`]. Error: what the
    /// card or the system says, such as a limit on locked memory.
    fn register(&self, start: *mut u8, len: usize) -> io::Result<Keys>;

    /// Makes memory of a device known, which must stay until [`Self::deregister`]. Error: what the
    /// card or the system says; `Unsupported` by one that cannot reach it.
    fn register_device(&self, _memory: &DmaBuf) -> io::Result<Keys> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The card forgets memory that was registered. Nothing reads or writes it any more when this
    /// has returned.
    fn deregister(&self, keys: Keys);
}

/// What a request to the card was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// A send, with all that was posted before it.
    Sent,
    /// A write that was to be told of, with all before it.
    Written,
    Read,
    /// Memory for a message was filled with so many bytes.
    Received(usize),
}

/// A request to the card has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// The number that the request was given.
    pub id: u64,
    pub done: Done,
}

/// One end of a connection between cards. At most as much is posted as it was made for.
///
/// # Safety
///
/// Memory of what is posted must stay until its completion, or until [`Self::destroy`] has
/// returned: then nothing reads or writes it any more, the other side included.
pub(crate) unsafe trait QueuePair: Send + Sync {
    /// Sends a message.
    fn send(&self, id: u64, message: Local) -> io::Result<()>;
    /// Writes to memory of the other side. `told`: with a completion.
    fn write(&self, id: u64, from: Local, to: Piece, told: bool) -> io::Result<()>;
    /// Reads memory of the other side.
    fn read(&self, id: u64, into: Local, from: Piece) -> io::Result<()>;
    /// Gives memory for a message.
    fn receive(&self, id: u64, into: Local) -> io::Result<()>;
    /// Appends what has ended, a bounded number at a time. Error: the connection is over.
    fn poll(&self, ended: &mut Vec<Completion>) -> io::Result<()>;
    /// Has the next completion after those that were polled wake who polls the event.
    fn arm(&self) -> io::Result<()>;
    /// Ready once there is something to be polled, after it was armed. Error: the connection is
    /// over.
    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Reads that may be under way at a time.
    fn reads(&self) -> usize;
    /// Tells the other side that the connection is over.
    fn disconnect(&self);
    /// Ends it, at once and once for all. Nothing may be posted or polled afterwards.
    fn destroy(&self);
}
