//! One admin command to a controller: Get Log Page of the discovery log.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const ADMIN_COMMAND: libc::Ioctl = 0xC048_4E41u32 as libc::Ioctl;
const GET_LOG_PAGE: u8 = 0x02;
const DISCOVERY_LOG: u32 = 0x70;
const TIMEOUT_MS: u32 = 10_000;

/// `struct nvme_admin_cmd` of the kernel's interface.
#[repr(C)]
#[derive(Default)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}
const _: () = assert!(size_of::<Command>() == 72);

/// Reads `into` (a multiple of 4 bytes) from `offset` of the discovery log. Blocks.
pub(super) fn read_discovery_log(
    controller: &File,
    offset: u64,
    into: &mut [u8],
) -> io::Result<()> {
    debug_assert!(into.len().is_multiple_of(4) && offset.is_multiple_of(4));
    let dwords = (into.len() / 4).checked_sub(1).ok_or(io::ErrorKind::InvalidInput)?;
    let dwords = u32::try_from(dwords).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut command = Command {
        opcode: GET_LOG_PAGE,
        address: into.as_mut_ptr().addr() as u64,
        data_len: into.len() as u32,
        cdw10: DISCOVERY_LOG | (dwords & 0xffff) << 16,
        cdw11: dwords >> 16,
        cdw12: offset as u32,
        cdw13: (offset >> 32) as u32,
        timeout_ms: TIMEOUT_MS,
        ..Command::default()
    };
    // SAFETY: the kernel reads and writes the command, whose layout it shares, and writes at most
    // `data_len` bytes at `address`, which `into` holds for the duration of the call.
    let status = unsafe { libc::ioctl(controller.as_raw_fd(), ADMIN_COMMAND, &raw mut command) };
    match status {
        0 => Ok(()),
        s if s < 0 => Err(io::Error::last_os_error()),
        s => Err(io::Error::other(format!("the controller answered with NVMe status {s:#x}"))),
    }
}
