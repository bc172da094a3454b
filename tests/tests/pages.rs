//! What the kernel's pages show after writes past them.

use anyhow::{Result, ensure};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use weft_tests::{Cluster, path, weft_ok};

const LEN: usize = 640 << 10;

/// `struct iocb` of a plain read or write.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    flags: i32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    more_flags: u32,
    event_file: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    more: i64,
}

/// A context of the kernel's asynchronous I/O.
struct Aio(u64);

impl Aio {
    fn new() -> Result<Self> {
        let mut context = 0u64;
        // SAFETY: the place for the context outlives the call.
        let done = unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) };
        ensure!(done == 0, "io_setup: {}", io::Error::last_os_error());
        Ok(Self(context))
    }

    /// Writes `data`, whose address is one that O_DIRECT takes, and waits for the end.
    fn write(&self, file: &File, data: &[u8]) -> Result<()> {
        const WRITE: u16 = 1;
        let iocb = Iocb {
            opcode: WRITE,
            file: file.as_raw_fd() as u32,
            buffer: data.as_ptr() as u64,
            len: data.len() as u64,
            ..Default::default()
        };
        let (mut all, mut event) = ([&raw const iocb], Event::default());
        // SAFETY: the request and its buffer live until it has ended, which is waited for.
        let begun = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, all.as_mut_ptr()) };
        ensure!(begun == 1, "io_submit: {}", io::Error::last_os_error());
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: there is room for one event.
        let ended =
            unsafe { libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, &raw mut event, none) };
        ensure!(ended == 1 && event.result == data.len() as i64, "result {}", event.result);
        Ok(())
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: nothing is under way in it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// Memory at the start of a page.
fn aligned(buffer: &mut Vec<u8>) -> &mut [u8] {
    buffer.resize(LEN + 4096, 0);
    let skip = buffer.as_ptr().align_offset(4096);
    &mut buffer[skip..skip + LEN]
}

/// Threads fill the pages all the time; what is read from them after a write past them is what was
/// written, on the mount of the writer and on another.
#[test]
fn pages_show_what_was_written_past_them() -> Result<()> {
    const ROUNDS: u32 = 150;
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    for (how, readers) in [("here", vec![&a, &a]), ("on both mounts", vec![&a, &b])] {
        for asynchronous in [true, false] {
            let name = a.join("f");
            let direct = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(libc::O_DIRECT)
                .open(&name)?;
            let (looks, aio, stop) = (File::open(&name)?, Aio::new()?, AtomicBool::new(false));
            let (mut memory, mut got) = (Vec::new(), vec![0; LEN]);
            let buffer = aligned(&mut memory);
            std::thread::scope(|scope| -> Result<()> {
                for mount in readers.iter() {
                    let file = File::open(mount.join("f"))?;
                    let stop = &stop;
                    scope.spawn(move || {
                        let mut bytes = vec![0; LEN];
                        while !stop.load(Ordering::Relaxed) {
                            let _ = file.read_at(&mut bytes, 0);
                        }
                    });
                }
                let written = (0..ROUNDS).try_for_each(|round| -> Result<()> {
                    buffer.fill(if round % 2 == 0 { 0x55 } else { 0xaa });
                    match asynchronous {
                        true => aio.write(&direct, buffer)?,
                        false => direct.write_all_at(buffer, 0)?,
                    }
                    looks.read_exact_at(&mut got, 0)?;
                    ensure!(
                        got == *buffer,
                        "stale after write {round}, read {how}, {asynchronous}"
                    );
                    Ok(())
                });
                stop.store(true, Ordering::Relaxed);
                written
            })?;
        }
    }
    weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}
