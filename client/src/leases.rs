//! What this mount may use without asking: attributes, names and content of the inodes on which the
//! metadata leader granted it a lease.
//!
//! Invariants (I6): nothing is used after the lease was given up, or after the session may have
//! been declared dead; an answer is kept only if neither a recall nor a change of this mount ended
//! on the inode since its request was sent, since answers, recalls and the mount's own changes
//! overtake each other ([`Leases::start`]). When it is not known what became of a change, everything
//! that could be concerned is forgotten.

use crate::listing::Listing;
use crate::types::{Attr, DirPage};
use crate::xattrs::{ACLS, Xattrs};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use weft_proto::mode::{SETGID, mode_of_new};
use weft_proto::v1::make_files_op;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Inodes that are kept, and names in all directories; above it, half of them are given back.
const MOST: usize = 200_000;
const MOST_NAMES: usize = 800_000;
/// Extended attributes that are kept of all inodes, in bytes; no more are kept above it.
const MOST_XATTRS: usize = 64 << 20;
/// Marks of recalls and changes are kept for at least this long: longer than any request lives.
const MARKS: Duration = Duration::from_secs(700);

/// What a lease allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mode {
    Read,
    Write,
}

/// One grant of the right to write an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Right(u64);

impl Right {
    /// One that is not held any more.
    pub const GONE: Self = Self(u64::MAX);
}

/// When a request was sent, as [`Leases`] counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Start(u64);

struct Held {
    mode: Mode,
    /// With the right to write: when it was granted, as the table counts.
    since: u64,
    /// With the right to write: locks may be taken without asking.
    locks: bool,
    /// With the right to write: the caller may map it to write, without asking.
    maps: bool,
    /// What was buffered is being committed because the right to write was recalled. Until that is
    /// done, nobody else may be told that there is nothing: a new leader learns of this lease too.
    flushing: bool,
    seq: u64,
    attr: Option<Attr>,
    xattrs: Xattrs,
    /// What an open would answer.
    content: Option<Arc<v1::OpenReply>>,
    /// Of files that are made in a directory, with the right to write it.
    layout: Option<v1::LayoutInfo>,
    /// Names in a directory; `None`: there is no such name.
    names: HashMap<Bytes, Option<InodeId>>,
    /// There are no names but these.
    complete: bool,
    /// The same in the order in which they are read.
    listing: Option<Listing>,
}

impl Held {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            since: 0,
            locks: false,
            maps: false,
            flushing: false,
            seq: 0,
            attr: None,
            xattrs: Xattrs::default(),
            content: None,
            layout: None,
            names: HashMap::new(),
            complete: false,
            listing: None,
        }
    }
}

struct Table {
    /// Counts recalls and changes.
    epoch: u64,
    /// The epoch of the last recall or change of an inode, of this and the time before.
    marks: [HashMap<InodeId, u64>; 2],
    turned: Instant,
    turned_at: u64,
    /// Requests that were sent before this epoch teach nothing.
    floor: u64,
    inodes: HashMap<InodeId, Held>,
    /// Names in all directories.
    names: usize,
    /// Extended attributes of all inodes, in bytes.
    xattrs: usize,
    /// Half of it is being given back.
    shrinking: bool,
}

impl Table {
    fn mark_of(&self, ino: InodeId) -> u64 {
        let mark = |at: usize| self.marks[at].get(&ino).copied();
        mark(0).or_else(|| mark(1)).unwrap_or(0)
    }

    /// Whether what a request learned that was sent at `start` is still so.
    fn holds_since(&self, start: Start, ino: InodeId) -> bool {
        start.0 >= self.floor && self.mark_of(ino) <= start.0
    }

    /// From now on, what was asked before is not believed about this inode.
    fn mark(&mut self, ino: InodeId) {
        self.epoch += 1;
        let now = Instant::now();
        if now.duration_since(self.turned) > MARKS {
            self.floor = self.floor.max(self.turned_at);
            (self.turned, self.turned_at) = (now, self.epoch);
            self.marks.swap(0, 1);
            self.marks[0].clear();
        }
        self.marks[0].insert(ino, self.epoch);
    }

    fn hold(&mut self, start: Start, grant: &v1::Grant) {
        let ino = InodeId(grant.ino);
        if !self.holds_since(start, ino) {
            return;
        }
        let held = self.inodes.entry(ino).or_insert_with(|| Held::new(Mode::Read));
        // What is being given back is not written under again before it is.
        if grant.write && !held.flushing {
            if held.mode == Mode::Read {
                (held.mode, held.since) = (Mode::Write, self.epoch);
                (held.locks, held.maps) = (false, false);
            }
            held.locks |= grant.locks;
            held.maps |= grant.maps;
        }
        held.layout = grant.layout.or(held.layout);
        held.seq = held.seq.max(grant.seq);
    }

    fn learn_attr(&mut self, start: Start, attr: Option<&v1::Attr>) {
        let Some(attr) = attr.and_then(|a| Attr::try_from(*a).ok()) else { return };
        if self.holds_since(start, attr.ino)
            && let Some(held) = self.inodes.get_mut(&attr.ino)
            // Of a directory in which only this mount makes files it knows more.
            && !(attr.is_dir() && held.mode == Mode::Write && held.attr.is_some())
            // An answer from before the lease may come after the one that it came with.
            && held.attr.is_none_or(|known| known.data_version <= attr.data_version)
        {
            held.attr = Some(attr);
        }
    }

    fn learn_content(&mut self, start: Start, reply: &v1::OpenReply) {
        self.learn_attr(start, reply.attr.as_ref());
        let Some(ino) = reply.attr.map(|a| InodeId(a.ino)) else { return };
        if self.holds_since(start, ino)
            && let Some(held) = self.inodes.get_mut(&ino)
            && held.attr.map(|known| known.data_version) == reply.attr.map(|told| told.data_version)
        {
            held.content = Some(Arc::new(reply.clone()));
        }
    }

    fn learn_name(&mut self, start: Start, parent: u64, name: &Bytes, ino: Option<InodeId>) {
        let parent = InodeId(parent);
        if !self.holds_since(start, parent) {
            return self.forget_name(parent, name);
        }
        if let Some(held) = self.inodes.get_mut(&parent) {
            let fresh = held.names.insert(name.clone(), ino).is_none();
            self.names += usize::from(fresh);
        }
    }

    /// Lets what is known of extended attributes become something else.
    fn edit_xattrs(&mut self, ino: InodeId, edit: impl FnOnce(&mut Xattrs)) {
        let Some(held) = self.inodes.get_mut(&ino) else { return };
        self.xattrs -= held.xattrs.bytes();
        edit(&mut held.xattrs);
        if self.xattrs + held.xattrs.bytes() > MOST_XATTRS {
            held.xattrs = Xattrs::default();
        }
        self.xattrs += held.xattrs.bytes();
    }

    fn learn_xattrs(&mut self, start: Start, ino: u64, learn: impl FnOnce(&mut Xattrs)) {
        if self.holds_since(start, InodeId(ino)) {
            self.edit_xattrs(InodeId(ino), learn);
        }
    }

    fn learn_page(&mut self, start: Start, op: &v1::ReadDirOp, page: &v1::ReadDirReply) {
        let ino = InodeId(op.ino);
        if !self.holds_since(start, ino) {
            return;
        }
        for entry in &page.entries {
            self.learn_attr(start, entry.attr.as_ref());
            self.learn_name(start, op.ino, &entry.name, Some(InodeId(entry.ino)));
        }
        // With attributes, it is a piece of what is known already.
        if let Some(held) = self.inodes.get_mut(&ino).filter(|_| !op.attrs) {
            held.listing = match (op.cookie, held.listing.take()) {
                (0, _) => Listing::begin(page),
                (_, Some(begun)) => begun.extend(op.cookie, page),
                (_, None) => None,
            };
            held.complete |= held.listing.as_ref().is_some_and(Listing::is_whole);
        }
    }

    fn forget_name(&mut self, parent: InodeId, name: &Bytes) {
        if let Some(held) = self.inodes.get_mut(&parent) {
            self.names -= usize::from(held.names.remove(name).is_some());
            held.complete = false;
            held.listing = None;
        }
    }

    fn drop_lease(&mut self, ino: InodeId) -> Option<Held> {
        let held = self.inodes.remove(&ino)?;
        self.names -= held.names.len();
        self.xattrs -= held.xattrs.bytes();
        Some(held)
    }

    /// Forgets everything but the right to write, which is not a matter of what is known.
    fn forget_all(&mut self) {
        self.epoch += 1;
        self.floor = self.epoch;
        self.inodes.retain(|_, held| held.mode == Mode::Write || held.flushing);
        (self.names, self.xattrs) = (0, 0);
        for held in self.inodes.values_mut() {
            (held.attr, held.content, held.xattrs) = (None, None, Xattrs::default());
            (held.layout, held.complete, held.listing) = (None, false, None);
            held.names.clear();
        }
    }
}

pub(crate) struct Leases {
    origin: Instant,
    /// Nanoseconds after `origin` until which the session lives for certain.
    until: AtomicU64,
    renewals: Notify,
    table: Mutex<Table>,
    /// What is given up without having been recalled, and the leader was not told yet.
    surplus: Mutex<Vec<(InodeId, u64)>>,
    pub surplus_grew: Notify,
    /// Inodes whose recall was carried out, and how many answers to one are under way.
    returning: watch::Sender<HashMap<InodeId, usize>>,
}

/// An answer to a recall, under way until this is dropped.
pub(crate) struct Answering<'a> {
    leases: &'a Leases,
    ino: InodeId,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.leases.returning.send_modify(|returning| {
            if let Some(answers) = returning.get_mut(&self.ino) {
                *answers -= 1;
                if *answers == 0 {
                    returning.remove(&self.ino);
                }
            }
        });
    }
}

impl Default for Leases {
    fn default() -> Self {
        let origin = Instant::now();
        let table = Table {
            epoch: 0,
            marks: Default::default(),
            turned: origin,
            turned_at: 0,
            floor: 0,
            inodes: HashMap::new(),
            names: 0,
            xattrs: 0,
            shrinking: false,
        };
        Self {
            origin,
            until: AtomicU64::new(0),
            renewals: Notify::new(),
            table: Mutex::new(table),
            surplus: Mutex::default(),
            surplus_grew: Notify::new(),
            returning: watch::Sender::default(),
        }
    }
}

impl Leases {
    /// The leader heard of the session after `sent`, and declares it dead no earlier than `ttl`
    /// later; clocks may run at different speed.
    pub fn renewed(&self, sent: Instant, ttl: Duration) {
        let until = sent + ttl.mul_f64(0.9);
        let nanos = until.saturating_duration_since(self.origin).as_nanos() as u64;
        self.until.fetch_max(nanos, Ordering::Release);
        self.renewals.notify_one();
    }

    /// Returns when nothing is to be used any more because the session was not renewed in time.
    pub async fn lapsed(&self) {
        while self.live() {
            sleep_until(self.origin + Duration::from_nanos(self.until.load(Ordering::Acquire)))
                .await;
        }
    }

    /// Returns when the session lives for certain. Only one may wait.
    pub async fn revived(&self) {
        while !self.live() {
            self.renewals.notified().await;
        }
    }

    fn live(&self) -> bool {
        let now = Instant::now().saturating_duration_since(self.origin).as_nanos() as u64;
        now < self.until.load(Ordering::Acquire)
    }

    /// To be called before a request is sent.
    pub fn start(&self) -> Start {
        Start(self.table.lock().epoch)
    }

    /// What may be done with an inode without asking.
    pub fn mode(&self, ino: InodeId) -> Option<Mode> {
        let mode = self.table.lock().inodes.get(&ino).map(|held| held.mode);
        mode.filter(|_| self.live())
    }

    /// Whether writes may be buffered.
    pub fn may_buffer(&self, ino: InodeId) -> bool {
        self.mode(ino) == Some(Mode::Write)
    }

    /// Whether what is committed of the inode was buffered under the right to write it, or may have been.
    pub fn writes(&self, ino: InodeId) -> bool {
        let table = self.table.lock();
        table.inodes.get(&ino).is_some_and(|held| held.mode == Mode::Write || held.flushing)
    }

    /// Whether the right to write was not recalled, whether or not it may be used now.
    pub fn has_right_to_write(&self, ino: InodeId) -> bool {
        self.table.lock().inodes.get(&ino).is_some_and(|held| held.mode == Mode::Write)
    }

    /// The right under which writes may be buffered now.
    pub fn right_to_write(&self, ino: InodeId) -> Option<Right> {
        let table = self.table.lock();
        let right = table.inodes.get(&ino).filter(|held| held.mode == Mode::Write);
        right.map(|held| Right(held.since)).filter(|_| self.live())
    }

    /// While the lease may be over: the right under which bytes are kept that were stored under it. It is kept
    /// ([`Self::keeps`]) if the lease turns out to have lasted.
    pub fn right_in_doubt(&self, ino: InodeId) -> Option<Right> {
        let table = self.table.lock();
        let held = table.inodes.get(&ino).filter(|held| held.mode == Mode::Write || held.flushing);
        let right = held.map_or(Right::GONE, |held| Right(held.since));
        (!self.live()).then_some(right)
    }

    /// Whether nobody else may write what was buffered under this right: it was not given back.
    pub fn keeps(&self, ino: InodeId, right: Right) -> bool {
        let table = self.table.lock();
        let held = table.inodes.get(&ino).filter(|held| held.mode == Mode::Write || held.flushing);
        held.is_some_and(|held| held.since == right.0)
    }

    /// Whether locks of the file may be taken without asking.
    pub fn may_lock(&self, ino: InodeId) -> bool {
        let table = self.table.lock();
        let held = table.inodes.get(&ino);
        held.is_some_and(|held| held.mode == Mode::Write && held.locks) && self.live()
    }

    /// Whether the caller may map the file to write without asking.
    pub fn may_map(&self, ino: InodeId) -> bool {
        let table = self.table.lock();
        let held = table.inodes.get(&ino);
        held.is_some_and(|held| held.mode == Mode::Write && held.maps) && self.live()
    }

    /// The attributes that a name leads to, if that is known.
    pub fn lookup(&self, parent: InodeId, name: &[u8]) -> Option<Result<Attr>> {
        let table = self.table.lock();
        let dir = table.inodes.get(&parent)?;
        let found = match dir.names.get(name) {
            Some(Some(ino)) => Ok(table.inodes.get(ino)?.attr?),
            None if !dir.complete => return None,
            _ => Err(Error::new(ErrorKind::NotFound, "no such name")),
        };
        drop(table);
        self.live().then_some(found)
    }

    /// A piece of a directory, without attributes.
    pub fn page(&self, ino: InodeId, cookie: u64, limit: usize) -> Option<DirPage> {
        let table = self.table.lock();
        let page = table.inodes.get(&ino)?.listing.as_ref()?.page(cookie, limit)?;
        drop(table);
        self.live().then_some(page)
    }

    /// What to ask in place of a name that is not known, to know those after it too.
    pub fn ahead(&self, parent: InodeId, name: &[u8]) -> Option<v1::ReadDirOp> {
        let mut table = self.table.lock();
        let listing = table.inodes.get_mut(&parent)?.listing.as_mut()?;
        let (cookie, limit) = listing.ahead(name)?;
        Some(v1::ReadDirOp { ino: parent.0, cookie, limit, attrs: true })
    }

    pub fn attr(&self, ino: InodeId) -> Option<Attr> {
        let attr = self.table.lock().inodes.get(&ino)?.attr;
        attr.filter(|_| self.live())
    }

    /// Attributes that a server told, or those of a directory in which only this mount makes files, which it
    /// knows better.
    pub fn newest(&self, told: Attr) -> Attr {
        if !told.is_dir() {
            return told;
        }
        let table = self.table.lock();
        let own = table.inodes.get(&told.ino).filter(|held| held.mode == Mode::Write);
        own.and_then(|held| held.attr).filter(|_| self.live()).unwrap_or(told)
    }

    /// The value of an extended attribute, or `NoAttribute`, if it is known. The kernel asks for access
    /// control lists to decide who may do something, and those who list a directory for all sorts of labels.
    pub fn xattr(&self, ino: InodeId, name: &[u8]) -> Option<Result<Bytes>> {
        let table = self.table.lock();
        let held = table.inodes.get(&ino)?;
        let has_some = held
            .attr
            .is_none_or(|attr| if name.starts_with(ACLS) { attr.acls } else { attr.xattrs });
        let value = if has_some { held.xattrs.get(name)? } else { None };
        drop(table);
        let absent = || Error::new(ErrorKind::NoAttribute, "no such attribute");
        self.live().then(|| value.ok_or_else(absent))
    }

    /// The names of all extended attributes, if they are known.
    pub fn xattr_names(&self, ino: InodeId) -> Option<Vec<Bytes>> {
        let table = self.table.lock();
        let held = table.inodes.get(&ino)?;
        let none = held.attr.is_some_and(|attr| !attr.acls && !attr.xattrs);
        let names = if none { Vec::new() } else { held.xattrs.names()? };
        drop(table);
        self.live().then_some(names)
    }

    /// The group was told of an access.
    pub fn accessed(&self, ino: InodeId, at: i64) {
        if let Some(held) = self.table.lock().inodes.get_mut(&ino)
            && let Some(attr) = &mut held.attr
        {
            attr.accessed(at);
        }
    }

    /// What an open would answer, and whether writes may be buffered.
    pub fn content(&self, ino: InodeId) -> Option<(Arc<v1::OpenReply>, Mode)> {
        let table = self.table.lock();
        let held = table.inodes.get(&ino)?;
        let content = (held.content.clone()?, held.mode);
        drop(table);
        self.live().then_some(content)
    }

    /// Takes in what a read answered.
    pub fn learn(&self, start: Start, op: &Op, reply: &v1::MetaReply) {
        let table = &mut *self.table.lock();
        reply.grants.iter().for_each(|grant| table.hold(start, grant));
        match (op, &reply.result) {
            (Op::Lookup(op), Some(Reply::Attr(attr))) => {
                table.learn_attr(start, Some(attr));
                table.learn_name(start, op.parent, &op.name, Some(InodeId(attr.ino)));
            }
            (Op::Lookup(op), Some(Reply::Open(found))) => {
                table.learn_content(start, found);
                let ino = found.attr.map(|a| InodeId(a.ino));
                table.learn_name(start, op.parent, &op.name, ino);
            }
            (Op::Lookup(op), Some(Reply::Missing(_))) => {
                table.learn_name(start, op.parent, &op.name, None);
            }
            (Op::ReadDir(op), Some(Reply::ReadDir(page))) => table.learn_page(start, op, page),
            (Op::GetAttr(_), Some(Reply::Attr(attr))) => table.learn_attr(start, Some(attr)),
            (Op::GetXattr(op), Some(Reply::Data(value))) => {
                table.learn_xattrs(start, op.ino, |known| known.learn(&op.name, value));
            }
            (Op::GetExtents(_), Some(Reply::Extents(found))) => {
                table.learn_attr(start, found.attr.as_ref());
            }
            (Op::Open(_) | Op::Lease(_), Some(Reply::Open(found))) => {
                table.learn_content(start, found);
            }
            _ => {}
        }
        for told in &reply.xattrs {
            table.learn_xattrs(start, told.ino, |known| *known = Xattrs::all(told));
        }
        self.shrink(table);
    }

    /// Takes in what a change of this mount answered.
    pub fn changed(&self, start: Start, op: &Op, reply: &v1::MetaReply) {
        if let Op::MakeFiles(op) = op {
            return self.told(start, op, reply);
        }
        let table = &mut *self.table.lock();
        let made = made(reply);
        let values = values(table, op, made);
        let names: Vec<_> = op
            .names()
            .into_iter()
            .map(|(dir, name)| (dir, name, table.holds_since(start, dir)))
            .collect();
        for ino in touched(op, reply) {
            let alone = table.holds_since(start, ino);
            for grant in reply.grants.iter().filter(|grant| alone && grant.ino == ino.0) {
                table.hold(start, grant);
            }
            table.mark(ino);
            if let Some(held) = table.inodes.get_mut(&ino) {
                let attr = attr_of(reply, ino).filter(|_| alone);
                (held.attr, held.content, held.listing) = (attr, None, None);
                if matches!(op, Op::SetLayout(_)) {
                    held.layout = None;
                }
            }
            match op {
                Op::SetXattr(_) | Op::RemoveXattr(_) => {
                    table.edit_xattrs(ino, |known| *known = Xattrs::default());
                }
                // A list follows the mode. Names that come and go in a directory leave its own as it is.
                _ if op.inode() == Some(ino) => table.edit_xattrs(ino, Xattrs::forget_acls),
                _ => {}
            }
        }
        let now = Start(table.epoch);
        for ((dir, name, known), value) in names.iter().zip(values) {
            match value {
                Some(value) if *known => table.learn_name(now, dir.0, name, value),
                _ => table.forget_name(*dir, name),
            }
        }
        if let Some(ino) = made
            && !reply.touched.contains(&ino.0)
        {
            for grant in reply.grants.iter().filter(|grant| grant.ino == ino.0) {
                table.hold(start, grant);
            }
            match &reply.result {
                Some(Reply::Open(found)) => table.learn_content(start, found),
                Some(Reply::Attr(attr)) => table.learn_attr(start, Some(attr)),
                _ => {}
            }
            if matches!(op, Op::MkDir(_))
                && let Some(held) = table.inodes.get_mut(&ino)
            {
                held.complete = true;
            }
        }
        if matches!(op, Op::Unlink(_) | Op::RmDir(_)) {
            let gone =
                reply.touched.iter().filter(|ino| names.iter().all(|(dir, ..)| dir.0 != **ino));
            // It may be open here and have been written to: it is held until that was looked after.
            for ino in gone.map(|ino| InodeId(*ino)) {
                if let Some(held) = table.inodes.get(&ino) {
                    self.give_up_later(ino, held.seq);
                }
            }
        }
        self.shrink(table);
    }

    /// Makes a file in a directory, if it may be written, its name is free, and all is known that the file
    /// inherits. The times are set here, so that those of the directory grow. Answers what an open would.
    pub fn make(&self, file: &mut make_files_op::File) -> Option<v1::OpenReply> {
        let table = &mut *self.table.lock();
        let (parent, ino) = (InodeId(file.parent), InodeId(file.ino));
        let dir = table.inodes.get_mut(&parent).filter(|dir| dir.mode == Mode::Write)?;
        let free = match dir.names.get(&file.name) {
            Some(known) => known.is_none(),
            None => dir.complete,
        };
        let layout = dir.layout.filter(|_| free && self.live())?;
        // A list that is inherited is the group's to make something of.
        let above = dir.attr.as_mut().filter(|dir| dir.nlink > 0 && !dir.acls)?;
        let now = file.made_ns.max(above.ctime_ns.saturating_add(1));
        (above.mtime_ns, above.ctime_ns, file.made_ns) = (now, now, now);
        let attr = v1::Attr {
            ino: file.ino,
            kind: v1::FileKind::Regular.into(),
            mode: mode_of_new(file.mode, file.umask),
            nlink: 1,
            uid: file.uid,
            gid: if above.mode & SETGID != 0 { above.gid } else { file.gid },
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            btime_ns: now,
            no_xattrs: true,
            ..Default::default()
        };
        dir.listing = None;
        let fresh = dir.names.insert(file.name.clone(), Some(ino)).is_none();
        table.names += usize::from(fresh);
        table.mark(parent);
        let extents = Some(v1::ExtentsReply { attr: Some(attr), ..Default::default() });
        let reply = v1::OpenReply { attr: Some(attr), layout: Some(layout), extents };
        let since = table.epoch;
        let held = Held { locks: true, maps: true, since, ..Held::new(Mode::Write) };
        table.inodes.insert(ino, held);
        table.learn_content(Start(table.epoch), &reply);
        self.shrink(table);
        Some(reply)
    }

    /// The group was told of files that were made here.
    fn told(&self, start: Start, op: &v1::MakeFilesOp, reply: &v1::MetaReply) {
        let Some(Reply::MakeFiles(made)) = &reply.result else { return };
        let table = &mut *self.table.lock();
        for (file, made) in op.files.iter().zip(&made.files) {
            let ino = InodeId(file.ino);
            let alone = table.holds_since(start, ino);
            for grant in reply.grants.iter().filter(|grant| grant.ino == file.ino) {
                table.hold(start, grant);
            }
            if file.content.is_some()
                && let Some(held) = table.inodes.get_mut(&ino)
            {
                let attr = made.attr.filter(|_| alone).and_then(|attr| attr.try_into().ok());
                // Who asks about it asks after this: no older answer is under way.
                (held.attr, held.content) = (attr, None);
            }
        }
    }

    /// A file that was made here could not be made by the group.
    pub fn not_made(&self, file: &make_files_op::File) {
        let table = &mut *self.table.lock();
        table.forget_name(InodeId(file.parent), &file.name);
        table.mark(InodeId(file.ino));
        if table.drop_lease(InodeId(file.ino)).is_some() {
            // Whatever the leader has entered.
            self.give_up_later(InodeId(file.ino), u64::MAX);
        }
    }

    /// A change of this mount was refused: nothing happened, but what is known of its names is not
    /// relied on.
    pub fn refused(&self, op: &Op) {
        let table = &mut *self.table.lock();
        // A file that was made here is here still.
        let names = if matches!(op, Op::MakeFiles(_)) { Vec::new() } else { op.names() };
        for (dir, name) in names {
            table.forget_name(dir, &name);
        }
    }

    /// It is not known what a change of this mount did.
    pub fn unsure(&self) {
        self.table.lock().forget_all();
    }

    /// The session is another one: nothing is held any more.
    pub fn lost(&self) {
        let table = &mut *self.table.lock();
        table.forget_all();
        table.inodes.clear();
    }

    /// Gives up all but the right to write, for a declaration to a new leader. Answers what is kept.
    pub fn keep_writes(&self) -> Vec<InodeId> {
        let table = &mut *self.table.lock();
        table.forget_all();
        table.inodes.keys().copied().collect()
    }

    /// First step of a recall: from now on nothing more is buffered, nor locked without asking; also not by
    /// a grant that is on its way still. Answers whether something may be buffered; `None`, with nothing
    /// done, if there is the right to write and something has to be done under it before (not `ready`).
    pub fn stop_buffering(&self, ino: InodeId, ready: bool) -> Option<bool> {
        let mut table = self.table.lock();
        table.mark(ino);
        let Some(held) = table.inodes.get_mut(&ino) else { return Some(false) };
        if held.mode == Mode::Write && !ready {
            return None;
        }
        held.flushing |= held.mode == Mode::Write;
        (held.mode, held.locks, held.maps) = (Mode::Read, false, false);
        Some(held.flushing)
    }

    /// Second step of a recall: what was buffered is committed, and nothing is used any more, unless
    /// `keep_read`. Answers whether that is so: a new session may have the right to write again.
    pub fn flushed(&self, ino: InodeId, keep_read: bool) -> bool {
        let table = &mut *self.table.lock();
        if let Some(held) = table.inodes.get_mut(&ino) {
            if held.mode == Mode::Write {
                return false;
            }
            held.flushing = false;
        }
        if !keep_read {
            table.mark(ino);
            table.drop_lease(ino);
        }
        true
    }

    /// An answer to a recall is under way; while it is, who wants a new lease waits.
    pub fn answering(&self, ino: InodeId) -> Answering<'_> {
        self.returning.send_modify(|returning| *returning.entry(ino).or_default() += 1);
        Answering { leases: self, ino }
    }

    /// Waits until no answer to a recall of this inode is under way.
    pub async fn settled(&self, ino: InodeId) {
        if self.returning.borrow().contains_key(&ino) {
            let mut returning = self.returning.subscribe();
            // The sender lives as long as `self`.
            let _ = returning.wait_for(|r| !r.contains_key(&ino)).await;
        }
    }

    /// Leases that are to be given up without a recall since the last call.
    pub fn take_surplus(&self) -> Vec<(InodeId, u64)> {
        std::mem::take(&mut *self.surplus.lock())
    }

    fn give_back(&self, table: &mut Table, ino: InodeId) {
        if let Some(held) = table.drop_lease(ino) {
            table.mark(ino);
            self.give_up_later(ino, held.seq);
        }
    }

    fn give_up_later(&self, ino: InodeId, seq: u64) {
        self.surplus.lock().push((ino, seq));
        self.surplus_grew.notify_one();
    }

    fn shrink(&self, table: &mut Table) {
        let (inodes, names) = (table.inodes.len() > MOST, table.names > MOST_NAMES);
        if table.shrinking || !(inodes || names) {
            return;
        }
        // Few directories lead to many inodes: they stay if it is not their names that are too many. What
        // is on its way to the group stays too.
        let surplus = |(_, held): &(&InodeId, &Held)| {
            let dir = held.complete || !held.names.is_empty();
            held.seq > 0 && !held.flushing && (if dir { names } else { inodes })
        };
        let half = table.inodes.iter().filter(surplus).step_by(2);
        let half: Vec<_> = half.map(|(ino, held)| (*ino, held.mode, held.seq)).collect();
        for (ino, mode, seq) in half {
            match mode {
                Mode::Read => self.give_back(table, ino),
                // It may have been written to: it is held until that was looked after.
                Mode::Write => {
                    table.shrinking = true;
                    self.give_up_later(ino, seq);
                }
            }
        }
    }

    /// What was to be given back is.
    pub fn shrunk(&self) {
        self.table.lock().shrinking = false;
    }
}

/// The inodes that a change may have changed: those that it names, and those that the leader found
/// behind its names.
fn touched(op: &Op, reply: &v1::MetaReply) -> BTreeSet<InodeId> {
    let dirs = op.names().into_iter().map(|(dir, _)| dir);
    let found = reply.touched.iter().copied().map(InodeId);
    op.inode().into_iter().chain(dirs).chain(found).collect()
}

/// The inode that a change made, or gave a name to.
fn made(reply: &v1::MetaReply) -> Option<InodeId> {
    match &reply.result {
        Some(Reply::Attr(attr)) => Some(InodeId(attr.ino)),
        Some(Reply::Open(found)) => found.attr.map(|a| InodeId(a.ino)),
        _ => None,
    }
}

/// Attributes of an inode that a change answered.
fn attr_of(reply: &v1::MetaReply, ino: InodeId) -> Option<Attr> {
    let attr = match &reply.result {
        Some(Reply::Attr(attr)) => Some(*attr),
        Some(Reply::CommitExtents(done)) => done.attr,
        Some(Reply::CopyRange(done)) => done.attr,
        _ => None,
    };
    let mut all = attr.into_iter().chain(reply.dirs.iter().copied());
    all.find(|attr| attr.ino == ino.0)?.try_into().ok()
}

/// What each of a change's [`Op::names`] leads to now, if that is known: nowhere, or to an inode.
fn values(table: &Table, op: &Op, made: Option<InodeId>) -> Vec<Option<Option<InodeId>>> {
    match op {
        Op::Unlink(_) | Op::RmDir(_) => vec![Some(None)],
        Op::Rename(op)
            if op.flags == 0 && (op.parent, &op.name) != (op.new_parent, &op.new_name) =>
        {
            let dir = table.inodes.get(&InodeId(op.parent));
            let moved = dir.and_then(|dir| dir.names.get(&op.name).copied().flatten());
            vec![Some(None), moved.map(Some)]
        }
        Op::Rename(_) => vec![None, None],
        _ => vec![made.map(Some)],
    }
}

#[cfg(test)]
mod tests;
