//! A buffer of written data: what becomes a segment.

use super::fate::Fate;
use crate::copies::note_copied;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use weft_net::AlignedBuf;
use weft_segments::Segment;

/// A buffer begins no larger than its first write needs, then grows in these steps.
const GROW: [usize; 2] = [64 << 10, 1 << 20];

/// The part of the budget that the bytes of a buffer take up, until nobody has them any more:
/// neither the buffer, nor a flight of it, which may outlast it.
pub(super) type Permits = Arc<Vec<OwnedSemaphorePermit>>;

/// Number of a buffer within its file.
pub(crate) type BufferNo = u64;

/// How far a buffer has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Takes more writes.
    Open,
    /// Complete, waits to be sent.
    Closed,
    /// Complete, and to be committed as inline data.
    Inline,
    /// On its way to storage.
    Flying,
    /// Durable, not yet visible: in segments that follow each other.
    Durable(Vec<Segment>),
}

/// Recycled memory: touching fresh pages costs more than copying into them.
pub(super) enum Body {
    Open(AlignedBuf),
    Closed(Bytes),
}

pub(super) struct Buffer {
    pub body: Body,
    pub stage: Stage,
    /// Bytes that ranges refer to.
    pub live: u64,
    pub born: Instant,
    /// Shared by scattered writes.
    pub shared: bool,
    /// What was committed already, and is written once more.
    pub spilled: bool,
    /// It was appended, and may have been committed where it lies.
    pub placed: bool,
    /// Ranges that were put in.
    pub parts: usize,
    /// Of what was put in, where somebody wants to know of it.
    pub fates: Vec<Fate>,
    /// One for each part of the budget that it takes up.
    pub permits: Permits,
}

impl Buffer {
    pub fn len(&self) -> usize {
        match &self.body {
            Body::Open(bytes) => bytes.as_ref().len(),
            Body::Closed(bytes) => bytes.len(),
        }
    }

    /// Whether nothing of it was sent yet.
    pub fn is_pending(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Inline | Stage::Closed)
    }

    /// The segments that it is in, which it has no more.
    pub fn take_segments(&mut self) -> Vec<Segment> {
        match &mut self.stage {
            Stage::Durable(segments) => std::mem::take(segments),
            _ => Vec::new(),
        }
    }

    /// Bytes of memory, as long as it is open.
    pub fn capacity(&self) -> usize {
        match &self.body {
            Body::Open(bytes) => bytes.capacity(),
            Body::Closed(bytes) => bytes.len(),
        }
    }

    /// Makes room for `len` more bytes, counted by `permit`: at once for all that may come, if the
    /// budget has room for that memory, else for little more than these.
    pub fn grow(&mut self, len: usize, permit: &OwnedSemaphorePermit, segment_len: usize) {
        let held = self.held();
        let free = permit.semaphore().available_permits() + held + permit.num_permits();
        let need = self.len() + len;
        let Body::Open(bytes) = &mut self.body else { return };
        if need > bytes.capacity() {
            let ample = GROW.into_iter().find(|&step| need <= step);
            let ample = ample.unwrap_or(segment_len.max(need));
            enlarge(bytes, if ample <= free { ample } else { need });
        }
    }

    /// Counts the memory of the buffer: `permit` is for bytes that were added.
    pub fn count(&mut self, mut permit: OwnedSemaphorePermit) {
        let held = self.held();
        let (held, capacity) = (held + permit.num_permits(), self.capacity());
        if let Some(surplus) = held.checked_sub(capacity) {
            // There was room for them.
            drop(permit.split(surplus.min(permit.num_permits())));
        } else if let Ok(more) = u32::try_from(capacity - held)
            && let Ok(more) = permit.semaphore().clone().try_acquire_many_owned(more)
        {
            permit.merge(more);
        }
        self.hold(permit);
    }

    pub fn bytes(&self, at: u64, len: u64) -> Bytes {
        let range = at as usize..(at + len) as usize;
        match &self.body {
            Body::Open(bytes) => {
                note_copied(range.len());
                Bytes::copy_from_slice(&bytes.as_ref()[range])
            }
            Body::Closed(bytes) => bytes.slice(range),
        }
    }

    /// Bytes that it counts for.
    fn held(&self) -> usize {
        self.permits.iter().map(OwnedSemaphorePermit::num_permits).sum()
    }

    /// Counts `permit` against the budget for as long as anybody has the bytes.
    pub fn hold(&mut self, permit: OwnedSemaphorePermit) {
        // What flies is closed, and takes nothing more in.
        let Some(permits) = Arc::get_mut(&mut self.permits) else { return };
        let alike =
            |held: &&mut OwnedSemaphorePermit| Arc::ptr_eq(held.semaphore(), permit.semaphore());
        match permits.iter_mut().find(alike) {
            Some(held) => held.merge(permit),
            None => permits.push(permit),
        }
    }

    pub fn close(&mut self, stage: Stage) {
        let body = std::mem::replace(&mut self.body, Body::Closed(Bytes::new()));
        self.body = match body {
            Body::Open(bytes) => Body::Closed(bytes.into()),
            closed => closed,
        };
        self.stage = stage;
    }
}

/// A buffer that `len` bytes fit in.
pub(super) fn empty(len: usize) -> AlignedBuf {
    let mut buffer = AlignedBuf::take(len);
    buffer.set_len(0);
    buffer
}

/// Moves to a buffer that `size` bytes fit in; a long stream does so at most twice, if there is
/// memory.
fn enlarge(buffer: &mut AlignedBuf, size: usize) {
    let len = buffer.as_ref().len();
    let mut larger = AlignedBuf::take(size);
    larger.as_mut_slice()[..len].copy_from_slice(buffer.as_ref());
    larger.set_len(len);
    *buffer = larger;
}

/// Adds `data` at the end. Answers where it went.
pub(super) fn append(buffer: &mut AlignedBuf, data: &[u8]) -> u64 {
    let at = buffer.as_ref().len();
    let need = at + data.len();
    if need > buffer.capacity() {
        enlarge(buffer, need);
    }
    note_copied(data.len());
    buffer.set_len(need);
    buffer.as_mut_slice()[at..].copy_from_slice(data);
    at as u64
}
