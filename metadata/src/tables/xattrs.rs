//! What extended attributes take of an inode's limits.

use crate::schema::Inode;

/// Longest value of one attribute, in bytes.
pub(crate) const MAX_VALUE: usize = 64 << 10;
/// The list of their names, which is as long as Linux can answer (64 KiB) with those of two access
/// control lists.
pub(crate) const MAX_LIST: u64 = (64 << 10) - 64;

/// What attributes take of an inode's limits, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Room {
    pub total: u64,
    pub list: u64,
}

impl Room {
    /// Of one attribute.
    pub fn of(name: &[u8], value: &[u8]) -> Self {
        let name = name.len() as u64;
        Self { total: name + value.len() as u64, list: name + 1 }
    }

    /// Of all attributes of an inode, as it accounts for them.
    pub fn accounted(inode: &Inode) -> Self {
        Self { total: inode.xattr_bytes, list: inode.xattr_list }
    }

    pub fn account(self, inode: &mut Inode) {
        (inode.xattr_bytes, inode.xattr_list) = (self.total, self.list);
        inode.attr.no_xattrs = self.total == 0;
    }

    #[must_use]
    pub fn with(self, more: Self) -> Self {
        let total = self.total.saturating_add(more.total);
        Self { total, list: self.list.saturating_add(more.list) }
    }

    #[must_use]
    pub fn without(self, less: Self) -> Self {
        let total = self.total.saturating_sub(less.total);
        Self { total, list: self.list.saturating_sub(less.list) }
    }
}
