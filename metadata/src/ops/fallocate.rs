//! Makes room or a hole in a file.
//!
//! Room is not set aside: a write goes to a new segment wherever there is space, so there is
//! nothing to keep for it. What remains of an allocation is the size, and the times, which every
//! call changes as it does on a local filesystem.

use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::schema::Inode;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::content::STEP;
use crate::tables::content::{Edit, MAX_FILE};
use crate::tables::inodes;
use weft_proto::{ErrorKind, v1};

pub(crate) struct Plan {
    file: Inode,
    /// End of the range.
    end: u64,
}

impl Operation for v1::FallocateOp {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
        let (file, _) = inodes::file(state, self.ino)?;
        if self.len == 0 {
            return refuse(ErrorKind::Invalid, "nothing is to be allocated");
        }
        match self.off.checked_add(self.len).filter(|end| *end <= MAX_FILE) {
            Some(end) => Ok(Plan { file, end }),
            None => refuse(
                ErrorKind::TooLarge,
                format!(
                    "{} bytes at {} end beyond the longest file, {MAX_FILE}",
                    self.len, self.off
                ),
            ),
        }
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let Plan { file, end } = plan;
        let size = file.attr.size;
        let mut edit = Edit::new(file);
        if self.hole && self.off < size {
            edit.clear(tx, self.off, end.min(size), STEP)?;
        }
        let file = &mut edit.file;
        if !self.keep_size {
            file.attr.size = size.max(end);
        }
        // Also if nothing changed: whoever finds the version one higher takes that for its own
        // doing.
        file.attr.data_version += 1;
        file.attr.mtime_ns = cx.now;
        file.attr.ctime_ns = cx.now;
        Ok(Reply::Attr(edit.finish(tx, &[])?.attr))
    }
}
