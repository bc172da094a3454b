//! Memory that a payload lands in.
//!
//! A transport may have the other side write into it, so it lies in the regions of [`AlignedBuf`],
//! which a transport registers once and knows by address; `BytesMut` can lie nowhere but in the
//! heap. What is sent stays `Bytes`: they can be a view of this memory as of any other, and a
//! transport that needs registered memory finds by the address whether it is in a region, else
//! copies it there.
//!
//! Invariants: of the bytes of one block each belongs to one buffer; the block goes back to its
//! pool with the last buffer that has a part of it.

use crate::aligned::AlignedBuf;
use bytes::Bytes;
use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Memory with one owner, which can be cut in parts and joined again without a copy.
pub struct Buffer {
    block: Arc<AlignedBuf>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` bytes, whose start is aligned to 4096. They are whatever was there: fill
    /// them before showing them to anyone.
    pub fn take(len: usize) -> Self {
        Self { block: Arc::new(AlignedBuf::take(len)), start: 0, len }
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
        unsafe { self.block.memory().add(self.start) }
    }

    /// Cuts off the first `at` bytes and answers them. Panics if there are fewer.
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "{at} bytes of a buffer of {}", self.len);
        let first = Self { block: self.block.clone(), start: self.start, len: at };
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
