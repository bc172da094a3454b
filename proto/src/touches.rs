//! What a change of the namespace touches: the same for the leader, which takes leases back before the
//! change, and for the client, which changes what it has cached after it.

use crate::InodeId;
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
}
