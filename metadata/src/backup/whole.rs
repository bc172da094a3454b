//! Whether a backup is whole: each file is as its manifest says, and all that is in them reads.

use super::{MANIFEST, Manifest};
use crate::snapshot;
use crate::state::StateMachine;
use crate::store::{self, Told};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::File;
use std::path::Path;
use weft_proto::{Error, ErrorKind, Result};

impl Manifest {
    /// Reads all of the backup in a folder, as it lies on the drive, and writes nothing. What was
    /// damaged before its checksums were taken is found, too. `told` hears now and then how many
    /// bytes more were read, and its error ends that. Errors: `Corrupt`; `Io` if it cannot be read;
    /// `NotSupported`: its files are whole, and a later version made what is in them.
    pub fn verify(&self, dir: &Path, told: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.verify_files(dir, told)?;
        let (kind, what) = match store::verify(dir, told).map_err(Error::from) {
            Ok(None) => return self.verify_whose(dir),
            Ok(Some(what)) => (ErrorKind::Corrupt, what),
            Err(error) => (error.kind, error.message),
        };
        let what = format!("what is in the backup in {} does not read: {what}", dir.display());
        Err(Error::new(kind, what))
    }

    /// Looks whether what is in a folder is what the manifest says that it is of.
    fn verify_whose(&self, dir: &Path) -> Result<()> {
        if StateMachine::look_at(dir)? == (self.index, self.cluster_id()?) {
            return Ok(());
        }
        let at = dir.display();
        let what = format!("what is in the backup in {at} is not what its {MANIFEST} says");
        Err(Error::new(ErrorKind::Corrupt, what))
    }

    /// Looks whether the files in a folder are those of the manifest. Error: `Corrupt` with the
    /// name of the first that is not.
    pub(crate) fn verify_files(&self, dir: &Path, told: &mut Told<'_>) -> Result<()> {
        for part in &self.files {
            let path = dir.join(&part.name);
            forget_cached(&path);
            if snapshot::measure(&path, told)? != (part.len, part.crc32) {
                let what = format!("{} of the backup in {} is damaged", part.name, dir.display());
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
        }
        Ok(())
    }
}

/// What was just written is read from the drive, and not from the memory of the kernel, which has
/// it still. Not every filesystem can: then it is read from there.
fn forget_cached(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}
