//! Errors as the kernel knows them.

/// An error of Linux; positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);
