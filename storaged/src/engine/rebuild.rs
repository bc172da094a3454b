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
//!   chunk that is made anew before it is there. The journal says which puts came to their end; of
//!   what is older than its records, those did after which as many followed as can be under way at
//!   once, before the target was opened anew.
//! - The index is sealed only when every block was read, but for those that try after try could not
//!   read: their space goes to nobody, and the index says so. A fabric that is away for a moment
//!   reads as a drive full of bad blocks, and a chunk that is missed would lose its space.

use super::device::Device;
use super::entry::{Extent, JournalEntry, Place};
use super::index::{Applied, Change, Index, STAMP_JUMP};
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
/// Puts whose stamps differ by less were done while the target was open once.
const OPEN_ONCE: u64 = STAMP_JUMP / 2;

struct Found {
    stamp: u64,
    id: ChunkId,
    extents: Vec<Extent>,
    header_blocks: u64,
    /// It is a chunk, as far as is known; else the rest of a put that did not come to its end.
    counts: bool,
}

/// What the records of the journal, and all headers together, tell of puts.
struct Told {
    /// The last change of each chunk: the stamp of a put, and whether all of that is known to have
    /// become durable; or a delete.
    changes: HashMap<ChunkId, Option<(u64, bool)>>,
    /// No put with a lesser stamp was under way after the first of these records.
    since: u64,
    /// Of all puts, in order.
    stamps: Vec<u64>,
}

impl Told {
    fn by(records: &BTreeMap<u64, Record>, found: &[Found]) -> Self {
        let (mut changes, mut least) = (HashMap::new(), u64::MAX);
        let mut stamps: Vec<_> = found.iter().map(|one| one.stamp).collect();
        let (mut next, mut none_missing) = (None, true);
        for (&number, record) in records.iter().rev() {
            // Of what lies before one that is missing nobody knows what became of it.
            none_missing &= next.replace(number).is_none_or(|next| next - 1 == number);
            let later = least;
            for change in record.changes.iter().rev() {
                let (id, to) = match change {
                    journal::Change::Put { id, place: Place { stamp, .. } } => {
                        // A later record was written when this one and its data were durable. That
                        // of the next process says nothing: what is torn stays as it is.
                        let is_durable = later < stamp.saturating_add(OPEN_ONCE);
                        least = least.min(*stamp);
                        stamps.push(*stamp);
                        (id, Some((*stamp, is_durable && none_missing)))
                    }
                    journal::Change::Delete { id } => (id, None),
                };
                changes.entry(*id).or_insert(to);
            }
        }
        stamps.sort_unstable();
        // Where they name no put, nothing is known of any.
        let since = if least == u64::MAX { 0 } else { least.saturating_sub(OVERTAKEN) };
        Self { changes, since, stamps }
    }

    /// Whether all of this is known to have been written, and not to have been deleted.
    fn proves(&self, found: &Found) -> bool {
        match self.changes.get(&found.id) {
            Some(&Some((stamp, is_durable))) if stamp == found.stamp => is_durable,
            Some(None) => false,
            _ => found.stamp < self.since && self.had_ended(found.stamp),
        }
    }

    /// Whether so many puts followed that this one was no longer under way when the process ended.
    fn had_ended(&self, stamp: u64) -> bool {
        let after = stamp.saturating_add(OVERTAKEN);
        let follows = self.stamps.get(self.stamps.partition_point(|&other| other < after));
        follows.is_some_and(|&other| other < stamp.saturating_add(OPEN_ONCE))
    }

    /// Whether it may have been acknowledged.
    fn may_name(&self, found: &Found) -> bool {
        let named = self.changes.get(&found.id).copied().flatten();
        found.stamp < self.since || named.is_some_and(|(stamp, _)| stamp == found.stamp)
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
    let told = Told::by(records, &found);
    scan.look_at_untold(&mut found, &told)?;
    scan.drop_torn(&mut found)?;
    let total = found.len();
    let survivors = keep_newest(found);
    let kept = survivors.len();
    // The index has the last header seen of each id; put right the ids that lost.
    scan.settle(survivors)?;
    // Of all: none is given again.
    let stamp = told.stamps.last().copied().unwrap_or(0);
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

    /// Looks at the data of what is not known to have been written.
    fn look_at_untold(&mut self, found: &mut [Found], told: &Told) -> Result<()> {
        let untold: Vec<_> = found.iter_mut().filter(|one| !told.proves(one)).collect();
        let (looked, mut torn) = (untold.len(), 0);
        tracing::info!("{}: {looked} headers may be of chunks that are not whole", self.name);
        for one in untold {
            one.counts = match self.read_entry(one)? {
                Some(entry) => {
                    let data = look_at(&entry, &mut self.salvage)?;
                    let read = data.good == entry.checksums.len();
                    data.wrong == 0 && (read || told.may_name(one))
                }
                None => false,
            };
            torn += usize::from(!one.counts);
        }
        tracing::info!("{}: of these {torn} are", self.name);
        Ok(())
    }

    /// Drops copies that were to take the place of one that has more good blocks: the power went,
    /// or the drive failed, before they counted. And those with other contents than the newest.
    fn drop_torn(&mut self, found: &mut [Found]) -> Result<()> {
        found.sort_unstable_by_key(|f| (f.id, std::cmp::Reverse(f.stamp)));
        for copies in found.chunk_by_mut(|a, b| a.id == b.id) {
            if copies.len() < 2 {
                continue;
            }
            let mut newest: Option<Vec<u32>> = None;
            let (mut best, mut newer, mut is_whole) = (None, Vec::new(), false);
            for at in 0..copies.len() {
                let Some(entry) = self.read_entry(&copies[at])? else { continue };
                // What was deleted, and put again with other contents, stays deleted. Also where
                // the newer does not count: the chunk is then missing, and is made again.
                if newest.get_or_insert_with(|| entry.checksums.clone()) != &entry.checksums {
                    copies[at].counts = false;
                }
                if is_whole || !copies[at].counts {
                    continue;
                }
                let good = look_at(&entry, &mut self.salvage)?.good;
                if best.is_some_and(|most| good > most) {
                    newer.iter().for_each(|&torn: &usize| copies[torn].counts = false);
                }
                best = best.max(Some(good));
                newer.push(at);
                is_whole = good == entry.checksums.len();
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

    fn found(seq: u64, stamp: u64) -> Found {
        let extents = vec![Extent { block: stamp, blocks: 2 }];
        Found { stamp, id: id(seq), extents, header_blocks: 1, counts: true }
    }

    /// Of a chunk, a put with its stamp, or its delete.
    type Change = (u64, Option<u64>);

    /// Records, by number.
    fn records(of: &[(u64, &[Change])]) -> BTreeMap<u64, Record> {
        let change = |&(seq, stamp): &Change| match stamp {
            Some(stamp) => {
                let extents = vec![Extent { block: stamp, blocks: 2 }];
                let place = Place { stamp, length: BLOCK, extents };
                journal::Change::Put { id: id(seq), place }
            }
            None => journal::Change::Delete { id: id(seq) },
        };
        let record = |&(number, changes): &(u64, &[_])| {
            (number, Record { number, changes: changes.iter().map(change).collect() })
        };
        of.iter().map(record).collect()
    }

    /// The last record of a process may be torn, whatever the next one writes; and of what was put
    /// before one that is missing, nobody knows what became of it.
    #[test]
    fn a_put_is_proven_by_a_later_one_of_the_same_process() {
        let again = 10_000 + STAMP_JUMP;
        let records = records(&[
            (3, &[(1, Some(9_990))]),
            (5, &[(2, Some(9_995)), (3, Some(9_996))]),
            (6, &[(4, Some(9_997)), (5, Some(9_998)), (3, None)]),
            (7, &[(6, Some(10_000))]),
            (8, &[(5, None)]),
            (9, &[(7, Some(again))]),
            (10, &[(7, None), (7, Some(again + 2)), (8, Some(again + 1))]),
        ]);
        let told = Told::by(&records, &[]);
        let proven = [(2, 9_995), (4, 9_997)];
        let not = [(1, 9_990), (3, 9_996), (5, 9_998), (6, 10_000), (7, again), (8, again + 1)];
        proven.iter().for_each(|&(seq, stamp)| assert!(told.proves(&found(seq, stamp)), "{seq}"));
        not.iter().for_each(|&(seq, stamp)| assert!(!told.proves(&found(seq, stamp)), "{seq}"));
        assert!(told.may_name(&found(1, 9_990)) && !told.may_name(&found(7, again)));
    }

    /// Those that were under way when the target was closed may have been torn, however long ago.
    #[test]
    fn what_is_older_than_the_journal_is_proven_by_many_later_ones() {
        let second = 5_000 + STAMP_JUMP;
        let records = records(&[(1, &[(1, Some(second + 10_000))])]);
        let all: Vec<_> = (0..=5_000).chain(second..second + 10_000).map(|n| found(n, n)).collect();
        let told = Told::by(&records, &all);
        let ended = |stamp| told.proves(&found(stamp, stamp));
        let last = second + 10_000 - OVERTAKEN;
        assert!([0, 5_000 - OVERTAKEN, second, last - 1].into_iter().all(ended));
        assert!(![5_000 - OVERTAKEN + 1, 5_000, last].into_iter().any(ended));
    }

    /// What a put that did not come to its end has overwritten in part does not come back for it.
    #[test]
    fn what_lies_under_a_torn_chunk_is_gone() {
        let found = |seq, stamp, extents: &[(u64, u32)], counts| {
            let extents = extents.iter().map(|&(block, blocks)| Extent { block, blocks }).collect();
            Found { extents, counts, ..found(seq, stamp) }
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
