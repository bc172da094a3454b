//! The table by which cuFile reads files of a filesystem in user space (`CUfileFSOps_t` of
//! `cufile.h`).

use crate::error::{Answer, call};
use crate::memory::{self, Buffer, Buffers, count, offset};
use crate::open::weft_file;
use libc::{c_char, c_int, c_void, off_t, sockaddr, ssize_t};
use weft_gpu::{Memory, Stream};

/// As `cufile.h` has it, in the order of its fields.
#[repr(C)]
pub struct CUfileFSOps {
    fs_type: unsafe extern "C" fn(*const c_void) -> *const c_char,
    devices: unsafe extern "C" fn(*const c_void, *mut *mut sockaddr) -> c_int,
    priority:
        unsafe extern "C" fn(*const c_void, *mut c_char, usize, off_t, *const sockaddr) -> c_int,
    read: unsafe extern "C" fn(*const c_void, *mut c_char, usize, off_t, *const c_void) -> ssize_t,
    write:
        unsafe extern "C" fn(*const c_void, *const c_char, usize, off_t, *const c_void) -> ssize_t,
}

static OPS: CUfileFSOps = CUfileFSOps { fs_type, devices, priority, read, write };

/// What cuFileHandleRegister takes as fs_ops of a handle of type CU_FILE_HANDLE_TYPE_USERSPACE_FS
/// whose handle.handle is a weft_file: a const CUfileFSOps_t. A libcufile that refuses such handles
/// says so there; weft_gpu_pread and weft_gpu_pwrite need none.
#[unsafe(no_mangle)]
pub extern "C" fn weft_cufile_ops() -> *const c_void {
    (&raw const OPS).cast()
}

unsafe extern "C" fn fs_type(_: *const c_void) -> *const c_char {
    c"weft".as_ptr()
}

/// No card of this host reaches GPUs for files of Weft: cuFile gives no descriptors then.
unsafe extern "C" fn devices(_: *const c_void, hosts: *mut *mut sockaddr) -> c_int {
    // SAFETY: cuFile's pointer, if it is one.
    if let Some(hosts) = unsafe { hosts.as_mut() } {
        *hosts = std::ptr::null_mut();
    }
    0
}

unsafe extern "C" fn priority(
    _: *const c_void,
    _: *mut c_char,
    _: usize,
    _: off_t,
    _: *const sockaddr,
) -> c_int {
    -1
}

unsafe extern "C" fn read(
    file: *const c_void,
    to: *mut c_char,
    len: usize,
    off: off_t,
    _: *const c_void,
) -> ssize_t {
    call("cuFileRead", || {
        // SAFETY: what the handle was registered with, see `crate`.
        let file = unsafe { weft_file::of(file.cast_mut().cast())? };
        let (open, off) = (file.to_read()?, offset(off)?);
        // SAFETY: cuFile keeps it until this returns.
        match unsafe { of_gpu(to, len)? } {
            Some(memory) => {
                file.run(weft_gpu::read(open, off, memory.all().after(Stream::DEFAULT)?)).map(count)
            }
            None => {
                let buffers = Buffers::One(Buffer::new(to.cast(), len)?);
                file.run(memory::read(open, off, &buffers)).map(count)
            }
        }
    })
}

unsafe extern "C" fn write(
    file: *const c_void,
    from: *const c_char,
    len: usize,
    off: off_t,
    _: *const c_void,
) -> ssize_t {
    call("cuFileWrite", || {
        // SAFETY: what the handle was registered with, see `crate`.
        let file = unsafe { weft_file::of(file.cast_mut().cast())? };
        let (open, off) = (file.to_write()?, offset(off)?);
        // SAFETY: cuFile keeps it until this returns.
        match unsafe { of_gpu(from, len)? } {
            Some(memory) => {
                let from = memory.all().after(Stream::DEFAULT)?;
                let write = weft_gpu::write(open, off, from, file.append());
                file.run(write).map(count)
            }
            None => {
                let buffers = Buffers::One(Buffer::new(from.cast_mut().cast(), len)?);
                file.run(memory::write(open, off, &buffers, file.append())).map(count)
            }
        }
    })
}

/// Memory of a GPU, if it is: cuFile hands on its caller's, or its own on this host.
///
/// # Safety
/// As [`Memory::new`].
unsafe fn of_gpu(at: *const c_char, len: usize) -> Answer<Option<Memory>> {
    let address = at.expose_provenance() as u64;
    if len == 0 || !weft_gpu::is_of_gpu(address)? {
        return Ok(None);
    }
    // SAFETY: that of the caller.
    Ok(Some(unsafe { Memory::new(address, len) }?))
}
