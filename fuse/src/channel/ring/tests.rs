//! Tests of `ring`.

use super::*;
use crate::{Handler, Outcome, abi};

struct Nobody;

impl Handler for Nobody {
    fn handle(&self, _: &abi::Request<'_>) -> Outcome {
        Outcome::Done(Err(abi::Errno(libc::ENOSYS)))
    }

    fn unwanted(&self, _: &abi::Header, _: &abi::Reply) {}
}

/// As for buffers that are too short for it: each new entry would be refused like the one
/// before.
#[test]
fn a_queue_that_takes_no_entries_is_not_offered_more() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let session = Session::new(Arc::new(Nobody), runtime.handle().clone(), None);
    let mut ring = Ring::new(vec![0, 1]).unwrap();
    while ring.wants_entry(0) {
        ring.make_entry(0).unwrap();
    }
    assert_eq!(ring.entries.len(), SPARE_ENTRIES);
    for index in 0..SPARE_ENTRIES {
        assert!(ring.arrived(index, -libc::EINVAL, &session).unwrap());
    }
    assert!(!ring.wants_entry(0) && ring.wants_entry(1));
    // One that is lost in use is replaced.
    let index = ring.make_entry(1).unwrap();
    ring.taken[index] = true;
    assert!(ring.arrived(index, -libc::EIO, &session).unwrap() && ring.wants_entry(1));
}

/// What waits for locks leaves room for who releases them, and for all else.
#[test]
fn who_would_wait_for_a_lock_in_the_last_entries_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let session = Session::new(Arc::new(Nobody), runtime.handle().clone(), None);
    let mut ring = Ring::new(vec![0]).unwrap();
    ring.most = SPARE_ENTRIES + 8;
    let header = |opcode: u32| {
        let mut header = [0; abi::IN_HEADER];
        header[4..8].copy_from_slice(&opcode.to_ne_bytes());
        header[8] = 7;
        header
    };
    // None is committed, as if they waited.
    let mut asks = |index: usize, opcode| {
        while ring.wants_entry(0) {
            ring.make_entry(0).unwrap();
        }
        let entry = ring.entries[index].clone();
        entry.receive(&header(opcode), &[0; 48]);
        assert!(ring.arrived(index, 0, &session).unwrap());
        -i32::from_ne_bytes(entry.header()[4..8].try_into().unwrap())
    };
    let (most, opcodes) = (SPARE_ENTRIES + 8, [abi::opcode::SETLK, abi::opcode::SETLKW]);
    for (index, opcode) in (0..most).zip(opcodes.into_iter().cycle()) {
        let last = index >= most - LAST_ENTRIES && opcode == abi::opcode::SETLKW;
        let errno = if last { libc::ENOLCK } else { libc::ENOSYS };
        assert_eq!(asks(index, opcode), errno, "request {index}");
    }
}

#[test]
fn what_passes_ends_no_ring() {
    let mut ring = Ring::new(vec![0]).unwrap();
    for errno in [libc::EAGAIN, libc::EBUSY, libc::EINTR] {
        ring.reap(Err(io::Error::from_raw_os_error(errno))).unwrap();
    }
    assert!(ring.reap(Err(io::Error::from_raw_os_error(libc::EBADF))).is_err());
}

#[test]
fn lists_of_cpus_parse() {
    assert_eq!(parse_cpus("0\n"), Some(vec![0]));
    assert_eq!(parse_cpus("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
    for bad in ["", "x", "1-", "0-2,", "-1"] {
        assert_eq!(parse_cpus(bad), None, "{bad}");
    }
}
