//! Memory of devices that network cards write into by themselves: a card is told of it by a dma-buf
//! (design, 10), and the other side of a connection writes the payload of an answer there. No core
//! reads it; what has landed is brought back by the device for whoever looks at the bytes.
//!
//! A read gives a [`Landing`] to the buffer that it reads into, and the parts that are cut from
//! that buffer belong to the same places of the device. Over any other network, or where a card
//! refuses, they are filled as any buffer.
//!
//! Invariants:
//! - a card is told of the memory until [`DeviceMemory::close`], which returns when no card knows
//!   it any more: the memory may go then, and never before;
//! - when [`Placing::settled`] has returned, the other side writes nothing more of that landing;
//! - what was told of by a read that was given up is written by nobody once the next one begins.
//!
//! A server that does not answer is not waited for: the card forgets the memory ([`GRACE`]), and a
//! write that comes then ends its connection.

use crate::buffer::{Bringing, Buffer, Place};
use crate::dma_buf::DmaBuf;
use crate::rdma::{Domain, Keys};
use crate::sync::{Condvar, Mutex};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// So long may a server take to write what nobody waits for any more.
const GRACE: Duration = Duration::from_secs(1);

/// A device with memory.
pub trait Device: Send + Sync + 'static {
    /// Fills buffers with what the memory has at these offsets, after all that cards have written.
    /// The buffers are kept until that is over, also if nobody waits for it any more.
    fn bring(&self, pieces: Vec<(usize, Buffer)>) -> Bringing<'_>;
}

/// Memory of a device that cards can be told of.
pub struct DeviceMemory {
    device: Box<dyn Device>,
    address: u64,
    len: usize,
    state: Mutex<State>,
    /// For who waits in a task, and for who waits in a thread.
    fewer: Notify,
    less: Condvar,
    landed: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Until no card is told of it any more: the memory stays for as long as this is open.
    exported: Option<DmaBuf>,
    /// The cards that were asked to know it, and what they answered.
    known: Vec<(Arc<Domain>, Option<Keys>)>,
    /// Why one of them refused.
    refused: Option<String>,
    /// Requests that may be written for, and those of reads that were given up.
    shown: usize,
    given_up: usize,
    /// Of the keys: what was told of by older ones reaches nothing.
    generation: u64,
}

/// Where in a device's memory the bytes of one read go.
struct Landing {
    memory: Arc<DeviceMemory>,
    at: usize,
    len: usize,
    /// Under the lock of the memory's state, too.
    own: Mutex<Own>,
}

#[derive(Default)]
struct Own {
    /// Nobody else is told of it.
    closed: bool,
    given_up: bool,
    /// Requests of this generation that may be written for.
    shown: usize,
    generation: u64,
    /// Bytes that landed and were found to be right.
    landed: usize,
}

/// A request that may be written for, until this is dropped.
struct Shown {
    landing: Arc<Landing>,
    generation: u64,
}

/// A landing that a read uses. If it is dropped before it was settled the read was given up.
pub struct Placing(Arc<Landing>);

impl DeviceMemory {
    /// Memory that was exported by its device.
    pub fn new(device: impl Device, exported: DmaBuf) -> Arc<Self> {
        let DmaBuf { address, len, .. } = exported;
        let state = Mutex::new(State { exported: Some(exported), ..State::default() });
        let (fewer, less) = (Notify::new(), Condvar::new());
        let (device, landed) = (Box::new(device), AtomicU64::new(0));
        Arc::new(Self { device, address, len, state, fewer, less, landed })
    }

    /// Bytes that cards wrote here and that were found to be right.
    pub fn landed(&self) -> u64 {
        self.landed.load(Ordering::Relaxed)
    }

    /// Why a card does not write here, if one refused to.
    pub fn refused(&self) -> Option<String> {
        self.state.lock().refused.clone()
    }

    /// A place for a read of `len` bytes, which must lie in the memory.
    pub async fn place(self: &Arc<Self>, at: usize, len: usize) -> Placing {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at}+{len}");
        // What they have told of would land on top of it.
        self.quiet().await;
        let (memory, own) = (self.clone(), Mutex::default());
        Placing(Arc::new(Landing { memory, at, len, own }))
    }

    /// Returns when nothing is written any more for reads that were given up.
    pub async fn quiet(&self) {
        self.until(|state| state.given_up == 0).await;
    }

    /// Returns when no card knows the memory any more, nor will. Waits in this thread.
    pub fn close(&self) {
        let mut state = self.state.lock();
        let exported = state.exported.take();
        let mut late = false;
        while state.shown > 0 && !late {
            (state, late) = self.less.wait_timeout(state, GRACE);
        }
        self.revoke(&mut state);
        drop(exported);
    }

    /// Waits until that is so, or makes it so.
    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        let end = Instant::now() + GRACE;
        loop {
            let fewer = self.fewer.notified();
            if is_so(&self.state.lock()) {
                return;
            }
            if timeout_at(end, fewer).await.is_err() {
                let mut state = self.state.lock();
                if !is_so(&state) {
                    tracing::debug!("a server does not answer: its card forgets a GPU's memory");
                    self.revoke(&mut state);
                }
                return;
            }
        }
    }

    /// No card knows it when this has returned.
    fn revoke(&self, state: &mut State) {
        for (domain, keys) in state.known.drain(..) {
            keys.into_iter().for_each(|keys| domain.forget_device(keys));
        }
        (state.shown, state.given_up) = (0, 0);
        state.generation += 1;
        self.fewer.notify_waiters();
        self.less.notify_all();
    }

    /// What a card knows it by. `None`: it does not.
    fn keys(&self, state: &mut State, domain: &Arc<Domain>) -> Option<Keys> {
        if let Some((_, keys)) = state.known.iter().find(|(of, _)| Arc::ptr_eq(of, domain)) {
            return *keys;
        }
        let keys = match domain.know_device(state.exported.as_ref()?) {
            Ok(keys) => Some(keys),
            Err(error) => {
                let why = format!("the network card does not write into the GPU's memory: {error}");
                if state.refused.is_none() {
                    tracing::warn!(why, "reads go through memory of this host");
                }
                state.refused.get_or_insert(why);
                None
            }
        };
        state.known.push((domain.clone(), keys));
        keys
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.close();
    }
}

impl Place for Landing {
    fn len(&self) -> usize {
        self.len
    }

    fn show(
        self: Arc<Self>,
        domain: &Arc<Domain>,
        at: usize,
    ) -> Option<(u64, u32, Box<dyn Any + Send>)> {
        let mut state = self.memory.state.lock();
        if state.exported.is_none() || self.own.lock().closed {
            return None;
        }
        let keys = self.memory.keys(&mut state, domain)?;
        state.shown += 1;
        let mut own = self.own.lock();
        (own.shown, own.generation) = (own.shown(&state) + 1, state.generation);
        let address = self.memory.address + (self.at + at) as u64;
        let shown = Shown { landing: self.clone(), generation: state.generation };
        Some((address, keys.remote, Box::new(shown)))
    }

    fn note_landed(&self, len: usize) {
        self.own.lock().landed += len;
        self.memory.landed.fetch_add(len as u64, Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        self.own.lock().landed == self.len
    }

    fn bring(&self, pieces: Vec<(usize, Buffer)>) -> Bringing<'_> {
        let pieces = pieces.into_iter().map(|(at, piece)| (self.at + at, piece));
        self.memory.device.bring(pieces.collect())
    }
}

impl Own {
    /// Requests that may be written for by now.
    fn shown(&self, state: &State) -> usize {
        if self.generation == state.generation { self.shown } else { 0 }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let Landing { memory, own, .. } = &*self.landing;
        let mut state = memory.state.lock();
        if state.generation == self.generation {
            let mut own = own.lock();
            own.shown -= 1;
            state.shown -= 1;
            state.given_up -= usize::from(own.given_up);
            memory.fewer.notify_waiters();
            memory.less.notify_all();
        }
    }
}

impl Placing {
    /// A buffer for all of it.
    pub fn buffer(&self) -> Buffer {
        Buffer::landing_at(self.0.clone())
    }

    /// Returns when the other side writes nothing more there.
    pub async fn settled(self) {
        let Landing { memory, own, .. } = &*self.0;
        own.lock().closed = true;
        memory.until(|state| own.lock().shown(state) == 0).await;
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        let mut state = self.0.memory.state.lock();
        let mut own = self.0.own.lock();
        (own.closed, own.given_up) = (true, true);
        state.given_up += own.shown(&state);
    }
}
