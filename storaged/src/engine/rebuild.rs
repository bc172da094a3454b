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
//! - Of each header little is kept in memory: a large drive has many millions.

use super::device::Device;
use super::entry::{Extent, JournalEntry, Place, header_blocks};
use super::index::{Applied, Change, Index, STAMP_JUMP};
use super::journal::{self, Record};
use super::superblock::Superblock;
use super::unread::{Salvage, Unread, look_at};
use super::{BLOCK, header};
use rangemap::RangeSet;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::iter::once;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tokio::time::Instant;
use weft_proto::{ChunkId, Result, layout};

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

/// A header, and where its chunk lies.
struct Found {
    stamp: u64,
    id: ChunkId,
    /// The first extent: most chunks have no other.
    block: u64,
    blocks: u32,
    /// [`layout::MAX_CHUNK`] has few of them.
    header_blocks: u16,
    /// It is a chunk, as far as is known; else the rest of a put that did not come to its end.
    counts: bool,
    /// Empty takes no memory beside this.
    more: Box<[Extent]>,
}

// Per million of them 64 MB, an eighth more to grow, 8 MB of stamps, and what space is taken.
const _: () = assert!(size_of::<Found>() <= 64);
const _: () = assert!(header_blocks(layout::MAX_CHUNK) <= u16::MAX as u64);

impl Found {
    fn new(id: ChunkId, place: &Place) -> Self {
        let Extent { block, blocks } = place.extents[0];
        let (stamp, header_blocks) = (place.stamp, place.header_blocks() as u16);
        Self {
            stamp,
            id,
            block,
            blocks,
            header_blocks,
            counts: true,
            more: place.extents[1..].into(),
        }
    }

    fn extents(&self) -> impl Iterator<Item = Range<u64>> {
        let first = Extent { block: self.block, blocks: self.blocks };
        once(first).chain(self.more.iter().copied()).map(|extent| extent.block..extent.end())
    }
}

/// Adds one. Doubling would take twice the memory that is needed.
fn add(found: &mut Vec<Found>, one: Found) {
    if found.len() == found.capacity() {
        found.reserve_exact((found.len() / 8).max(1024));
    }
    found.push(one);
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
/// `last` is the number of its last one; `flushed`: what the drive holds is durable; `unread` has
/// what earlier tries could not read. Blocks for as long as it takes to read the drive.
pub(super) fn run(
    device: &dyn Device,
    superblock: &Superblock,
    path: &Path,
    name: &str,
    (records, last): (&BTreeMap<u64, Record>, u64),
    flushed: bool,
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
    keep_newest(&mut found);
    let kept = found.len();
    // The index has the last header seen of each id; put right the ids that lost.
    scan.settle(&found)?;
    // Of all: none is given again.
    let stamp = told.stamps.last().copied().unwrap_or(0);
    let applied = Applied { record: last, stamp };
    unread.give_up(&scan.salvage, scan.salvage.data())?;
    index.set_unreadable(&scan.salvage.unread)?;
    if !flushed {
        index.note_unflushed()?;
    }
    index.seal(superblock.uuid, applied)?;
    tracing::info!("{name}: index rebuilt: {kept} chunks of {total} headers");
    Ok((index, applied))
}

/// Keeps all that counts, unless a newer one has some of its space or its place; by their ids.
fn keep_newest(found: &mut Vec<Found>) {
    found.sort_unstable_by_key(|f| Reverse((f.stamp, f.block)));
    let mut taken = RangeSet::new();
    for f in found.iter_mut() {
        let is_free = f.extents().all(|extent| !taken.overlaps(&extent));
        f.counts &= is_free;
        // It was free when this was written, whatever has become of it: what is older was deleted.
        taken.extend(f.extents());
    }
    found.retain(|f| f.counts);
    found.sort_unstable_by_key(|f| (f.id, Reverse((f.stamp, f.block))));
    found.dedup_by_key(|f| f.id);
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
        add(&mut self.found, Found::new(id, &entry.place));
        self.batch.push(Change::Put(id, Arc::new(entry)));
        if self.batch.len() >= BATCH { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.index.apply(&batch, Applied::default())
    }

    /// Looks at the data of what is not known to have been written.
    fn look_at_untold(&mut self, found: &mut [Found], told: &Told) -> Result<()> {
        let looked = found.iter().filter(|one| !told.proves(one)).count();
        let mut torn = 0;
        tracing::info!("{}: {looked} headers may be of chunks that are not whole", self.name);
        for one in found.iter_mut().filter(|one| !told.proves(one)) {
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
        found.sort_unstable_by_key(|f| (f.id, Reverse(f.stamp)));
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
        let header = self.read_header(found.block, found.header_blocks.into())?;
        Ok(header.filter(|(id, _)| *id == found.id).map(|(_, entry)| entry))
    }

    /// Makes the index hold exactly the survivors, which are in order of their ids, each from the
    /// header at its block.
    fn settle(&mut self, survivors: &[Found]) -> Result<()> {
        self.write()?;
        let index = self.index;
        // It goes through all as they are now, whatever is written meanwhile.
        index.each(|id, place| {
            let newest =
                survivors.binary_search_by_key(&id, |f| f.id).ok().map(|at| &survivors[at]);
            if newest.is_some_and(|newest| newest.block == place.extents[0].block) {
                return Ok(());
            }
            let entry = newest.map(|newest| self.read_entry(newest)).transpose()?.flatten();
            self.batch.push(match entry {
                Some(entry) => Change::Put(id, Arc::new(entry)),
                None => Change::Delete(id),
            });
            if self.batch.len() >= BATCH { self.write() } else { Ok(()) }
        })?;
        self.write()
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
    use proptest::prelude::*;
    use weft_proto::{SegmentId, SessionId};

    fn id(seq: u64) -> ChunkId {
        ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 }
    }

    fn found(seq: u64, stamp: u64) -> Found {
        let extents = vec![Extent { block: stamp, blocks: 2 }];
        Found::new(id(seq), &Place { stamp, length: BLOCK, extents })
    }

    fn lies_at(seq: u64, stamp: u64, extents: &[(u64, u32)], counts: bool) -> Found {
        let extents: Vec<_> =
            extents.iter().map(|&(block, blocks)| Extent { block, blocks }).collect();
        let place = Place { stamp, length: BLOCK, extents };
        Found { counts, ..Found::new(id(seq), &place) }
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
        let mut kept = vec![
            lies_at(1, 1, &[(10, 10)], true),
            lies_at(2, 2, &[(30, 2), (15, 3)], false),
            lies_at(3, 3, &[(40, 10)], true),
            // Itself deleted, since a newer one has some of its space.
            lies_at(4, 4, &[(60, 2), (48, 4)], true),
            lies_at(5, 5, &[(61, 3)], true),
            lies_at(6, 6, &[(70, 3)], true),
        ];
        keep_newest(&mut kept);
        let kept: Vec<_> = kept.iter().map(|f| (f.id, f.block, f.header_blocks)).collect();
        assert_eq!(kept, [(id(5), 61, 1), (id(6), 70, 1)]);
    }

    /// What is to be kept, one by one.
    fn newest_of(found: &[Found]) -> BTreeMap<ChunkId, u64> {
        let (mut kept, mut newer): (BTreeMap<_, _>, Vec<&Found>) = Default::default();
        let mut order: Vec<_> = found.iter().collect();
        order.sort_by_key(|f| Reverse(f.stamp));
        for f in order {
            let meets = |a: Range<u64>| move |b: Range<u64>| a.start < b.end && b.start < a.end;
            let is_under = |newer: &&Found| newer.extents().any(|a| f.extents().any(meets(a)));
            if f.counts && !newer.iter().any(is_under) {
                kept.entry(f.id).or_insert(f.block);
            }
            newer.push(f);
        }
        kept
    }

    proptest! {
        /// Many of one chunk, torn ones, and such as lie over each other, in any order.
        #[test]
        fn the_newest_that_counts_is_kept_of_each(
            all in prop::collection::vec(
                (0u64..6, prop::collection::vec((0u64..200, 1u32..5), 1..4), any::<bool>()), 0..60,
            ).prop_shuffle(),
            order in Just((0..60).collect::<Vec<u64>>()).prop_shuffle(),
        ) {
            let all = all.iter().zip(order);
            let mut found: Vec<_> = all
                .map(|((seq, extents, counts), stamp)| lies_at(*seq, stamp, extents, *counts))
                .collect();
            let expected: Vec<_> = newest_of(&found).into_iter().collect();
            keep_newest(&mut found);
            prop_assert_eq!(found.iter().map(|f| (f.id, f.block)).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn many_that_were_found_take_little_memory() {
        let mut all = Vec::new();
        (0..100_000).for_each(|n| add(&mut all, found(n, n)));
        assert!(all.capacity() <= 100_000 * 9 / 8);
        // Nothing beside them.
        assert!(all.iter().all(|f| f.more.is_empty()));
    }
}
