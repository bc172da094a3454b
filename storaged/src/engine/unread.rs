//! What a drive cannot read at start, block by block, and when that is given up.
//!
//! Invariant: a block is given up only when try after try could not read it, while the rest of the drive was
//! read. A fabric that is away for a moment takes whole stretches with it, and not the same ones each time.

use super::BLOCK;
use super::device::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use weft_proto::{Error, ErrorKind, Result};

/// So many tries in a row must have failed to read a block.
const TRIES: u32 = 4;
/// A drive with more such blocks is not a drive with a few bad ones: 4 MiB.
const MOST: usize = 1024;

/// The blocks that could not be read when a target was to be opened, from one try to the next.
#[derive(Default, Debug)]
pub struct Unread {
    /// Block → tries in a row.
    tries: BTreeMap<u64, u32>,
}

impl Unread {
    /// Takes in what the try that ends now could not read. Errors: it may be read the next time.
    pub(super) fn give_up(&mut self, blocks: &BTreeSet<u64>, name: &str) -> Result<()> {
        self.tries.retain(|block, _| blocks.contains(block));
        let Some(first) = blocks.first() else { return Ok(()) };
        for &block in blocks {
            *self.tries.entry(block).or_default() += 1;
        }
        let tries = self.tries.values().copied().min().unwrap_or(0);
        if tries >= TRIES {
            tracing::error!(
                "{name}: {} blocks cannot be read, the first at byte {}; they are given up: what lay there \
                 is lost, and they are not used again",
                blocks.len(),
                first * BLOCK
            );
            return Ok(());
        }
        let what = format!(
            "{name}: {} blocks could not be read, the first at byte {}; they are given up after {TRIES} \
             tries, and this was number {tries}",
            blocks.len(),
            first * BLOCK
        );
        Err(Error::new(ErrorKind::Io, what))
    }
}

/// Reads as much of a drive as can be read.
pub(super) struct Salvage<'a> {
    device: &'a dyn Device,
    name: &'a str,
    /// Blocks that could not be read.
    pub unread: BTreeSet<u64>,
}

impl<'a> Salvage<'a> {
    pub fn new(device: &'a dyn Device, name: &'a str) -> Self {
        Self { device, name, unread: BTreeSet::new() }
    }

    /// Reads whole blocks: the runs that could be read, in order, each with its place in bytes. Blocks the
    /// thread. Errors: it is not a few bad blocks that are the matter.
    pub fn read(&mut self, at: u64, len: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let error = match self.device.read(at, len as usize).block() {
            Ok(buffer) => return Ok(vec![(at, buffer.as_ref().to_vec())]),
            Err(e) => e,
        };
        if !of_medium(&error) {
            return Err(self.failed(at, &error));
        }
        if len <= BLOCK {
            self.unread.insert(at / BLOCK);
            let few = self.unread.len() <= MOST;
            return if few { Ok(Vec::new()) } else { Err(self.failed(at, &error)) };
        }
        let half = (len / BLOCK / 2) * BLOCK;
        let mut runs = self.read(at, half)?;
        for (at, bytes) in self.read(at + half, len - half)? {
            match runs.last_mut() {
                Some((before, run)) if *before + run.len() as u64 == at => run.extend(bytes),
                _ => runs.push((at, bytes)),
            }
        }
        Ok(runs)
    }

    /// Reads whole blocks, all or none of which is of use.
    pub fn read_whole(&mut self, at: u64, len: u64) -> Result<Option<Vec<u8>>> {
        let run = self.read(at, len)?.pop();
        Ok(run.map(|(_, bytes)| bytes).filter(|bytes| bytes.len() as u64 == len))
    }

    fn failed(&self, at: u64, e: &io::Error) -> Error {
        Error::new(
            ErrorKind::Io,
            format!("{}: the drive cannot be read at byte {at}: {e}", self.name),
        )
    }
}

/// Whether the drive answered that it cannot read this, as far as the kernel tells.
pub(super) fn of_medium(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EIO | libc::ENODATA | libc::EILSEQ))
}
