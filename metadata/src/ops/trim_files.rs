//! Deletes extents that files do not show any more, a bounded number at a time: a file with more
//! stays on the list, and the leader asks again.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, attempt};
use crate::schema;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::content;
use crate::tables::content::STEP;
use weft_proto::{InodeId, v1};

/// Most files that one entry looks at.
const MAX_FILES: usize = 4096;

impl Operation for v1::TrimFilesEntry {
    /// Those of the files that are on the list.
    type Plan = Vec<InodeId>;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let mut files = Vec::new();
        for &ino in self.inos.iter().take(MAX_FILES) {
            if state.get(&schema::trim(InodeId(ino)))?.is_some() {
                files.push(InodeId(ino));
            }
        }
        files.sort_unstable();
        files.dedup();
        Ok(files)
    }

    fn apply(&self, files: Vec<InodeId>, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let mut left = STEP;
        for ino in files {
            if left == 0 {
                break;
            }
            let trimmed = attempt(tx, |tx| {
                let file = tx.state().inode_that_exists(ino)?;
                Ok(content::trim(tx, file, left)?)
            });
            match trimmed {
                Ok(deleted) => left -= deleted,
                // A check finds it without the record, and others can be trimmed.
                Err(fault) => {
                    fault.refusal()?;
                    tx.delete(schema::trim(ino));
                }
            }
        }
        Ok(EMPTY)
    }
}
