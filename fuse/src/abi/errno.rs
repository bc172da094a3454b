//! Errors as the kernel knows them.

use weft_client::trace::Failure;

/// An error of Linux; positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Failure for Errno {
    fn name(&self) -> Option<String> {
        let is_answer = matches!(self.0, libc::ENOENT | libc::EEXIST | libc::ENODATA);
        (!is_answer).then(|| nix::errno::Errno::from_raw(self.0).to_string())
    }
}
