//! What the kernel tells of a drive, and the calls that have no place in the ring.

use super::BLOCK;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Two 64-bit numbers: offset and length in bytes.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Whether what was written to a device may be lost in a power cut until it is flushed: unless the
/// kernel knows it to have no volatile cache.
pub(super) fn caches_writes(device: &File) -> bool {
    queue(device, "write_cache").is_none_or(|mode| mode.trim() != "write through")
}

/// Whether the drive takes discards.
pub(super) fn discards(file: &File, block_device: bool) -> bool {
    block_device && queue(file, "discard_max_bytes").is_some_and(|max| max.trim() != "0")
}

/// An attribute of the device's queue; a partition has the queue of its drive.
fn queue(file: &File, attribute: &str) -> Option<String> {
    let number = file.metadata().ok()?.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let own = std::fs::read_to_string(device.join("queue").join(attribute));
    own.or_else(|_| std::fs::read_to_string(device.join("../queue").join(attribute))).ok()
}

/// Gives bytes of the drive back, whole blocks. Blocks.
pub(super) fn discard(file: &File, block_device: bool, off: u64, len: u64) -> io::Result<()> {
    debug_assert!(off.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK));
    let fd = file.as_raw_fd();
    let result = if block_device {
        let range = [off, len];
        // SAFETY: the request reads two numbers, which live through the call.
        unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) }
    } else {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain system call on an open descriptor.
        unsafe { libc::fallocate(fd, mode, off as libc::off_t, len as libc::off_t) }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
