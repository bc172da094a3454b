//! The kernel's asynchronous I/O, and memory that O_DIRECT takes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

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
pub struct Aio(u64);

impl Aio {
    /// One for a request at a time.
    pub fn new() -> io::Result<Self> {
        let mut context = 0u64;
        // SAFETY: the place for the context outlives the call.
        match unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) } {
            0 => Ok(Self(context)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Writes all of `data`, whose address is one that O_DIRECT takes, and waits for the end.
    pub fn write(&self, file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_with(file, offset, data, 0)
    }

    /// [`Self::write`], with flags of pwritev2(2).
    pub fn write_with(&self, file: &File, offset: u64, data: &[u8], flags: i32) -> io::Result<()> {
        const WRITE: u16 = 1;
        let iocb = Iocb {
            opcode: WRITE,
            flags,
            file: file.as_raw_fd() as u32,
            buffer: data.as_ptr() as u64,
            len: data.len() as u64,
            offset: offset as i64,
            ..Default::default()
        };
        let (mut all, mut event) = ([&raw const iocb], Event::default());
        // SAFETY: the request and its buffer live until it has ended, which is waited for.
        let begun = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, all.as_mut_ptr()) };
        if begun != 1 {
            return Err(io::Error::last_os_error());
        }
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: there is room for one event.
        let ended =
            unsafe { libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, &raw mut event, none) };
        match event.result {
            _ if ended != 1 => Err(io::Error::last_os_error()),
            done if done == data.len() as i64 => Ok(()),
            done if done >= 0 => Err(io::ErrorKind::WriteZero.into()),
            errno => Err(io::Error::from_raw_os_error(-errno as i32)),
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: nothing is under way in it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// Bytes that begin where a page does.
pub struct Aligned {
    memory: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    pub fn from(data: &[u8]) -> Self {
        let mut memory = vec![0; data.len() + 4096];
        let at = memory.as_ptr().align_offset(4096);
        memory[at..at + data.len()].copy_from_slice(data);
        Self { memory, at, len: data.len() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.at..self.at + self.len]
    }
}
