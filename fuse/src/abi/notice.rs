//! What is told to the kernel without a question.

use super::OUT_HEADER;
use super::bytes::Record;

/// The minor version that knows [`Notice::Expire`] for certain (Linux 6.6).
pub const EXPIRES: u32 = 39;

/// Something that the kernel has cached and must not use any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Attributes of `ino`; and, unless `offset` is negative, its content from there, `len` bytes
    /// or all if `len` is 0.
    Inode { ino: u64, offset: i64, len: i64 },
    /// A name, there or known not to be, and all that is cached below it.
    Entry { parent: u64, name: Vec<u8> },
    /// The time to live of a name is over: it is asked for at its next use. From minor version
    /// [`EXPIRES`] on; older kernels take it for [`Self::Entry`].
    Expire { parent: u64, name: Vec<u8> },
    /// A name that was removed with its inode `child`; programs that watch the directory are told.
    Delete { parent: u64, child: u64, name: Vec<u8> },
}

impl Notice {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Record::new();
        out.zeros(OUT_HEADER);
        let (code, name): (i32, &[u8]) = match self {
            Self::Inode { ino, offset, len } => {
                out.u64(*ino).u64(*offset as u64).u64(*len as u64);
                (2, &[])
            }
            Self::Entry { parent, name } => {
                out.u64(*parent).u32(name.len() as u32).u32(0);
                (3, name)
            }
            Self::Expire { parent, name } => {
                const EXPIRE_ONLY: u32 = 1 << 0;
                out.u64(*parent).u32(name.len() as u32).u32(EXPIRE_ONLY);
                (3, name)
            }
            Self::Delete { parent, child, name } => {
                out.u64(*parent).u64(*child).u32(name.len() as u32).u32(0);
                (6, name)
            }
        };
        let mut bytes = out.as_slice().to_vec();
        if code != 2 {
            bytes.extend_from_slice(name);
            bytes.push(0);
        }
        let mut header = Record::new();
        // Where a reply has its error, and no request is named.
        header.u32(bytes.len() as u32).u32(code as u32).u64(0);
        bytes[..OUT_HEADER].copy_from_slice(header.as_slice());
        bytes
    }
}
