//! A POSIX tree in memory: what each operation answers on Linux to a caller whom no permission
//! stops, and what it leaves, times included.
//!
//! Where POSIX leaves a choice, Linux's own filesystems say what is right.

use super::content::Content;
use super::node::*;
use super::op::{Allocate, How, Op, Rename, SetTime, SetXattr};
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

/// Links to follow in one path.
const MOST_LINKS: usize = 40;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const GROUP_RUNS: u32 = 0o010;

type Result<T, E = Errno> = std::result::Result<T, E>;

/// Where a path leads: a name in a directory, and what it names, if anything.
struct Place {
    dir: Id,
    name: String,
    node: Option<Id>,
}

/// The tree, and what is open.
pub struct Tree {
    nodes: BTreeMap<Id, Node>,
    handles: BTreeMap<usize, Handle>,
    next: Id,
    umask: u32,
    /// The caller is root: may change owners.
    pub privileged: bool,
    /// What the last operation looked at or changed, and the times of it.
    touched: BTreeMap<Id, Times>,
}

impl Tree {
    /// With an empty root, whose attributes are `root`.
    pub fn new(root: Attr, umask: u32, privileged: bool) -> Self {
        let Attr { mode, uid, gid, .. } = root;
        let body = Body::Directory { names: BTreeMap::new(), parent: Some(ROOT) };
        let node = Node { body, mode, nlink: 1, uid, gid, xattrs: BTreeMap::new() };
        Self {
            nodes: [(ROOT, node)].into(),
            handles: BTreeMap::new(),
            next: ROOT + 1,
            umask,
            privileged,
            touched: BTreeMap::new(),
        }
    }

    // What there is.

    pub fn inodes(&self) -> usize {
        self.nodes.len()
    }

    pub fn node(&self, id: Id) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub fn handle(&self, slot: usize) -> Option<Handle> {
        self.handles.get(&slot).copied()
    }

    pub fn handles(&self) -> impl Iterator<Item = (usize, Handle)> {
        self.handles.iter().map(|(slot, handle)| (*slot, *handle))
    }

    /// The end of an open file; 0 if it is none.
    pub fn end(&self, slot: usize) -> u64 {
        self.handle(slot).map_or(0, |handle| self.attr(handle.node).size)
    }

    pub fn attr(&self, id: Id) -> Attr {
        let Node { ref body, mode, nlink, uid, gid, .. } = self[id];
        let (kind, nlink, size) = match body {
            Body::File(content) => (Kind::File, nlink, content.len()),
            // Its own name for itself, and its directories' for it.
            Body::Directory { names, parent: Some(_) } => {
                let inner = names.values().filter(|id| self[**id].is_directory()).count();
                (Kind::Directory, 2 + inner as u64, 0)
            }
            Body::Directory { parent: None, .. } => (Kind::Directory, 0, 0),
            Body::Link(target) => (Kind::Link, nlink, target.len() as u64),
            Body::Fifo => (Kind::Fifo, nlink, 0),
        };
        Attr { kind, mode, nlink, uid, gid, rdev: 0, size }
    }

    /// All names there are, with what they name.
    pub fn names(&self) -> Vec<(String, Id)> {
        let (mut found, mut at) = (vec![(String::new(), ROOT)], 0);
        while let Some((path, id)) = found.get(at).cloned() {
            at += 1;
            let Body::Directory { names, .. } = &self[id].body else { continue };
            let join = |name: &str| match path.is_empty() {
                true => name.to_owned(),
                false => format!("{path}/{name}"),
            };
            found.extend(names.iter().map(|(name, id)| (join(name), *id)));
        }
        found
    }

    /// All but the root.
    pub fn paths(&self) -> Vec<String> {
        self.names().into_iter().skip(1).map(|(path, _)| path).collect()
    }

    pub fn directories(&self) -> Vec<String> {
        let names = self.names().into_iter();
        names.filter(|(_, id)| self[*id].is_directory()).map(|(path, _)| path).collect()
    }

    pub fn is_directory(&self, path: &str, follow: bool) -> bool {
        self.find(path, follow).is_ok_and(|id| self[id].is_directory())
    }

    pub fn is_fifo(&self, path: &str) -> bool {
        self.find(path, true).is_ok_and(|id| matches!(self[id].body, Body::Fifo))
    }

    /// What a path names; of a link at its end, the link itself unless `follow`.
    pub fn find(&self, path: &str, follow: bool) -> Result<Id> {
        if path.is_empty() {
            return Ok(ROOT);
        }
        self.walk(path, follow)?.node.ok_or(Errno::ENOENT)
    }

    fn walk(&self, path: &str, follow: bool) -> Result<Place> {
        let backwards = |path: &str| path.rsplit('/').map(str::to_owned).collect::<Vec<_>>();
        let (mut rest, mut dir, mut links) = (backwards(path), ROOT, 0);
        while let Some(name) = rest.pop() {
            let node = self.entries(dir)?.get(&name).copied();
            match node.map(|id| (id, &self[id].body)) {
                Some((_, Body::Link(target))) if follow || !rest.is_empty() => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(Errno::ELOOP);
                    }
                    rest.extend(backwards(target));
                }
                Some((id, _)) if !rest.is_empty() => dir = id,
                None if !rest.is_empty() => return Err(Errno::ENOENT),
                _ => return Ok(Place { dir, name, node }),
            }
        }
        Err(Errno::ENOENT)
    }

    fn entries(&self, dir: Id) -> Result<&BTreeMap<String, Id>> {
        match &self[dir].body {
            Body::Directory { names, .. } => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> Result<&mut BTreeMap<String, Id>> {
        match &mut self.at(dir).body {
            Body::Directory { names, .. } => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn at(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("an inode of the model")
    }

    fn touch(&mut self, id: Id, times: Times) {
        let before = self.touched.entry(id).or_insert(Times::SAME);
        *before = before.then(times);
    }

    /// A new place for a name: not one that exists.
    fn vacant(&self, path: &str) -> Result<Place> {
        let place = self.walk(path, false)?;
        if place.node.is_some() { Err(Errno::EEXIST) } else { Ok(place) }
    }

    fn existing(&mut self, path: &str, follow: bool) -> Result<Id> {
        let id = self.find(path, follow)?;
        self.touch(id, Times::SAME);
        Ok(id)
    }

    // What is done.

    /// Does an operation. Also answers what it looked at or changed, with what became of the times.
    pub fn apply(&mut self, op: &Op) -> (Result<Answer>, BTreeMap<Id, Times>) {
        self.touched.clear();
        let answer = self.answer(op);
        self.reap();
        (answer, std::mem::take(&mut self.touched))
    }

    fn answer(&mut self, op: &Op) -> Result<Answer> {
        match op {
            Op::Open { slot, path, how, mode } => self.open(*slot, path, *how, *mode)?,
            Op::Close { slot } => {
                self.opened(*slot)?;
                self.handles.remove(slot);
            }
            Op::Read { slot, off, len } => return self.read(*slot, *off, *len),
            Op::Write { slot, off, data } => return self.write(*slot, *off, &data.bytes()),
            Op::SetLen { slot, len } => {
                let handle = self.opened(*slot)?;
                if !handle.write {
                    return Err(Errno::EINVAL);
                }
                self.set_len(handle.node, *len)?;
            }
            Op::Allocate { slot, what, off, len } => self.allocate(*slot, *what, *off, *len)?,
            Op::Copy { from, off, to, to_off, len } => {
                return self.copy(*from, *off, *to, *to_off, *len);
            }
            Op::Sync { slot } => drop(self.opened(*slot)?),
            Op::ListOpen { slot } => {
                let id = self.opened(*slot)?.node;
                return Ok(Answer::Names(self.entries(id)?.keys().cloned().collect()));
            }
            Op::Truncate { path, len } => {
                let id = self.existing(path, true)?;
                match self[id].body {
                    Body::Directory { .. } => return Err(Errno::EISDIR),
                    _ => self.set_len(id, *len)?,
                }
            }
            Op::MkDir { path, mode } => {
                let place = self.vacant(path)?;
                let body = Body::Directory { names: BTreeMap::new(), parent: Some(place.dir) };
                self.add(place, body, *mode & 0o1777)?;
            }
            Op::SymLink { target, path } => {
                let place = self.vacant(path)?;
                let link = self.add(place, Body::Link(target.clone()), 0o777)?;
                // No umask.
                self.at(link).mode = 0o777;
            }
            Op::MkFifo { path, mode } => {
                let place = self.vacant(path)?;
                self.add(place, Body::Fifo, *mode)?;
            }
            Op::RmDir { path } => self.rm_dir(path)?,
            Op::Unlink { path } => self.unlink(path)?,
            Op::Rename { from, to, how } => self.rename(from, to, *how)?,
            Op::Link { from, to } => self.link(from, to)?,
            Op::ReadLink { path } => {
                let id = self.existing(path, false)?;
                return match &self[id].body {
                    Body::Link(target) => Ok(Answer::Text(target.clone())),
                    _ => Err(Errno::EINVAL),
                };
            }
            Op::ChMod { path, mode } => {
                let id = self.existing(path, true)?;
                self.at(id).mode = *mode;
                self.touch(id, Times::CTIME);
            }
            Op::ChOwn { path, uid, gid, follow } => {
                let id = self.existing(path, *follow)?;
                self.chown(id, *uid, *gid);
            }
            Op::SetTimes { path, mtime, follow, .. } => {
                let id = self.existing(path, *follow)?;
                let mtime = match mtime {
                    SetTime::Omit => Time::Same,
                    SetTime::Now => Time::Later,
                    SetTime::At(at) => Time::At(*at),
                };
                self.touch(id, Times { mtime, ctime: Time::Later });
            }
            Op::Stat { path, follow } => {
                let id = self.existing(path, *follow)?;
                return Ok(Answer::Attr(self.attr(id)));
            }
            Op::List { path } => {
                let id = self.existing(path, true)?;
                return Ok(Answer::Names(self.entries(id)?.keys().cloned().collect()));
            }
            Op::SetXattr { path, name, value, how } => {
                let id = self.existing(path, true)?;
                self.set_xattr(id, name, value.bytes(), *how)?;
            }
            Op::GetXattr { path, name } => {
                let id = self.existing(path, true)?;
                let value = self[id].xattrs.get(*name).cloned();
                return value.map(Answer::Bytes).ok_or(Errno::ENODATA);
            }
            Op::RemoveXattr { path, name } => {
                let id = self.existing(path, true)?;
                if !self[id].has_xattrs() {
                    return Err(Errno::EPERM);
                }
                self.at(id).xattrs.remove(*name).ok_or(Errno::ENODATA)?;
                self.touch(id, Times::CTIME);
            }
            Op::ListXattr { path } => {
                let id = self.existing(path, true)?;
                return Ok(Answer::Names(self[id].xattrs.keys().cloned().collect()));
            }
        }
        Ok(Answer::Done)
    }

    /// Makes an inode with a name.
    fn add(&mut self, place: Place, body: Body, mode: u32) -> Result<Id> {
        let id = self.next;
        self.next += 1;
        let is_directory = matches!(body, Body::Directory { .. });
        let dir = &self[place.dir];
        let (mut mode, mut gid) = (mode & !self.umask, nix::unistd::getegid().as_raw());
        if dir.mode & SET_GROUP != 0 {
            gid = dir.gid;
            mode |= if is_directory { SET_GROUP } else { 0 };
        }
        let uid = nix::unistd::geteuid().as_raw();
        let node = Node { body, mode, nlink: 1, uid, gid, xattrs: BTreeMap::new() };
        self.nodes.insert(id, node);
        self.entries_mut(place.dir)?.insert(place.name, id);
        self.touch(place.dir, Times::BOTH);
        self.touch(id, Times::ANY);
        Ok(id)
    }

    fn open(&mut self, slot: usize, path: &str, how: How, mode: u32) -> Result<()> {
        let place = self.walk(path, !(how.create && how.exclusive))?;
        let node = match place.node {
            Some(_) if how.create && how.exclusive => return Err(Errno::EEXIST),
            Some(id) => {
                self.touch(id, Times::SAME);
                if self[id].is_directory() && (how.write || how.create) {
                    return Err(Errno::EISDIR);
                }
                if how.truncate {
                    self.set_len(id, 0)?;
                }
                id
            }
            None if how.create => self.add(place, Body::File(Content::default()), mode)?,
            None => return Err(Errno::ENOENT),
        };
        let How { read, write, append, .. } = how;
        self.handles.insert(slot, Handle { node, read, write, append });
        Ok(())
    }

    fn opened(&mut self, slot: usize) -> Result<Handle> {
        let handle = self.handle(slot).ok_or(Errno::EBADF)?;
        self.touch(handle.node, Times::SAME);
        Ok(handle)
    }

    fn content(&mut self, id: Id) -> Result<&mut Content> {
        match &mut self.at(id).body {
            Body::File(content) => Ok(content),
            Body::Directory { .. } => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn read(&mut self, slot: usize, off: u64, len: u64) -> Result<Answer> {
        let handle = self.opened(slot)?;
        if !handle.read {
            return Err(Errno::EBADF);
        }
        Ok(Answer::Bytes(self.content(handle.node)?.read(off, len)))
    }

    fn write(&mut self, slot: usize, off: u64, bytes: &[u8]) -> Result<Answer> {
        let handle = self.opened(slot)?;
        if !handle.write {
            return Err(Errno::EBADF);
        }
        let content = self.content(handle.node)?;
        content.write(if handle.append { content.len() } else { off }, bytes);
        self.touch(handle.node, Times::BOTH);
        Ok(Answer::Count(bytes.len() as u64))
    }

    fn set_len(&mut self, id: Id, len: u64) -> Result<()> {
        let content = self.content(id)?;
        let times = if content.len() == len { Times::ANY } else { Times::BOTH };
        content.set_len(len);
        self.touch(id, times);
        Ok(())
    }

    fn allocate(&mut self, slot: usize, what: Allocate, off: u64, len: u64) -> Result<()> {
        use Allocate::*;
        let handle = self.opened(slot)?;
        if !handle.write {
            return Err(Errno::EBADF);
        }
        let content = self.content(handle.node)?;
        let grows = matches!(what, Room | Zero) && off + len > content.len();
        let mut changed = grows;
        if matches!(what, Punch | Zero | ZeroKeepingSize) {
            changed |= content.zero(off..off + len);
        }
        if grows {
            content.set_len(off + len);
        }
        self.touch(handle.node, if changed { Times::BOTH } else { Times::ANY });
        Ok(())
    }

    fn copy(&mut self, from: usize, off: u64, to: usize, to_off: u64, len: u64) -> Result<Answer> {
        let (source, target) = (self.opened(from)?, self.opened(to)?);
        // Kinds are looked at before rights.
        self.content(target.node)?;
        let size = self.content(source.node)?.len();
        if !source.read || !target.write || target.append {
            return Err(Errno::EBADF);
        }
        let len = len.min(size.saturating_sub(off));
        if source.node == target.node && off.abs_diff(to_off) < len {
            return Err(Errno::EINVAL);
        }
        let bytes = self.content(source.node)?.read(off, len);
        if !bytes.is_empty() {
            self.content(target.node)?.write(to_off, &bytes);
            self.touch(target.node, Times::BOTH);
        }
        Ok(Answer::Count(bytes.len() as u64))
    }

    fn rm_dir(&mut self, path: &str) -> Result<()> {
        let place = self.walk(path, false)?;
        let id = place.node.ok_or(Errno::ENOENT)?;
        self.touch(id, Times::SAME);
        if !self.entries(id)?.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.take(&place)?;
        self.lose_name(id);
        Ok(())
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        let place = self.walk(path, false)?;
        let id = place.node.ok_or(Errno::ENOENT)?;
        self.touch(id, Times::SAME);
        if self[id].is_directory() {
            return Err(Errno::EISDIR);
        }
        self.take(&place)?;
        self.lose_name(id);
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> Result<()> {
        let id = self.existing(from, false)?;
        let place = self.vacant(to)?;
        if self[id].is_directory() {
            return Err(Errno::EPERM);
        }
        self.entries_mut(place.dir)?.insert(place.name, id);
        self.at(id).nlink += 1;
        self.touch(place.dir, Times::BOTH);
        self.touch(id, Times::CTIME);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str, how: Rename) -> Result<()> {
        let (old, new) = (self.walk(from, false)?, self.walk(to, false)?);
        let source = old.node.ok_or(Errno::ENOENT)?;
        self.touch(source, Times::SAME);
        if let Some(target) = new.node {
            self.touch(target, Times::SAME);
        }
        let exchange = how == Rename::Exchange;
        match new.node {
            Some(_) if how == Rename::NoReplace => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.is_within(new.dir, source) {
            return Err(Errno::EINVAL);
        }
        if new.node.is_some_and(|target| self.is_within(old.dir, target)) {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        // Also two names of one inode: both stay.
        if new.node == Some(source) {
            return Ok(());
        }
        match new.node {
            Some(target) if exchange => self.put(&old, target)?,
            Some(target) => {
                match (self[source].is_directory(), self[target].is_directory()) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    (true, true) if !self.entries(target)?.is_empty() => {
                        return Err(Errno::ENOTEMPTY);
                    }
                    _ => {}
                }
                self.take(&old)?;
                self.lose_name(target);
            }
            None => self.take(&old)?,
        }
        self.put(&new, source)
    }

    /// Gives a place to what has or had another.
    fn put(&mut self, place: &Place, id: Id) -> Result<()> {
        self.entries_mut(place.dir)?.insert(place.name.clone(), id);
        if let Body::Directory { parent, .. } = &mut self.at(id).body {
            *parent = Some(place.dir);
        }
        self.touch(place.dir, Times::BOTH);
        self.touch(id, Times::CTIME_ANY);
        Ok(())
    }

    fn take(&mut self, place: &Place) -> Result<()> {
        self.entries_mut(place.dir)?.remove(&place.name);
        self.touch(place.dir, Times::BOTH);
        Ok(())
    }

    /// A name of it was taken away, or given to another.
    fn lose_name(&mut self, id: Id) {
        let node = self.at(id);
        node.nlink -= 1;
        if let Body::Directory { parent, .. } = &mut node.body {
            *parent = None;
        }
        self.touch(id, Times::CTIME);
    }

    /// Is it this directory, or somewhere below it?
    fn is_within(&self, mut id: Id, directory: Id) -> bool {
        while id != directory {
            match self[id].body {
                Body::Directory { parent: Some(parent), .. } if id != ROOT => id = parent,
                _ => return false,
            }
        }
        true
    }

    fn chown(&mut self, id: Id, uid: Option<u32>, gid: Option<u32>) {
        let node = self.at(id);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        if !node.is_directory() {
            node.mode &= !SET_USER;
            // Without the right to run it, the bit once meant mandatory locks.
            if node.mode & GROUP_RUNS != 0 {
                node.mode &= !SET_GROUP;
            }
        }
        self.touch(id, if uid.or(gid).is_some() { Times::CTIME } else { Times::CTIME_ANY });
    }

    fn set_xattr(&mut self, id: Id, name: &str, value: Vec<u8>, how: SetXattr) -> Result<()> {
        let node = self.at(id);
        match (how, node.xattrs.contains_key(name)) {
            _ if !node.has_xattrs() => return Err(Errno::EPERM),
            (SetXattr::Create, true) => return Err(Errno::EEXIST),
            (SetXattr::Replace, false) => return Err(Errno::ENODATA),
            _ => node.xattrs.insert(name.to_owned(), value),
        };
        self.touch(id, Times::CTIME);
        Ok(())
    }

    /// What has neither a name nor a handle is no more.
    fn reap(&mut self) {
        let open: BTreeSet<_> = self.handles.values().map(|handle| handle.node).collect();
        self.nodes.retain(|id, node| node.nlink > 0 || open.contains(id));
    }
}

impl Index<Id> for Tree {
    type Output = Node;

    fn index(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }
}
