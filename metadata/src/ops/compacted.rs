//! Takes files off the list of those that may be worth being put together.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply};
use crate::schema;
use crate::store::{Read, StoreResult, Txn};
use weft_proto::{InodeId, v1};

/// Most files in one entry.
pub(crate) const MAX_FILES: usize = 1024;

impl Operation for v1::CompactedEntry {
    /// Those that are as they were when they were looked at, or are no more.
    type Plan = Vec<InodeId>;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let mut files = Vec::new();
        for file in self.files.iter().take(MAX_FILES) {
            let now = state.inode(InodeId(file.ino))?;
            if now.is_none_or(|inode| inode.attr.data_version == file.data_version) {
                files.push(InodeId(file.ino));
            }
        }
        Ok(files)
    }

    fn apply(&self, files: Vec<InodeId>, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        files.into_iter().for_each(|ino| tx.delete(schema::scattered(ino)));
        Ok(EMPTY)
    }
}
