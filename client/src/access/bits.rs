//! What somebody wants to do, as the bits of a mode say it.

use std::ops::BitOr;

/// What somebody wants to do with an inode; `|` joins.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Access(u32);

impl Access {
    /// Nothing, which everybody may.
    pub const NONE: Self = Self(0);
    /// Read content, or list a directory.
    pub const READ: Self = Self(4);
    /// Write content, or change what is in a directory, for which it has to be searched, too.
    pub const WRITE: Self = Self(2);
    /// Run a program.
    pub const EXECUTE: Self = Self(1);
    /// Look names up in a directory.
    pub const SEARCH: Self = Self(1);

    /// What the lowest three bits of a mode allow.
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits & 0o7)
    }

    /// Whether all that is `wanted` is in it.
    pub fn contains(self, wanted: Self) -> bool {
        wanted.0 & !self.0 == 0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
