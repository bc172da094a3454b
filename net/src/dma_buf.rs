//! Memory of a device as the kernel hands it to other devices.

use std::os::fd::OwnedFd;

/// A run of a device's memory as other devices are told of it.
pub struct DmaBuf {
    /// The handle of the kernel.
    pub fd: OwnedFd,
    /// Where in it the run begins.
    pub offset: u64,
    /// The address that the device knows it by. It is never followed.
    pub address: u64,
    /// Bytes of the run.
    pub len: usize,
}
