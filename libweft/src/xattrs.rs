//! Extended attributes. Symbolic links are followed.

use crate::at::{at, call_at};
use crate::connect::weft_fs;
use crate::error::{call, call_unit};
use crate::pointers::{bytes, fill, string};
use libc::{c_char, c_int, c_void, ssize_t};

/// The value of an extended attribute. Answers its length, with a size of 0 without touching buf;
/// -ERANGE if it does not fit, -ENODATA if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_getxattr(
    fs: *mut weft_fs,
    path: *const c_char,
    name: *const c_char,
    buf: *mut c_void,
    size: usize,
) -> ssize_t {
    // SAFETY: the caller's pointers, see `crate`.
    call("weft_getxattr", || unsafe {
        let name = string(name)?;
        at(fs, path, |user, path| fill(&user.get_xattr(path, name)?, buf, size))
    })
}

/// Names of extended attributes, a NUL after each. Answers their length, as weft_getxattr does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_listxattr(
    fs: *mut weft_fs,
    path: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> ssize_t {
    // SAFETY: the caller's pointers, see `crate`.
    call("weft_listxattr", || unsafe {
        at(fs, path, |user, path| {
            let names = user.list_xattr(path)?;
            let list: Vec<u8> = names.iter().flat_map(|name| [&name[..], b"\0"].concat()).collect();
            fill(&list, buf.cast(), size)
        })
    })
}

/// Sets an extended attribute. flags are those of setxattr(2): 0, XATTR_CREATE or XATTR_REPLACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_setxattr(
    fs: *mut weft_fs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    call_unit("weft_setxattr", || unsafe {
        let (name, value) = (string(name)?, bytes(value, size)?);
        // A flag that is not known is refused by the servers, negative ones among them.
        at(fs, path, |user, path| Ok(user.set_xattr(path, name, value, flags as u32)?))
    })
}

/// Removes an extended attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_removexattr(
    fs: *mut weft_fs,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe {
        match string(name) {
            Ok(name) => {
                let remove =
                    |user: &weft_client::blocking::User, path: &[u8]| user.remove_xattr(path, name);
                call_at("weft_removexattr", fs, path, remove)
            }
            Err(failure) => call_unit("weft_removexattr", || Err(failure)),
        }
    }
}
