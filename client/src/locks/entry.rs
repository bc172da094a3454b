//! What owners of locks have to do with an inode.

use super::wire::to_wire;
use crate::meta::{Session, Sessions};
use crate::types::{HandleId, Lock, LockKind};
use std::sync::Arc;
use tokio::sync::RwLock;
use weft_proto::InodeId;
use weft_proto::locks::{Range, Ranges};

/// Whose locks: of flock(2) or not, and the kernel's name for the owner.
pub(super) type Owner = (bool, u64);

/// Requests of an owner hold it shared, and the release of all alone.
pub(super) type Gate = Arc<RwLock<()>>;

/// What one owner has to do with one inode.
pub(super) struct Holder {
    pub(super) owner: Owner,
    /// Its locks were taken in this one.
    pub(super) session: Arc<Session>,
    /// It may hold something.
    pub(super) held: bool,
    /// What the leader does not know of that.
    pub(super) here: Ranges,
    /// The leader may know some of it.
    pub(super) told: bool,
    /// It is not known what it holds.
    pub(super) doubtful: bool,
    /// Handles through which it asked: a caller that was killed may be gone before its answer
    /// comes.
    pub(super) handles: Vec<HandleId>,
    /// Requests under way.
    pub(super) asking: usize,
    pub(super) gate: Gate,
}

impl Holder {
    pub fn is(&self, gate: &Gate) -> bool {
        Arc::ptr_eq(&self.gate, gate)
    }

    pub fn is_lost(&self, sessions: &Sessions) -> bool {
        self.doubtful || self.held && sessions.is_over(self.session.id)
    }
}

/// All owners of an inode.
#[derive(Default)]
pub(super) struct OfInode {
    pub(super) entries: Vec<Holder>,
    /// The leader is asked for every lock, and knows those that are held, or is being told.
    pub(super) told: bool,
    /// Held by who tells it.
    pub(super) telling: Arc<tokio::sync::Mutex<()>>,
}

impl OfInode {
    /// Ranges that the leader does not know.
    pub fn untold(&self) -> usize {
        self.entries.iter().map(|e| e.here.ranges.len()).sum()
    }

    /// What another owner holds that stands against `lock`.
    pub fn against(&self, sessions: &Sessions, lock: &Lock) -> Option<Lock> {
        let wanted = to_wire(InodeId(0), lock);
        self.entries.iter().find_map(|e| {
            let other = e.owner.0 == lock.flock && e.owner.1 != lock.owner && !e.is_lost(sessions);
            let range = e.here.against(&wanted).filter(|_| other && lock.kind != LockKind::None)?;
            let kind = if range.write { LockKind::Write } else { LockKind::Read };
            let Range { start, end, .. } = range;
            Some(Lock { flock: lock.flock, owner: e.owner.1, kind, start, end, pid: e.here.pid })
        })
    }
}
