//! Memory that a payload lands in.
//!
//! A transport may have the other side write into it, so it lies in the regions of [`AlignedBuf`],
//! which a transport registers once and knows by address; `BytesMut` can lie nowhere but in the
//! heap. What is sent stays `Bytes`: they can be a view of this memory as of any other, and a
//! transport that needs registered memory finds by the address whether it is in a region, else
//! copies it there.
//!
//! A buffer may have a place in the memory of a device ([`crate::DeviceMemory`]), which the other
//! side writes to instead, where the network can do that: its bytes are brought back then
//! ([`brought_back`]) before anybody looks at them.
//!
//! Invariants: of the bytes of one block each belongs to one buffer; the block goes back to its
//! pool with the last buffer that has a part of it.

use crate::aligned::AlignedBuf;
use crate::rdma::Domain;
use bytes::Bytes;
use std::any::Any;
use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use weft_proto::Result;

/// Memory with one owner, which can be cut in parts and joined again without a copy.
pub struct Buffer {
    block: Arc<Block>,
    start: usize,
    len: usize,
    bytes: AtomicU8,
}

struct Block {
    memory: AlignedBuf,
    /// Where its bytes may go instead, as many as it has.
    landing: Option<Arc<dyn Place>>,
}

/// What brings bytes back from a device, each from its offset there into its buffer.
pub type Bringing<'a> = Pin<Box<dyn Future<Output = Result<Vec<Buffer>>> + Send + 'a>>;

/// Memory of a device that the bytes of a block may go to instead.
pub(crate) trait Place: Send + Sync {
    /// As many as the block has.
    fn len(&self) -> usize;

    /// What begins at `at`, told to the other side of a connection over this card: the address and
    /// the key, and what is to be kept while it may write there. `None`: the card does not know it,
    /// or nobody is told of it any more.
    fn show(
        self: Arc<Self>,
        domain: &Arc<Domain>,
        at: usize,
    ) -> Option<(u64, u32, Box<dyn Any + Send>)>;

    /// So many bytes that landed here are right.
    fn note_landed(&self, len: usize);

    /// Whether all of it landed.
    fn is_full(&self) -> bool;

    /// Brings what landed back into these buffers, each of which begins at its offset.
    fn bring(&self, pieces: Vec<(usize, Buffer)>) -> Bringing<'_>;
}

/// Where the bytes of a buffer are: here, or the other side may write them to its place in a
/// device, or they are there, or there and here.
const HERE: u8 = 0;
const TOLD: u8 = 1;
const AWAY: u8 = 2;
const BOTH: u8 = 3;

impl Buffer {
    /// A buffer of `len` bytes, whose start is aligned to 4096. They are whatever was there: fill
    /// them before showing them to anyone.
    pub fn take(len: usize) -> Self {
        Self::of(len, None)
    }

    /// A buffer for what goes there.
    pub(crate) fn landing_at(landing: Arc<dyn Place>) -> Self {
        Self::of(landing.len(), Some(landing))
    }

    fn of(len: usize, landing: Option<Arc<dyn Place>>) -> Self {
        let block = Arc::new(Block { memory: AlignedBuf::take(len), landing });
        Self { block, start: 0, len, bytes: AtomicU8::new(HERE) }
    }

    /// Its place in a device, told to the other side of a connection over this card, which may
    /// write there. `None`: it has none, or the card does not know it.
    pub(crate) fn show(&self, domain: &Arc<Domain>) -> Option<(u64, u32, Box<dyn Any + Send>)> {
        let shown = self.block.landing.clone()?.show(domain, self.start)?;
        self.bytes.store(TOLD, Ordering::Relaxed);
        Some(shown)
    }

    /// The other side has written it where it was told.
    pub(crate) fn was_written(&mut self) {
        let bytes = self.bytes.get_mut();
        *bytes = if *bytes == TOLD { AWAY } else { HERE };
    }

    /// What landed in a device, and was brought back, is what it should be.
    pub fn note_right(&self) {
        if let (Some(landing), BOTH) = (&self.block.landing, self.bytes.load(Ordering::Relaxed)) {
            landing.note_landed(self.len);
        }
    }

    /// Whether all of it lies in its place in a device, and was found to be right.
    pub fn is_in_place(&self) -> bool {
        let landing = self.block.landing.as_ref();
        landing.is_some_and(|landing| landing.len() == self.len && landing.is_full())
    }

    /// Bytes that it has, told without a look at them.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where its bytes lie, for a transport that has the other side write to them.
    pub fn memory(&self) -> *mut u8 {
        // SAFETY: the start lies within the block.
        unsafe { self.block.memory.memory().add(self.start) }
    }

    /// Cuts off the first `at` bytes and answers them. Panics if there are fewer.
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "{at} bytes of a buffer of {}", self.len);
        let (block, bytes) = (self.block.clone(), AtomicU8::new(HERE));
        let first = Self { block, start: self.start, len: at, bytes };
        self.start += at;
        self.len -= at;
        first
    }

    /// One buffer of all these, in order: without a copy if they were cut from one another so.
    pub fn join(pieces: impl IntoIterator<Item = Self>) -> Self {
        let mut pieces = pieces.into_iter();
        let mut whole = pieces.next().unwrap_or_else(|| Self::take(0));
        for piece in pieces.by_ref() {
            if !whole.is_followed_by(&piece) {
                let rest: Vec<Self> = [whole, piece].into_iter().chain(pieces).collect();
                return Self::copied(&rest);
            }
            whole.len += piece.len;
        }
        whole
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        Arc::ptr_eq(&self.block, &next.block) && self.start + self.len == next.start
    }

    fn copied(pieces: &[Self]) -> Self {
        let mut whole = Self::take(pieces.iter().map(|piece| piece.len).sum());
        let mut rest = &mut whole[..];
        for piece in pieces {
            let (into, after) = rest.split_at_mut(piece.len);
            into.copy_from_slice(piece);
            rest = after;
        }
        whole
    }
}

/// Brings what landed in a device back into these buffers. Errors: those of the device.
pub async fn brought_back(mut pieces: Vec<Buffer>) -> Result<Vec<Buffer>> {
    let is_away = |piece: &Buffer| piece.bytes.load(Ordering::Relaxed) == AWAY;
    while let Some(first) = pieces.iter().position(is_away) {
        let Some(landing) = pieces[first].block.landing.clone() else { break };
        let is_its = |piece: &Buffer| {
            piece.block.landing.as_ref().is_some_and(|other| Arc::ptr_eq(other, &landing))
        };
        let (mut places, mut away) = (Vec::new(), Vec::new());
        for (at, piece) in pieces.iter_mut().enumerate() {
            if is_away(piece) && is_its(piece) {
                places.push(at);
                let start = piece.start;
                away.push((start, std::mem::replace(piece, Buffer::take(0))));
            }
        }
        for (at, mut piece) in places.into_iter().zip(landing.bring(away).await?) {
            *piece.bytes.get_mut() = BOTH;
            pieces[at] = piece;
        }
    }
    Ok(pieces)
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start + len` bytes are in the block, all initialised, and these are ours alone.
        unsafe { std::slice::from_raw_parts(self.memory(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; nobody else has these bytes, and the block itself is never looked at.
        unsafe { std::slice::from_raw_parts_mut(self.memory(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Buffer {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl From<Buffer> for Bytes {
    /// Without a copy.
    fn from(buffer: Buffer) -> Self {
        Bytes::from_owner(buffer)
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Buffer {
    fn eq(&self, other: &T) -> bool {
        self[..] == *other.as_ref()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p}", self.len, self.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_disjoint_and_join_without_a_copy(
            cuts in prop::collection::vec(0usize..3000, 0..8),
            swap: bool,
        ) {
            let len = 10_000;
            let mut whole = Buffer::take(len);
            let start = whole.as_ptr();
            prop_assert_eq!(start as usize % 4096, 0);
            let mut parts: Vec<Buffer> =
                cuts.iter().map(|&cut| whole.split_to(cut.min(whole.len()))).collect();
            parts.push(whole);
            for (i, part) in parts.iter_mut().enumerate() {
                part.fill(i as u8);
            }
            let expected = |parts: &[Buffer]| parts.concat();
            if swap && parts.len() > 2 {
                parts.swap(0, 1);
            }
            let (expected, cut) = (expected(&parts), swap && parts.len() > 2);
            let moved = cut && !parts[0].is_empty() && !parts[1].is_empty();
            let joined = Buffer::join(parts);
            prop_assert!(joined == expected);
            prop_assert!(moved || cut || joined.as_ptr() == start);
            let joined = Bytes::from(joined);
            prop_assert_eq!(joined, expected);
        }
    }

    #[test]
    fn the_block_goes_back_with_its_last_part() {
        // A size that no other test uses, so that nobody else takes it meanwhile.
        let len = 17 << 20;
        let mut whole = Buffer::take(len);
        let start = whole.as_ptr();
        let first = whole.split_to(1);
        drop(whole);
        assert_ne!(Buffer::take(len).as_ptr(), start);
        drop(first);
        let both = [Buffer::take(len), Buffer::take(len)];
        assert!(both.iter().any(|b| b.as_ptr() == start));
    }
}
