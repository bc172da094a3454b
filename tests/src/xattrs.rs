//! Extended attributes of files.

use crate::path;
use anyhow::Result;
use std::ffi::CString;
use std::path::Path;

/// The value of an extended attribute.
pub fn xattr(of: &Path, name: &str) -> Result<Vec<u8>> {
    let (file, attribute) = (CString::new(path(of))?, CString::new(name)?);
    let mut value = vec![0u8; 4096];
    // SAFETY: the names end with a zero byte and the length is that of the buffer.
    let len = unsafe {
        libc::getxattr(file.as_ptr(), attribute.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let len = usize::try_from(len).map_err(|_| std::io::Error::last_os_error())?;
    value.truncate(len);
    Ok(value)
}

/// Sets an extended attribute.
pub fn set_xattr(of: &Path, name: &str, value: &[u8]) -> Result<()> {
    let (file, attribute) = (CString::new(path(of))?, CString::new(name)?);
    let (bytes, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: the names end with a zero byte and the length is that of the value.
    let set = unsafe { libc::setxattr(file.as_ptr(), attribute.as_ptr(), bytes, len, 0) };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}
