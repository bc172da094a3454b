//! What is asked, and by whom.

use std::ffi::CStr;
use weft_client::Credentials;

/// Nothing, or an errno.
pub type Answer = Result<(), i32>;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Stat,
    Lstat,
    Access(i32),
    Open(i32),
    Create(i32, u32),
    /// Opened to write, one byte is written.
    Write,
    Mkdir(u32),
    Unlink,
    Rmdir,
    Rename(&'static str),
    Exchange(&'static str),
    Link(&'static str),
    /// To what it leads.
    Symlink(&'static str),
    Readlink,
    ReadDir,
    Chmod(u32),
    Chown(u32, u32),
    Truncate(u64),
    /// Both times now.
    Touch,
    /// Both times in the past.
    Age,
    GetXattr(&'static CStr),
    SetXattr(&'static CStr, &'static [u8]),
}

/// As a user or group: whoever it is.
pub const SAME: u32 = u32::MAX;

pub const ROOT: usize = 0;
/// 1000, of no other group.
pub const ANN: usize = 1;
/// 1001, of group 2000, too.
pub const BOB: usize = 2;

pub fn users() -> [Credentials; 3] {
    let bob = Credentials { groups: vec![2000], ..Credentials::new(1001, 1001) };
    [Credentials::new(0, 0), Credentials::new(1000, 1000), bob]
}
