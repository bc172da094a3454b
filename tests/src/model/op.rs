//! The operations.

use rand::{RngCore, SeedableRng, rngs::SmallRng};

/// Files that may be open on each mount.
pub const SLOTS: usize = 4;
/// Paths are relative to the folder of the test; the empty one is that folder.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    Open {
        slot: usize,
        path: String,
        how: How,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        off: u64,
        len: u64,
    },
    /// At the end of file if the slot was opened to append.
    Write {
        slot: usize,
        off: u64,
        data: Data,
    },
    SetLen {
        slot: usize,
        len: u64,
    },
    Allocate {
        slot: usize,
        what: Allocate,
        off: u64,
        len: u64,
    },
    Copy {
        from: usize,
        off: u64,
        to: usize,
        to_off: u64,
        len: u64,
    },
    Sync {
        slot: usize,
    },
    ListOpen {
        slot: usize,
    },
    Truncate {
        path: String,
        len: u64,
    },
    MkDir {
        path: String,
        mode: u32,
    },
    RmDir {
        path: String,
    },
    Unlink {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        how: Rename,
    },
    Link {
        from: String,
        to: String,
    },
    SymLink {
        target: String,
        path: String,
    },
    ReadLink {
        path: String,
    },
    MkFifo {
        path: String,
        mode: u32,
    },
    ChMod {
        path: String,
        mode: u32,
    },
    ChOwn {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    },
    SetTimes {
        path: String,
        atime: SetTime,
        mtime: SetTime,
        follow: bool,
    },
    Stat {
        path: String,
        follow: bool,
    },
    List {
        path: String,
    },
    SetXattr {
        path: String,
        name: &'static str,
        value: Data,
        how: SetXattr,
    },
    GetXattr {
        path: String,
        name: &'static str,
    },
    RemoveXattr {
        path: String,
        name: &'static str,
    },
    ListXattr {
        path: String,
    },
}

/// Bytes to write.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Data {
    pub seed: u64,
    pub len: u64,
}

impl Data {
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        SmallRng::seed_from_u64(self.seed).fill_bytes(&mut bytes);
        bytes
    }
}

#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct How {
    pub read: bool,
    pub write: bool,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    pub append: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Allocate {
    Room,
    RoomKeepingSize,
    Punch,
    Zero,
    ZeroKeepingSize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rename {
    Replace,
    NoReplace,
    Exchange,
}

/// Nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SetTime {
    Omit,
    Now,
    At(i64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SetXattr {
    Any,
    Create,
    Replace,
}

impl Op {
    /// What it names.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Self::Rename { from, to, .. } | Self::Link { from, to } => vec![from, to],
            Self::Open { path, .. }
            | Self::Truncate { path, .. }
            | Self::MkDir { path, .. }
            | Self::RmDir { path }
            | Self::Unlink { path }
            | Self::SymLink { path, .. }
            | Self::ReadLink { path }
            | Self::MkFifo { path, .. }
            | Self::ChMod { path, .. }
            | Self::ChOwn { path, .. }
            | Self::SetTimes { path, .. }
            | Self::Stat { path, .. }
            | Self::List { path }
            | Self::SetXattr { path, .. }
            | Self::GetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::ListXattr { path } => vec![path],
            Self::Close { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::SetLen { .. }
            | Self::Allocate { .. }
            | Self::Copy { .. }
            | Self::Sync { .. }
            | Self::ListOpen { .. } => vec![],
        }
    }
}
