//! Which directory's quota counts what is done under a lease to write: grants say it, answers say
//! it anew, and changes of this mount move it.

use super::quotas::UNKNOWN;
use super::table::{Mode, Start, Table};
use bytes::Bytes;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, v1};

impl Table {
    /// Takes in what an answer says of inodes that it was about.
    pub(super) fn learn_zones(&mut self, start: Start, reply: &v1::MetaReply) {
        let zones = reply.quota.iter().flat_map(|news| &news.zones);
        for v1::quota_news::Zone { ino, quota } in zones.copied() {
            let ino = InodeId(ino);
            if self.holds_since(start, ino)
                && let Some(held) = self.inodes.get_mut(&ino)
                && held.mode == Mode::Write
            {
                held.quota = quota;
            }
            if self.holds_since(start, ino)
                && let Some(ranges) = self.ranges.get_mut(&ino)
            {
                ranges.quota = quota;
            }
        }
    }

    /// The same, and that a change of this mount may have others count what is done to its inodes.
    pub(super) fn changes_zones(&mut self, start: Start, op: &Op, reply: &v1::MetaReply) {
        self.learn_zones(start, reply);
        let known = |dir: u64, name: &Bytes| {
            self.inodes.get(&InodeId(dir))?.names.get(name).copied().flatten()
        };
        let (inos, quota) = match op {
            Op::Rename(op) => {
                let zone = |dir: u64| self.inodes.get(&InodeId(dir)).map(|held| held.quota);
                let quota = zone(op.new_parent).filter(|_| op.flags == 0);
                let moved = known(op.parent, &op.name).into_iter();
                let exchanged = known(op.new_parent, &op.new_name).into_iter();
                (moved.chain(exchanged).collect::<Vec<_>>(), quota.unwrap_or(UNKNOWN))
            }
            // The answer says what it is.
            Op::SetQuota(_) => (op.footprint().changes, UNKNOWN),
            _ => return,
        };
        for ino in inos {
            // A directory with a quota of its own keeps that.
            if let Some(held) = self.inodes.get_mut(&ino).filter(|held| held.quota != ino.0) {
                held.quota = quota;
            }
            if let Some(ranges) = self.ranges.get_mut(&ino) {
                ranges.quota = quota;
            }
        }
    }
}
