//! A mount goes from the process that serves it to another: the kernel's side of it.
//!
//! The connection is a descriptor, which two processes may have; the kernel does not see who reads
//! requests there. What it has agreed with the first goes for the second, and so do the numbers of
//! requests that wait for their answer. Requests over io_uring cannot go along: the kernel's queues
//! lead to the memory of one process.

use crate::abi::{InitReply, flag};
use crate::channel::{Device, Gate};
use crate::dcache::Dcache;
use crate::notifier::Notifier;
use crate::session::Session;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tokio::time::Instant;
use weft_proto::v1;

/// Stops the serving of a mount, for another process to go on with it.
#[derive(Clone)]
pub struct Handover {
    pub(crate) session: Arc<Session>,
    pub(crate) device: Arc<Device>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) notifier: Notifier,
    pub(crate) agreed: InitReply,
    pub(crate) dcache: Dcache,
}

impl Handover {
    /// Takes no more requests, and waits until all are answered but those that wait for locks.
    /// Errors: `TimedOut` if some work goes on at `deadline`, `Unsupported` for a mount over
    /// io_uring; it has to be resumed then, too.
    pub async fn rest(&self, deadline: Instant) -> io::Result<()> {
        if self.agreed.flags & flag::OVER_IO_URING != 0 {
            let what = "its requests come over io_uring, which are tied to their process: unmount \
                        it and mount it anew, or mount with --io-uring off";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        self.gate.close()?;
        self.session.rest(deadline).await
    }

    /// The requests that wait for locks, as they came.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.session.kept()
    }

    /// What the kernel has agreed to.
    pub fn agreed(&self) -> v1::KernelAgreement {
        self.agreed.agreement()
    }

    /// What the kernel may use of names and attributes, for a process that will take it back.
    pub fn known(&self) -> v1::KernelCache {
        self.dcache.hand_over()
    }

    /// Before the mount is brought to rest: waits until nothing is on its way back of that, at most
    /// until `deadline`; and takes all of it back for a process that would not (`takes_names`).
    pub async fn settle_names(&self, takes_names: bool, deadline: Instant) {
        match takes_names {
            true => self.dcache.settle(deadline).await,
            false => self.dcache.give_nothing(deadline).await,
        }
    }

    /// Whether nothing of it is on its way back: what is, the other process would not know of.
    pub fn names_rest(&self) -> bool {
        self.dcache.rests()
    }

    /// The connection to the kernel.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Goes on: no other process took over.
    pub fn resume(&self) {
        self.dcache.give_again();
        self.session.resume();
        self.gate.open();
    }

    /// Returns when the kernel has done what it was told to forget.
    pub async fn notices_sent(&self) {
        self.notifier.sent().await;
    }

    /// Another process has taken over: the threads end.
    pub fn leave(&self) {
        self.gate.end();
    }

    /// Whether another process has taken over.
    pub fn is_over(&self) -> bool {
        self.gate.is_over()
    }
}
