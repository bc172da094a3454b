//! What cannot be read at start, of a drive block by block, and when that is given up.
//!
//! Invariant: a block is given up only when try after try could not read it, while the rest of the
//! drive could be read, as far as it was looked at. A fabric that is away for a moment takes whole
//! stretches with it, and not the same ones each time. Nor is an index lost of which nothing is
//! there at first: its filesystem may be mounted late.

use super::BLOCK;
use super::device::Device;
use super::entry::JournalEntry;
use super::superblock::Superblock;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, Result};

/// So many tries in a row must have failed to read a block.
const TRIES: u32 = 4;
/// A drive with more such blocks is not a drive with a few bad ones: 4 MiB.
const MAX_GIVEN_UP: usize = 1024;
/// So many blocks all over the drive are looked at before any is given up; of these, and of all
/// blocks, not more than one in so many may be bad.
const PROBES: u64 = 256;
const ONE_IN: u64 = 16;

/// So many tries must have found nothing where the index should be: about a minute.
const TRIES_FOR_INDEX: u32 = 10;

/// What could not be read when a target was to be opened, from one try to the next.
#[derive(Default, Debug)]
pub struct Unread {
    /// Block → tries in a row.
    tries: BTreeMap<u64, u32>,
    /// Tries without an index.
    no_index: u32,
}

impl Unread {
    /// Errors: `Unavailable`, nothing is where the index should be, which may change; `Io`.
    pub(super) fn wait_for_index(&mut self, path: &Path) -> Result<()> {
        let name = path.display();
        let there = path.try_exists();
        if there.map_err(|e| Error::new(ErrorKind::Io, format!("index {name}: {e}")))? {
            return Ok(());
        }
        self.no_index += 1;
        if self.no_index > TRIES_FOR_INDEX {
            return Ok(());
        }
        let what = format!(
            "index {name} is not there: is its filesystem mounted? If it stays away for a minute, \
             or an empty folder takes its place, it is made anew, for which the whole drive is read"
        );
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// Takes in what the try that ends now could not read of the blocks `of`. Errors: it may be
    /// read the next time.
    pub(super) fn give_up(&mut self, salvage: &Salvage<'_>, of: Range<u64>) -> Result<()> {
        let (blocks, name) = (&salvage.unread, salvage.name);
        self.tries.retain(|block, _| !of.contains(block) || blocks.contains(block));
        let Some(first) = blocks.first() else { return Ok(()) };
        salvage.look_around()?;
        let mut tries = TRIES;
        for &block in blocks {
            let of_block = self.tries.entry(block).or_default();
            *of_block += 1;
            tries = tries.min(*of_block);
        }
        if tries >= TRIES {
            tracing::error!(
                "{name}: {} blocks cannot be read, the first at byte {}; they are given up: what \
                 lay there \
                 is lost, and they are not used again",
                blocks.len(),
                first * BLOCK
            );
            return Ok(());
        }
        let what = format!(
            "{name}: {} blocks could not be read, the first at byte {}; they are given up after \
             {TRIES} \
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
    superblock: &'a Superblock,
    name: &'a str,
    /// Blocks that could not be read.
    pub unread: BTreeSet<u64>,
}

impl<'a> Salvage<'a> {
    pub fn new(device: &'a dyn Device, superblock: &'a Superblock, name: &'a str) -> Self {
        Self { device, superblock, name, unread: BTreeSet::new() }
    }

    /// The blocks that chunks lie in.
    pub fn data(&self) -> Range<u64> {
        self.superblock.data_block..self.superblock.data_end
    }

    /// Looks whether the drive can be read but for a few blocks. Who replays a journal has read
    /// little of it.
    fn look_around(&self) -> Result<()> {
        let Range { start: first, end } = self.data();
        let probes = (first..end).step_by((end - first).div_ceil(PROBES).max(1) as usize);
        let looked = probes.clone().count() as u64;
        let bad = probes
            .filter(|block| self.device.read(block * BLOCK, BLOCK as usize).block().is_err())
            .count() as u64;
        let unread = self.unread.len() as u64;
        if bad * ONE_IN <= looked && unread * ONE_IN <= end - first {
            return Ok(());
        }
        let what = format!(
            "{}: {unread} blocks could not be read, and {bad} of {looked} all over the drive \
             cannot be",
            self.name
        );
        Err(Error::new(ErrorKind::Io, what))
    }

    /// Reads whole blocks: the runs that could be read, in order, each with its place in bytes.
    /// Blocks the thread. Errors: it is not a few bad blocks that are the matter.
    pub fn read(&mut self, at: u64, len: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let error = match self.device.read(at, len as usize).block() {
            Ok(buffer) => return Ok(vec![(at, buffer.as_ref().to_vec())]),
            Err(e) => e,
        };
        if planted::is(Bug::UnreadCountsAsAbsent) && at < self.superblock.data_block * BLOCK {
            return Ok(Vec::new());
        }
        if !of_medium(&error) {
            return Err(self.failed(at, &error));
        }
        if len <= BLOCK {
            self.unread.insert(at / BLOCK);
            let few = self.unread.len() <= MAX_GIVEN_UP;
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

/// Blocks of a chunk's data that read.
#[derive(Default)]
pub(super) struct Found {
    /// They are what was put.
    pub good: usize,
    pub wrong: usize,
}

/// Reads all of a chunk's data, as far as that can be read.
pub(super) fn look_at(entry: &JournalEntry, salvage: &mut Salvage<'_>) -> Result<Found> {
    let (mut sums, mut found) = (&entry.checksums[..], Found::default());
    for (start, bytes) in entry.place.locate(0, entry.place.length) {
        let (own, rest) = sums.split_at((bytes / BLOCK) as usize);
        sums = rest;
        for (at, run) in salvage.read(start, bytes)? {
            let own = &own[((at - start) / BLOCK) as usize..];
            for (block, sum) in run.chunks(BLOCK as usize).zip(own) {
                match weft_erasure::verify_blocks(block, &[*sum]) {
                    Ok(()) => found.good += 1,
                    Err(_) => found.wrong += 1,
                }
            }
        }
    }
    Ok(found)
}
