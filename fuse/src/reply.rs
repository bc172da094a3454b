//! Turns what the client answered into replies. Every error becomes its errno here.

use crate::abi::{Answer, Entry, Errno, Listing, Lock, Open, Reply, StatFs as Room, open_flag};
use crate::attr::{lock_to_kernel, to_kernel};
use bytes::Bytes;
use std::time::Duration;
use weft_client::{Attr, DirPage, HandleId, Opened, ReadData, StatFs};
use weft_proto::{Error, Result};

/// Unit of `statfs`, bytes.
const BLOCK: u32 = 4096;
const NAME_MAX: u32 = 255;

pub fn errno(error: Error) -> Errno {
    if error.errno() == libc::EIO {
        tracing::warn!("an application gets EIO: {error}");
    } else {
        tracing::debug!("errno {}: {error}", error.errno());
    }
    Errno(error.errno())
}

/// Attributes, and how long the kernel may use them without asking.
pub fn attr(result: Result<(Attr, Duration)>) -> Answer {
    result.map(|(attr, ttl)| Reply::Attr(to_kernel(&attr), ttl)).map_err(errno)
}

/// As [`attr`], with the time of birth.
pub fn statx(result: Result<(Attr, Duration)>) -> Answer {
    result.map(|(attr, ttl)| Reply::StatX(to_kernel(&attr), ttl)).map_err(errno)
}

/// Attributes that the kernel asks for at their next use.
pub fn asked_again(attr: Attr) -> (Attr, Duration) {
    (attr, Duration::ZERO)
}

pub fn empty(result: Result<()>) -> Answer {
    result.map(|()| Reply::Empty).map_err(errno)
}

pub fn data(result: Result<Bytes>) -> Answer {
    result.map(|data| Reply::Data(vec![data])).map_err(errno)
}

pub fn content(result: Result<ReadData>) -> Answer {
    result.map(|data| Reply::Data(data.parts().to_vec())).map_err(errno)
}

pub fn written(result: Result<usize>) -> Answer {
    result.map(|len| Reply::Written(len as u32)).map_err(errno)
}

/// Where something was found in a file.
pub fn offset(result: Result<u64>) -> Answer {
    result.map(Reply::Offset).map_err(errno)
}

/// How much was copied; in 64 bits if `wide`.
pub fn copied(result: Result<u64>, wide: bool) -> Answer {
    let reply = |len| if wide { Reply::Offset(len) } else { Reply::Written(len as u32) };
    result.map(reply).map_err(errno)
}

pub fn opened(result: Result<Opened>) -> Answer {
    result.map(|opened| Reply::Open(open(&opened))).map_err(errno)
}

pub fn opened_dir(result: Result<HandleId>) -> Answer {
    result.map(|handle| Reply::Open(Open { fh: handle.0, flags: 0 })).map_err(errno)
}

/// A file that was made and opened, with the entry that `entry` makes of its attributes.
pub fn created(result: Result<Opened>, entry: impl FnOnce(&Attr) -> Entry) -> Answer {
    result.map(|o| Reply::Created(entry(&o.attr), open(&o))).map_err(errno)
}

/// What the kernel may do with an open file.
fn open(opened: &Opened) -> Open {
    let mut allowed = 0;
    if opened.keep_cache {
        allowed |= open_flag::KEEP_CACHE;
    }
    // Where an append lands is known only when it is committed; the page cache would file it under
    // the end of file that the kernel remembers. And of what another mount may map to write, pages
    // cost a lease to write: only mappings are to fill them.
    if !opened.cached {
        allowed |= open_flag::DIRECT_IO;
    }
    Open { fh: opened.handle.0, flags: allowed }
}

/// What stands against a lock that was asked about; nothing, where it says so itself.
pub fn lock(result: Result<Option<weft_client::Lock>>) -> Answer {
    let free = Lock { kind: libc::F_UNLCK as u32, ..Lock::default() };
    Ok(Reply::Lock(result.map_err(errno)?.map_or(free, |found| lock_to_kernel(&found))))
}

/// `size` 0 asks for the length only; a value that does not fit is `ERANGE`.
pub fn xattr(result: Result<Bytes>, size: u32) -> Answer {
    match result.map_err(errno)? {
        value if size == 0 => Ok(Reply::XattrSize(value.len() as u32)),
        value if value.len() > size as usize => Err(Errno(libc::ERANGE)),
        value => Ok(Reply::Data(vec![value])),
    }
}

/// Names of attributes that whoever asks may know of: only root of its own. The kernel leaves
/// nothing out of a list.
pub fn shown(mut names: Vec<Bytes>, is_root: bool) -> Vec<Bytes> {
    names.retain(|name| is_root || !name.starts_with(b"trusted."));
    names
}

/// Names, each with a NUL; `size` as in [`xattr`].
pub fn xattr_names(result: Result<Vec<Bytes>>, size: u32) -> Answer {
    let list = |names: Vec<Bytes>| -> Bytes {
        names.iter().flat_map(|name| [&name[..], b"\0"].concat()).collect()
    };
    xattr(result.map(list), size)
}

pub fn statfs(result: Result<StatFs>) -> Answer {
    let s = result.map_err(errno)?;
    let in_blocks = |bytes: u64| bytes / u64::from(BLOCK);
    let (blocks, free) = (in_blocks(s.capacity_bytes), in_blocks(s.free_bytes));
    let available = in_blocks(s.available_bytes);
    // Inodes have no limit but that of a quota; they take room like everything else.
    let files_free = s.free_inodes.unwrap_or(available);
    let files = s.inodes.saturating_add(files_free);
    let (block_size, name_max) = (BLOCK, NAME_MAX);
    Ok(Reply::StatFs(Room { blocks, free, available, files, files_free, block_size, name_max }))
}

/// `.` and `..` are ours to add: cookies 1 and 2, the client's start at 3.
fn dots(ino: u64, parent: u64, after: u64) -> impl Iterator<Item = (u64, u64, &'static [u8])> {
    [(ino, 1, &b"."[..]), (parent, 2, b"..")].into_iter().filter(move |(_, at, _)| *at > after)
}

/// Names after cookie `after`, as many as fit in `size` bytes.
pub fn directory(result: Result<DirPage>, ino: u64, after: u64, size: u32) -> Answer {
    let page = result.map_err(errno)?;
    let mut list = Listing::new(size);
    // `all` stops at the first entry that does not fit; the kernel asks for it again.
    let _ = dots(ino, page.parent.0, after)
        .all(|(ino, at, name)| list.add(ino, at, libc::S_IFDIR, name))
        && page.entries.iter().all(|e| list.add(e.ino.0, e.cookie, e.kind.type_bits(), &e.name));
    list.finish()
}
