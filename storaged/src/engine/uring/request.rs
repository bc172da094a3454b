//! Requests, and the entries that they are made of.

use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use std::io;
use std::ops::Range;
use tokio::sync::oneshot;
use weft_net::{AlignedBuf, Region};

/// The only registered file.
const DRIVE: types::Fixed = types::Fixed(0);
/// Data of no more bytes is done as soon as it has begun.
const SMALL: usize = 96 << 10;

pub(super) enum Request {
    Read {
        off: u64,
        buffer: AlignedBuf,
        done: oneshot::Sender<io::Result<AlignedBuf>>,
    },
    /// `record`: of the journal; `flush`: that is flushed, too.
    Write {
        off: u64,
        pieces: Vec<Bytes>,
        record: bool,
        flush: bool,
        done: oneshot::Sender<io::Result<()>>,
    },
    Flush {
        done: oneshot::Sender<io::Result<()>>,
    },
}

/// What goes first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Reads, journal records and flushes: somebody waits for each.
    Urgent,
    /// Small data, of which there may be many pieces.
    Small,
    /// Data of which there may be much.
    Bulk,
}

pub(super) const CLASSES: usize = 3;

impl Request {
    pub fn class(&self) -> Class {
        match self {
            Self::Write { record: false, .. } if self.len() > SMALL => Class::Bulk,
            Self::Write { record: false, .. } => Class::Small,
            _ => Class::Urgent,
        }
    }

    /// Bytes to move.
    pub fn len(&self) -> usize {
        match self {
            Self::Read { buffer, .. } => buffer.as_ref().len(),
            Self::Write { pieces, .. } => pieces.iter().map(Bytes::len).sum(),
            Self::Flush { .. } => 0,
        }
    }

    /// A read that nobody waits for any more. Writes are done all the same.
    pub fn is_abandoned(&self) -> bool {
        matches!(self, Self::Read { done, .. } if done.is_closed())
    }

    /// A write that is to be flushed after it.
    pub fn flushes(&self) -> bool {
        matches!(self, Self::Write { flush: true, .. })
    }

    /// Where the memory ends that goes on without a gap at byte `at`.
    pub fn run_end(&self, at: usize) -> usize {
        let Self::Write { pieces, .. } = self else { return self.len() };
        let ends = pieces.iter().scan(0, |end, piece| {
            *end += piece.len();
            Some(*end)
        });
        ends.into_iter().find(|end| *end > at).unwrap_or(at)
    }

    /// The memory at byte `at`. Other parts of it may be in the kernel's hands: no reference is
    /// made.
    pub fn memory(&mut self, at: usize) -> *mut u8 {
        match self {
            Self::Read { buffer, .. } => buffer.as_mut_ptr().wrapping_add(at),
            Self::Write { pieces, .. } => {
                let mut left = at;
                let holds = |piece: &&Bytes| {
                    let here = left < piece.len();
                    left -= if here { 0 } else { piece.len() };
                    here
                };
                let piece = pieces.iter().find(holds);
                let start = piece.map_or(std::ptr::null(), |piece| piece.as_ptr());
                start.wrapping_add(left).cast_mut()
            }
            Self::Flush { .. } => std::ptr::null_mut(),
        }
    }

    /// The submission for these bytes, which lie in one run of memory; for none, a flush.
    pub fn entry(&mut self, range: &Range<usize>, known: &[&Region]) -> squeue::Entry {
        let (off, reads) = match self {
            Self::Read { off, .. } if !range.is_empty() => (*off, true),
            Self::Write { off, .. } if !range.is_empty() => (*off, false),
            _ => return opcode::Fsync::new(DRIVE).flags(types::FsyncFlags::DATASYNC).build(),
        };
        let (off, len) = (off + range.start as u64, range.len() as u32);
        let memory = self.memory(range.start);
        match (reads, known.iter().position(|region| region.holds(memory))) {
            (true, Some(at)) => {
                opcode::ReadFixed::new(DRIVE, memory, len, at as u16).offset(off).build()
            }
            (false, Some(at)) => {
                opcode::WriteFixed::new(DRIVE, memory, len, at as u16).offset(off).build()
            }
            (true, None) => opcode::Read::new(DRIVE, memory, len).offset(off).build(),
            (false, None) => opcode::Write::new(DRIVE, memory, len).offset(off).build(),
        }
    }

    pub fn finish(self, outcome: io::Result<()>) {
        // Nobody listening any more is fine.
        match self {
            Self::Read { buffer, done, .. } => drop(done.send(outcome.map(|()| buffer))),
            Self::Write { done, .. } | Self::Flush { done } => drop(done.send(outcome)),
        }
    }

    pub fn leak(self) {
        match self {
            Self::Read { buffer, .. } => std::mem::forget(buffer),
            Self::Write { pieces, .. } => std::mem::forget(pieces),
            Self::Flush { .. } => {}
        }
    }
}
