//! The face of the disk to the kernel, which keeps no page of it.

use super::supply::Shared;
use super::tree::{Node, ROOT, Tree};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Blocks of the disk, as it says.
const BLOCKS: u64 = 16 << 20;
/// Names change by way of the kernel alone.
const NAMES_TTL: Duration = Duration::from_secs(3600);

pub(super) struct Served(pub Arc<Shared>);

type Answer<T> = Result<T, Errno>;

impl Served {
    fn on_node<T>(&self, ino: INodeNo, act: impl FnOnce(&mut Node) -> Answer<T>) -> Answer<T> {
        self.0.with(|tree| act(tree.node(ino.0).ok_or(Errno::ENOENT)?))
    }

    fn make(&self, dir: INodeNo, name: &OsStr, node: Node) -> Answer<FileAttr> {
        let full = self.0.is_full();
        self.0.with(|tree| match tree.find(dir.0, name) {
            Some(_) => Err(Errno::EEXIST),
            None if full => Err(Errno::ENOSPC),
            None => {
                let ino = tree.make(dir.0, name, node);
                attr(tree, ino)
            }
        })
    }

    fn remove(&self, dir: INodeNo, name: &OsStr) -> Answer<()> {
        self.0.with(|tree| {
            let ino = tree.find(dir.0, name).ok_or(Errno::ENOENT)?;
            if tree.node(ino).is_some_and(|node| !node.names.is_empty()) {
                return Err(Errno::ENOTEMPTY);
            }
            tree.unlink(dir.0, name);
            Ok(())
        })
    }
}

fn attr(tree: &mut Tree, ino: u64) -> Answer<FileAttr> {
    let links = tree.links(ino);
    let node = tree.node(ino).ok_or(Errno::ENOENT)?;
    let is_dir = node.kind == FileType::Directory;
    Ok(FileAttr {
        ino: INodeNo(ino),
        size: node.content.size,
        blocks: node.content.used() / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: node.kind,
        perm: node.mode,
        nlink: if is_dir { 2 } else { links },
        uid: node.owner.0,
        gid: node.owner.1,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

fn owner(request: &Request) -> (u32, u32) {
    (request.uid(), request.gid())
}

fn entry(reply: ReplyEntry, answer: Answer<FileAttr>) {
    match answer {
        Ok(attr) => reply.entry(&NAMES_TTL, &attr, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFIFO => FileType::NamedPipe,
        _ => FileType::RegularFile,
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.0.with(|tree| {
            let ino = tree.find(dir.0, name).ok_or(Errno::ENOENT)?;
            attr(tree, ino)
        });
        entry(reply, found);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.with(|tree| attr(tree, ino.0)) {
            Ok(attr) => reply.attr(&Duration::ZERO, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = self.0.with(|tree| {
            let node = tree.node(ino.0).ok_or(Errno::ENOENT)?;
            node.mode = mode.map_or(node.mode, |mode| mode as u16 & 0o7777);
            node.owner = (uid.unwrap_or(node.owner.0), gid.unwrap_or(node.owner.1));
            if let Some(size) = size {
                node.content.set_size(size);
            }
            attr(tree, ino.0)
        });
        match set {
            Ok(attr) => reply.attr(&Duration::ZERO, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.on_node(ino, |node| Ok(node.link.clone())) {
            Ok(link) => reply.data(link.as_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let node = Node::new(kind(mode), mode & !umask, owner(request));
        entry(reply, self.make(dir, name, node));
    }

    fn mkdir(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let node = Node::new(FileType::Directory, mode & !umask, owner(request));
        entry(reply, self.make(dir, name, node));
    }

    fn symlink(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let mut node = Node::new(FileType::Symlink, 0o777, owner(request));
        node.link = target.as_os_str().to_owned();
        entry(reply, self.make(dir, name, node));
    }

    fn unlink(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.remove(dir, name));
    }

    fn rmdir(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.remove(dir, name));
    }

    fn rename(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        to_dir: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.0.with(|tree| {
            let ino = tree.find(dir.0, name).ok_or(Errno::ENOENT)?;
            let there = tree.find(to_dir.0, to);
            if flags.contains(RenameFlags::RENAME_NOREPLACE) && there.is_some() {
                return Err(Errno::EEXIST);
            }
            if !(flags & !RenameFlags::RENAME_NOREPLACE).is_empty() {
                return Err(Errno::EINVAL);
            }
            if there.and_then(|there| tree.node(there)).is_some_and(|n| !n.names.is_empty()) {
                return Err(Errno::ENOTEMPTY);
            }
            tree.unlink(dir.0, name);
            tree.link(to_dir.0, to, ino);
            Ok(())
        });
        empty(reply, renamed);
    }

    fn link(&self, _: &Request, ino: INodeNo, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.0.with(|tree| {
            if tree.find(dir.0, name).is_some() {
                return Err(Errno::EEXIST);
            }
            tree.link(dir.0, name, ino.0);
            attr(tree, ino.0)
        });
        entry(reply, linked);
    }

    fn create(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut node = Node::new(FileType::RegularFile, mode & !umask, owner(request));
        node.opens = 1;
        match self.make(dir, name, node) {
            Ok(attr) => {
                let (generation, direct) = (Generation(0), FopenFlags::FOPEN_DIRECT_IO);
                reply.created(&NAMES_TTL, &attr, generation, FileHandle(0), direct);
            }
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let opened = self.on_node(ino, |node| {
            node.opens += 1;
            Ok(())
        });
        match opened {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.on_node(ino, |node| Ok(node.content.read(offset, size))) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let full = self.0.is_full();
        let written = self.on_node(ino, |node| {
            if full && !node.content.has(offset, data.len() as u64) {
                return Err(Errno::ENOSPC);
            }
            node.content.write(offset, data);
            if flags.0 & libc::O_DSYNC != 0 {
                node.content.flush();
            }
            Ok(())
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        // After a cut it is closed.
        let _ = self.on_node(ino, |node| {
            node.opens = node.opens.saturating_sub(1);
            Ok(())
        });
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let flushed = self.on_node(ino, |node| {
            node.content.flush();
            Ok(())
        });
        empty(reply, flushed);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let flushed = self.0.with(|tree| {
            tree.flush_names(ino.0);
            Ok(())
        });
        empty(reply, flushed);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.0.with(|tree| {
            let names = tree.node(ino.0).ok_or(Errno::ENOENT)?.names.clone();
            let kinds = names.into_iter().filter_map(|(name, ino)| {
                let kind = tree.node(ino)?.kind;
                Some((name, ino, kind))
            });
            Ok(kinds.collect::<Vec<_>>())
        });
        let mut listed = match listed {
            Ok(listed) => listed,
            Err(error) => return reply.error(error),
        };
        let dots = [".", ".."].map(|dot| (dot.into(), ROOT, FileType::Directory));
        // Who goes on after some were removed misses none.
        listed.sort_by_key(|(_, ino, _)| *ino);
        let places = listed.iter().map(|(_, ino, _)| ino + 2).collect::<Vec<_>>();
        for (at, (name, ino, kind)) in (1..=2).chain(places).zip(dots.into_iter().chain(listed)) {
            if at > offset && reply.add(INodeNo(ino), at, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.on_node(ino, |node| {
            let content = &mut node.content;
            if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
                content.punch(offset, length);
            }
            if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
                content.size = content.size.max(offset.saturating_add(length));
            }
            Ok(())
        });
        empty(reply, done);
    }
}
