//! Where directories are, for people.

use super::StateMachine;
use crate::schema::{self, Dentry, HEAD, Tag};
use crate::store::StoreResult;
use bytes::Bytes;
use weft_proto::{InodeId, Result};

/// Names of one directory that are looked at to find that of another in it.
const LOOKED_AT: usize = 10_000;

impl StateMachine {
    /// The directory that a directory is in, and its name there: `guess`, if it has that still.
    /// `None`: it is the root, it has gone, or there are too many names to look at.
    pub fn name_of_directory(
        &self,
        dir: InodeId,
        guess: Option<&Bytes>,
    ) -> Result<Option<(InodeId, Bytes)>> {
        let found: StoreResult<_> = self.store.newest(|s| {
            let Some(inode) = s.inode(dir)?.filter(|inode| inode.is_dir()) else { return Ok(None) };
            let parent = InodeId(inode.parent);
            if parent == dir || inode.attr.nlink == 0 {
                return Ok(None);
            }
            if let Some(guess) = guess
                && s.dentry(parent, guess)?.is_some_and(|d| d.ino == dir.0)
            {
                return Ok(Some((parent, guess.clone())));
            }
            let (mut looked, mut name) = (0, None);
            s.records(schema::all_of(Tag::Dentry, parent), |key, dentry: Dentry| {
                looked += 1;
                if dentry.ino == dir.0 {
                    name = key.get(HEAD + 8..).map(Bytes::copy_from_slice);
                }
                Ok(name.is_none() && looked < LOOKED_AT)
            })?;
            Ok(name.map(|name| (parent, name)))
        });
        self.read_by(found)
    }
}
