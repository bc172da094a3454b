//! What is done at a path.

use crate::connect::weft_fs;
use crate::error::{Answer, Failure, call_unit, of_this_process};
use crate::pointers::{object, string};
use libc::{c_char, c_int};
use weft_client::blocking::User;

/// What a call does at a path; what fails is told with the path.
///
/// # Safety
/// See [`crate`].
pub unsafe fn at<T>(
    fs: *mut weft_fs,
    path: *const c_char,
    act: impl FnOnce(&User, &[u8]) -> Answer<T>,
) -> Answer<T> {
    // SAFETY: those of the caller.
    let (fs, path) = unsafe { (object(fs)?, string(path)?) };
    of_this_process(fs.user.connection())?;
    // Who disconnects frees `fs` when what waits for the cluster has ended, and this may not be
    // through then.
    let user = fs.user.clone();
    act(&user, path).map_err(|e| e.at(&named(path)))
}

/// [`at`], as a whole call that answers 0.
///
/// # Safety
/// See [`crate`].
pub unsafe fn call_at<T>(
    name: &str,
    fs: *mut weft_fs,
    path: *const c_char,
    act: impl FnOnce(&User, &[u8]) -> weft_proto::Result<T>,
) -> c_int {
    // SAFETY: those of the caller.
    call_unit(name, || unsafe {
        at(fs, path, |user, path| act(user, path).map(drop).map_err(Failure::from))
    })
}

/// A path in a sentence.
pub fn named(path: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(path))
}
