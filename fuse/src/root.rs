//! Numbers of inodes as the kernel has them: its root is always number 1, and ours may be any
//! directory.

use weft_proto::InodeId;

/// The kernel's number of the root.
const KERNELS: u64 = InodeId::ROOT.0;

/// Which inode is the root of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root(u64);

impl Default for Root {
    fn default() -> Self {
        Self(KERNELS)
    }
}

impl Root {
    pub fn new(ino: InodeId) -> Self {
        Self(ino.0)
    }

    /// Our number of what the kernel has by a number, and the other way round. Only the root's two
    /// numbers change places, so that different inodes have different ones.
    pub fn swap(self, number: u64) -> u64 {
        match number {
            KERNELS => self.0,
            number if number == self.0 => KERNELS,
            number => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_change_places_and_back() {
        let root = Root::new(InodeId(77));
        assert_eq!((root.swap(1), root.swap(77), root.swap(5)), (77, 1, 5));
        for number in [0, 1, 2, 77, u64::MAX] {
            assert_eq!(root.swap(root.swap(number)), number);
            assert_eq!(Root::default().swap(number), number);
        }
    }
}
