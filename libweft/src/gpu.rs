//! Content of files in the memory of GPUs.

use crate::at::named;
use crate::connect::weft_fs;
use crate::error::{Answer, Failure, call, call_int, call_unit, failed, of_this_process};
use crate::memory::{count, offset};
use crate::open::weft_file;
use crate::pointers::{list, object, out, string};
use bytes::Bytes;
use libc::{c_char, c_int, c_void, off_t, ssize_t};
use std::ffi::CStr;
use weft_client::ReadItem;
use weft_gpu::{Memory, Slice, Stream, Way, after_each};

/// Memory of a GPU that is registered. Any number of threads may use it.
#[allow(non_camel_case_types)]
pub struct weft_gpu_memory {
    memory: Memory,
    /// The process that registered it.
    process: u32,
}

impl weft_gpu_memory {
    /// The object that a call was given. Errors: `EINVAL`; `ENOTCONN` after a fork.
    ///
    /// # Safety
    /// See [`crate`].
    unsafe fn of<'a>(memory: *const Self) -> Answer<&'a Self> {
        // SAFETY: that of the caller.
        let memory = unsafe { object(memory)? };
        if memory.process == std::process::id() {
            return Ok(memory);
        }
        let what = "this process was forked from the one that registered it, whose GPUs it cannot \
                    use: start it by exec";
        failed(libc::ENOTCONN, what)
    }

    fn slice(&self, at: usize, len: usize) -> Answer<Slice<'_>> {
        self.memory.slice(at, len).map_err(|error| Failure::new(libc::EFAULT, error.to_string()))
    }
}

/// # Safety
/// It is a stream until the call returns, as the header says.
unsafe fn of(stream: *mut c_void) -> Stream {
    // SAFETY: that of the caller.
    unsafe { Stream::new(stream.expose_provenance()) }
}

/// Registers len bytes of memory of a GPU, by their address there (CUdeviceptr), to read into and
/// write from. It must stay until it is unregistered. -EOPNOTSUPP without a CUDA driver, -EINVAL if
/// it is not memory of one GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gpu_register(
    address: *mut c_void,
    len: usize,
    memory: *mut *mut weft_gpu_memory,
) -> c_int {
    call_unit("weft_gpu_register", || {
        // SAFETY: the caller's pointer, see `crate`.
        let memory = unsafe { out(memory)? };
        // SAFETY: the caller keeps it, as the header says.
        let new = unsafe { Memory::new(address.expose_provenance() as u64, len) };
        let mut new = new.map_err(Failure::from)?;
        new.make_direct_if_asked();
        let new = weft_gpu_memory { memory: new, process: std::process::id() };
        *memory = Box::into_raw(Box::new(new));
        Ok(())
    })
}

/// Forgets memory of a GPU, and frees what registering it made: no call may be using it. When this
/// returns nothing is written to the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gpu_unregister(memory: *mut weft_gpu_memory) -> c_int {
    call_unit("weft_gpu_unregister", || {
        // SAFETY: the caller's pointer, see `crate`.
        unsafe { weft_gpu_memory::of(memory)? };
        // SAFETY: it was made by `weft_gpu_register`, and is not used any more.
        drop(unsafe { Box::from_raw(memory) });
        Ok(())
    })
}

/// How bytes come to registered memory: "pinned host memory", which the GPU's driver reads by
/// itself, or "pageable host memory", which it copies once more; "direct", where network cards have
/// written it, as WEFT_GPU_DIRECT=1 asks for. The string stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gpu_way(memory: *const weft_gpu_memory) -> *const c_char {
    const UNKNOWN: &CStr = c"";
    let mut way = UNKNOWN;
    call_unit("weft_gpu_way", || {
        // SAFETY: the caller's pointer, see `crate`.
        way = match unsafe { weft_gpu_memory::of(memory)? }.memory.way() {
            Way::Direct => c"direct",
            Way::Pinned => c"pinned host memory",
            Way::Pageable => c"pageable host memory",
        };
        Ok(())
    });
    way.as_ptr()
}

/// weft_pread, into len bytes from memory_off on of registered memory; -EFAULT if they are not
/// within it. It begins after what stream was asked for before: a CUstream, or NULL for the legacy
/// default stream; programs that are compiled for a default stream of each thread pass
/// CU_STREAM_PER_THREAD. When it has returned, all work that is asked for after it finds the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gpu_pread(
    file: *mut weft_file,
    memory: *mut weft_gpu_memory,
    memory_off: usize,
    len: usize,
    off: off_t,
    stream: *mut c_void,
) -> ssize_t {
    call("weft_gpu_pread", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (file, memory) = unsafe { (weft_file::of(file)?, weft_gpu_memory::of(memory)?) };
        let (open, off) = (file.to_read()?, offset(off)?);
        // SAFETY: the caller's stream.
        let into = memory.slice(memory_off, len)?.after(unsafe { of(stream) })?;
        file.run(weft_gpu::read(open, off, into)).map(count)
    })
}

/// weft_pwrite, from len bytes from memory_off on of registered memory, as weft_gpu_pread reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gpu_pwrite(
    file: *mut weft_file,
    memory: *mut weft_gpu_memory,
    memory_off: usize,
    len: usize,
    off: off_t,
    stream: *mut c_void,
) -> ssize_t {
    call("weft_gpu_pwrite", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (file, memory) = unsafe { (weft_file::of(file)?, weft_gpu_memory::of(memory)?) };
        let (open, off) = (file.to_write()?, offset(off)?);
        // SAFETY: the caller's stream.
        let from = memory.slice(memory_off, len)?.after(unsafe { of(stream) })?;
        file.run(weft_gpu::write(open, off, from, file.append())).map(count)
    })
}

/// What to read of one file, into registered memory of a GPU.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct weft_gpu_read {
    /// Where it is.
    pub path: *const c_char,
    /// First byte.
    pub off: u64,
    /// Where the bytes go.
    pub memory: *mut weft_gpu_memory,
    /// The first of them there.
    pub memory_off: usize,
    /// How many there may be.
    pub len: usize,
    /// Set by the call: bytes that were read, fewer than len only at the end of the file; or a
    /// negative errno.
    pub result: ssize_t,
}

/// weft_read_many, into registered memory of GPUs; stream is that of weft_gpu_pread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_gpu_read_many(
    fs: *mut weft_fs,
    reads: *mut weft_gpu_read,
    n: usize,
    stream: *mut c_void,
) -> c_int {
    const NAME: &str = "weft_gpu_read_many";
    call_int(NAME, || {
        // SAFETY: the caller's pointer, see `crate`.
        let fs = unsafe { object(fs)? };
        of_this_process(fs.user.connection())?;
        // SAFETY: there are as many, see `crate`.
        let reads = unsafe { list(reads, n)? };
        let (mut items, mut places) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for read in &*reads {
            // SAFETY: the caller's pointers, see `crate`.
            let (path, memory) = unsafe { (string(read.path)?, weft_gpu_memory::of(read.memory)?) };
            let path = Bytes::copy_from_slice(path);
            places.push(memory.slice(read.memory_off, read.len)?);
            items.push(ReadItem { path, off: read.off, len: Some(read.len) });
        }
        // SAFETY: the caller's stream.
        let stream = unsafe { of(stream) };
        let places = after_each(places.into_iter().map(|place| (place, Some(stream))))?;
        let read = weft_gpu::read_many(fs.user.caller(), items, &places);
        let answers = fs.user.connection().run(read).map_err(Failure::from)?;
        let mut complete = 0;
        for (read, answer) in reads.iter_mut().zip(answers) {
            read.result = match answer {
                Ok(len) => {
                    complete += 1;
                    count(len)
                }
                Err(error) => {
                    // SAFETY: it was one above.
                    let path = unsafe { string(read.path) }.unwrap_or_default();
                    let failure = Failure::from(error).at(&named(path));
                    failure.tell(NAME);
                    -(failure.errno as ssize_t)
                }
            };
        }
        Ok(complete)
    })
}
