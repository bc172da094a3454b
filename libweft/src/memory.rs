//! Memory of the caller that content is read into and written from.

use crate::error::{Answer, failed};
use libc::{c_int, c_void, iovec, off_t, ssize_t};
use weft_client::{OpenFile, ReadData};
use weft_proto::{Error, ErrorKind, Result};

/// Most buffers of one call, as Linux has it (`IOV_MAX`).
const MAX_BUFFERS: usize = 1024;
/// So much of one read is held by the library, before it is copied.
const READ_BYTES: usize = 32 << 20;
/// Buffers of a write that have no more than this together are joined: one write costs less than
/// many.
const JOIN_BYTES: usize = 1 << 20;

/// One buffer.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    start: *mut u8,
    len: usize,
}

// SAFETY: it only says where memory is. Whoever touches that does so while its owner waits for the
// call, or for a ring's completion, and it belongs to no thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Errors: `EFAULT` of NULL, `EINVAL` of a length that no buffer has.
    pub fn new(start: *mut c_void, len: usize) -> Answer<Self> {
        if start.is_null() && len != 0 {
            return failed(libc::EFAULT, "a buffer is NULL");
        }
        if isize::try_from(len).is_err() {
            return failed(libc::EINVAL, format!("a buffer cannot have {len} bytes"));
        }
        Ok(Self { start: start.cast(), len })
    }

    /// A part of it. Errors: `EFAULT` if it is not within.
    pub fn part(self, off: usize, len: usize) -> Answer<Self> {
        if off.checked_add(len).is_none_or(|end| end > self.len) {
            let what = format!("{len} bytes from {off} on are not in a buffer of {}", self.len);
            return failed(libc::EFAULT, what);
        }
        Ok(Self { start: self.start.wrapping_add(off), len })
    }

    /// # Safety
    /// Nobody writes to it meanwhile.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        match self.len {
            0 => &[],
            // SAFETY: it is the caller's, see `crate`.
            len => unsafe { std::slice::from_raw_parts(self.start, len) },
        }
    }
}

/// The buffers of one call.
#[derive(Clone, Debug)]
pub enum Buffers {
    One(Buffer),
    Many(Vec<Buffer>),
}

impl Buffers {
    /// Those of `readv(2)`. Errors: `EINVAL` of a count that is negative, or over 1024, or of more
    /// bytes than can be counted; `EFAULT`.
    ///
    /// # Safety
    /// See [`crate`].
    pub unsafe fn read(iov: *const iovec, count: c_int) -> Answer<Self> {
        let count = match usize::try_from(count) {
            Ok(count) if count <= MAX_BUFFERS => count,
            _ => {
                return failed(libc::EINVAL, format!("{count} buffers are not 0 to {MAX_BUFFERS}"));
            }
        };
        if count == 0 {
            return Ok(Self::Many(Vec::new()));
        }
        if iov.is_null() {
            return failed(libc::EFAULT, "the list of buffers is NULL");
        }
        // SAFETY: that of the caller.
        let list = unsafe { std::slice::from_raw_parts(iov, count) };
        let new = |iov: &iovec| Buffer::new(iov.iov_base, iov.iov_len);
        let buffers: Vec<_> = list.iter().map(new).collect::<Answer<_>>()?;
        let total = buffers.iter().try_fold(0_isize, |sum, b| sum.checked_add_unsigned(b.len));
        match total {
            Some(_) => Ok(Self::Many(buffers)),
            None => failed(libc::EINVAL, "the buffers have more bytes than can be counted"),
        }
    }

    pub fn as_slice(&self) -> &[Buffer] {
        match self {
            Self::One(buffer) => std::slice::from_ref(buffer),
            Self::Many(buffers) => buffers,
        }
    }

    pub fn len(&self) -> usize {
        self.as_slice().iter().map(|buffer| buffer.len).sum()
    }
}

/// A place in a file. Errors: `EINVAL` before its start.
pub fn offset(off: off_t) -> Answer<u64> {
    match u64::try_from(off) {
        Ok(off) => Ok(off),
        Err(_) => failed(libc::EINVAL, format!("the offset {off} is before the file")),
    }
}

/// Copies what was read into buffers, one after the other.
struct Scatter<'a> {
    buffers: &'a [Buffer],
    /// Bytes of the first one that are filled.
    filled: usize,
}

impl Scatter<'_> {
    fn take(&mut self, mut bytes: &[u8]) {
        while let [first, rest @ ..] = self.buffers
            && !bytes.is_empty()
        {
            let len = bytes.len().min(first.len - self.filled);
            let (now, later) = bytes.split_at(len);
            // SAFETY: it is the caller's, and lies within its buffer; see `crate`.
            unsafe {
                let to = first.start.add(self.filled);
                std::ptr::copy_nonoverlapping(now.as_ptr(), to, len);
            }
            bytes = later;
            self.filled += len;
            if self.filled == first.len {
                (self.buffers, self.filled) = (rest, 0);
            }
        }
    }
}

/// Copies what was read into a buffer that is as long.
pub fn copy(data: &ReadData, buffer: Buffer) {
    let mut scatter = Scatter { buffers: &[buffer], filled: 0 };
    data.parts().iter().for_each(|part| scatter.take(part));
}

/// Reads until the buffers are full, or the file ends.
pub async fn read(file: &OpenFile, off: u64, buffers: &Buffers) -> Result<usize> {
    let mut scatter = Scatter { buffers: buffers.as_slice(), filled: 0 };
    let (len, mut done) = (buffers.len(), 0);
    while done < len {
        let want = READ_BYTES.min(len - done);
        let data = file.read(off.saturating_add(done as u64), want).await?;
        data.parts().iter().for_each(|part| scatter.take(part));
        done += data.len();
        if data.len() < want {
            break;
        }
    }
    Ok(done)
}

/// Writes all of the buffers, as one write if they are small or `whole`.
pub async fn write(file: &OpenFile, off: u64, buffers: &Buffers, whole: bool) -> Result<usize> {
    let len = buffers.len();
    if let [one] = buffers.as_slice() {
        // SAFETY: the caller leaves it as it is until it is written, see `crate`.
        return write_all(file, off, unsafe { one.bytes() }).await;
    }
    if whole || len <= JOIN_BYTES {
        let mut joined = Vec::with_capacity(len);
        for buffer in buffers.as_slice() {
            // SAFETY: as above.
            joined.extend_from_slice(unsafe { buffer.bytes() });
        }
        return write_all(file, off, &joined).await;
    }
    let mut done = 0;
    for buffer in buffers.as_slice() {
        let off = off.saturating_add(done as u64);
        // SAFETY: as above.
        done += write_all(file, off, unsafe { buffer.bytes() }).await?;
    }
    Ok(done)
}

async fn write_all(file: &OpenFile, off: u64, bytes: &[u8]) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write(off.saturating_add(done as u64), &bytes[done..]).await? {
            0 => return Err(Error::new(ErrorKind::Io, "no more was written, and no error told")),
            written => done += written,
        }
    }
    Ok(done)
}

/// The length of a buffer as a call answers it; none is longer.
pub fn count(len: usize) -> ssize_t {
    ssize_t::try_from(len).unwrap_or(ssize_t::MAX)
}
