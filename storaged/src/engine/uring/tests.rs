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

/// Held by each test: one counts the rings of this program.
static RING: Mutex<()> = Mutex::new(());

fn device() -> Uring {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let target = TargetFile { file, size: 1 << 20, block_device: false };
    Uring::new(target, "test", Tuning::default()).unwrap()
}

/// What comes when all classes together have every entry waits for its turn.
#[test]
fn requests_that_find_no_free_entry_are_answered() {
    let _ring = RING.lock();
    let device = device();
    let write = |pieces: usize| {
        let (done, result) = Done::channel();
        let pieces = (0..pieces).map(|_| AlignedBuf::take(4096).into()).collect();
        (Request::Write { off: 0, pieces, record: false, flush: false, done }, result)
    };
    let (reads, read): (Vec<_>, Vec<_>) = (0..SHARES[0]).map(|_| read_request(0, 4096)).unzip();
    // Each piece is a part: the first of the large ones takes what is left.
    let small = (0..SHARES[1]).map(|_| write(1));
    let left = DEPTH - SHARES[0] - SHARES[1];
    let (writes, written): (Vec<_>, Vec<_>) = small.chain((0..3).map(|_| write(left))).unzip();
    // In one turn.
    device.push(reads.into_iter().chain(writes));
    let rt = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let answers = async {
        for done in read {
            done.wait().await.unwrap();
        }
        for done in written {
            done.wait().await.unwrap();
        }
    };
    rt.block_on(async { tokio::time::timeout(Duration::from_secs(60), answers).await })
        .expect("a request that nobody answers");
}

/// Who has given up is not read for: others wait behind it.
#[test]
fn reads_that_nobody_waits_for_are_not_made() {
    let _ring = RING.lock();
    let device = device();
    let (reads, mut done): (Vec<_>, Vec<_>) = (0..10).map(|_| read_request(0, 4096)).unzip();
    assert!(!reads.iter().any(Request::is_abandoned));
    let kept = done.pop().unwrap();
    drop(done);
    let left = reads.iter().filter(|read| !read.is_abandoned()).count();
    assert_eq!(left, 1);
    device.push(reads);
    assert_eq!(kept.block().unwrap().as_ref(), [0; 4096]);
}

/// The kernel refuses to enter the ring: whoever waits and whoever comes later gets an error.
#[test]
fn a_ring_that_fails_leaves_nobody_waiting() {
    let _ring = RING.lock();
    let device = device();
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
