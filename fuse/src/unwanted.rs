//! What is done about a reply that the kernel does not hear of, since its caller was killed.

use crate::abi::{Header, Reply, opcode};
use crate::dcache::Dcache;
use std::sync::Arc;
use weft_client::{Filesystem, HandleId};
use weft_proto::InodeId;

/// What changes names in one directory, which the kernel follows when it is told that it succeeded.
const CHANGES: [u32; 7] = [
    opcode::SYMLINK,
    opcode::MKNOD,
    opcode::MKDIR,
    opcode::UNLINK,
    opcode::RMDIR,
    opcode::LINK,
    opcode::CREATE,
];

/// Closes what was opened, `closing` being shared until that is done, and takes back what the
/// kernel has cached of before.
pub fn undo(fs: &Filesystem, dcache: &Dcache, closing: &Arc<()>, header: &Header, reply: &Reply) {
    // Others may have looked since, before it took effect.
    match header.opcode {
        opcode::RENAME | opcode::RENAME2 => fs.forget_names(None),
        // The mode may be another with its list.
        opcode::SETXATTR | opcode::REMOVEXATTR => fs.forget_names(Some(InodeId(header.node))),
        changes if CHANGES.contains(&changes) => {
            fs.forget_names(Some(InodeId(header.node)));
        }
        _ => {}
    }
    // Afterwards: with the inode goes what is known of its name.
    if let Reply::Entry(entry) | Reply::Created(entry, _) = reply
        && dcache.forgotten(entry.attr.ino, 1)
    {
        fs.forgotten(InodeId(entry.attr.ino));
    }
    match reply {
        Reply::Open(open) | Reply::Created(_, open) => {
            let (fs, handle) = (fs.clone(), HandleId(open.fh));
            let closing = closing.clone();
            tokio::spawn(async move {
                let _until_closed = closing;
                // Nothing was written by it.
                let _ = fs.release(handle).await;
            });
        }
        // The kernel has kept its pages, or read them since: the change took effect only now.
        Reply::Written(_) => fs.forget_content(InodeId(header.node)),
        Reply::Attr(..) if header.opcode == opcode::SETATTR => {
            fs.forget_content(InodeId(header.node));
        }
        _ => {}
    }
}
