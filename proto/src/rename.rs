//! The flags of a rename, which are those of Linux's `renameat2(2)`.

/// Not if the new name is taken.
pub const NOREPLACE: u32 = 1;
/// Each of two names leads to what the other led to.
pub const EXCHANGE: u32 = 2;
/// The old name leads to a whiteout, as layers of union filesystems have it.
pub const WHITEOUT: u32 = 4;
