//! The handshake: what the kernel offers, what is wanted of it.

use super::bytes::{Reader, Record};
use super::{Errno, Malformed};
use weft_proto::v1;

/// Major version of the protocol; another cannot be spoken.
const MAJOR: u32 = 7;
/// The newest minor version that this code knows, and the oldest whose records have the lengths
/// that it expects (Linux 5.13).
const MINOR: u32 = 45;
const OLDEST_MINOR: u32 = 33;

/// From this version on (Linux 6.16) what takes pages back waits for those that are being written
/// back. Older kernels write copies of them, which may come here after others have stored in the
/// same pages.
const WAITS_FOR_WRITES: u32 = 44;

/// Longest read or write request, bytes.
pub const MAX_REQUEST: u32 = 1 << 20;
/// The kernel's smallest page, bytes.
const SMALLEST_PAGE: u32 = 4096;
/// Requests that the kernel may have in flight without a caller waiting: read-ahead, direct I/O,
/// pages that it writes back. Reads may wait for targets, or for another mount which waits for what
/// is written back behind them, so there is no end to these; no read-ahead is begun beyond
/// `CONGESTED`.
const MAX_BACKGROUND: u16 = u16::MAX;
const CONGESTED: u16 = 48;

/// Bits of the handshake that this code gives or takes. Of the others:
/// - `AUTO_INVAL_DATA`: whether cached data is good is said with each open.
/// - `WRITEBACK_CACHE`: the client buffers writes itself and knows when they must be seen.
/// - `SECURITY_CTX`: there are no labels.
/// - `CREATE_SUPP_GROUP`: the kernel has applied the rules about groups before it asks.
/// - `DO_READDIRPLUS`: attributes in listings help a kernel that may keep them for a while.
/// - `NO_OPENDIR_SUPPORT`: the kernel would then cache listings, which nothing invalidates.
pub mod flag {
    /// Several reads of a file at a time.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// Byte-range locks are asked for; without it the kernel keeps those of this mount itself.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// An inode can be looked up by its number alone, as `.` of itself, and a directory's parent as
    /// `..`: for `open_by_handle_at(2)` and NFS. Numbers are never used again, so generations are
    /// all 0.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// The same of BSD's locks.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// Writes longer than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The umask comes with what makes an inode, and is not applied yet: what a directory lets
    /// inherit goes before it.
    pub const DONT_MASK: u64 = 1 << 6;
    /// Parts of a direct read or write at a time, and asynchronous ones. The kernel forgets the
    /// pages under such a write before it, and not after it: the client has it forget what was read
    /// meanwhile.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Lookups and listings of one directory at a time.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// Access control lists are attributes that the kernel asks for, and obeys.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// The reply says how many pages a request may have.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The target of a symlink never changes and its inode number is never used again.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Requests say whether their caller may keep set-id bits: the kernel does not know what
    /// another mount has set. There are no file capabilities, which it need not ask for before each
    /// write then.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// Setting an attribute has flags of the kernel's own.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// There are flags above bit 31.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files opened for direct I/O, as appended ones are and those that another
    /// mount may map. Without it they are refused (`ENODEV`), as they are where a page may be
    /// written back late.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests over io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

// Without `ATOMIC_O_TRUNC`: an open that is to cut would cut before the kernel finds that the file
// is being executed, and refuses it.
const ALWAYS: u64 = flag::ASYNC_READ
    | flag::EXPORT_SUPPORT
    | flag::BIG_WRITES
    | flag::DONT_MASK
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::POSIX_ACL
    | flag::MAX_PAGES
    | flag::CACHE_SYMLINKS
    | flag::HANDLE_KILLPRIV_V2
    | flag::SETXATTR_EXT
    | flag::DIRECT_IO_ALLOW_MMAP;

/// What the kernel offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u64,
}

impl Init {
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (major, minor, max_readahead) = (r.u32()?, r.u32()?, r.u32()?);
        let low = u64::from(r.u32()?);
        // Older kernels end here.
        let high = if low & flag::INIT_EXT == 0 { 0 } else { u64::from(r.u32()?) };
        Ok(Self { major, minor, max_readahead, flags: low | high << 32 })
    }
}

/// What depends on the mount.
#[derive(Clone, Copy, Default, Debug)]
pub struct Wanted {
    pub io_uring: bool,
    /// Locks are asked for; else the kernel keeps those of this mount itself.
    pub locks: bool,
    /// The kernel's pages, bytes; 0 for the smallest there are.
    pub page: u32,
}

/// What was agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitReply {
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u64,
    /// Pages in one request. The kernel's io_uring queues want buffers for as many, however long a
    /// write may be: more than [`MAX_REQUEST`] has of its pages would have it refuse ours.
    pub max_pages: u16,
}

/// Takes of the offer what is wanted. Errors: `EPROTO` for a version that cannot be spoken.
pub fn negotiate(offer: &Init, wanted: Wanted) -> Result<InitReply, Errno> {
    if offer.major != MAJOR || offer.minor < OLDEST_MINOR {
        return Err(Errno(libc::EPROTO));
    }
    let mut flags = ALWAYS;
    if wanted.locks {
        flags |= flag::POSIX_LOCKS | flag::FLOCK_LOCKS;
    }
    if wanted.io_uring {
        flags |= flag::OVER_IO_URING;
    }
    if offer.minor < WAITS_FOR_WRITES {
        flags &= !flag::DIRECT_IO_ALLOW_MMAP;
    }
    flags &= offer.flags;
    if flags >> 32 != 0 {
        flags |= flag::INIT_EXT;
    }
    let minor = offer.minor.min(MINOR);
    let max_readahead = offer.max_readahead.min(MAX_REQUEST);
    let max_pages = (MAX_REQUEST / wanted.page.max(SMALLEST_PAGE)).max(1) as u16;
    Ok(InitReply { minor, max_readahead, flags, max_pages })
}

impl InitReply {
    /// What another process has agreed on, or why this one cannot go on with that: it may be of
    /// another version.
    pub fn inherited(agreed: &v1::KernelAgreement) -> Result<Self, String> {
        let v1::KernelAgreement { minor, flags, max_request } = *agreed;
        let known = ALWAYS | flag::POSIX_LOCKS | flag::FLOCK_LOCKS | flag::INIT_EXT;
        if max_request > MAX_REQUEST || flags & !known != 0 || minor > MINOR {
            return Err(format!(
                "the kernel was told of what this version does not do: protocol 7.{minor}, flags \
                 {flags:#x}, requests of {max_request} bytes"
            ));
        }
        Ok(Self { minor, max_readahead: 0, flags, max_pages: 0 })
    }

    /// The same, for the next process.
    pub fn agreement(&self) -> v1::KernelAgreement {
        v1::KernelAgreement { minor: self.minor, flags: self.flags, max_request: MAX_REQUEST }
    }

    pub(super) fn encode(&self, out: &mut Record) {
        out.u32(MAJOR).u32(self.minor).u32(self.max_readahead).u32(self.flags as u32);
        out.u16(MAX_BACKGROUND).u16(CONGESTED).u32(MAX_REQUEST);
        // Times are exact to the nanosecond.
        out.u32(1).u16(self.max_pages).u16(0).u32((self.flags >> 32) as u32);
        out.u32(0).u16(0).zeros(22);
    }
}
