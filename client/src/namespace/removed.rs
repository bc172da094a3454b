//! What was made here and removed, before the group has heard of it: what is left of it in the log
//! is the time of its directory, in the place of its removal.

use super::entries::{Entry, Of, Table, What, touch};
use v1::batch_op::step::Op as Do;
use weft_proto::{InodeId, v1};

impl Table {
    /// The entry by which something that was made here was removed, if it is of this session.
    pub(super) fn removal_of(&self, ino: InodeId) -> Option<u64> {
        self.made.get(&ino)?.entries.iter().rev().copied().find(|seq| {
            let entry = self.find(*seq).map(|found| &self.this[found].what);
            matches!(entry, Some(What::Step(step)) if step.ino == ino.0
                && matches!(step.op, Some(Do::Unlink(_) | Do::RmDir(_))))
        })
    }

    /// In the place of a removal comes the time that it left.
    pub(super) fn leave_time(&mut self, at: usize) {
        let Some(What::Step(step)) = self.this.get_mut(at).map(|entry| &mut entry.what) else {
            return;
        };
        if let Some(
            Do::Unlink(v1::UnlinkOp { parent, .. }) | Do::RmDir(v1::RmDirOp { parent, .. }),
        ) = &step.op
        {
            **step = touch(InodeId(*parent), step.at_ns);
        }
    }

    /// Of two times of one directory, one right behind the other, the later is enough, in the place
    /// and of the age of the earlier: that has waited for longer.
    pub(super) fn merge_touches(&mut self, mut seq: u64) {
        for _ in 0..2 {
            let Some(at) = self.find(seq) else { return };
            for first in [at.checked_sub(1), Some(at)].into_iter().flatten() {
                let [a, b] = [first, first + 1].map(|at| self.this.get(at).and_then(touched_by));
                if a.is_some()
                    && a == b
                    && let Some(later) = self.remove(Of::This, first + 1)
                {
                    self.this[first].what = later.what;
                    seq = self.this[first].seq;
                    break;
                }
            }
        }
    }
}

/// The directory whose times alone an entry changes, that is not under way.
fn touched_by(entry: &Entry) -> Option<(InodeId, weft_proto::SessionId)> {
    let What::Step(step) = &entry.what else { return None };
    let Some(Do::SetAttr(op)) = &step.op else { return None };
    let dir = InodeId(op.ino);
    let alone = !entry.sent && touch(dir, op.mtime_ns?).op == step.op;
    alone.then_some((dir, entry.session))
}
