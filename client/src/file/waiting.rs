//! Attributes of a file that wait for a commit.

use crate::types::Attr;
use tokio::time::Instant;
use weft_proto::mode::mode_after;
use weft_proto::{InodeId, v1};

/// Attributes that go with the next commit: those that writes change, and others that were changed
/// while written data waited.
#[derive(Clone, Copy, Default)]
pub(super) struct Waiting {
    /// Of the newest write, unless it was set after.
    pub mtime_ns: Option<i64>,
    /// When the newest change was made.
    pub changed_ns: Option<i64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime_ns: Option<i64>,
    /// The time of the newest write was set, and not by a write.
    pub timed: bool,
    /// When the first of what writes do not change was, and what was set before.
    pub since: Option<Instant>,
    pub was: Option<Was>,
}

/// What the group had of owner and mode.
#[derive(Clone, Copy)]
pub(super) struct Was {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl From<&Attr> for Was {
    fn from(attr: &Attr) -> Self {
        let Attr { mode, uid, gid, .. } = *attr;
        Self { mode, uid, gid }
    }
}

impl Was {
    pub fn op(self, ino: InodeId) -> v1::SetAttrOp {
        let (mode, uid, gid) = (Some(self.mode), Some(self.uid), Some(self.gid));
        v1::SetAttrOp { ino: ino.0, mode, uid, gid, ..Default::default() }
    }
}

impl Waiting {
    pub fn written(&mut self, now: i64) {
        self.mtime_ns = Some(now);
        self.changed_ns = Some(now);
    }

    /// Whether there is more than what writes change.
    pub fn is_more(&self) -> bool {
        let owned = [self.mode, self.uid, self.gid].iter().any(Option::is_some);
        owned || self.atime_ns.is_some() || self.timed
    }

    /// `attr` as the commit will make it.
    pub fn view(&self, attr: &mut Attr) {
        let chowned = self.uid.is_some() || self.gid.is_some();
        attr.mode = mode_after(attr.mode, false, self.mode, chowned);
        attr.uid = self.uid.unwrap_or(attr.uid);
        attr.gid = self.gid.unwrap_or(attr.gid);
        attr.atime_ns = self.atime_ns.unwrap_or(attr.atime_ns);
        attr.mtime_ns = self.mtime_ns.unwrap_or(attr.mtime_ns);
        attr.ctime_ns = attr.ctime_ns.max(self.changed_ns.unwrap_or(0));
    }

    pub fn op(&self, ino: InodeId) -> Option<v1::SetAttrOp> {
        let Self { mode, uid, gid, atime_ns, .. } = *self;
        let op = v1::SetAttrOp { ino: ino.0, mode, uid, gid, atime_ns, ..Default::default() };
        self.is_more().then_some(op)
    }
}
