//! The disk under the targets: one file, sequential O_DIRECT, several requests in flight.

use crate::bench::context::{Context, Sample};
use crate::bench::task::{Outcome, goes_on, noise};
use anyhow::{Context as _, Result, ensure};
use io_uring::{IoUring, opcode, types};
use std::alloc::Layout;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Bytes of one request.
const REQUEST: usize = 4 << 20;
/// Requests in flight.
const DEPTH: usize = 8;
/// Alignment that O_DIRECT asks for on the drives we know.
const ALIGN: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Write,
    Read,
}

/// Writes a preallocated file and flushes the drive, then reads it back.
pub fn run(context: &Context) -> Result<Vec<Sample>> {
    let path = context.scratch().join("disk");
    let what = || format!("cannot use {} for O_DIRECT", path.display());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .with_context(what)?;
    let requests = (context.size / REQUEST as u64).max(1);
    nix::fcntl::fallocate(
        &file,
        nix::fcntl::FallocateFlags::empty(),
        0,
        (requests * REQUEST as u64) as i64,
    )
    .with_context(what)?;
    let mut buffers = Buffers::new();
    let limit = context.limit;
    let written = context.measure("disk_write", || {
        transfer(&file, Direction::Write, requests, limit, &mut buffers)
    })?;
    // What the time was too short for is not on the disk.
    let requests = written.outcome.bytes / REQUEST as u64;
    let read = context
        .measure("disk_read", || transfer(&file, Direction::Read, requests, limit, &mut buffers))?;
    buffers.free();
    std::fs::remove_file(&path)?;
    Ok(vec![written, read])
}

fn transfer(
    file: &File,
    direction: Direction,
    mut requests: u64,
    limit: Duration,
    buffers: &mut Buffers,
) -> Result<Outcome> {
    let mut ring = IoUring::new(DEPTH as u32).context("io_uring is not usable here")?;
    let start = Instant::now();
    let (mut next, mut done) = (0, 0);
    let mut free: Vec<usize> = (0..DEPTH).collect();
    while done < requests {
        while next < requests
            && let Some(slot) = free.pop()
        {
            let (fd, at) = (types::Fd(file.as_raw_fd()), next * REQUEST as u64);
            let (buffer, len) = (buffers.slot(slot), REQUEST as u32);
            let entry = match direction {
                Direction::Write => opcode::Write::new(fd, buffer, len).offset(at).build(),
                Direction::Read => opcode::Read::new(fd, buffer, len).offset(at).build(),
            };
            // SAFETY: the buffer and the file outlive the request, which is awaited below; no
            // other request uses this slot until it is free again.
            unsafe { ring.submission().push(&entry.user_data(slot as u64)) }
                .context("the submission queue is full")?;
            next += 1;
        }
        ring.submit_and_wait(1)?;
        if !goes_on(start, limit) {
            requests = next; // what is under way ends
        }
        for completion in ring.completion() {
            let moved = completion.result();
            ensure!(moved >= 0, "disk: {}", std::io::Error::from_raw_os_error(-moved));
            ensure!(moved as usize == REQUEST, "the disk moved {moved} of {REQUEST} bytes");
            free.push(completion.user_data() as usize);
            done += 1;
        }
    }
    if direction == Direction::Write {
        file.sync_data()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Outcome { bytes: requests * REQUEST as u64, seconds, ..Outcome::default() })
}

/// Aligned memory for all requests in flight. Not freed by dropping: after a failed request the
/// kernel may still be at work in it.
struct Buffers {
    start: *mut u8,
}

impl Buffers {
    const LAYOUT: Layout = match Layout::from_size_align(REQUEST * DEPTH, ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two aligns"),
    };

    fn new() -> Self {
        // SAFETY: the layout has a size.
        let start = unsafe { std::alloc::alloc(Self::LAYOUT) };
        if start.is_null() {
            std::alloc::handle_alloc_error(Self::LAYOUT);
        }
        let content = noise(REQUEST, 77);
        for slot in 0..DEPTH {
            // SAFETY: the slot lies inside the allocation and `content` is as long.
            unsafe { content.as_ptr().copy_to_nonoverlapping(start.add(slot * REQUEST), REQUEST) };
        }
        Self { start }
    }

    /// To be called when no request is in flight.
    fn free(self) {
        // SAFETY: allocated in `new` with this layout; nobody uses it any more.
        unsafe { std::alloc::dealloc(self.start, Self::LAYOUT) }
    }

    fn slot(&mut self, slot: usize) -> *mut u8 {
        assert!(slot < DEPTH);
        // SAFETY: inside the allocation, as asserted.
        unsafe { self.start.add(slot * REQUEST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_ends_when_the_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create_new(dir.path().join("disk")).unwrap();
        let mut buffers = Buffers::new();
        let outcome =
            transfer(&file, Direction::Write, 1000, Duration::ZERO, &mut buffers).unwrap();
        buffers.free();
        assert_eq!(outcome.bytes, file.metadata().unwrap().len());
        assert!((1..=(REQUEST * DEPTH) as u64).contains(&outcome.bytes), "{outcome:?}");
    }
}
