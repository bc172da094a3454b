//! The disks of metadata servers, as faults see them.

use std::io;
use std::path::Path;

/// How much is left of what was not synced, of each file and of the names in each folder, as this
/// number says; `None`: nothing.
pub type Left = Option<u64>;

/// The disks of metadata servers, a folder each, which lose what was not synced when the power is
/// cut: bytes of files, and names that were made, removed or changed in a folder.
pub trait Disks: Sync {
    /// From now on it is noted which names below a folder are durable.
    fn watch(&self, folder: &Path);

    /// The power of a disk goes before so many more syncs, which fail then, and so do all after it.
    fn cut_at(&self, folder: &Path, syncs: u64, left: Left);

    /// The power of a disk goes now, unless it has. Whoever uses it is to end.
    fn cut(&self, folder: &Path, left: Left) -> io::Result<()>;

    /// Whether it has gone.
    fn is_off(&self, folder: &Path) -> bool;

    /// The power is back, and in the folder lies what is left.
    fn turn_on(&self, folder: &Path) -> io::Result<()>;

    /// Another disk, with nothing on it, comes in the place of one that nobody uses.
    fn replace(&self, folder: &Path) -> io::Result<()>;
}
