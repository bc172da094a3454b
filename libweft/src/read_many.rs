//! Many small reads together.

use crate::at::named;
use crate::connect::weft_fs;
use crate::error::{Failure, call_int, of_this_process};
use crate::memory::{self, Buffer, count};
use crate::pointers::{list, object, string};
use bytes::Bytes;
use libc::{c_char, c_int, c_void, ssize_t};
use weft_client::{ReadData, ReadItem};

/// What to read of one file.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct weft_read {
    /// Where it is.
    pub path: *const c_char,
    /// First byte.
    pub off: u64,
    /// Where the bytes go.
    pub buf: *mut c_void,
    /// How many there may be.
    pub len: usize,
    /// Set by the call: bytes that were read, fewer than len only at the end of the file; or a
    /// negative errno.
    pub result: ssize_t,
}

/// Opens, reads and closes n files, many at a time and with few requests: what a loader of samples
/// does. Answers how many of them were read; each entry has a result of its own. On an error of the
/// call itself none has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_read_many(
    fs: *mut weft_fs,
    reads: *mut weft_read,
    n: usize,
) -> c_int {
    const NAME: &str = "weft_read_many";
    call_int(NAME, || {
        // SAFETY: the caller's pointer, see `crate`.
        let fs = unsafe { object(fs)? };
        of_this_process(fs.user.connection())?;
        // SAFETY: there are as many, see `crate`.
        let reads = unsafe { list(reads, n)? };
        let (mut items, mut buffers) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for read in &*reads {
            // SAFETY: the caller's pointer, see `crate`.
            let path = Bytes::copy_from_slice(unsafe { string(read.path)? });
            buffers.push(Buffer::new(read.buf, read.len)?);
            items.push(ReadItem { path, off: read.off, len: Some(read.len) });
        }
        let mut complete = 0;
        let take = |at: usize, data: weft_proto::Result<ReadData>| {
            reads[at].result = match data {
                Ok(data) => {
                    memory::copy(&data, buffers[at]);
                    complete += 1;
                    count(data.len())
                }
                Err(error) => {
                    // SAFETY: it was one above.
                    let path = unsafe { string(reads[at].path) }.unwrap_or_default();
                    let failure = Failure::from(error).at(&named(path));
                    failure.tell(NAME);
                    -(failure.errno as ssize_t)
                }
            };
        };
        fs.user.read_many(items, take)?;
        Ok(complete)
    })
}
