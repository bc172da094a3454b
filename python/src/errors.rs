//! Errors, as Python programs know them.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::ffi::CStr;
use weft_proto::Error;

/// Why a call ended without what it was to answer.
pub enum Failure {
    /// The filesystem says so.
    Weft(Error),
    /// A signal handler raised this.
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Weft(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl Failure {
    /// The exception: an `OSError` of the class that belongs to its errno, with the file's name.
    pub fn raise(self, path: Option<&Bound<'_, PyAny>>) -> PyErr {
        match self {
            Self::Weft(error) => os_error(&error, path),
            Self::Python(error) => error,
        }
    }
}

/// The `OSError` of an error; Python chooses the subclass by the errno.
pub fn os_error(error: &Error, path: Option<&Bound<'_, PyAny>>) -> PyErr {
    let errno = error.errno();
    let what = match error.message.as_str() {
        "" => name_of(errno),
        said => format!("{} ({said})", name_of(errno)),
    };
    match path {
        Some(path) => PyOSError::new_err((errno, what, path.clone().unbind())),
        None => PyOSError::new_err((errno, what)),
    }
}

/// What the C library says of an errno.
fn name_of(errno: i32) -> String {
    let mut text = [0; 128];
    // SAFETY: it writes no more than the length that it is told, with a NUL at the end.
    let code = unsafe { libc::strerror_r(errno, text.as_mut_ptr().cast(), text.len()) };
    match CStr::from_bytes_until_nul(&text) {
        Ok(text) if code == 0 => text.to_string_lossy().into_owned(),
        _ => format!("error {errno}"),
    }
}
