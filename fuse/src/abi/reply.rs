//! Replies to the kernel.

use super::bytes::Record;
use super::{Errno, InitReply, Lock, OUT_HEADER};
use bytes::Bytes;
use std::time::Duration;

/// How a request ended.
pub type Answer = Result<Reply, Errno>;

/// Length of a record of attributes.
const ATTR_LEN: usize = 88;

/// Seconds since 1970 and nanoseconds that count forward from them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Time {
    pub seconds: i64,
    pub ns: u32,
}

/// Attributes of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// When it was made, if that is known.
    pub btime: Option<Time>,
    /// With the type.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// In the kernel's 32-bit form.
    pub rdev: u32,
    pub blksize: u32,
}

/// A name that was found or made. Generations are not used: inode numbers are never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The number by which the kernel will ask for it; attributes of the root have another.
    pub node: u64,
    pub attr: Attr,
    /// How long the name and the attributes may be used without asking again.
    pub name_ttl: Duration,
    pub attr_ttl: Duration,
}

/// What the kernel may do with an open file.
pub mod open_flag {
    /// Past the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// What is cached of the content is good.
    pub const KEEP_CACHE: u32 = 1 << 1;
}

/// A file that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    pub fh: u64,
    /// Of [`open_flag`].
    pub flags: u32,
}

/// Room in the filesystem, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    pub blocks: u64,
    pub free: u64,
    /// Of those, what can be written.
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_size: u32,
    pub name_max: u32,
}

/// An answer that is no error.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    Empty,
    Entry(Entry),
    /// There is no such name, for so long.
    NoEntry(Duration),
    /// Attributes and how long they may be used without asking again.
    Attr(Attr, Duration),
    StatX(Attr, Duration),
    Open(Open),
    Created(Entry, Open),
    /// Bytes in order: content, a listing, the target of a symlink, the value of an xattr.
    Data(Vec<Bytes>),
    /// The length that an xattr or the list of them has.
    XattrSize(u32),
    /// Bytes that were written or copied.
    Written(u32),
    StatFs(StatFs),
    Lock(Lock),
    /// Where data or a hole was found, or how many bytes were copied.
    Offset(u64),
    Init(InitReply),
}

/// A reply as it is sent: a header, a record, and data that is not copied.
pub struct Encoded<'a> {
    record: Record,
    data: &'a [Bytes],
}

impl<'a> Encoded<'a> {
    pub fn new(unique: u64, answer: &'a Answer) -> Self {
        let mut record = Record::new();
        record.zeros(OUT_HEADER);
        let mut data: &[Bytes] = &[];
        let error = match answer {
            Ok(reply) => {
                data = body(reply, &mut record);
                0
            }
            Err(Errno(errno)) => *errno,
        };
        let len = record.as_slice().len() + data.iter().map(Bytes::len).sum::<usize>();
        let mut header = Record::new();
        header.u32(len as u32).u32(error.wrapping_neg() as u32).u64(unique);
        record.overwrite(header.as_slice());
        Self { record, data }
    }

    /// Header and record in one.
    pub fn head(&self) -> &[u8] {
        self.record.as_slice()
    }

    /// The header alone.
    pub fn header(&self) -> &[u8] {
        &self.head()[..OUT_HEADER]
    }

    /// The record alone.
    pub fn record(&self) -> &[u8] {
        &self.head()[OUT_HEADER..]
    }

    pub fn data(&self) -> &'a [Bytes] {
        self.data
    }
}

fn body<'a>(reply: &'a Reply, out: &mut Record) -> &'a [Bytes] {
    match reply {
        Reply::Empty => {}
        Reply::Entry(e) => entry(out, e),
        Reply::NoEntry(ttl) => no_entry(out, *ttl),
        Reply::Attr(a, ttl) => {
            out.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0);
            attr(out, a);
        }
        Reply::StatX(a, ttl) => {
            out.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0).zeros(16);
            statx(out, a);
        }
        Reply::Open(o) => open(out, o),
        Reply::Created(e, o) => {
            entry(out, e);
            open(out, o);
        }
        Reply::Data(data) => return data,
        Reply::XattrSize(n) | Reply::Written(n) => {
            out.u32(*n).u32(0);
        }
        Reply::StatFs(s) => {
            out.u64(s.blocks).u64(s.free).u64(s.available).u64(s.files).u64(s.files_free);
            out.u32(s.block_size).u32(s.name_max).u32(s.block_size).zeros(28);
        }
        Reply::Lock(l) => {
            out.u64(l.start).u64(l.end).u32(l.kind).u32(l.pid);
        }
        Reply::Offset(at) => {
            out.u64(*at);
        }
        Reply::Init(init) => init.encode(out),
    }
    &[]
}

pub(super) fn entry(out: &mut Record, e: &Entry) {
    out.u64(e.node).u64(0).u64(e.name_ttl.as_secs()).u64(e.attr_ttl.as_secs());
    out.u32(e.name_ttl.subsec_nanos()).u32(e.attr_ttl.subsec_nanos());
    attr(out, &e.attr);
}

/// An entry that leads to no inode.
fn no_entry(out: &mut Record, ttl: Duration) {
    out.u64(0).u64(0).u64(ttl.as_secs()).u64(0);
    out.u32(ttl.subsec_nanos()).u32(0).zeros(ATTR_LEN);
}

fn open(out: &mut Record, o: &Open) {
    out.u64(o.fh).u32(o.flags).u32(0);
}

fn attr(out: &mut Record, a: &Attr) {
    out.u64(a.ino).u64(a.size).u64(a.blocks);
    out.u64(a.atime.seconds as u64).u64(a.mtime.seconds as u64).u64(a.ctime.seconds as u64);
    out.u32(a.atime.ns).u32(a.mtime.ns).u32(a.ctime.ns);
    out.u32(a.mode).u32(a.nlink).u32(a.uid).u32(a.gid).u32(a.rdev).u32(a.blksize).u32(0);
}

fn statx(out: &mut Record, a: &Attr) {
    /// All that `stat` knows; the time of birth.
    const BASIC: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    let mask = if a.btime.is_some() { BASIC | BTIME } else { BASIC };
    out.u32(mask).u32(a.blksize).u64(0).u32(a.nlink).u32(a.uid).u32(a.gid);
    out.u16(a.mode as u16).u16(0).u64(a.ino).u64(a.size).u64(a.blocks).u64(0);
    for t in [a.atime, a.btime.unwrap_or_default(), a.ctime, a.mtime] {
        out.u64(t.seconds as u64).u32(t.ns).u32(0);
    }
    // The kernel takes rdev from the attributes it has, and the device is its own.
    out.zeros(16).zeros(112);
}
