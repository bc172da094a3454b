//! Rebuilds a lost index from the headers on the target.
//!
//! Deletes leave headers behind, and so do puts that did not come to their end: a header proves
//! neither that its chunk is there nor that it ever was. A chunk counts unless a newer header has
//! some of its space. What was deleted and not overwritten since comes back as garbage, and the
//! metadata leader deletes it again, since it looks at all of a target that was opened anew (I7).
//! Readers verify checksums as always.
//!
//! Invariants:
//! - What may never have been whole counts only if its data says that it is: segments refer to a
//!   chunk that is made anew before it is there. The journal says which puts came to their end, and
//!   what is older than its records counts as if it had.
//! - The index is sealed only when every block was read, but for those that try after try could not
//!   read: their space goes to nobody, and the index says so. A fabric that is away for a moment
//!   reads as a drive full of bad blocks, and a chunk that is missed would lose its space.

use super::device::Device;
use super::entry::{Extent, JournalEntry};
use super::index::{Applied, Change, Index};
use super::journal::{self, Record};
use super::superblock::Superblock;
use super::unread::{Salvage, Unread, look_at};
use super::{BLOCK, header};
use rangemap::RangeSet;
use std::collections::{BTreeMap, HashMap, VecDeque};
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
/// A put may be overtaken by so many before it comes to its end.
const OVERTAKEN: u64 = 1024;

struct Found {
    stamp: u64,
    id: ChunkId,
    extents: Vec<Extent>,
    header_blocks: u64,
    /// It is a chunk, as far as is known; else the rest of a put that did not come to its end.
    counts: bool,
}

/// What the records of the journal tell of puts.
struct Told {
    /// The stamp of each chunk whose last change is a put, and whether a later record follows,
    /// before which all of it was durable.
    puts: HashMap<ChunkId, (u64, bool)>,
    /// All puts with lesser stamps had ended before the first of these records.
    since: u64,
}

impl Told {
    fn by(records: &BTreeMap<u64, Record>) -> Self {
        let last = records.last_key_value().map_or(0, |(&number, _)| number);
        let (mut puts, mut least) = (HashMap::new(), u64::MAX);
        for (&number, record) in records {
            for change in &record.changes {
                match change {
                    journal::Change::Put { id, place } => {
                        puts.insert(*id, (place.stamp, number < last));
                        least = least.min(place.stamp);
                    }
                    journal::Change::Delete { id } => drop(puts.remove(id)),
                }
            }
        }
        // Where they name no put, nothing is known of any.
        let since = if least == u64::MAX { 0 } else { least.saturating_sub(OVERTAKEN) };
        Self { puts, since }
    }

    /// Whether all of this is known to have been written.
    fn proves(&self, found: &Found) -> bool {
        found.stamp < self.since || self.puts.get(&found.id) == Some(&(found.stamp, true))
    }

    /// Whether it may have been acknowledged.
    fn names(&self, found: &Found) -> bool {
        self.puts.get(&found.id).is_some_and(|(stamp, _)| *stamp == found.stamp)
    }
}

/// Makes a new index in `path` from what lies on the target. `records` are those of the journal,
/// `last` is the number of its last one; `unread` has what earlier tries could not read. Blocks for
/// as long as it takes to read the drive.
pub(super) fn run(
    device: &dyn Device,
    superblock: &Superblock,
    path: &Path,
    name: &str,
    (records, last): (&BTreeMap<u64, Record>, u64),
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
    scan.look_at_untold(&mut found, &Told::by(records))?;
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

/// All that counts, unless a newer one has some of its space or its place: where the header of each
/// is, and how many blocks it takes.
fn keep_newest(mut found: Vec<Found>) -> HashMap<ChunkId, (u64, u64)> {
    found.sort_unstable_by_key(|f| std::cmp::Reverse(f.stamp));
    let mut taken = RangeSet::new();
    let mut kept = HashMap::new();
    for f in found {
        let extents = || f.extents.iter().map(|e| e.block..e.end());
        let is_free = extents().all(|extent| !taken.overlaps(&extent));
        if f.counts && is_free && !kept.contains_key(&f.id) {
            kept.insert(f.id, (f.extents[0].block, f.header_blocks));
        }
        // It was free when this was written, whatever has become of it: what is older was deleted.
        taken.extend(extents());
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
        let header_blocks = place.header_blocks();
        self.found.push(Found { stamp, id, extents, header_blocks, counts: true });
        self.batch.push(Change::Put(id, Arc::new(entry)));
        if self.batch.len() >= BATCH { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.index.apply(&batch, Applied::default())
    }

    /// Looks at the data of what the journal does not prove to have been written.
    fn look_at_untold(&mut self, found: &mut [Found], told: &Told) -> Result<()> {
        let untold: Vec<_> = found.iter_mut().filter(|one| !told.proves(one)).collect();
        let (looked, mut torn) = (untold.len(), 0);
        tracing::info!("{}: {looked} headers may be of chunks that are not whole", self.name);
        for one in untold {
            one.counts = match self.read_entry(one)? {
                Some(entry) => {
                    let data = look_at(&entry, &mut self.salvage)?;
                    let read = data.good == entry.checksums.len();
                    data.wrong == 0 && (read || told.names(one))
                }
                None => false,
            };
            torn += usize::from(!one.counts);
        }
        tracing::info!("{}: of these {torn} are", self.name);
        Ok(())
    }

    /// Drops copies that were to take the place of one that has more good blocks: the power went,
    /// or the drive failed, before they counted.
    fn drop_torn(&mut self, found: &mut [Found]) -> Result<()> {
        found.sort_unstable_by_key(|f| (f.id, std::cmp::Reverse(f.stamp)));
        for copies in found.chunk_by_mut(|a, b| a.id == b.id) {
            let mut copies: Vec<_> = copies.iter_mut().filter(|copy| copy.counts).collect();
            if copies.len() < 2 {
                continue;
            }
            let mut newest: Option<Vec<u32>> = None;
            let (mut best, mut newer) = (None, Vec::new());
            for at in 0..copies.len() {
                let Some(entry) = self.read_entry(copies[at])? else { continue };
                // What was deleted, and put again with other contents, stays deleted.
                if newest.get_or_insert_with(|| entry.checksums.clone()) != &entry.checksums {
                    continue;
                }
                let good = look_at(&entry, &mut self.salvage)?.good;
                if best.is_some_and(|most| good > most) {
                    newer.iter().for_each(|&torn: &usize| copies[torn].counts = false);
                }
                best = best.max(Some(good));
                newer.push(at);
                if good == entry.checksums.len() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// What a header that was found says, if it can be read.
    fn read_entry(&mut self, found: &Found) -> Result<Option<JournalEntry>> {
        let header = self.read_header(found.extents[0].block, found.header_blocks)?;
        Ok(header.filter(|(id, _)| *id == found.id).map(|(_, entry)| entry))
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

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::{SegmentId, SessionId};

    fn id(seq: u64) -> ChunkId {
        ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 }
    }

    /// What a put that did not come to its end has overwritten in part does not come back for it.
    #[test]
    fn what_lies_under_a_torn_chunk_is_gone() {
        let found = |seq, stamp, extents: &[(u64, u32)], counts| Found {
            stamp,
            id: id(seq),
            extents: extents.iter().map(|&(block, blocks)| Extent { block, blocks }).collect(),
            header_blocks: 1,
            counts,
        };
        let kept = keep_newest(vec![
            found(1, 1, &[(10, 10)], true),
            found(2, 2, &[(30, 2), (15, 3)], false),
            found(3, 3, &[(40, 10)], true),
            // Itself deleted, since a newer one has some of its space.
            found(4, 4, &[(60, 2), (48, 4)], true),
            found(5, 5, &[(61, 3)], true),
            found(6, 6, &[(70, 3)], true),
        ]);
        let mut kept: Vec<_> = kept.into_iter().collect();
        kept.sort_unstable();
        assert_eq!(kept, [(id(5), (61, 1)), (id(6), (70, 1))]);
    }
}
