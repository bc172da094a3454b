//! Reads and writes the first page of files by a mapping, as standard input asks: `get PATH` or
//! `set VALUE PATH`, a line each. Answers `ok VALUE` or `error ERRNO`.
//!
//! A process of its own, because a fault in a mapping waits for the filesystem with the address
//! space locked, and ends the process when the page cannot be had (SIGBUS).

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Bytes of a page.
const PAGE: usize = 4096;

fn main() -> Result<()> {
    for line in io::stdin().lines() {
        let answer = match answer(&line?)? {
            Ok(value) => format!("ok {value}"),
            Err(error) => format!("error {}", error.raw_os_error().unwrap_or(libc::EIO)),
        };
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}

fn answer(request: &str) -> Result<io::Result<u64>> {
    let (what, rest) = request.split_once(' ').context("no path")?;
    Ok(match what {
        "get" => Page::of(rest).map(|page| page.get()),
        "set" => {
            let (value, path) = rest.split_once(' ').context("no path")?;
            let value = value.parse()?;
            Page::of(path).and_then(|page| page.set(value)).map(|()| value)
        }
        _ => bail!("neither get nor set: {what}"),
    })
}

struct Page(NonNull<u64>);

impl Page {
    /// Of a file, which is made, and made long enough.
    fn of(path: &str) -> io::Result<Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() < PAGE as u64 {
            file.set_len(PAGE as u64)?;
        }
        let (may, file) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping, which nothing in this process refers to.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, may, libc::MAP_SHARED, file, 0) };
        match NonNull::new(at).filter(|_| at != libc::MAP_FAILED) {
            Some(at) => Ok(Self(at.cast())),
            None => Err(io::Error::last_os_error()),
        }
    }

    fn get(&self) -> u64 {
        // SAFETY: the mapping lives, and begins at a page; others may write it meanwhile.
        u64::from_le(unsafe { self.0.read_volatile() })
    }

    /// Durable when it returns.
    fn set(&self, value: u64) -> io::Result<()> {
        // SAFETY: as in `get`.
        unsafe { self.0.write_volatile(value.to_le()) };
        // SAFETY: the mapping is of one page.
        Ok(Errno::result(unsafe { libc::msync(self.0.as_ptr().cast(), PAGE, libc::MS_SYNC) })
            .map(drop)?)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        let _ = unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}
