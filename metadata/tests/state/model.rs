//! A POSIX tree as simple as it can be: nodes in a map, contents byte by byte, link counts counted.
//! It shares no code and no idea with the state machine but the messages.

use std::collections::BTreeMap;
use v1::FileKind;
use v1::extent::Source;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, v1};

pub use crate::rig::ROOT;

const MAX_FILE: u64 = 16 << 40;

/// One byte of a file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cell {
    Hole,
    Inline(u8),
    /// A byte of a segment: its seq, and the offset in it.
    Segment(u64, u64),
}

#[derive(Clone)]
pub struct Node {
    pub kind: FileKind,
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    size: u64,
    /// The first bytes of a file; behind them are holes up to `size`.
    pub cells: Vec<Cell>,
    pub target: Vec<u8>,
    pub children: BTreeMap<Vec<u8>, u64>,
    pub parent: u64,
    times: [i64; 3],
    born: i64,
    version: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    layout: v1::LayoutInfo,
}

#[derive(Clone)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
    next: u64,
    /// Length of every segment that was ever committed, until it is freed.
    pub segments: BTreeMap<u64, u64>,
}

/// What an operation answers.
#[derive(Debug)]
pub enum Expected {
    Nothing,
    Attr(u64),
    Open(u64),
    Commit(u64, u64),
    Copy(u64, u64),
}

type Outcome = Result<Expected, ErrorKind>;
use ErrorKind::*;

impl Model {
    pub fn new(time: i64, layout: v1::LayoutInfo) -> Self {
        let mut model = Self { nodes: BTreeMap::new(), next: ROOT, segments: BTreeMap::new() };
        model.new_node(ROOT, FileKind::Directory, (0o755, 0, 0), time);
        model.nodes.get_mut(&ROOT).unwrap().layout = layout;
        model
    }

    fn new_node(
        &mut self,
        parent: u64,
        kind: FileKind,
        (mode, uid, gid): (u32, u32, u32),
        now: i64,
    ) -> u64 {
        let ino = self.next;
        self.next += 1;
        let dir = self.nodes.get(&parent);
        let sgid = dir.filter(|d| d.mode & 0o2000 != 0).map(|d| d.gid);
        let is_dir = kind == FileKind::Directory;
        let layout = dir.map(|d| d.layout).unwrap_or_default();
        let node = Node {
            kind,
            mode: mode & 0o7777 | if sgid.is_some() && is_dir { 0o2000 } else { 0 },
            uid,
            gid: sgid.unwrap_or(gid),
            rdev: 0,
            size: if is_dir { 4096 } else { 0 },
            cells: vec![],
            target: vec![],
            children: BTreeMap::new(),
            parent: if is_dir { parent } else { 0 },
            times: [now; 3],
            born: now,
            version: 0,
            xattrs: BTreeMap::new(),
            layout,
        };
        self.nodes.insert(ino, node);
        ino
    }

    fn names(&self, ino: u64) -> u32 {
        let all = self.nodes.values().flat_map(|n| n.children.values());
        all.filter(|&&child| child == ino).count() as u32
    }

    pub fn is_dir(&self, ino: u64) -> bool {
        self.nodes.get(&ino).is_some_and(|n| n.kind == FileKind::Directory)
    }

    pub fn links(&self, ino: u64) -> u32 {
        let named = self.names(ino);
        if !self.is_dir(ino) {
            return named;
        }
        if named == 0 && ino != ROOT {
            return 0;
        }
        2 + self.nodes[&ino].children.values().filter(|&&c| self.is_dir(c)).count() as u32
    }

    pub fn attr(&self, ino: u64) -> Result<v1::Attr, ErrorKind> {
        let n = self.nodes.get(&ino).ok_or(Stale)?;
        let bytes = n.cells.iter().filter(|c| **c != Cell::Hole).count() as u64;
        let inline = n.cells.iter().filter(|c| matches!(c, Cell::Inline(_))).count() as u64;
        Ok(v1::Attr {
            ino,
            kind: n.kind.into(),
            mode: n.mode,
            nlink: self.links(ino),
            uid: n.uid,
            gid: n.gid,
            rdev: n.rdev,
            size: n.size,
            blocks: bytes.div_ceil(512),
            atime_ns: n.times[0],
            mtime_ns: n.times[1],
            ctime_ns: n.times[2],
            btime_ns: n.born,
            data_version: n.version,
            inline_bytes: inline,
            acls: false,
            no_xattrs: n.xattrs.is_empty(),
        })
    }

    /// Live bytes of a segment.
    pub fn live(&self, seq: u64) -> u64 {
        let cells = self.nodes.values().flat_map(|n| &n.cells);
        cells.filter(|c| matches!(c, Cell::Segment(s, _) if *s == seq)).count() as u64
    }

    fn node(&mut self, ino: u64) -> Result<&mut Node, ErrorKind> {
        self.nodes.get_mut(&ino).ok_or(Stale)
    }

    /// What `name` in `dir` stands for; refuses bad names and directories as Linux does.
    fn find(&self, dir: u64, name: &[u8]) -> Result<Option<u64>, ErrorKind> {
        let node = self.nodes.get(&dir).ok_or(Stale)?;
        if node.kind != FileKind::Directory {
            return Err(NotDirectory);
        }
        if self.links(dir) == 0 {
            return Err(NotFound);
        }
        if name.len() > 255 {
            return Err(NameTooLong);
        }
        if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
            return Err(Invalid);
        }
        Ok(node.children.get(name).copied())
    }

    fn touch(&mut self, dir: u64, now: i64) {
        let node = self.nodes.get_mut(&dir).unwrap();
        node.times[1] = now;
        node.times[2] = now;
    }

    fn changed(&mut self, ino: u64, now: i64) {
        self.nodes.get_mut(&ino).unwrap().times[2] = now;
    }

    fn put_name(&mut self, dir: u64, name: &[u8], ino: u64, now: i64) {
        self.nodes.get_mut(&dir).unwrap().children.insert(name.to_vec(), ino);
        self.touch(dir, now);
        if self.is_dir(ino) {
            self.nodes.get_mut(&ino).unwrap().parent = dir;
        }
    }

    fn cut_name(&mut self, dir: u64, name: &[u8], now: i64) {
        self.nodes.get_mut(&dir).unwrap().children.remove(name);
        self.touch(dir, now);
    }

    fn make(
        &mut self,
        dir: u64,
        name: &[u8],
        kind: FileKind,
        owner: (u32, u32, u32),
        now: i64,
    ) -> Result<u64, ErrorKind> {
        if self.find(dir, name)?.is_some() {
            return Err(Exists);
        }
        let ino = self.new_node(dir, kind, owner, now);
        self.put_name(dir, name, ino, now);
        Ok(ino)
    }

    pub fn run(&mut self, op: &Op, now: i64) -> Outcome {
        match op {
            Op::Create(o) => match self.find(o.parent, &o.name)? {
                Some(ino) if !o.exclusive => match self.nodes[&ino].kind {
                    FileKind::Regular => Ok(Expected::Open(ino)),
                    FileKind::Directory => Err(IsDirectory),
                    _ => Err(Exists),
                },
                _ => {
                    let owner = (o.mode & !(o.umask & 0o777), o.uid, o.gid);
                    let made = self.make(o.parent, &o.name, FileKind::Regular, owner, now);
                    made.map(Expected::Open)
                }
            },
            Op::MkNod(o) => {
                let ino = self.make(
                    o.parent,
                    &o.name,
                    o.kind(),
                    (o.mode & !(o.umask & 0o777), o.uid, o.gid),
                    now,
                )?;
                let device = matches!(o.kind(), FileKind::CharDevice | FileKind::BlockDevice);
                self.node(ino)?.rdev = if device { o.rdev } else { 0 };
                Ok(Expected::Attr(ino))
            }
            Op::MkDir(o) => {
                let owner = (o.mode & !(o.umask & 0o777), o.uid, o.gid);
                self.make(o.parent, &o.name, FileKind::Directory, owner, now).map(Expected::Attr)
            }
            Op::SymLink(o) => {
                let owner = (0o777, o.uid, o.gid);
                let ino = self.make(o.parent, &o.name, FileKind::Symlink, owner, now)?;
                self.node(ino)?.target = o.target.to_vec();
                self.node(ino)?.size = o.target.len() as u64;
                Ok(Expected::Attr(ino))
            }
            Op::Link(o) => self.link(o, now),
            Op::Unlink(o) => {
                let ino = self.find(o.parent, &o.name)?.ok_or(NotFound)?;
                if self.is_dir(ino) {
                    return Err(IsDirectory);
                }
                self.cut_name(o.parent, &o.name, now);
                self.changed(ino, now);
                Ok(Expected::Nothing)
            }
            Op::RmDir(o) => {
                let ino = self.find(o.parent, &o.name)?.ok_or(NotFound)?;
                if !self.is_dir(ino) {
                    return Err(NotDirectory);
                }
                if !self.nodes[&ino].children.is_empty() {
                    return Err(NotEmpty);
                }
                self.cut_name(o.parent, &o.name, now);
                self.changed(ino, now);
                Ok(Expected::Nothing)
            }
            Op::Rename(o) => self.rename(o, now),
            Op::SetAttr(o) => self.set_attr(o, now),
            Op::SetXattr(o) => {
                let node = self.node(o.ino)?;
                let exists = node.xattrs.contains_key(&o.name[..]);
                if exists && o.flags & 1 != 0 {
                    return Err(Exists);
                }
                if !exists && o.flags & 2 != 0 {
                    return Err(NoAttribute);
                }
                node.xattrs.insert(o.name.to_vec(), o.value.to_vec());
                self.changed(o.ino, now);
                Ok(Expected::Nothing)
            }
            Op::RemoveXattr(o) => {
                self.node(o.ino)?.xattrs.remove(&o.name[..]).ok_or(NoAttribute)?;
                self.changed(o.ino, now);
                Ok(Expected::Nothing)
            }
            Op::SetLayout(o) => {
                let node = self.node(o.ino)?;
                match node.kind {
                    FileKind::Directory => {}
                    FileKind::Regular if node.size > 0 => return Err(Busy),
                    FileKind::Regular => {}
                    _ => return Err(Invalid),
                }
                node.layout = o.layout.unwrap();
                self.changed(o.ino, now);
                Ok(Expected::Nothing)
            }
            Op::CommitExtents(o) => self.commit(o, now),
            Op::Fallocate(o) => self.fallocate(o, now),
            other => panic!("the model knows no {other:?}"),
        }
    }

    fn link(&mut self, o: &v1::LinkOp, now: i64) -> Outcome {
        if self.find(o.parent, &o.name)?.is_some() {
            return Err(Exists);
        }
        if self.node(o.ino)?.kind == FileKind::Directory {
            return Err(NotPermitted);
        }
        if self.links(o.ino) == 0 {
            return Err(NotFound);
        }
        self.put_name(o.parent, &o.name, o.ino, now);
        self.changed(o.ino, now);
        Ok(Expected::Attr(o.ino))
    }

    /// All of the tree at and below `top`.
    fn subtree(&self, top: u64) -> Vec<u64> {
        let mut all = vec![top];
        for &child in self.nodes[&top].children.values() {
            all.extend(self.subtree(child));
        }
        all
    }

    fn rename(&mut self, o: &v1::RenameOp, now: i64) -> Outcome {
        let (noreplace, exchange, whiteout) =
            (o.flags & 1 != 0, o.flags & 2 != 0, o.flags & 4 != 0);
        if o.flags > 7 || exchange && (noreplace || whiteout) {
            return Err(Invalid);
        }
        let source = self.find(o.parent, &o.name)?.ok_or(NotFound)?;
        let target = self.find(o.new_parent, &o.new_name)?;
        if noreplace && target.is_some() {
            return Err(Exists);
        }
        if exchange && target.is_none() {
            return Err(NotFound);
        }
        if self.subtree(source).contains(&o.new_parent) {
            return Err(Invalid);
        }
        if let Some(target) = target {
            if self.subtree(target).contains(&o.parent) {
                return Err(if exchange { Invalid } else { NotEmpty });
            }
            if source == target {
                return Ok(Expected::Nothing);
            }
            if !exchange {
                match (self.is_dir(source), self.is_dir(target)) {
                    (true, false) => return Err(NotDirectory),
                    (false, true) => return Err(IsDirectory),
                    (true, true) if !self.nodes[&target].children.is_empty() => {
                        return Err(NotEmpty);
                    }
                    _ => {}
                }
            }
            self.changed(target, now);
        }
        self.changed(source, now);
        self.cut_name(o.parent, &o.name, now);
        self.put_name(o.new_parent, &o.new_name, source, now);
        if exchange {
            self.put_name(o.parent, &o.name, target.unwrap(), now);
        }
        if whiteout {
            let node = self.new_node(o.parent, FileKind::CharDevice, (0, 0, 0), now);
            self.put_name(o.parent, &o.name, node, now);
        }
        Ok(Expected::Nothing)
    }

    fn set_attr(&mut self, o: &v1::SetAttrOp, now: i64) -> Outcome {
        let node = self.node(o.ino)?;
        if let Some(size) = o.size {
            match node.kind {
                FileKind::Regular if size > MAX_FILE => return Err(TooLarge),
                FileKind::Regular => {}
                FileKind::Directory => return Err(IsDirectory),
                _ => return Err(Invalid),
            }
            node.version += 1;
            node.size = size;
            node.cells.truncate(size as usize);
            node.times[1] = now;
        }
        if o.uid.is_some() || o.gid.is_some() {
            if o.mode.is_none() && node.kind != FileKind::Directory {
                let sgid = if node.mode & 0o010 != 0 { 0o2000 } else { 0 };
                node.mode &= !(0o4000 | sgid);
            }
            node.uid = o.uid.unwrap_or(node.uid);
            node.gid = o.gid.unwrap_or(node.gid);
        }
        if let Some(mode) = o.mode {
            node.mode = mode & 0o7777;
        }
        for (at, (time, is_now)) in
            [(o.atime_ns, o.atime_now), (o.mtime_ns, o.mtime_now)].into_iter().enumerate()
        {
            if is_now {
                node.times[at] = now;
            } else if let Some(time) = time {
                node.times[at] = time;
            }
        }
        let any = o.size.is_some()
            || o.uid.is_some()
            || o.gid.is_some()
            || o.mode.is_some()
            || o.atime_ns.is_some()
            || o.mtime_ns.is_some()
            || o.atime_now
            || o.mtime_now;
        if any {
            self.changed(o.ino, now);
        }
        Ok(Expected::Attr(o.ino))
    }

    /// Commits are well formed here (others are tested by themselves), but may name segments that
    /// are gone, or be too much for the inode.
    fn commit(&mut self, o: &v1::CommitExtentsOp, now: i64) -> Outcome {
        let node = self.nodes.get(&o.ino).ok_or(Stale)?;
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(IsDirectory),
            _ => return Err(Invalid),
        }
        let base = if o.append { node.size } else { 0 };
        if o.extents.iter().any(|e| base + e.file_off + e.len > MAX_FILE) {
            return Err(TooLarge);
        }
        let new: BTreeMap<u64, u64> =
            o.segments.iter().map(|s| (s.id.unwrap().seq, s.length)).collect();
        let mut cells = node.cells.clone();
        let mut size = node.size;
        for e in &o.extents {
            let from = (base + e.file_off) as usize;
            let to = from + e.len as usize;
            if cells.len() < to {
                cells.resize(to, Cell::Hole);
            }
            for (i, cell) in cells[from..to].iter_mut().enumerate() {
                *cell = match e.source.as_ref().unwrap() {
                    Source::Inline(bytes) => Cell::Inline(bytes[i]),
                    Source::Segment(p) => {
                        let seq = p.id.unwrap().seq;
                        if !new.contains_key(&seq) && self.live(seq) == 0 {
                            return Err(Stale);
                        }
                        Cell::Segment(seq, p.off + i as u64)
                    }
                };
            }
            size = size.max(to as u64);
        }
        let inline = cells.iter().filter(|c| matches!(c, Cell::Inline(_))).count();
        let adds = o.extents.iter().any(|e| matches!(e.source, Some(Source::Inline(_))));
        if adds && inline > node.layout.inline_limit as usize {
            return Err(InlineFull);
        }
        self.segments.extend(new);
        let node = self.node(o.ino)?;
        node.version += u64::from(!o.extents.is_empty() || o.min_size > node.size);
        node.cells = cells;
        node.size = size.max(o.min_size);
        node.times[1] = if o.mtime_ns == 0 { now } else { o.mtime_ns };
        // The clocks of histories are close to each other.
        let changed = match o.changed_ns {
            0 => now,
            changed => node.times[2].max(changed),
        };
        if let Some(attr) = &o.attr {
            self.set_attr(attr, now)?;
        }
        self.node(o.ino)?.times[2] = changed;
        Ok(Expected::Commit(o.ino, base))
    }

    fn file(&self, ino: u64) -> Result<&Node, ErrorKind> {
        let node = self.nodes.get(&ino).ok_or(Stale)?;
        match node.kind {
            FileKind::Regular => Ok(node),
            FileKind::Directory => Err(IsDirectory),
            _ => Err(Invalid),
        }
    }

    fn fallocate(&mut self, o: &v1::FallocateOp, now: i64) -> Outcome {
        self.file(o.ino)?;
        if o.len == 0 {
            return Err(Invalid);
        }
        let end = o.off.checked_add(o.len).filter(|end| *end <= MAX_FILE).ok_or(TooLarge)?;
        let node = self.node(o.ino)?;
        if o.hole {
            let len = node.cells.len();
            let within = |at: u64| (at as usize).min(len);
            node.cells[within(o.off)..within(end)].fill(Cell::Hole);
        }
        if !o.keep_size {
            node.size = node.size.max(end);
        }
        node.version += 1;
        node.times[1] = now;
        node.times[2] = now;
        Ok(Expected::Attr(o.ino))
    }

    /// How much is shared before inline bytes get in the way depends on how they are cut in
    /// extents: that it was `copied` (`None`: refused for that) is only judged.
    pub fn copy(&mut self, o: &v1::CopyRangeOp, now: i64, copied: Option<u64>) -> Outcome {
        let (from, to) = (self.file(o.from)?, self.file(o.to)?);
        let len = o.len.min(from.size.saturating_sub(o.from_off));
        if o.to_off.checked_add(len).is_none_or(|end| end > MAX_FILE) {
            return Err(TooLarge);
        }
        if o.from == o.to && len > 0 && o.from_off.abs_diff(o.to_off) < len {
            return Err(Invalid);
        }
        let first = (o.from_off as usize).min(from.cells.len());
        let source = &from.cells[first..from.cells.len().min(first + len as usize)];
        let after = |copied: u64| {
            let mut cells = to.cells.clone();
            let start = o.to_off as usize;
            let stop = start + copied as usize;
            let replaced = start.min(cells.len())..stop.min(cells.len());
            cells[replaced].fill(Cell::Hole);
            let source = &source[..source.len().min(copied as usize)];
            if !source.is_empty() {
                cells.resize(cells.len().max(start + source.len()), Cell::Hole);
                cells[start..start + source.len()].copy_from_slice(source);
            }
            cells
        };
        let is_inline = |cell: &Cell| matches!(cell, Cell::Inline(_));
        let fits = |copied: u64| {
            let inline = after(copied).iter().filter(|c| is_inline(c)).count();
            inline <= to.layout.inline_limit as usize
        };
        let done = copied.unwrap_or(0);
        assert!(done <= len, "{done} bytes of {len} were copied");
        if done < len {
            let run = source[done as usize..].iter().take_while(|c| is_inline(c)).count() as u64;
            let full = (done + 1..=done + run).any(|n| !fits(n));
            assert!(full, "nothing stands against copying more than {done} bytes");
        }
        assert!(fits(done) || !source[..source.len().min(done as usize)].iter().any(is_inline));
        if copied.is_none() && len > 0 {
            return Err(InlineFull);
        }
        let cells = after(done);
        if done > 0 {
            let node = self.node(o.to)?;
            node.cells = cells;
            node.size = node.size.max(o.to_off + done);
            node.version += 1;
            node.times[1] = now;
            node.times[2] = now;
        }
        Ok(Expected::Copy(o.to, done))
    }

    /// Forgets inodes without a name.
    pub fn purge(&mut self) -> Vec<u64> {
        let all: Vec<u64> = self.nodes.keys().copied().collect();
        let gone: Vec<u64> = all.into_iter().filter(|&ino| self.links(ino) == 0).collect();
        gone.iter().for_each(|ino| drop(self.nodes.remove(ino)));
        gone
    }
}
