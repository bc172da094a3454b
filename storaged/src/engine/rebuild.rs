//! Rebuilds a lost index from the headers on the target.
//!
//! Deletes leave headers behind, so a header does not prove that its chunk is there. A chunk counts
//! unless a newer one overlaps it. What was deleted and not overwritten since comes back; nobody
//! refers to it, and the metadata leader deletes it again, since it looks at all of a target that
//! was opened anew (I7). Readers verify checksums as always.
//!
//! Invariant: the index is sealed only when every block was read, but for those that try after try
//! could not read: their space goes to nobody, and the index says so. A fabric that is away for a
//! moment reads as a drive full of bad blocks, and a chunk that is missed would lose its space to
//! others.

use super::device::Device;
use super::entry::{Extent, JournalEntry};
use super::index::{Applied, Change, Index};
use super::superblock::Superblock;
use super::unread::{Salvage, Unread, look_at};
use super::{BLOCK, header};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use tokio::time::Instant;
use weft_proto::{ChunkId, Result};

/// Bytes of one read.
const PIECE: u64 = 4 << 20;
/// Reads in flight.
const AHEAD: usize = 4;
/// Chunks in one write of the index.
const BATCH: usize = 1000;

struct Found {
    stamp: u64,
    id: ChunkId,
    extents: Vec<Extent>,
    header_blocks: u64,
}

/// Makes a new index in `path` from what lies on the target. `last` is the number of the last
/// journal record; `unread` has what earlier tries could not read. Blocks for as long as it takes
/// to read the drive.
pub(super) fn run(
    device: &dyn Device,
    superblock: &Superblock,
    path: &Path,
    name: &str,
    last: u64,
    unread: &mut Unread,
) -> Result<(Index, Applied)> {
    let index = Index::create(path)?;
    let mut scan = Scan {
        device,
        superblock,
        index: &index,
        name,
        salvage: Salvage::new(device, superblock, name),
        found: Vec::new(),
        batch: Vec::new(),
    };
    scan.run()?;
    let mut found = std::mem::take(&mut scan.found);
    // Of all: none is given again.
    let stamp = found.iter().map(|f| f.stamp).max().unwrap_or(0);
    scan.drop_torn(&mut found)?;
    let total = found.len();
    let survivors = keep_newest(found);
    let kept = survivors.len();
    // The index has the last header seen of each id; put right the ids that lost.
    scan.settle(survivors)?;
    let applied = Applied { record: last, stamp };
    unread.give_up(&scan.salvage, scan.salvage.data())?;
    index.set_unreadable(&scan.salvage.unread)?;
    index.seal(superblock.uuid, applied)?;
    tracing::info!("{name}: index rebuilt: {kept} chunks of {total} headers");
    Ok((index, applied))
}

/// Newest first, all that no newer one overlaps or replaces: where the header of each is, and how
/// many blocks it takes.
fn keep_newest(mut found: Vec<Found>) -> HashMap<ChunkId, (u64, u64)> {
    found.sort_unstable_by_key(|f| std::cmp::Reverse(f.stamp));
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    let mut kept = HashMap::new();
    for f in found {
        let overlaps = f
            .extents
            .iter()
            .any(|e| taken.range(..e.end()).next_back().is_some_and(|(_, &end)| end > e.block));
        if !overlaps && !kept.contains_key(&f.id) {
            kept.insert(f.id, (f.extents[0].block, f.header_blocks));
            taken.extend(f.extents.iter().map(|e| (e.block, e.end())));
        }
    }
    kept
}

struct Scan<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    index: &'a Index,
    name: &'a str,
    salvage: Salvage<'a>,
    found: Vec<Found>,
    batch: Vec<Change>,
}

impl Scan<'_> {
    fn run(&mut self) -> Result<()> {
        let (start, end) = (self.superblock.data_block * BLOCK, self.superblock.data_end * BLOCK);
        let mut next = start;
        let mut reads = VecDeque::new();
        let mut told = Instant::now();
        loop {
            while reads.len() < AHEAD && next < end {
                let len = PIECE.min(end - next);
                reads.push_back((next, self.device.read(next, len as usize)));
                next += len;
            }
            let Some((at, read)) = reads.pop_front() else { return Ok(()) };
            match read.block() {
                Ok(buffer) => self.piece(at, buffer.as_ref())?,
                Err(_) => {
                    for (at, bytes) in self.salvage.read(at, PIECE.min(end - at))? {
                        self.piece(at, &bytes)?;
                    }
                }
            }
            if told.elapsed().as_secs() >= 5 {
                let percent = (at - start) * 100 / (end - start);
                tracing::info!(
                    "{}: rebuilding the index: {percent} %, {} headers",
                    self.name,
                    self.found.len()
                );
                told = Instant::now();
            }
        }
    }

    fn piece(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let salt = self.superblock.salt;
        for (i, block) in bytes.chunks_exact(BLOCK as usize).enumerate() {
            if let Some(blocks) = header::peek_blocks(salt, block) {
                self.header(at / BLOCK + i as u64, blocks, &bytes[i * BLOCK as usize..])?;
            }
        }
        Ok(())
    }

    fn header(&mut self, at: u64, blocks: u64, bytes: &[u8]) -> Result<()> {
        let decoded = match bytes.get(..(blocks * BLOCK) as usize) {
            Some(bytes) => header::decode(self.superblock.salt, at, bytes),
            None => self.read_header(at, blocks)?,
        };
        let Some((id, entry)) = decoded else { return Ok(()) };
        if !entry.place.lies_in(self.superblock.data_block, self.superblock.data_end) {
            return Ok(());
        }
        let JournalEntry { place, .. } = &entry;
        let (stamp, extents) = (place.stamp, place.extents.clone());
        self.found.push(Found { stamp, id, extents, header_blocks: place.header_blocks() });
        self.batch.push(Change::Put(id, Arc::new(entry)));
        if self.batch.len() >= BATCH { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.index.apply(&batch, Applied::default())
    }

    /// Drops copies that were to take the place of one that has more good blocks: the power went,
    /// or the drive failed, before they counted.
    fn drop_torn(&mut self, found: &mut Vec<Found>) -> Result<()> {
        found.sort_unstable_by_key(|f| (f.id, std::cmp::Reverse(f.stamp)));
        let mut torn = HashSet::new();
        for copies in found.chunk_by(|a, b| a.id == b.id).filter(|copies| copies.len() > 1) {
            let mut newest: Option<Vec<u32>> = None;
            let (mut best, mut newer) = (None, Vec::new());
            for copy in copies {
                let header = self.read_header(copy.extents[0].block, copy.header_blocks)?;
                let Some((_, entry)) = header.filter(|(id, _)| *id == copy.id) else { continue };
                // What was deleted, and put again with other contents, stays deleted.
                if newest.get_or_insert_with(|| entry.checksums.clone()) != &entry.checksums {
                    continue;
                }
                let good = look_at(&entry, &mut self.salvage)?.good;
                if best.is_some_and(|most| good > most) {
                    torn.extend(newer.iter().copied());
                }
                best = best.max(Some(good));
                newer.push((copy.id, copy.stamp));
                if good == entry.checksums.len() {
                    break;
                }
            }
        }
        found.retain(|f| !torn.contains(&(f.id, f.stamp)));
        Ok(())
    }

    /// Makes the index hold exactly the survivors, each from the header at its block.
    fn settle(&mut self, mut survivors: HashMap<ChunkId, (u64, u64)>) -> Result<()> {
        self.write()?;
        let mut wrong = Vec::new();
        self.index.each(|id, place| {
            match survivors.remove(&id) {
                Some((block, _)) if block == place.extents[0].block => {}
                newer => wrong.push((id, newer)),
            }
            Ok(())
        })?;
        for (id, newer) in wrong {
            let change = match newer {
                None => Change::Delete(id),
                Some((block, blocks)) => match self.read_header(block, blocks)? {
                    Some((found, entry)) if found == id => Change::Put(id, Arc::new(entry)),
                    _ => Change::Delete(id),
                },
            };
            self.index.apply(&[change], Applied::default())?;
        }
        Ok(())
    }

    /// Reads the header at block `at`, if it is one and can be read. Blocks. Errors: the drive's.
    fn read_header(&mut self, at: u64, blocks: u64) -> Result<Option<(ChunkId, JournalEntry)>> {
        if at.checked_add(blocks).is_none_or(|end| end > self.superblock.data_end) {
            return Ok(None);
        }
        let bytes = self.salvage.read_whole(at * BLOCK, blocks * BLOCK)?;
        Ok(bytes.and_then(|bytes| header::decode(self.superblock.salt, at, &bytes)))
    }
}
