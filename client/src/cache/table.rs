//! The table of leases, and what is known under each.
//!
//! Invariant (I6): an answer is kept only if neither a recall nor a change of this mount ended on
//! the inode since its request was sent, since answers, recalls and the mount's own changes
//! overtake each other ([`Start`]).

use super::listing::{Listing, Sought};
use super::xattrs::Xattrs;
use crate::types::Attr;
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::{ByteRanges, InodeId, v1};

/// Extended attributes that are kept of all inodes, in bytes; no more are kept above it.
const MAX_XATTRS: usize = 64 << 20;
/// Marks of recalls and changes are kept for at least this long, which is longer than any request
/// lives; or until there are so many since: a request that is older teaches nothing then.
const MARKS_LIFETIME: Duration = Duration::from_secs(700);
pub(super) const MAX_MARKS: usize = 1 << 16;

/// What a lease allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mode {
    Read,
    Write,
}

/// One grant of the right to write an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Right(pub(super) u64);

impl Right {
    /// One that is not held any more.
    pub const GONE: Self = Self(u64::MAX);
}

/// When a request was sent, as the table counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Start(pub(super) u64);

pub(super) struct Held {
    pub(super) mode: Mode,
    /// With the right to write: when it was granted, as the table counts.
    pub(super) since: u64,
    /// With the right to write: locks may be taken without asking.
    pub(super) locks: bool,
    /// With the right to write: the caller may map it to write, without asking.
    pub(super) maps: bool,
    /// What was buffered is being committed because the right to write was recalled. Until that is
    /// done, nobody else may be told that there is nothing: a new leader learns of this lease too.
    pub(super) flushing: bool,
    /// It is being given back: who asks is answered, and no more names and attributes are cached
    /// above.
    pub(super) leaving: bool,
    pub(super) seq: u64,
    /// When this mount changed the inode last.
    pub(super) changed: Option<Instant>,
    pub(super) attr: Option<Attr>,
    pub(super) xattrs: Xattrs,
    /// What an open would answer.
    pub(super) content: Option<Arc<v1::OpenReply>>,
    /// With the right to write: the directory whose quota counts what is done under it; 0: none.
    pub(super) quota: u64,
    /// Of files that are made in a directory, with the right to write it.
    pub(super) layout: Option<v1::LayoutInfo>,
    /// Names in a directory; `None`: there is no such name.
    pub(super) names: HashMap<Bytes, Option<InodeId>>,
    /// There are no names but these.
    pub(super) complete: bool,
    /// The same in the order in which they are read.
    pub(super) listing: Option<Listing>,
    pub(super) sought: Sought,
}

impl Held {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            since: 0,
            locks: false,
            maps: false,
            flushing: false,
            leaving: false,
            seq: 0,
            changed: None,
            attr: None,
            xattrs: Xattrs::default(),
            content: None,
            quota: 0,
            layout: None,
            names: HashMap::new(),
            complete: false,
            listing: None,
            sought: Sought::default(),
        }
    }
}

/// Byte ranges of a file, to write.
pub(super) struct RangeLease {
    pub(super) ranges: ByteRanges,
    /// When the first was granted, as the table counts.
    pub(super) since: u64,
    /// They were recalled, and what was buffered is being committed.
    pub(super) flushing: bool,
    pub(super) seq: u64,
    /// The directory whose quota counts what is written; 0: none.
    pub(super) quota: u64,
    /// They are too many, and are going to be given back.
    pub(super) is_surplus: bool,
    /// The file has no set-id bits.
    pub(super) no_set_ids: bool,
}

impl RangeLease {
    pub(super) fn right_to(&self, range: &Range<u64>) -> Option<Right> {
        self.ranges.covers(range).then_some(Right(self.since))
    }
}

/// Changes of one inode, and of names in it, that were sent and are not answered.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) changes: usize,
    pub(super) names: HashMap<Bytes, usize>,
}

/// The epochs of the last recall or change of an inode, and of the last recall.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    any: u64,
    recall: u64,
}

pub(super) struct Table {
    /// Counts recalls and changes.
    pub(super) epoch: u64,
    /// What ended on an inode last, of this and the time before.
    pub(super) marks: [HashMap<InodeId, Mark>; 2],
    pub(super) turned: Instant,
    pub(super) turned_at: u64,
    /// Requests that were sent before this epoch teach nothing.
    pub(super) floor: u64,
    pub(super) inodes: HashMap<InodeId, Held>,
    /// What may be written of files that others write, too.
    pub(super) ranges: HashMap<InodeId, RangeLease>,
    /// What this mount is changing.
    pub(super) in_flight: HashMap<InodeId, Changes>,
    /// Names in all directories.
    pub(super) names: usize,
    /// Extended attributes of all inodes, in bytes.
    pub(super) xattrs: usize,
    /// How many changes of extended attributes that were made here the group has not heard of: what
    /// it tells of those is from before.
    pub(super) xattr_steps: HashMap<InodeId, usize>,
    /// Half of it is being given back.
    pub(super) shrinking: bool,
}

impl Table {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            epoch: 0,
            marks: Default::default(),
            turned: now,
            turned_at: 0,
            floor: 0,
            inodes: HashMap::new(),
            ranges: HashMap::new(),
            in_flight: HashMap::new(),
            names: 0,
            xattrs: 0,
            xattr_steps: HashMap::new(),
            shrinking: false,
        }
    }

    fn mark_of(&self, ino: InodeId) -> Mark {
        let mark = |at: usize| self.marks[at].get(&ino).copied();
        mark(0).or_else(|| mark(1)).unwrap_or_default()
    }

    /// Whether what a request learned that was sent at `start` is still so.
    pub(super) fn holds_since(&self, start: Start, ino: InodeId) -> bool {
        start.0 >= self.floor && self.mark_of(ino).any <= start.0
    }

    /// Whether what a request was granted that was sent at `start` was not recalled since.
    pub(super) fn keeps_since(&self, start: Start, ino: InodeId) -> bool {
        start.0 >= self.floor && self.mark_of(ino).recall <= start.0
    }

    /// A recall, or what is like one: from now on, what was asked before is not believed about this
    /// inode.
    pub(super) fn mark(&mut self, ino: InodeId) {
        self.note(ino, true);
    }

    fn note(&mut self, ino: InodeId, recall: bool) {
        self.epoch += 1;
        let now = Instant::now();
        let full = self.marks[0].len() >= MAX_MARKS;
        if full || now.duration_since(self.turned) > MARKS_LIFETIME {
            self.floor = self.floor.max(self.turned_at);
            (self.turned, self.turned_at) = (now, self.epoch);
            self.marks.swap(0, 1);
            self.marks[0].clear();
        }
        let any = self.epoch;
        let recall = if recall { any } else { self.mark_of(ino).recall };
        self.marks[0].insert(ino, Mark { any, recall });
    }

    /// [`Self::mark`] of an inode that this mount changes.
    pub(super) fn change(&mut self, ino: InodeId) {
        self.note(ino, false);
        if let Some(held) = self.inodes.get_mut(&ino) {
            held.changed = Some(Instant::now());
        }
    }

    pub(super) fn hold(&mut self, start: Start, grant: &v1::Grant) {
        let ino = InodeId(grant.ino);
        if !self.holds_since(start, ino) {
            return;
        }
        let flushing = self.ranges.get(&ino).is_some_and(|lease| lease.flushing);
        let held = self.inodes.entry(ino).or_insert_with(|| Held::new(Mode::Read));
        // What is being given back is not written under again before it is.
        if grant.write && !held.flushing && !flushing {
            if held.mode == Mode::Read {
                // What was written under ranges need not be committed before more is.
                let ranges = self.ranges.remove(&ino);
                let since = ranges.map_or(self.epoch, |lease| lease.since);
                (held.mode, held.since) = (Mode::Write, since);
                (held.locks, held.maps) = (false, false);
            }
            held.locks |= grant.locks;
            held.maps |= grant.maps;
        }
        if grant.write {
            held.quota = grant.quota;
        }
        held.layout = grant.layout.or(held.layout);
        held.seq = held.seq.max(grant.seq);
    }

    /// Attributes that are known, and are those that all see.
    pub(super) fn attr(&self, ino: InodeId) -> Option<Attr> {
        self.inodes.get(&ino)?.attr.filter(|_| !self.is_in_flight(ino))
    }

    pub(super) fn learn_attr(&mut self, start: Start, attr: Option<&v1::Attr>) {
        let Some(mut attr) = attr.and_then(|a| Attr::try_from(*a).ok()) else { return };
        attr.xattrs |= self.xattr_steps.contains_key(&attr.ino);
        if self.holds_since(start, attr.ino)
            && let Some(held) = self.inodes.get_mut(&attr.ino)
            // Of a directory that only this mount changes it knows more.
            && !(attr.is_dir() && held.mode == Mode::Write && held.attr.is_some())
            // An answer from before the lease may come after the one that it came with. A mode or
            // an owner counts no version.
            && held.attr.is_none_or(|known| known.age() <= attr.age())
        {
            held.attr = Some(attr);
        }
    }

    pub(super) fn learn_content(&mut self, start: Start, reply: &v1::OpenReply) {
        self.learn_attr(start, reply.attr.as_ref());
        let Some(ino) = reply.attr.map(|a| InodeId(a.ino)) else { return };
        if self.holds_since(start, ino)
            && let Some(held) = self.inodes.get_mut(&ino)
            && held.attr.map(|known| known.data_version) == reply.attr.map(|told| told.data_version)
        {
            held.content = Some(Arc::new(reply.clone()));
        }
    }

    pub(super) fn learn_name(
        &mut self,
        start: Start,
        parent: u64,
        name: &Bytes,
        ino: Option<InodeId>,
    ) {
        let parent = InodeId(parent);
        if !self.holds_since(start, parent) {
            return self.forget_name(parent, name);
        }
        if let Some(held) = self.inodes.get_mut(&parent) {
            let known = held.names.insert(name.clone(), ino);
            // Each name of the listing was known.
            if ino.is_none()
                && known.flatten().is_some()
                && let Some(listing) = &mut held.listing
            {
                listing.remove(name);
            }
            self.names += usize::from(known.is_none());
        }
    }

    /// Lets what is known of extended attributes become something else.
    pub(super) fn edit_xattrs(&mut self, ino: InodeId, edit: impl FnOnce(&mut Xattrs)) {
        let Some(held) = self.inodes.get_mut(&ino) else { return };
        self.xattrs -= held.xattrs.bytes();
        edit(&mut held.xattrs);
        if self.xattrs + held.xattrs.bytes() > MAX_XATTRS {
            held.xattrs = Xattrs::default();
        }
        self.xattrs += held.xattrs.bytes();
    }

    pub(super) fn learn_xattrs(&mut self, start: Start, ino: u64, learn: impl FnOnce(&mut Xattrs)) {
        let ino = InodeId(ino);
        if self.holds_since(start, ino) && !self.xattr_steps.contains_key(&ino) {
            self.edit_xattrs(ino, learn);
        }
    }

    /// The group has heard of a change of extended attributes that was made here, or never will.
    /// Answers whether that was the last: then [`Self::xattrs_told`] is due.
    pub(super) fn xattr_step_ended(&mut self, ino: InodeId) -> bool {
        let Some(steps) = self.xattr_steps.get_mut(&ino) else { return false };
        *steps -= 1;
        let last = *steps == 0;
        if last {
            self.xattr_steps.remove(&ino);
        }
        last
    }

    /// The group has heard of all of them: what it was asked before, and answers after that, may be
    /// from before them.
    pub(super) fn xattrs_told(&mut self, ino: InodeId) {
        self.note(ino, false);
    }

    pub(super) fn forget_name(&mut self, parent: InodeId, name: &Bytes) {
        if let Some(held) = self.inodes.get_mut(&parent) {
            self.names -= usize::from(held.names.remove(name).is_some());
            held.complete = false;
            held.listing = None;
            held.sought.begin_anew();
        }
    }

    pub(super) fn drop_lease(&mut self, ino: InodeId) -> Option<Held> {
        let held = self.inodes.remove(&ino)?;
        self.names -= held.names.len();
        self.xattrs -= held.xattrs.bytes();
        Some(held)
    }

    /// Forgets everything but the right to write, which is not a matter of what is known.
    pub(super) fn forget_all(&mut self) {
        self.epoch += 1;
        self.floor = self.epoch;
        self.inodes.retain(|_, held| held.mode == Mode::Write || held.flushing);
        (self.names, self.xattrs) = (0, 0);
        self.ranges.values_mut().for_each(|lease| lease.no_set_ids = false);
        for held in self.inodes.values_mut() {
            (held.attr, held.content, held.xattrs) = (None, None, Xattrs::default());
            (held.layout, held.complete, held.listing) = (None, false, None);
            held.names.clear();
            held.sought.begin_anew();
        }
    }
}
