//! A filesystem in memory: one directory of files, some of which can be made to wait.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tokio::sync::watch;
use weft_fuse::abi::{
    Answer, Attr, Entry, Errno, Header, Listing, Op, Open, Reply, Request, SetAttr, Time,
};
use weft_fuse::{Handler, Outcome};

const ROOT: u64 = 1;
pub const BORN: Time = Time { seconds: 1_234_567, ns: 89 };
/// Its fsync and its locks wait until the gate is open.
pub const SLOW: &str = "slow";
/// Its open waits until the gate is open.
pub const SLOW_TO_OPEN: &str = "slow to open";
/// Its close waits until the gate is open.
pub const SLOW_TO_CLOSE: &str = "slow to close";
/// Reads of it wait until the gate is open, and find nothing.
pub const SLOW_TO_READ: &str = "slow to read";
/// Writes of it wait until the gate is open, and change nothing.
pub const SLOW_TO_WRITE: &str = "slow to write";
/// Whoever looks it up makes the handler panic.
pub const BAD: &str = "bad";

#[derive(Default)]
struct Tree {
    names: BTreeMap<Vec<u8>, u64>,
    files: Vec<File>,
}

#[derive(Clone, Default)]
struct File {
    content: Vec<u8>,
    links: u32,
}

/// What happened to a request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Began,
    Ended,
    /// It ended without what it waited for.
    Dropped,
    /// Nobody was there to hear that a file was opened.
    Unwanted,
}

pub struct Memory {
    tree: Arc<Mutex<Tree>>,
    gate: watch::Sender<bool>,
    events: Sender<Event>,
    /// How long the kernel may keep names and attributes.
    ttl: Duration,
}

impl Memory {
    pub fn new(ttl: Duration, events: Sender<Event>) -> Arc<Self> {
        Arc::new(Self { tree: Arc::default(), gate: watch::Sender::new(false), events, ttl })
    }

    /// Lets those that wait go on.
    pub fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    /// Puts a file there behind the kernel's back; answers its inode.
    pub fn put(&self, name: &str, content: &[u8]) -> u64 {
        let mut tree = self.tree.lock();
        let ino = tree.names.get(name.as_bytes()).copied().unwrap_or_else(|| tree.make(1));
        tree.names.insert(name.into(), ino);
        tree.file(ino).expect("just made").content = content.to_vec();
        ino
    }

    pub fn remove(&self, name: &str) {
        self.tree.lock().names.remove(name.as_bytes());
    }

    /// Waits for the gate, on a thread of the runtime.
    fn wait(&self, reply: Reply) -> Outcome {
        let mut gate = self.gate.subscribe();
        let life = Life { events: self.events.clone(), ended: false };
        Outcome::working(async move {
            // All of it, so that it lives as long as the work.
            let mut life = life;
            let _ = life.events.send(Event::Began);
            let _ = gate.wait_for(|open| *open).await;
            life.ended = true;
            Ok(reply)
        })
    }

    /// As [`Self::wait`], unless a signal comes.
    fn wait_or_hear(&self) -> Outcome {
        let mut gate = self.gate.subscribe();
        let life = Life { events: self.events.clone(), ended: false };
        Outcome::waiting(|signal| async move {
            let mut life = life;
            let _ = life.events.send(Event::Began);
            tokio::select! {
                _ = gate.wait_for(|open| *open) => {}
                () = signal.notified() => return Err(Errno(libc::EINTR)),
            }
            life.ended = true;
            Ok(Reply::Empty)
        })
    }

    fn answer(&self, header: &Header, op: &Op<'_>) -> Answer {
        let node = header.node;
        let mut tree = self.tree.lock();
        match *op {
            Op::Lookup { name } => {
                assert!(name != BAD.as_bytes(), "a planted panic");
                let ino = *tree.names.get(name).ok_or(Errno(libc::ENOENT))?;
                Ok(Reply::Entry(tree.entry(ino, self.ttl)?))
            }
            Op::GetAttr { .. } => Ok(Reply::Attr(tree.attr(node)?, self.ttl)),
            Op::StatX { .. } => Ok(Reply::StatX(tree.attr(node)?, self.ttl)),
            Op::SetAttr(SetAttr { size, .. }) => {
                if let Some(size) = size {
                    tree.file(node)?.content.resize(size as usize, 0);
                }
                Ok(Reply::Attr(tree.attr(node)?, self.ttl))
            }
            Op::Create { name, .. } => {
                let ino = tree.make(1);
                tree.names.insert(name.to_vec(), ino);
                Ok(Reply::Created(tree.entry(ino, self.ttl)?, OPEN))
            }
            Op::TmpFile { .. } => {
                let ino = tree.make(0);
                Ok(Reply::Created(tree.entry(ino, self.ttl)?, OPEN))
            }
            Op::Link { node, name } => {
                tree.file(node)?.links += 1;
                tree.names.insert(name.to_vec(), node);
                Ok(Reply::Entry(tree.entry(node, self.ttl)?))
            }
            Op::Unlink { name } => {
                let ino = tree.names.remove(name).ok_or(Errno(libc::ENOENT))?;
                tree.file(ino)?.links -= 1;
                Ok(Reply::Empty)
            }
            Op::Open { .. } | Op::OpenDir => Ok(Reply::Open(OPEN)),
            Op::Read { offset, size, .. } => tree.read(node, offset as usize, size as usize),
            Op::Write { offset, data, .. } => tree.write(node, offset as usize, data),
            Op::ReadDir { after, size, .. } => Ok(tree.list(after, size)?),
            Op::Flush { .. } | Op::Release { .. } | Op::Fsync { .. } | Op::ReleaseDir { .. } => {
                Ok(Reply::Empty)
            }
            Op::SetLk(_) => Ok(Reply::Empty),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

const OPEN: Open = Open { fh: 0, flags: 0 };

impl Handler for Memory {
    fn handle(&self, request: &Request<'_>) -> Outcome {
        let is =
            |name: &str| self.tree.lock().names.get(name.as_bytes()) == Some(&request.header.node);
        let slow = is(SLOW);
        match request.op {
            Op::Open { .. } if is(SLOW_TO_OPEN) => self.wait(Reply::Open(OPEN)),
            Op::Flush { .. } if is(SLOW_TO_CLOSE) => self.wait(Reply::Empty),
            Op::Read { .. } if is(SLOW_TO_READ) => self.wait(Reply::Data(Vec::new())),
            Op::Write { data, .. } if is(SLOW_TO_WRITE) => {
                self.wait(Reply::Written(data.len() as u32))
            }
            Op::Fsync { .. } if slow => self.wait(Reply::Empty),
            Op::SetLkW(_) if slow => self.wait_or_hear(),
            ref op => Outcome::Done(self.answer(&request.header, op)),
        }
    }

    fn unwanted(&self, _: &Header, reply: &Reply) {
        if matches!(reply, Reply::Open(_)) {
            let _ = self.events.send(Event::Unwanted);
        }
    }
}

struct Life {
    events: Sender<Event>,
    ended: bool,
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.events.send(if self.ended { Event::Ended } else { Event::Dropped });
    }
}

impl Tree {
    fn make(&mut self, links: u32) -> u64 {
        self.files.push(File { content: Vec::new(), links });
        self.files.len() as u64 + ROOT
    }

    fn file(&mut self, ino: u64) -> Result<&mut File, Errno> {
        let index = ino.checked_sub(ROOT + 1).ok_or(Errno(libc::EISDIR))?;
        self.files.get_mut(index as usize).ok_or(Errno(libc::ESTALE))
    }

    fn attr(&mut self, ino: u64) -> Result<Attr, Errno> {
        let base = Attr { ino, btime: Some(BORN), blksize: 4096, ..Default::default() };
        if ino == ROOT {
            return Ok(Attr { mode: libc::S_IFDIR | 0o755, nlink: 2, ..base });
        }
        let file = self.file(ino)?;
        let (size, nlink) = (file.content.len() as u64, file.links);
        Ok(Attr { mode: libc::S_IFREG | 0o644, nlink, size, ..base })
    }

    fn entry(&mut self, ino: u64, ttl: Duration) -> Result<Entry, Errno> {
        Ok(Entry { node: ino, attr: self.attr(ino)?, name_ttl: ttl, attr_ttl: ttl })
    }

    /// In two parts, as data from several buffers comes.
    fn read(&mut self, ino: u64, from: usize, len: usize) -> Answer {
        let content = &self.file(ino)?.content;
        let from = from.min(content.len());
        let part = &content[from..content.len().min(from + len)];
        let (a, b) = part.split_at(part.len() / 3);
        Ok(Reply::Data(vec![a.to_vec().into(), b.to_vec().into()]))
    }

    fn write(&mut self, ino: u64, from: usize, data: &[u8]) -> Answer {
        let content = &mut self.file(ino)?.content;
        content.resize(content.len().max(from + data.len()), 0);
        content[from..from + data.len()].copy_from_slice(data);
        Ok(Reply::Written(data.len() as u32))
    }

    fn list(&self, after: u64, size: u32) -> Answer {
        let mut list = Listing::new(size);
        let names = self.names.iter().zip(1..).skip(after as usize);
        for ((name, ino), cookie) in names {
            if !list.add(*ino, cookie, libc::S_IFREG, name) {
                break;
            }
        }
        list.finish()
    }
}
