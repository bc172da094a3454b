//! Brings a target up: superblocks, index, journal replay, free space.
//!
//! Invariant: what could not be read is not taken for absent. An error of the drive fails the start
//! and leaves the index as it was, or unsealed; what was read and does not match counts as never
//! written. What try after try cannot be read is given up (`unread`): it counts as lost, and its
//! space goes to nobody.

use super::commit::Committer;
use super::device::{Device, Done};
use super::encrypted::Encrypted;
use super::entry::{JournalEntry, Place};
use super::file::{self, TargetFile};
use super::index::{self, Applied, Index, Opened, STAMP_JUMP};
use super::journal::{self, Change, Record};
use super::shared::{Core, Counters};
use super::signature::{self, Content};
use super::unread::{Salvage, Unread, look_at, of_medium};
use super::uring::Uring;
use super::{
    Allocator, BLOCK, Busy, DISCARD_RATE, Discard, Engine, Readers, Scrub, Superblock,
    TargetOptions, header, rebuild,
};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;
use weft_net::AlignedBuf;
use weft_proto::{ChunkId, Error, ErrorKind, Result, Uuid};

/// Most chunks that were lost at a start which are told of.
const MAX_DROPPED: usize = 4096;

/// Headers read at once in a replay.
const READS: usize = 64;
/// Most threads that look into the index of one target: with more, one whose drive hangs would keep
/// all others from theirs.
pub(super) const MAX_LOOKUPS: usize = 64;

impl Engine {
    /// Opens a target, which [`Self::format`] made: nothing here makes one of a file or drive that
    /// is none, however empty. Blocks: replays the journal, and reads the whole drive when the
    /// index is lost. Errors name the path and what to do: `NotFound`; `Invalid`, when it is no
    /// target, or not the whole one; `Busy`; `Corrupt`; `Io` and `TimedOut`, after which trying
    /// again may help.
    pub fn open(options: &TargetOptions) -> Result<Self> {
        open(options, &mut Unread::default(), false)
    }

    /// As [`Self::open`], for who tries again and again: after some tries that could not read the
    /// same few blocks, and only those, the target is opened without what lay there. Likewise an
    /// index of which nothing is there is made anew after some tries only (`Unavailable`).
    pub fn open_again(options: &TargetOptions, unread: &mut Unread) -> Result<Self> {
        open(options, unread, true)
    }

    /// Makes a fresh target of a drive that nobody uses, or of a file; one that does not exist is
    /// made if `size` is given, and does not stay behind after an error. What is there must be
    /// `Blank`, or exactly `over`, which is destroyed; an index that is there, the own one of that.
    /// Blocks. Errors: `NotFound`; `Exists` when it holds something else, or another target has the
    /// index; `Busy`; `NoSpace`; `Io`; `Invalid` when it is too small.
    pub fn format(options: &TargetOptions, over: &Content) -> Result<Superblock> {
        make(options, over, false)
    }

    /// As [`Self::format`], for who knows that the target which had the index before does not have
    /// it any more.
    pub fn format_and_take_index(options: &TargetOptions, over: &Content) -> Result<Superblock> {
        make(options, over, true)
    }

    /// Brings up a target on any [`Device`], which holds (or is to hold, when it is blank) what
    /// `superblock` describes. `path` names it in logs and errors; `index_path` is the directory of
    /// its index, `unread` what earlier tries could not read. Blocks.
    pub fn on_device(
        device: Arc<dyn Device>,
        superblock: Superblock,
        path: &Path,
        index_path: &Path,
        unread: &mut Unread,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let mut salvage = Salvage::new(&*device, &superblock, &name);
        let records = journal::scan(&mut salvage, &superblock)?;
        unread.give_up(&salvage, superblock.journal_block..superblock.data_block)?;
        let bad_blocks = salvage.unread;
        // What is found may lie in the drive's cache only, written by a process that ended before
        // it flushed that: it is made durable before it is relied on.
        let failure = device.flush().block().err().map(|e| {
            let what = format!("the drive cannot make durable what it holds: {e}");
            tracing::error!(target = %name, "target takes no writes: {what}");
            what
        });
        let start = Start {
            device: &*device,
            superblock: &superblock,
            name: &name,
            index_path,
            whole_journal: bad_blocks.is_empty(),
            flushed: failure.is_none(),
        };
        let ready = start.index(&records, unread)?;
        let Ready { index, applied, dropped, allocator, chunks, unreadable, scrub } = ready;
        journal::mend(&*device, &bad_blocks).map_err(|e| {
            let what = "a bad block of the journal cannot be written anew, replace the drive";
            Error::new(ErrorKind::Io, format!("{name}: {what}: {e}"))
        })?;
        let allocator = Arc::new(Mutex::new(allocator));
        let thread = |e| Error::new(ErrorKind::Io, format!("{name}: starting a thread: {e}"));
        let discard = Discard::start(device.clone(), allocator.clone(), path).map_err(thread)?;
        let core = Arc::new(Core {
            path: path.to_path_buf(),
            device,
            superblock: RwLock::new(superblock),
            index,
            flush_waits: Arc::default(),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            allocator,
            discard,
            readers: Readers::default(),
            busy: Busy::default(),
            stamp: AtomicU64::new(applied.stamp),
            counters: Counters::default(),
            opened: rand::random(),
            fenced: RwLock::default(),
            scrub: Mutex::new(scrub),
            dropped: Mutex::new(dropped),
            failure: Mutex::new(failure),
        });
        core.counters.chunks.store(chunks, Ordering::Relaxed);
        core.counters.read_errors.store(unreadable as u64, Ordering::Relaxed);
        let committer = Committer::start(core.clone(), applied.record).map_err(thread)?;
        Ok(Self { core, committer: Arc::new(committer) })
    }
}

/// Opens a target. `waits`: who asks tries again, so that what may be late is waited for.
fn open(options: &TargetOptions, unread: &mut Unread, waits: bool) -> Result<Engine> {
    let path = &options.path;
    let target = file::open(path)?;
    let index = index_path(options, &target)?;
    check_size(&target, path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut tuning = options.tuning;
    if options.sparse && !target.block_device {
        tuning.discard.get_or_insert(DISCARD_RATE);
    }
    let device = Uring::new(target, &name, tuning)
        .map_err(|e| Error::new(ErrorKind::Io, format!("{}: io_uring: {e}", path.display())))?;
    let superblock = Superblock::find(&device, &path.display().to_string())?
        .map_err(|what| no_target(path, &what))?;
    let key = options.encryption.as_ref();
    let device = Encrypted::unlock(Arc::new(device), &superblock, key, path)?;
    if waits && superblock.cluster != Uuid::NIL {
        unread.wait_for_index(&index)?;
    }
    Engine::on_device(device, superblock, path, &index, unread)
}

/// Makes a target. What was there, and its index, stays as it is if it may not go.
fn make(options: &TargetOptions, over: &Content, takes_index: bool) -> Result<Superblock> {
    let path = &options.path;
    let io = |e: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {e}", path.display()));
    let (mut target, made) = match (path.try_exists().map_err(io)?, options.size) {
        (false, Some(size)) => {
            let (target, made) = file::make(path, size, options.sparse)?;
            (target, Some(made))
        }
        _ => (file::open(path)?, None),
    };
    let index = index_path(options, &target)?;
    if options.index.is_some() && !takes_index {
        check_owner(&index, over)?;
    }
    if made.is_none() {
        let found = signature::find(&target).map_err(io)?;
        if found != Content::Blank && found != *over {
            let what = format!("{} holds {found}; nothing was changed", path.display());
            return Err(Error::new(ErrorKind::Exists, what));
        }
        target = with_size(target, options, &found)?;
    }
    check_size(&target, path)?;
    let mut superblock = Superblock::new(target.size);
    if let Some(source) = &options.encryption {
        Encrypted::prepare(&mut superblock, source)?;
    }
    // First: a daemon may have it open, and the drive then stays as it is.
    Index::remove(&index)?;
    if made.is_none() {
        signature::wipe(&target).map_err(io)?;
    }
    format(&target, &superblock, path, options.sparse)?;
    if let Some(made) = made {
        made.keep();
    }
    Ok(superblock)
}

/// Refuses an index of another target than the one that is destroyed.
fn check_owner(index: &Path, over: &Content) -> Result<()> {
    let Some(owner) = Index::owner(index)? else { return Ok(()) };
    if matches!(over, Content::Target(target) if target.uuid == owner) {
        return Ok(());
    }
    let what = format!(
        "index {} is that of target {owner}: name another directory, or remove it if that target \
         is gone for good; nothing was changed",
        index.display()
    );
    Err(Error::new(ErrorKind::Exists, what))
}

/// A file that is there and has another size than it was to be made with: by a command that was cut
/// off, if it is blank.
fn with_size(target: TargetFile, options: &TargetOptions, found: &Content) -> Result<TargetFile> {
    let (path, now) = (&options.path, target.size);
    match options.size {
        Some(size) if !target.block_device && size / BLOCK * BLOCK != now => {
            if *found == Content::Blank {
                return file::resize(target, path, size, options.sparse);
            }
            let what = format!(
                "{} has {now} bytes, not the {size} that were asked for: remove it to have it made \
                 anew, or ask for no size; nothing was changed",
                path.display()
            );
            Err(Error::new(ErrorKind::Exists, what))
        }
        _ => Ok(target),
    }
}

fn index_path(options: &TargetOptions, target: &TargetFile) -> Result<PathBuf> {
    if options.index.is_none() && target.block_device {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} is a device: name a directory for its index", options.path.display()),
        ));
    }
    Ok(options.index_path())
}

/// Why there is no superblock; `what` is wrong with the first copy.
fn no_target(path: &Path, what: &str) -> Error {
    let name = path.display();
    let what = match signature::inspect(path).map(|found| found.content) {
        Ok(Content::Blank) => {
            "it is blank, and only `weft target add` makes a target of it; if it was one, it \
                               was wiped, or this is another drive"
                .into()
        }
        Ok(content) => format!(
            "{what}, and it is not blank: it is damaged, or holds {content}; if nothing on it is \
             needed, `weft target add --force` overwrites it"
        ),
        Err(e) => return e,
    };
    Error::new(ErrorKind::Invalid, format!("{name}: {what}"))
}

fn check_size(target: &TargetFile, path: &Path) -> Result<()> {
    if target.size >= Superblock::MIN_SIZE {
        return Ok(());
    }
    let what = format!(
        "{}: {} bytes are too few: a target has at least {}; if it had more before, it was \
         truncated",
        path.display(),
        target.size,
        Superblock::MIN_SIZE
    );
    Err(Error::new(ErrorKind::Invalid, what))
}

fn format(target: &TargetFile, superblock: &Superblock, path: &Path, sparse: bool) -> Result<()> {
    file::fill(target, superblock.data_block * BLOCK, sparse)
        .and_then(|()| store(target, superblock))
        .map_err(|e| Error::new(ErrorKind::Io, format!("formatting {}: {e}", path.display())))?;
    tracing::info!(
        "{} formatted as target {}, {} MiB{}",
        path.display(),
        superblock.uuid,
        superblock.size >> 20,
        if superblock.key_check.is_some() { ", encrypted" } else { "" }
    );
    Ok(())
}

fn store(target: &TargetFile, superblock: &Superblock) -> std::io::Result<()> {
    let buffer = superblock.encode();
    target.file.write_all_at(buffer.as_ref(), 0)?;
    target.file.sync_data()?;
    target.file.write_all_at(buffer.as_ref(), superblock.size - BLOCK)?;
    target.file.sync_data()
}

struct Start<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    name: &'a str,
    index_path: &'a Path,
    /// All of the journal could be read.
    whole_journal: bool,
    /// What the drive holds is durable.
    flushed: bool,
}

/// An index with everything in the journal applied, and what it says.
struct Ready {
    index: Index,
    applied: Applied,
    /// Chunks that were lost, or are damaged.
    dropped: Vec<ChunkId>,
    allocator: Allocator,
    chunks: u64,
    /// Blocks that cannot be read.
    unreadable: usize,
    scrub: Scrub,
}

impl Start<'_> {
    /// The index that is there, or one that is made anew in the place of one that is lost.
    fn index(&self, records: &BTreeMap<u64, Record>, unread: &mut Unread) -> Result<Ready> {
        let path = self.index_path;
        let mut last = records.last_key_value().map_or(0, |(&n, _)| n);
        let lost = match Index::open(path, self.superblock.uuid)? {
            Opened::Ready(_, applied) if !self.whole_journal => {
                last = last.max(applied.record);
                true
            }
            Opened::Ready(index, applied) => {
                let next = applied.record + 1;
                // A record was written only when the one before it was durable: one that is missing
                // before another was overwritten since, or is damaged.
                if last < next || records.range(next..).count() as u64 == last - applied.record {
                    match self.take_up(*index, applied, records, unread) {
                        Err(e) if e.kind == ErrorKind::Corrupt => {
                            tracing::error!("{}: {e}", self.name);
                            last = last.max(applied.record);
                        }
                        ready => return ready,
                    }
                } else {
                    tracing::error!(
                        "{}: index {} is older than the journal reaches back, or the journal is \
                         damaged",
                        self.name,
                        path.display()
                    );
                }
                true
            }
            // Chunks come only after joining, and with a record.
            Opened::Lost => last > 0 || self.superblock.cluster != Uuid::NIL,
        };
        if lost {
            if !self.whole_journal {
                // Above the records that could not be read: no more than there are blocks.
                last += self.superblock.journal_blocks;
            }
            tracing::warn!(
                "{}: index {} is lost; it is rebuilt from the target",
                self.name,
                path.display()
            );
            let (device, superblock) = (self.device, self.superblock);
            let journal = (records, last);
            let (index, applied) =
                rebuild::run(device, superblock, path, self.name, journal, self.flushed, unread)?;
            // What was lost, the metadata group finds out.
            return self.ready(index, applied, Vec::new());
        }
        let index = Index::create(path)?;
        index.seal(self.superblock.uuid, Applied::default())?;
        self.ready(index, Applied::default(), Vec::new())
    }

    /// Brings an index up to date. Errors: `Corrupt`, it is damaged and counts as lost, as does one
    /// that was made of what the drive may not have kept.
    fn take_up(
        &self,
        index: Index,
        applied: Applied,
        records: &BTreeMap<u64, Record>,
        unread: &mut Unread,
    ) -> Result<Ready> {
        if self.flushed && index.is_unflushed()? {
            let what = "the index was made while the drive could not make durable what it held";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let (applied, dropped) = self.replay(&index, applied, records, unread)?;
        self.ready(index, applied, dropped)
    }

    fn ready(
        &self,
        index: Index,
        mut applied: Applied,
        mut dropped: Vec<ChunkId>,
    ) -> Result<Ready> {
        dropped.extend(index.damaged()?);
        // Puts that nobody was told of may have left headers with greater numbers than the last
        // known.
        applied.stamp += STAMP_JUMP;
        index.apply(&[], applied)?;
        index.flush()?;
        let (allocator, chunks, unreadable) = self.allocate(&index)?;
        let scrub = index.scrub()?;
        Ok(Ready { index, applied, dropped, allocator, chunks, unreadable, scrub })
    }

    /// The space that the chunks of the index leave, how many they are, and how many blocks cannot
    /// be read.
    fn allocate(&self, index: &Index) -> Result<(Allocator, u64, usize)> {
        let (superblock, name) = (self.superblock, self.name);
        let mut allocator = Allocator::new(superblock.data_block, superblock.data_end);
        let mut chunks = 0;
        index.each(|id, place| {
            chunks += 1;
            if place.extents.iter().all(|&e| allocator.claim(e)) {
                return Ok(());
            }
            let path = self.index_path.display();
            let what = format!(
                "index {path}: chunk {id} overlaps another or lies outside the target: the index \
                 is damaged"
            );
            Err(Error::new(ErrorKind::Corrupt, what))
        })?;
        let unreadable = index.unreadable()?;
        if !unreadable.is_empty() {
            unreadable.iter().for_each(|&block| allocator.avoid(block));
            tracing::warn!(
                "{name}: {} blocks of this drive could not be read before and are not used; \
                 replace it",
                unreadable.len()
            );
        }
        tracing::info!(
            "{name}: {chunks} chunks, {} of {} MiB used",
            (allocator.used() * BLOCK) >> 20,
            (allocator.capacity() * BLOCK) >> 20
        );
        Ok((allocator, chunks, unreadable.len()))
    }

    /// Applies the records after `applied`, in order; none is missing. Answers also chunks that
    /// were lost.
    fn replay(
        &self,
        index: &Index,
        applied: Applied,
        records: &BTreeMap<u64, Record>,
        unread: &mut Unread,
    ) -> Result<(Applied, Vec<ChunkId>)> {
        // Each record was written when the one before it was durable. Whether the last is, is not
        // known if the drive does not say so now.
        let durable = match self.flushed {
            true => u64::MAX,
            false => records.last_key_value().map_or(0, |(&last, _)| last.saturating_sub(1)),
        };
        let Outcome { changes, replaced, end } = Outcome::of(applied, records, durable);
        if end == applied {
            return Ok((applied, Vec::new()));
        }
        let (puts, deletes): (Vec<_>, Vec<_>) = changes.into_iter().partition(|c| c.1.is_some());
        let mut batch: Vec<_> = deletes.into_iter().map(|c| index::Change::Delete(c.0)).collect();
        let puts: Vec<_> = puts.into_iter().filter_map(|(id, put)| Some((id, put?))).collect();
        let mut salvage = Salvage::new(self.device, self.superblock, self.name);
        let mut dropped = Vec::new();
        for some in puts.chunks(READS) {
            let headers: Vec<_> =
                some.iter().map(|(_, (_, place))| self.read_header(place)).collect();
            for ((id, (number, place)), header) in some.iter().zip(headers) {
                let last = *number == end.record;
                let entry = match header {
                    Some(header) => self.check(*id, place, header, last, &mut salvage)?,
                    None => None,
                };
                let entry = match (entry, replaced.get(id).filter(|_| last)) {
                    // The power went before the new copy was whole: the old one is where it was.
                    (None, Some(None)) => continue,
                    (None, Some(Some((_, old)))) => match self.read_header(old) {
                        Some(header) => self.check(*id, old, header, false, &mut salvage)?,
                        None => None,
                    },
                    (entry, _) => entry,
                };
                batch.push(match entry {
                    Some(entry) => index::Change::Put(*id, Arc::new(entry)),
                    None => {
                        dropped.push(*id);
                        index::Change::Delete(*id)
                    }
                });
            }
        }
        if !salvage.unread.is_empty() {
            unread.give_up(&salvage, salvage.data())?;
            index.set_unreadable(&(&index.unreadable()? | &salvage.unread))?;
        }
        for id in &dropped {
            tracing::warn!("{}: chunk {id} is not whole and is dropped", self.name);
        }
        dropped.truncate(MAX_DROPPED);
        index.apply(&batch, end)?;
        index.flush()?;
        tracing::info!("{}: replayed {} journal records", self.name, end.record - applied.record);
        Ok((end, dropped))
    }

    /// Starts to read the header of a chunk; `None` if it cannot lie there.
    fn read_header(&self, place: &Place) -> Option<Done<AlignedBuf>> {
        let inside = place.lies_in(self.superblock.data_block, self.superblock.data_end);
        let (at, len) = (place.extents[0].block * BLOCK, place.header_blocks() * BLOCK);
        inside.then(|| self.device.read(at, len as usize))
    }

    /// The chunk from its header, if that is whole; with `data`, only if its data is, too, as far
    /// as that can be read. What cannot be read is noted in `salvage`. Errors: the drive's, which
    /// say nothing of the chunk.
    fn check(
        &self,
        id: ChunkId,
        place: &Place,
        header: Done<AlignedBuf>,
        data: bool,
        salvage: &mut Salvage<'_>,
    ) -> Result<Option<JournalEntry>> {
        let block = place.extents[0].block;
        let decode = |bytes: &[u8]| header::decode(self.superblock.salt, block, bytes);
        let found = match header.block() {
            Ok(header) => decode(header.as_ref()),
            Err(e) if of_medium(&e) => salvage
                .read_whole(block * BLOCK, place.header_blocks() * BLOCK)?
                .and_then(|bytes| decode(&bytes)),
            Err(e) => {
                let what = format!("{}: reading chunk {id}: {e}", self.name);
                return Err(Error::new(ErrorKind::Io, what));
            }
        };
        let Some((_, entry)) = found.filter(|(f, e)| *f == id && e.place == *place) else {
            return Ok(None);
        };
        Ok((!data || look_at(&entry, salvage)?.wrong == 0).then_some(entry))
    }
}

/// What chunks are by some records of the journal, if all is whole.
struct Outcome {
    /// Where they were put, and by which record; `None`: they were deleted.
    changes: BTreeMap<ChunkId, Option<(u64, Place)>>,
    /// What those were before that the last record puts in another place: `None`, as the index has
    /// them.
    replaced: BTreeMap<ChunkId, Option<(u64, Place)>>,
    end: Applied,
}

impl Outcome {
    fn of(applied: Applied, records: &BTreeMap<u64, Record>, durable: u64) -> Self {
        let (mut changes, mut replaced) = (BTreeMap::new(), BTreeMap::new());
        let mut end = applied;
        let records = records.range(applied.record + 1..);
        for (&number, record) in records.take_while(|(number, _)| **number <= durable) {
            end.record = number;
            replaced.clear();
            for change in &record.changes {
                match change {
                    Change::Put { id, place } => {
                        end.stamp = end.stamp.max(place.stamp);
                        changes.insert(*id, Some((number, place.clone())));
                    }
                    // That it is put again in the same record makes of this a replacement.
                    Change::Delete { id } => match changes.insert(*id, None) {
                        Some(None) => drop(replaced.remove(id)),
                        before => drop(replaced.insert(*id, before.flatten())),
                    },
                }
            }
        }
        Self { changes, replaced, end }
    }
}
