//! The two ways in which requests come from the kernel and answers go back: reads and writes of
//! `/dev/fuse`, and io_uring. Which of them a request came by is known here only.

mod device;
mod ring;
mod ring_entry;
mod ring_queue;

pub use device::Device;
pub use ring::Rings;

use crate::abi::{Answer, Encoded};
use crate::session::Session;
use ring_entry::Entry;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Where the answer to one request goes.
#[derive(Clone)]
pub enum Route {
    Device(Arc<Device>),
    Ring(Arc<Entry>),
}

impl Route {
    /// Sends the answer, from any thread. The kernel may not want it any more: the caller is gone.
    pub fn answer(&self, unique: u64, answer: &Answer) {
        let encoded = Encoded::new(unique, answer);
        match self {
            Self::Device(device) => device.answer(&encoded),
            Self::Ring(entry) => entry.answer(&encoded),
        }
    }
}

/// The threads that serve a mount.
#[derive(Debug)]
pub struct Threads(Vec<JoinHandle<io::Result<()>>>);

impl Threads {
    /// Serves what comes by `/dev/fuse` on `count` threads, and by `rings` if there are any: the
    /// kernel then sends little the other way, unless it cannot use them.
    pub fn start(
        session: &Arc<Session>,
        device: &Arc<Device>,
        count: usize,
        rings: Option<Rings>,
    ) -> io::Result<Self> {
        let mut threads = Vec::new();
        for _ in 0..count.max(1) {
            let (session, device) = (session.clone(), device.clone());
            let thread = std::thread::Builder::new().name("fuse".into());
            let serve = move || session.guarded("/dev/fuse", || device::serve(&session, &device));
            threads.push(thread.spawn(serve)?);
        }
        if let Some(rings) = rings {
            threads.extend(rings.start(session, device));
        }
        Ok(Self(threads))
    }

    /// Waits until the connection ends. Answers the first failure.
    pub fn join(self) -> io::Result<()> {
        let mut first = Ok(());
        for thread in self.0 {
            let ended = thread.join();
            first = first
                .and(ended.unwrap_or_else(|_| Err(io::Error::other("a FUSE thread panicked"))));
        }
        first
    }
}
