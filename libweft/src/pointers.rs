//! What callers point to. A NULL is answered: `EINVAL` for an object, `EFAULT` for memory.

use crate::error::{Answer, Failure, failed};
use libc::c_char;
use std::ffi::CStr;

/// An object of this library. Errors: `EINVAL`.
///
/// # Safety
/// See [`crate`].
pub unsafe fn object<'a, T>(object: *const T) -> Answer<&'a T> {
    // SAFETY: that of the caller.
    unsafe { object.as_ref() }.ok_or_else(|| Failure::new(libc::EINVAL, "the object is NULL"))
}

/// Memory that the call fills. Errors: `EFAULT`.
///
/// # Safety
/// See [`crate`].
pub unsafe fn out<'a, T>(out: *mut T) -> Answer<&'a mut T> {
    // SAFETY: that of the caller.
    unsafe { out.as_mut() }
        .ok_or_else(|| Failure::new(libc::EFAULT, "there is nowhere to put the answer: NULL"))
}

/// A string. Errors: `EFAULT`.
///
/// # Safety
/// See [`crate`].
pub unsafe fn string<'a>(string: *const c_char) -> Answer<&'a [u8]> {
    if string.is_null() {
        return failed(libc::EFAULT, "a path or name is NULL");
    }
    // SAFETY: that of the caller.
    Ok(unsafe { CStr::from_ptr(string) }.to_bytes())
}

/// Bytes that the call reads. Errors: `EFAULT`.
///
/// # Safety
/// See [`crate`].
pub unsafe fn bytes<'a>(start: *const libc::c_void, len: usize) -> Answer<&'a [u8]> {
    match (len, start.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => failed(libc::EFAULT, "a buffer is NULL"),
        (_, false) if isize::try_from(len).is_err() => {
            failed(libc::EINVAL, format!("a buffer cannot have {len} bytes"))
        }
        // SAFETY: that of the caller.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) }),
    }
}

/// Copies an answer of variable length into the caller's memory, as `getxattr(2)` does: with a size
/// of 0 only its length is answered. Errors: `ERANGE` if it does not fit.
///
/// # Safety
/// See [`crate`].
pub unsafe fn fill(answer: &[u8], buf: *mut libc::c_void, size: usize) -> Answer<usize> {
    if size == 0 {
        return Ok(answer.len());
    }
    if answer.len() > size {
        let what = format!("it has {} bytes, and there is room for {size}", answer.len());
        return failed(libc::ERANGE, what);
    }
    if buf.is_null() {
        return failed(libc::EFAULT, "a buffer is NULL");
    }
    // SAFETY: there is room for it, as the caller says, in memory that is not ours.
    unsafe { std::ptr::copy_nonoverlapping(answer.as_ptr(), buf.cast(), answer.len()) };
    Ok(answer.len())
}

/// Entries of a call that reads many. Errors: `EFAULT`; `EINVAL` of more than it can answer for.
///
/// # Safety
/// See [`crate`].
pub unsafe fn list<'a, T>(entries: *mut T, n: usize) -> Answer<&'a mut [T]> {
    if n == 0 {
        return Ok(&mut []);
    }
    if entries.is_null() {
        return failed(libc::EFAULT, "the list of reads is NULL");
    }
    if libc::c_int::try_from(n).is_err() {
        return failed(libc::EINVAL, format!("{n} reads are too many for one call"));
    }
    // SAFETY: there are as many, as the caller says.
    Ok(unsafe { std::slice::from_raw_parts_mut(entries, n) })
}
