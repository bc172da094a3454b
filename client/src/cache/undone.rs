//! What was done here and never came to be, or not by the group.

use super::leases::Leases;
use super::xattrs::Xattrs;
use v1::batch_op::{Step, step::Op as Do};
use weft_proto::{InodeId, v1};

impl Leases {
    /// What was made here is gone, and nobody has ever heard of it.
    pub fn never_was(&self, ino: InodeId) {
        let table = &mut *self.table.lock();
        table.mark(ino);
        table.xattr_steps.remove(&ino);
        table.drop_lease(ino);
    }

    /// A step that was taken here was not by the group: what it was about is not known any more.
    pub fn not_done(&self, step: &Step, concerns: &[InodeId]) {
        let table = &mut *self.table.lock();
        let names = match &step.op {
            Some(Do::Make(op)) => vec![(op.parent, &op.name)],
            Some(Do::Unlink(op)) => vec![(op.parent, &op.name)],
            Some(Do::RmDir(op)) => vec![(op.parent, &op.name)],
            Some(Do::Rename(op)) => vec![(op.parent, &op.name), (op.new_parent, &op.new_name)],
            Some(Do::SetXattr(v1::SetXattrOp { ino, .. }))
            | Some(Do::RemoveXattr(v1::RemoveXattrOp { ino, .. })) => {
                table.xattr_step_ended(InodeId(*ino));
                Vec::new()
            }
            Some(Do::SetAttr(_) | Do::Commit(_)) | None => Vec::new(),
        };
        for (dir, name) in names {
            table.forget_name(InodeId(dir), name);
            // It goes on by itself.
            drop(self.forget_above(InodeId(dir)));
        }
        for ino in concerns.iter().filter(|ino| ino.0 != 0) {
            table.mark(*ino);
            self.forget_attr_above(*ino);
            table.edit_xattrs(*ino, |known| *known = Xattrs::default());
            if let Some(held) = table.inodes.get_mut(ino) {
                (held.attr, held.content, held.listing) = (None, None, None);
            }
        }
        if let Some(Do::Make(op)) = &step.op
            && table.drop_lease(InodeId(op.ino)).is_some()
        {
            // Whatever the leader has entered.
            self.release_later(InodeId(op.ino), u64::MAX);
        }
    }
}
