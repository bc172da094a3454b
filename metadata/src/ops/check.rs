//! Verifies the namespace against itself at one moment: every invariant that the records of this
//! state must keep among each other.

use crate::operation::{BRIEF, Fault, Query, Reply};
use crate::schema::{self, Dentry, FIRST_COOKIE, Group, HEAD, IndexEntry, Inode, Segment, Tag};
use crate::store::{Read, StoreResult};
use crate::tables::xattrs::Room;
use crate::tables::{content, locks};
use std::collections::{BTreeMap, HashMap, HashSet};
use v1::FileKind;
use v1::extent::Source;
use v1::lock::Kind;
use weft_proto::locks::Ranges;
use weft_proto::{InodeId, SegmentId, v1};

/// Most problems in one answer; more are only counted.
const MAX_PROBLEMS: usize = 1000;
/// One that names a name takes no more, in bytes.
const PROBLEM: usize = 1200;

impl Query for v1::CheckOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let mut check =
            Check { state, shard: state.shard()?, report: v1::CheckReply::default(), untold: 0 };
        let names = check.names()?;
        let extents = check.extents()?;
        let xattrs = check.xattrs()?;
        check.inodes(&names, &extents, &xattrs)?;
        check.tree(&names)?;
        check.segments(&extents)?;
        check.owned(Tag::Xattr)?;
        check.owned(Tag::Orphan)?;
        check.owned(Tag::Trim)?;
        check.owned(Tag::Lock)?;
        check.locks()?;
        if check.untold > 0 {
            check.report.problems.push(format!("and {} more problems", check.untold));
        }
        Ok(Reply::Check(check.report))
    }

    fn longest(&self) -> usize {
        BRIEF + MAX_PROBLEMS * PROBLEM
    }
}

struct Check<'a> {
    state: &'a dyn Read,
    shard: u16,
    report: v1::CheckReply,
    untold: u64,
}

/// What the dentries say of inodes.
#[derive(Default)]
struct Names {
    /// How many names an inode has.
    of: HashMap<u64, u32>,
    /// The directory that names a directory.
    parent: HashMap<u64, u64>,
    /// Names and subdirectories in a directory.
    within: HashMap<u64, (u64, u32)>,
}

/// What the extents say of files (by content) and segments.
#[derive(Default)]
struct Extents {
    /// Covered bytes, inline bytes, end of the last.
    of: HashMap<u64, (u64, u64, u64)>,
    live: BTreeMap<SegmentId, u64>,
}

impl Check<'_> {
    fn problem(&mut self, what: String) {
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(what);
        } else {
            self.untold += 1;
        }
    }

    /// Dentries against the index of their directory, both ways.
    fn names(&mut self) -> StoreResult<Names> {
        let state = self.state;
        let mut names = Names::default();
        state.records(schema::all_in(self.shard, Tag::Dentry), |key, d: Dentry| {
            let (dir, name) = (schema::ino_of(key)?, &key[HEAD + 8..]);
            self.report.dentries += 1;
            *names.of.entry(d.ino).or_default() += 1;
            let within = names.within.entry(dir.0).or_default();
            within.0 += 1;
            let told = || format!("name {:?} in directory {dir}", String::from_utf8_lossy(name));
            if d.kind() == FileKind::Directory {
                within.1 += 1;
                if names.parent.insert(d.ino, dir.0).is_some() {
                    self.problem(format!("{}: the directory has another name", told()));
                }
            }
            let want = IndexEntry { name: name.to_vec().into(), ino: d.ino, kind: d.kind };
            if state.load(&schema::index(dir, d.cookie))?.as_ref() != Some(&want) {
                self.problem(format!("{}: cookie {} does not lead to it", told(), d.cookie));
            }
            Ok(true)
        })?;
        state.records(schema::all_in(self.shard, Tag::Index), |key, entry: IndexEntry| {
            let (dir, cookie) = (schema::ino_of(key)?, schema::number_at(key, HEAD + 8)?);
            let dentry = state.dentry(dir, &entry.name)?;
            if dentry.is_none_or(|d| d.cookie != cookie) {
                self.problem(format!("directory {dir}: cookie {cookie} leads to no name"));
            }
            Ok(true)
        })?;
        Ok(names)
    }

    /// Extents against each other and their segments.
    fn extents(&mut self) -> StoreResult<Extents> {
        let state = self.state;
        let mut extents = Extents::default();
        state.records(schema::all_in(self.shard, Tag::Extent), |key, e: v1::Extent| {
            let (content, end) = (schema::ino_of(key)?, schema::number_at(key, HEAD + 8)?);
            self.report.extents += 1;
            let sums = extents.of.entry(content.0).or_default();
            let told = format!("extent {}..{end} of content {content}", e.file_off);
            if e.len == 0 || content::end(&e) != end {
                self.problem(format!("{told}: its key does not fit its length {}", e.len));
            }
            if e.file_off < sums.2 {
                self.problem(format!("{told}: overlaps the one before"));
            }
            sums.0 += e.len;
            sums.2 = end;
            match &e.source {
                Some(Source::Inline(bytes)) => {
                    sums.1 += bytes.len() as u64;
                    if bytes.len() as u64 != e.len {
                        self.problem(format!("{told}: holds {} bytes", bytes.len()));
                    }
                }
                Some(Source::Segment(part)) => {
                    let id = part.id.map(SegmentId::from).unwrap_or_default();
                    *extents.live.entry(id).or_default() += e.len;
                    let segment: Option<Segment> = state.load(&schema::segment(id))?;
                    if segment.is_none_or(|s| part.off.saturating_add(e.len) > s.info.length) {
                        self.problem(format!("{told}: not within segment {id}"));
                    }
                }
                None => self.problem(format!("{told}: no source")),
            }
            Ok(true)
        })?;
        Ok(extents)
    }

    /// What the extended attributes of each inode take.
    fn xattrs(&mut self) -> StoreResult<HashMap<u64, Room>> {
        let mut taken: HashMap<u64, Room> = HashMap::new();
        let (from, to) = schema::all_in(self.shard, Tag::Xattr);
        self.state.scan(&from, &to, &mut |key, value| {
            let ino = schema::ino_of(key)?;
            let of_inode = taken.entry(ino.0).or_default();
            *of_inode = of_inode.with(Room::of(&key[HEAD + 8..], value));
            Ok(true)
        })?;
        Ok(taken)
    }

    /// Every inode against its names, its extents and its orphan record.
    fn inodes(
        &mut self,
        names: &Names,
        extents: &Extents,
        xattrs: &HashMap<u64, Room>,
    ) -> StoreResult<()> {
        let state = self.state;
        let mut known = HashSet::new();
        let mut contents = HashSet::new();
        state.records(schema::all_in(self.shard, Tag::Inode), |key, inode: Inode| {
            let ino = schema::ino_of(key)?;
            known.insert(ino.0);
            self.report.inodes += 1;
            if inode.ino() != ino {
                self.problem(format!("inode {ino}: calls itself {}", inode.ino()));
            }
            let orphan = state.get(&schema::orphan(ino))?.is_some();
            self.report.orphans += u64::from(orphan);
            if orphan != (inode.attr.nlink == 0) {
                self.problem(format!("inode {ino}: {} links, orphan: {orphan}", inode.attr.nlink));
            }
            self.links(&inode, names);
            if inode.kind() == FileKind::Regular && !contents.insert(inode.content_id().0) {
                self.problem(format!("inode {ino}: shares its content with another"));
            }
            let attributes = xattrs.get(&ino.0).copied().unwrap_or_default();
            let accounted = Room::accounted(&inode);
            if attributes != accounted || inode.attr.no_xattrs && attributes != Room::default() {
                self.problem(format!(
                    "inode {ino}: attributes take {attributes:?}, accounts for {accounted:?}"
                ));
            }
            self.sizes(&inode, extents);
            Ok(true)
        })?;
        for ino in names.of.keys().filter(|ino| !known.contains(ino)) {
            self.problem(format!("inode {} has names but does not exist", InodeId(*ino)));
        }
        for content in extents.of.keys().filter(|c| !contents.contains(c)) {
            self.problem(format!("content {} belongs to no file", InodeId(*content)));
        }
        for dir in names.within.keys().filter(|dir| !known.contains(dir)) {
            self.problem(format!("directory {} has names but does not exist", InodeId(*dir)));
        }
        let counted = state.counters()?.inodes;
        if counted != self.report.inodes {
            self.problem(format!("{} inodes, counted {counted}", self.report.inodes));
        }
        Ok(())
    }

    /// Link count, entries and layout.
    fn links(&mut self, inode: &Inode, names: &Names) {
        let ino = inode.ino();
        let named = names.of.get(&ino.0).copied().unwrap_or(0);
        let mut want = named;
        if inode.is_dir() {
            let (entries, subdirs) = names.within.get(&ino.0).copied().unwrap_or_default();
            let alive = named > 0 || ino.is_root();
            want = if alive { 2 + subdirs } else { 0 };
            if inode.entries != entries {
                self.problem(format!("directory {ino}: {entries} names, counts {}", inode.entries));
            }
            if !alive && entries > 0 {
                self.problem(format!("directory {ino}: removed, but has {entries} names"));
            }
            if inode.next_cookie < FIRST_COOKIE {
                self.problem(format!("directory {ino}: next cookie {}", inode.next_cookie));
            }
        }
        if inode.attr.nlink != want {
            self.problem(format!("inode {ino}: link count {}, should be {want}", inode.attr.nlink));
        }
        let holds_data = inode.is_dir() || inode.kind() == FileKind::Regular;
        if holds_data && !matches!(inode.checked_layout(), Ok(Some(_))) {
            self.problem(format!("inode {ino}: no valid layout"));
        }
    }

    /// Size, blocks and inline bytes.
    fn sizes(&mut self, inode: &Inode, extents: &Extents) {
        let ino = inode.ino();
        let (mut bytes, mut inline, mut end) = (0, 0, 0);
        if inode.kind() == FileKind::Regular {
            let sums = extents.of.get(&inode.content_id().0);
            (bytes, inline, end) = sums.copied().unwrap_or_default();
        }
        if inode.allocated != bytes || inode.attr.blocks != bytes.div_ceil(512) {
            self.problem(format!(
                "inode {ino}: {bytes} bytes in extents, accounts for {} and {} blocks",
                inode.allocated, inode.attr.blocks
            ));
        }
        if inode.attr.inline_bytes != inline {
            self.problem(format!(
                "inode {ino}: {inline} inline bytes, accounts for {}",
                inode.attr.inline_bytes
            ));
        }
        let trims = matches!(self.state.get(&schema::trim(ino)), Ok(Some(_)));
        if trims == inode.cut.is_empty() {
            self.problem(format!("inode {ino}: {} ranges cut, to trim: {trims}", inode.cut.len()));
        }
        if end > inode.attr.size && inode.cut.last().is_none_or(|span| span.to < end) {
            self.problem(format!("inode {ino}: extents to {end}, size {}", inode.attr.size));
        }
    }

    /// Every named directory leads up to the root, by the parents that it and its dentry agree on.
    fn tree(&mut self, names: &Names) -> StoreResult<()> {
        let state = self.state;
        for (&dir, &parent) in &names.parent {
            let recorded = state.inode(InodeId(dir))?.map(|inode| inode.parent);
            if recorded != Some(parent) {
                self.problem(format!(
                    "directory {}: named by {}, but its parent is {recorded:x?}",
                    InodeId(dir),
                    InodeId(parent)
                ));
            }
        }
        let mut reached: HashSet<u64> = HashSet::from([InodeId::root_of(self.shard).0]);
        for &dir in names.parent.keys() {
            let mut path = Vec::new();
            let mut at = dir;
            let mut on_path = HashSet::new();
            while !reached.contains(&at) && on_path.insert(at) {
                path.push(at);
                match names.parent.get(&at) {
                    Some(&parent) => at = parent,
                    None => break,
                }
            }
            if !reached.contains(&at) {
                self.problem(format!("directory {} does not lead to the root", InodeId(dir)));
            }
            reached.extend(path);
        }
        Ok(())
    }

    /// Live bytes, that garbage is garbage, and that every segment's placement group is there,
    /// counts it and lists it.
    fn segments(&mut self, extents: &Extents) -> StoreResult<()> {
        let state = self.state;
        let mut named: BTreeMap<u32, u64> = BTreeMap::new();
        state.records(schema::all(Tag::Segment), |key, s: Segment| {
            let id = schema::segment_of(key)?;
            self.report.segments += 1;
            let live = extents.live.get(&id).copied().unwrap_or(0);
            if live != s.live_bytes || live == 0 {
                self.problem(format!("segment {id}: {live} live bytes, counts {}", s.live_bytes));
            }
            if s.info.geometry().is_err() || s.info.id.map(SegmentId::from) != Some(id) {
                self.problem(format!("segment {id}: its record is not well formed"));
            }
            *named.entry(s.info.pg).or_default() += 1;
            if state.get(&schema::member(s.info.pg, id))?.is_none() {
                self.problem(format!("segment {id}: its placement group does not list it"));
            }
            if state.get(&schema::garbage(id))?.is_some() {
                self.problem(format!("segment {id}: both committed and garbage"));
            }
            Ok(true)
        })?;
        state.records(schema::all(Tag::Garbage), |key, info: v1::SegmentInfo| {
            *named.entry(info.pg).or_default() += 1;
            let id = schema::segment_of(key)?;
            if state.get(&schema::member(info.pg, id))?.is_none() {
                self.problem(format!("segment {id}: its placement group does not list it"));
            }
            Ok(true)
        })?;
        let mut listed = 0;
        state.records(schema::all(Tag::Member), |_, _: v1::Empty| {
            listed += 1;
            Ok(true)
        })?;
        let segments: u64 = named.values().sum();
        if listed != segments {
            self.problem(format!("placement groups list {listed} segments of {segments}"));
        }
        let next = state.counters()?.next_pg;
        state.records(schema::all(Tag::Group), |_, group: Group| {
            let id = group.info.id;
            let segments = named.remove(&id).unwrap_or(0);
            if group.segments != segments {
                self.problem(format!(
                    "placement group {id}: {segments} segments, counts {}",
                    group.segments
                ));
            }
            if id >= next {
                self.problem(format!("placement group {id}: the next would be {next}"));
            }
            Ok(true)
        })?;
        for (pg, segments) in named {
            self.problem(format!("placement group {pg}: none, but {segments} segments name it"));
        }
        Ok(())
    }

    /// Locks belong to sessions that live, or of which they are left to be deleted, which lead to
    /// them, and stand against no other.
    fn locks(&mut self) -> StoreResult<()> {
        let state = self.state;
        let mut last = None;
        state.records(schema::all_in(self.shard, Tag::Lock), |key, held: Ranges| {
            let (ino, (flock, session, owner)) = (schema::ino_of(key)?, schema::holder_of(key)?);
            let told = format!("locks of owner {owner:x} of session {session} on inode {ino}");
            let has_ended = || state.get(&schema::ended(session));
            if state.session(session)?.is_none() && has_ended()?.is_none() {
                self.problem(format!("{told}: there is no such session"));
            }
            if state.get(&schema::lock_of(session, key))?.is_none() {
                self.problem(format!("{told}: the session does not lead to them"));
            }
            if held.ranges.is_empty() {
                self.problem(format!("{told}: are none"));
            }
            if last.replace((ino, flock)) != Some((ino, flock)) {
                self.overlaps(ino, flock)?;
            }
            Ok(true)
        })?;
        let (from, to) = schema::all(Tag::LockOf);
        state.scan(&from, &to, &mut |key, _| {
            if state.get(schema::lock_in(key)?)?.is_none() {
                self.problem(format!(
                    "session {}: leads to no lock",
                    schema::number_at(key, HEAD)?
                ));
            }
            Ok(true)
        })
    }

    /// No lock on the inode may stand against another owner's.
    fn overlaps(&mut self, ino: InodeId, flock: bool) -> StoreResult<()> {
        let mut all = locks::of_inode(self.state, ino, flock)?;
        all.sort_by_key(|lock| lock.start);
        // The last byte that is locked so far, by whom, and the same for writing.
        let (mut any, mut write): (Option<&v1::Lock>, Option<&v1::Lock>) = (None, None);
        for lock in &all {
            let before = if lock.kind() == Kind::Write { any } else { write };
            let meets = |b: &&v1::Lock| {
                b.end >= lock.start && (b.session, b.owner) != (lock.session, lock.owner)
            };
            if before.is_some_and(|b| meets(&b)) {
                self.problem(format!("inode {ino}: locks of two owners at byte {}", lock.start));
            }
            if any.is_none_or(|a| a.end <= lock.end) {
                any = Some(lock);
            }
            if lock.kind() == Kind::Write && write.is_none_or(|w| w.end <= lock.end) {
                write = Some(lock);
            }
        }
        Ok(())
    }

    /// Records that belong to an inode: it exists.
    fn owned(&mut self, tag: Tag) -> StoreResult<()> {
        let state = self.state;
        let (from, to) = schema::all_in(self.shard, tag);
        state.scan(&from, &to, &mut |key, _| {
            let ino = schema::ino_of(key)?;
            if state.get(&schema::inode(ino))?.is_none() {
                self.problem(format!("{tag:?} record of inode {ino}, which does not exist"));
            }
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests;
