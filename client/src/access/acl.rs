//! POSIX access control lists, as Linux evaluates them.
//!
//! A list comes in the form of the extended attribute `system.posix_acl_access`: a version, then
//! entries of 8 bytes, in order of their tags. The metadata group keeps it valid; one that does
//! not read allows nothing.

use super::bits::Access;
use super::credentials::Credentials;
use crate::types::Attr;
use weft_proto::{Error, ErrorKind, Result};

const VERSION: u32 = 2;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

struct AclEntry {
    tag: u16,
    permissions: Access,
    id: u32,
}

fn unreadable(attr: &Attr) -> Error {
    let what = format!("the access control list of inode {} makes no sense", attr.ino);
    Error::new(ErrorKind::Io, what)
}

/// The entries of a list; `None` if it is none.
fn entries(list: &[u8]) -> Option<impl Iterator<Item = AclEntry> + Clone> {
    let (version, entries) = list.split_first_chunk::<4>()?;
    let (entries, rest) = entries.as_chunks::<8>();
    let whole = rest.is_empty() && u32::from_le_bytes(*version) == VERSION;
    whole.then(|| {
        entries.iter().map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| AclEntry {
            tag: u16::from_le_bytes([t0, t1]),
            permissions: Access::from_bits(u16::from_le_bytes([p0, p1]).into()),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
        })
    })
}

/// Whether `list`, which the inode with `attr` has, allows what is wanted. The entry of a user
/// decides alone; of groups that the user is in, any one may allow it. Errors: `Io` if the list
/// does not read.
pub(super) fn allows(list: &[u8], attr: &Attr, who: &Credentials, want: Access) -> Result<bool> {
    let entries = entries(list).ok_or_else(|| unreadable(attr))?;
    let mask = entries.clone().find(|entry| entry.tag == MASK);
    let masked = mask.is_none_or(|mask| mask.permissions.contains(want));
    let mut is_in_one = false;
    for AclEntry { tag, permissions, id } in entries {
        let allowed = permissions.contains(want);
        match tag {
            OWNER if attr.uid == who.uid => return Ok(allowed),
            USER if id == who.uid => return Ok(allowed && masked),
            OWNING_GROUP | GROUP => {
                if who.is_in(if tag == GROUP { id } else { attr.gid }) {
                    if allowed {
                        return Ok(masked);
                    }
                    is_in_one = true;
                }
            }
            OTHERS => return Ok(allowed && !is_in_one),
            OWNER | USER | MASK => {}
            _ => break,
        }
    }
    Err(unreadable(attr))
}
