//! Tests of `uring`.

use super::*;
use std::os::fd::RawFd;

/// Descriptors of this process that are io_urings.
fn rings() -> Vec<RawFd> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let rings = all.filter(|e| {
        std::fs::read_link(e.path()).is_ok_and(|to| to.to_string_lossy().contains("[io_uring]"))
    });
    rings.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// The kernel refuses to enter the ring: whoever waits and whoever comes later gets an error.
#[test]
fn a_ring_that_fails_leaves_nobody_waiting() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let target = TargetFile { file, size: 1 << 20, block_device: false };
    let device = Uring::new(target, "test", Tuning::default()).unwrap();
    assert_eq!(device.read(0, 4096).block().unwrap().as_ref(), [0; 4096]);
    let (null, rings) = (File::open("/dev/null").unwrap(), rings());
    assert_eq!(rings.len(), 1, "no other test of this program has a ring");
    // SAFETY: both are open; the ring's owner closes what is in its place now.
    assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), rings[0]) }, rings[0]);
    // The first may have been under way, the others come when nobody is there any more.
    let _ = device.read(0, 4096).block();
    for _ in 0..3 {
        assert!(device.read(0, 4096).block().is_err());
        assert!(device.commit(0, AlignedBuf::take(4096).into()).block().is_err());
        assert!(device.flush().block().is_err());
    }
    assert_eq!(device.stalled(), Duration::ZERO, "a drive without a ring does not stall");
}
