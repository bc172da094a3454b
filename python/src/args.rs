//! Arguments and names: paths in, names out.

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use weft_client::OpenFlags;

/// The bytes of a path: of `str` (with surrogate escapes), `bytes` or `os.PathLike`.
pub fn path(path: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let bytes = if let Ok(text) = path.cast::<PyString>()
        && let Ok(text) = text.to_str()
    {
        Bytes::copy_from_slice(text.as_bytes())
    } else {
        let encoded = path.py().import("os")?.call_method1("fsencode", (path,))?;
        Bytes::copy_from_slice(encoded.cast::<PyBytes>()?.as_bytes())
    };
    match bytes.contains(&0) {
        true => Err(PyValueError::new_err("embedded null byte in a path")),
        false => Ok(bytes),
    }
}

/// A name as `str`; what is not UTF-8 has surrogate escapes.
pub fn name<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(name) {
        Ok(text) => Ok(PyString::new(py, text).into_any()),
        Err(_) => py.import("os")?.call_method1("fsdecode", (PyBytes::new(py, name),)),
    }
}

/// From the flags of `os.open`, and whether a file is made that is not there.
pub fn flags(bits: i32) -> (OpenFlags, bool) {
    (OpenFlags::from_bits(bits), bits & libc::O_CREAT != 0)
}
