//! Bytes that were read.

use crate::copies::note_copied;
use bytes::Bytes;

/// Bytes that a read answered: a few slices in file order, not copied on their way from the socket.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ReadData {
    parts: Vec<Bytes>,
    len: usize,
}

/// A part of a read into the memory of a device.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its bytes.
    pub bytes: Bytes,
    /// They are in the memory already, at their place.
    pub is_there: bool,
}

impl ReadData {
    pub(crate) fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slices, in file order.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// One slice; copies only if there is more than one part.
    pub fn into_bytes(mut self) -> Bytes {
        match self.parts.len() {
            0 => Bytes::new(),
            1 => self.parts.swap_remove(0),
            _ => {
                note_copied(self.len);
                self.parts.concat().into()
            }
        }
    }

    /// Copies it to the start of `into`, and answers how many bytes that were; what finds no room
    /// is left out.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let mut filled = 0;
        for part in &self.parts {
            let len = part.len().min(into.len() - filled);
            into[filled..filled + len].copy_from_slice(&part[..len]);
            filled += len;
        }
        note_copied(filled);
        filled
    }
}
