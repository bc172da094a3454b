//! What a change of the namespace touches: the same for the leader, which takes leases back before the
//! change, and for the client, which changes what it has cached after it.

use crate::InodeId;
use crate::v1::Lock;
use crate::v1::make_files_op::File;
use crate::v1::meta_request::Op;
use bytes::Bytes;

impl Op {
    /// The names that a change makes, takes away or moves, each with its directory.
    pub fn names(&self) -> Vec<(InodeId, Bytes)> {
        let (dir, name) = match self {
            Self::Create(op) => (op.parent, &op.name),
            Self::MkNod(op) => (op.parent, &op.name),
            Self::MkDir(op) => (op.parent, &op.name),
            Self::SymLink(op) => (op.parent, &op.name),
            Self::Link(op) => (op.parent, &op.name),
            Self::Unlink(op) => (op.parent, &op.name),
            Self::RmDir(op) => (op.parent, &op.name),
            Self::Rename(op) => {
                let (old, new) = ((op.parent, &op.name), (op.new_parent, &op.new_name));
                return [old, new].map(|(dir, name)| (InodeId(dir), name.clone())).into();
            }
            Self::MakeFiles(op) => {
                let name = |file: &File| (InodeId(file.parent), file.name.clone());
                return op.files.iter().map(name).collect();
            }
            _ => return Vec::new(),
        };
        vec![(InodeId(dir), name.clone())]
    }

    /// The inode that a change names by its number.
    pub fn inode(&self) -> Option<InodeId> {
        let ino = match self {
            Self::Link(op) => op.ino,
            Self::SetAttr(op) => op.ino,
            Self::SetXattr(op) => op.ino,
            Self::RemoveXattr(op) => op.ino,
            Self::SetLayout(op) => op.ino,
            Self::CommitExtents(op) => op.ino,
            Self::Fallocate(op) => op.ino,
            // The source is only read, and the client has waited for those who write it: waiting for
            // them here, two copies between the same files could wait for each other.
            Self::CopyRange(op) => op.to,
            _ => return None,
        };
        Some(InodeId(ino))
    }

    /// The inodes that a request is about, the directories of its names among them.
    pub fn concerns(&self) -> Vec<InodeId> {
        let lock = |lock: &Option<Lock>| lock.map_or(0, |lock| lock.ino);
        let ino = match self {
            Self::Lookup(op) => op.parent,
            Self::TmpFile(op) => op.parent,
            Self::GetAttr(op) => op.ino,
            Self::ReadDir(op) => op.ino,
            Self::ReadLink(op) => op.ino,
            Self::GetXattr(op) => op.ino,
            Self::ListXattr(op) => op.ino,
            Self::GetExtents(op) => op.ino,
            Self::GetLayout(op) => op.ino,
            Self::Open(op) => op.ino,
            Self::Lease(op) => op.ino,
            Self::Map(op) => op.ino,
            Self::GetLock(op) => lock(&op.lock),
            Self::SetLock(op) => lock(&op.lock),
            Self::WaitLock(op) => lock(&op.lock),
            Self::CopyRange(op) => return vec![InodeId(op.from), InodeId(op.to)],
            Self::Accessed(op) => return op.accesses.iter().map(|a| InodeId(a.ino)).collect(),
            _ => {
                let dirs = self.names().into_iter().map(|(dir, _)| dir);
                return dirs.chain(self.inode()).collect();
            }
        };
        vec![InodeId(ino)]
    }
}
