//! Attributes as C has them.

use libc::{c_long, stat, statvfs};
use weft_client::{Attr, StatFs};

/// Bytes that are best read at once. `st_blksize` has 64 bits on x86, and 32 on Arm.
const IO_SIZE: i32 = 1 << 20;
/// Unit of `statvfs`, bytes.
const BLOCK: u64 = 4096;
/// Longest name, bytes.
const NAME_MAX: u64 = 255;
const NANOS: i64 = 1_000_000_000;

/// Fills a `struct stat`. There is no device: `st_dev` is 0 for all.
pub fn fill(attr: &Attr, stat: &mut stat) {
    // SAFETY: it is numbers, which may all be 0.
    *stat = unsafe { std::mem::zeroed() };
    stat.st_ino = attr.ino.0;
    stat.st_mode = attr.kind.type_bits() | attr.mode & 0o7777;
    stat.st_nlink = attr.nlink.into();
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_rdev = device(attr.rdev);
    stat.st_size = attr.size.try_into().unwrap_or(i64::MAX);
    stat.st_blksize = IO_SIZE.into();
    stat.st_blocks = attr.blocks.try_into().unwrap_or(i64::MAX);
    (stat.st_atime, stat.st_atime_nsec) = time(attr.atime_ns);
    (stat.st_mtime, stat.st_mtime_nsec) = time(attr.mtime_ns);
    (stat.st_ctime, stat.st_ctime_nsec) = time(attr.ctime_ns);
}

fn time(ns: i64) -> (i64, c_long) {
    (ns.div_euclid(NANOS), ns.rem_euclid(NANOS))
}

/// The number of a device as libc has it, from Linux's own, which metadata keeps.
fn device(kernel: u64) -> libc::dev_t {
    let (major, minor) = ((kernel >> 8) & 0xfff, kernel & 0xff | (kernel >> 12) & 0xf_ff00);
    libc::makedev(major as u32, minor as u32)
}

/// The number of a device as metadata keeps it.
pub fn kernel_device(device: libc::dev_t) -> u64 {
    let (major, minor) = (u64::from(libc::major(device)), u64::from(libc::minor(device)));
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Fills a `struct statvfs`. Inodes have no limit of their own; they take room like all else.
pub fn fill_room(room: &StatFs, out: &mut statvfs) {
    // SAFETY: it is numbers, which may all be 0.
    *out = unsafe { std::mem::zeroed() };
    let available = room.available_bytes / BLOCK;
    (out.f_bsize, out.f_frsize) = (BLOCK, BLOCK);
    out.f_blocks = room.capacity_bytes / BLOCK;
    out.f_bfree = room.free_bytes / BLOCK;
    out.f_bavail = available;
    out.f_files = room.inodes + available;
    (out.f_ffree, out.f_favail) = (available, available);
    out.f_namemax = NAME_MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for (major, minor) in [(0, 0), (8, 1), (259, 7), (4095, 1_048_575), (1, 256)] {
            let number = libc::makedev(major, minor);
            assert_eq!(device(kernel_device(number)), number, "{major}:{minor}");
        }
        // As new_encode_dev() of Linux does.
        assert_eq!(kernel_device(libc::makedev(8, 1)), 0x801);
    }

    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        assert_eq!(time(-1), (-1, 999_999_999));
        assert_eq!(time(NANOS + 5), (1, 5));
    }
}
