//! What each metadata operation is, in one line: who carries it out, and what it touches. The same
//! for the leader, which takes leases back before a change, and for the client, which changes what
//! it has cached after it, and makes the group hear first of what it did on its own.
//!
//! An operation without its line here does not compile.

use crate::InodeId;
use crate::rename::WHITEOUT;
use crate::v1::batch_op::{Step, step::Op as Do};
use crate::v1::make_files_op::File;
use crate::v1::meta_request::Op;
use crate::v1::{Lock, QuotaKey, quota_key};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Who carries an operation out, and what is kept of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Looks at the replicated state.
    Read,
    /// Is about soft state of the leader, which goes with its term.
    Soft,
    /// Changes the replicated state once, however often it is sent (I4): carries a number of its
    /// session.
    Change,
    /// Begins or ends a session.
    Session,
}

/// What a change makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Makes {
    /// Nothing that its session is granted a lease on.
    #[default]
    Nothing,
    /// A file that is open then.
    File,
    /// A directory.
    Directory,
}

/// What an operation touches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Names that it makes, takes away or moves, each with its directory.
    pub names: Vec<(InodeId, Bytes)>,
    /// The inodes that it changes, named by their numbers.
    pub changes: Vec<InodeId>,
    /// Inodes that it looks at, named by their numbers, or changes only in what may be seen late.
    pub reads: Vec<InodeId>,
    /// What it makes.
    pub makes: Makes,
    /// It makes the namespace larger: refused while a metadata server has no room.
    pub grows: bool,
    /// A directory may go or move, which it names by its name: it is about all that is in there,
    /// too.
    pub below: bool,
}

impl Footprint {
    /// The inodes that it is about, the directories of its names among them.
    pub fn concerns(&self) -> impl Iterator<Item = InodeId> {
        let dirs = self.names.iter().map(|(dir, _)| *dir);
        dirs.chain(self.changes.iter().copied()).chain(self.reads.iter().copied())
    }

    /// The metadata shard that carries it out: that of the first inode that it is about, and that
    /// of the root for what is about none. What is about inodes of several shards is the caller's
    /// to divide.
    pub fn shard(&self) -> u16 {
        self.concerns().next().unwrap_or(InodeId::ROOT).shard()
    }
}

macro_rules! operations {
    ($($op:ident($o:pat) = $kind:ident { $($field:ident: $value:expr),* })*) => {
        impl Op {
            /// Who carries this out, and what is kept of it.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$op(_) => Kind::$kind,)*
                }
            }

            /// What it is called, for what is counted.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$op(_) => stringify!($op),)*
                }
            }

            /// What this touches.
            pub fn footprint(&self) -> Footprint {
                match self {
                    $(Self::$op($o) => {
                        #[allow(clippy::needless_update)]
                        Footprint { $($field: $value,)* ..Footprint::default() }
                    })*
                }
            }

            /// One of each, empty: for tests that must forget none.
            #[doc(hidden)]
            pub fn every() -> Vec<Self> {
                vec![$(Self::$op(Default::default())),*]
            }
        }
    };
}

operations! {
    Lookup(op) = Read { reads: one(op.parent) }
    GetAttr(op) = Read { reads: one(op.ino) }
    ReadDir(op) = Read { reads: one(op.ino) }
    ReadLink(op) = Read { reads: one(op.ino) }
    GetXattr(op) = Read { reads: one(op.ino) }
    ListXattr(op) = Read { reads: one(op.ino) }
    StatFs(_) = Read {}
    GetExtents(op) = Read { reads: one(op.ino) }
    GetLayout(op) = Read { reads: one(op.ino) }
    ListSegments(_) = Read {}
    Check(_) = Read {}
    GetUsage(op) = Read { reads: one(op.ino), below: true }
    GetQuota(op) = Read { reads: some(op.ino) }
    ListQuotas(_) = Read {}

    Open(op) = Soft { reads: one(op.ino) }
    Close(_) = Soft {}
    Renew(_) = Soft {}
    Lease(op) = Soft { reads: one(op.ino) }
    LeaseMany(op) = Soft { reads: op.inos.iter().copied().map(InodeId).collect() }
    LookupMany(op) = Soft { reads: op.items.iter().map(|item| InodeId(item.parent)).collect() }
    ReturnLeases(_) = Soft {}
    Recalls(_) = Soft {}
    Map(op) = Soft { reads: one(op.ino) }
    GetLock(op) = Soft { reads: locked(&op.lock) }
    WaitLock(op) = Soft { reads: locked(&op.lock) }
    CancelLock(_) = Soft {}
    Mend(_) = Soft {}
    EndSession(_) = Soft {}

    OpenSession(_) = Session {}
    CloseSession(_) = Session {}

    Create(op) = Change { names: name(op.parent, &op.name), makes: Makes::File, grows: true }
    TmpFile(op) = Change { reads: one(op.parent), makes: Makes::File, grows: true }
    MkNod(op) = Change { names: name(op.parent, &op.name), grows: true }
    MkDir(op) = Change { names: name(op.parent, &op.name), makes: Makes::Directory, grows: true }
    SymLink(op) = Change { names: name(op.parent, &op.name), grows: true }
    Link(op) = Change { names: name(op.parent, &op.name), changes: one(op.ino), grows: true }
    Unlink(op) = Change { names: name(op.parent, &op.name) }
    RmDir(op) = Change { names: name(op.parent, &op.name), below: true }
    Rename(op) = Change {
        names: [name(op.parent, &op.name), name(op.new_parent, &op.new_name)].concat(),
        below: true,
        grows: op.flags & WHITEOUT != 0
    }
    SetAttr(op) = Change { changes: one(op.ino) }
    SetXattr(op) = Change { changes: one(op.ino), grows: true }
    RemoveXattr(op) = Change { changes: one(op.ino) }
    SetLayout(op) = Change { changes: one(op.ino), grows: true }
    // Attributes alone, and a new end, take no room.
    CommitExtents(op) = Change { changes: one(op.ino), grows: !op.extents.is_empty() }
    Fallocate(op) = Change { changes: one(op.ino), grows: !op.hole }
    // The source is only read, and the client has waited for those who write it: if it were waited
    // for here, two copies between the same files could wait for each other.
    CopyRange(op) = Change { reads: one(op.from), changes: one(op.to), grows: true }
    Accessed(op) = Change { reads: op.accesses.iter().map(|a| InodeId(a.ino)).collect() }
    // A session without numbers makes nothing on its own; what it made before is told, room or not.
    ReserveInodes(_) = Change { grows: true }
    MakeFiles(op) = Change { names: op.files.iter().map(made).collect(), grows: true }
    Batch(op) = Change {
        names: op.steps.iter().flat_map(step_names).collect(),
        changes: step_changes(&op.steps)
    }
    SetLock(op) = Change { reads: locked(&op.lock) }
    SetQuota(op) = Change { changes: tree(&op.key) }
}

fn one(ino: u64) -> Vec<InodeId> {
    vec![InodeId(ino)]
}

fn some(ino: u64) -> Vec<InodeId> {
    Some(InodeId(ino)).filter(|ino| ino.0 != 0).into_iter().collect()
}

fn tree(key: &Option<QuotaKey>) -> Vec<InodeId> {
    let tree = key.filter(|key| key.kind() == quota_key::Kind::Tree);
    tree.into_iter().map(|key| InodeId(key.id)).collect()
}

fn name(dir: u64, name: &Bytes) -> Vec<(InodeId, Bytes)> {
    vec![(InodeId(dir), name.clone())]
}

fn made(file: &File) -> (InodeId, Bytes) {
    (InodeId(file.parent), file.name.clone())
}

fn step_names(step: &Step) -> Vec<(InodeId, Bytes)> {
    match &step.op {
        Some(Do::Make(op)) => name(op.parent, &op.name),
        Some(Do::Unlink(op)) => name(op.parent, &op.name),
        Some(Do::RmDir(op)) => name(op.parent, &op.name),
        Some(Do::Rename(op)) => {
            [name(op.parent, &op.name), name(op.new_parent, &op.new_name)].concat()
        }
        Some(Do::Commit(_) | Do::SetAttr(_) | Do::SetXattr(_) | Do::RemoveXattr(_)) | None => {
            Vec::new()
        }
    }
}

/// What steps change, but for what they make.
fn step_changes(steps: &[Step]) -> Vec<InodeId> {
    let made = |step: &Step| match &step.op {
        Some(Do::Make(op)) => Some(op.ino),
        _ => None,
    };
    let made: BTreeSet<_> = steps.iter().filter_map(made).collect();
    let changes = |step: &Step| match &step.op {
        Some(Do::Commit(op)) => [op.ino, 0],
        Some(Do::SetAttr(op)) => [op.ino, 0],
        Some(Do::SetXattr(op)) => [op.ino, 0],
        Some(Do::RemoveXattr(op)) => [op.ino, 0],
        _ => [step.ino, step.replaced],
    };
    let changed: BTreeSet<_> = steps.iter().flat_map(changes).filter(|ino| *ino != 0).collect();
    changed.difference(&made).map(|ino| InodeId(*ino)).collect()
}

fn locked(lock: &Option<Lock>) -> Vec<InodeId> {
    lock.iter().map(|lock| InodeId(lock.ino)).collect()
}

#[cfg(test)]
mod tests;
