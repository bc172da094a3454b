//! Removes all below a folder, a turn at a time: nobody who makes names there as fast as they are
//! removed keeps others from their turn.

use futures_util::{StreamExt, stream};
use weft_client::{DirEntry, FileKind, Filesystem};
use weft_proto::{Error, ErrorKind, InodeId, Result};

/// Names that are read, and removed, at once.
const PAGE: u32 = 256;
const PARALLEL: usize = 32;
/// Folders of one folder that wait for their turn at most: what is remembered grows with the
/// depth, and not with the number of names.
const FOLDERS: usize = 8;
/// Pages of names that are read in a turn.
const VISITS: usize = 512;
/// So often a turn finds a folder filled again that was empty. Then it is left for later.
const MAX_FILLED: usize = 64;

/// How a turn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// All is gone.
    Done,
    /// There is more.
    Over,
}

/// A folder that is being emptied.
struct Level {
    parent: InodeId,
    name: Vec<u8>,
    folder: InodeId,
}

/// How far it is, from the topmost folder down.
pub struct Below(Vec<Level>);

impl Below {
    /// The folder that goes, with all below it.
    pub fn new(parent: InodeId, name: &[u8], folder: InodeId) -> Self {
        Self(vec![Level { parent, name: name.to_vec(), folder }])
    }

    /// One turn. Errors: also `NotEmpty`, of a folder in which somebody makes more and more.
    pub async fn go_on(&mut self, fs: &Filesystem) -> Result<Turn> {
        let mut filled = 0;
        for _ in 0..VISITS {
            let Some(level) = self.0.last() else { return Ok(Turn::Done) };
            let folder = level.folder;
            let page = match fs.read_dir(folder, 0, PAGE, false).await {
                Err(e) if matches!(e.kind, ErrorKind::Stale | ErrorKind::NotFound) => {
                    self.0.pop();
                    continue;
                }
                page => page?,
            };
            if page.entries.is_empty() {
                match fs.rm_dir(level.parent, &level.name).await {
                    Err(e) if e.kind == ErrorKind::NotFound => {}
                    // Somebody who has it mounted still makes something there.
                    Err(e) if e.kind == ErrorKind::NotEmpty && filled < MAX_FILLED => {
                        filled += 1;
                        continue;
                    }
                    removed => removed?,
                }
                self.0.pop();
                continue;
            }
            let (folders, others): (Vec<_>, Vec<_>) =
                page.entries.into_iter().partition(|entry| entry.kind == FileKind::Directory);
            unlink_all(fs, folder, others).await?;
            self.0.extend(folders.into_iter().take(FOLDERS).map(|entry| Level {
                parent: folder,
                name: entry.name.to_vec(),
                folder: entry.ino,
            }));
        }
        Ok(Turn::Over)
    }
}

/// Takes names away, many at once.
async fn unlink_all(fs: &Filesystem, folder: InodeId, entries: Vec<DirEntry>) -> Result<()> {
    let removals = entries.into_iter().map(|entry| {
        let fs = fs.clone();
        async move { fs.unlink(folder, &entry.name).await }
    });
    let mut removals = stream::iter(removals).buffer_unordered(PARALLEL);
    while let Some(removed) = removals.next().await {
        match removed {
            Err(Error { kind: ErrorKind::NotFound, .. }) => {}
            removed => removed?,
        }
    }
    Ok(())
}
