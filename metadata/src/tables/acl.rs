//! POSIX access control lists, as acl(5) and IEEE 1003.1e draft 17 say.
//!
//! An inode keeps them in the form of Linux's extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default`. The client's kernel asks for them and decides; what has to change
//! with an inode changes here: the mode with the list, the list with the mode, and what a new inode
//! inherits.
//!
//! Invariants: a stored list is valid, and says more than the permission bits do; the bits of its
//! owner, group class (the mask) and others are those of the mode.

use crate::operation::{Fault, refuse};
use crate::schema::Inode;
use crate::store::{StoreError, StoreResult};
use bytes::{BufMut, Bytes};
use v1::FileKind;
use weft_proto::mode::{SETGID, mode_of_new};
use weft_proto::{Error, ErrorKind, v1};

/// Version of the attribute's format, and the lengths of its head and of an entry.
const VERSION: u32 = 2;
const HEAD: usize = 4;
const ENTRY: usize = 8;
/// Most entries of a list: as many as fit in 4 KiB, as on ext4.
const MAX_ENTRIES: usize = (4096 - HEAD) / ENTRY;
/// The id of an entry that names nobody.
const NOBODY: u32 = u32::MAX;
const RWX: u32 = 0o7;

/// The list that decides, or the one that new children of a directory inherit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    Access,
    Default,
}

impl Which {
    pub const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// The name of its attribute.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// The list that an attribute's name means, if it means one.
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|which| which.name() == name)
    }

    /// As it is stored; empty if there is none.
    pub fn of(self, inode: &Inode) -> &Bytes {
        match self {
            Self::Access => &inode.access_acl,
            Self::Default => &inode.default_acl,
        }
    }

    fn store(self, inode: &mut Inode, value: Bytes) {
        match self {
            Self::Access => inode.access_acl = value,
            Self::Default => inode.default_acl = value,
        }
        inode.attr.acls = Self::ALL.iter().any(|which| !which.of(inode).is_empty());
    }
}

/// In the order that a list has them in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u16)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Others = 0x20,
}

impl Tag {
    const ALL: [Self; 6] =
        [Self::Owner, Self::User, Self::OwningGroup, Self::Group, Self::Mask, Self::Others];

    fn names_someone(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AclEntry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A valid list: owner, owning group and others once each, a mask at most once and certainly if
/// users or groups are named.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Acl(Vec<AclEntry>);

impl Acl {
    /// Errors: `Invalid`, `NotSupported` for another version of the format, `NoSpace` for a list
    /// that is too long. A list without any entry is none.
    fn parse(value: &[u8]) -> Result<Option<Self>, Error> {
        let invalid = |what: &str| Error::new(ErrorKind::Invalid, format!("ACL: {what}"));
        let (head, entries) =
            value.split_first_chunk::<HEAD>().ok_or_else(|| invalid("ends too early"))?;
        let version = u32::from_le_bytes(*head);
        if version != VERSION {
            let what = format!("ACL of version {version}, not {VERSION}");
            return Err(Error::new(ErrorKind::NotSupported, what));
        }
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if !rest.is_empty() {
            return Err(invalid("ends within an entry"));
        }
        if entries.len() > MAX_ENTRIES {
            let what = format!("ACL of {} entries, over {MAX_ENTRIES}", entries.len());
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entries = entries.iter().map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| {
            let tag = u16::from_le_bytes([t0, t1]);
            let tag = Tag::ALL.into_iter().find(|known| *known as u16 == tag);
            let tag = tag.ok_or_else(|| invalid("an entry of an unknown kind"))?;
            let permissions = u16::from_le_bytes([p0, p1]);
            if u32::from(permissions) & !RWX != 0 {
                return Err(invalid("permissions that there are not"));
            }
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            if tag.names_someone() && id == NOBODY {
                return Err(invalid("an entry that names nobody"));
            }
            Ok(AclEntry { tag, permissions, id: if tag.names_someone() { id } else { NOBODY } })
        });
        let acl = Self(entries.collect::<Result<_, _>>()?);
        if !acl.0.is_sorted_by_key(|entry| entry.tag) {
            return Err(invalid("entries out of order"));
        }
        let count = |tag| acl.0.iter().filter(|entry| entry.tag == tag).count();
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Others].into_iter().all(|t| count(t) == 1);
        let named = acl.0.iter().any(|entry| entry.tag.names_someone());
        if !once || count(Tag::Mask) > 1 || named && count(Tag::Mask) == 0 {
            return Err(invalid("owner, owning group, others or mask missing, or there twice"));
        }
        Ok(Some(acl))
    }

    /// One that an inode has.
    fn stored(value: &[u8]) -> StoreResult<Option<Self>> {
        if value.is_empty() {
            return Ok(None);
        }
        Self::parse(value).map_err(|e| StoreError::corrupt(format!("stored {e}")))
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEAD + self.0.len() * ENTRY);
        out.put_u32_le(VERSION);
        for entry in &self.0 {
            out.put_u16_le(entry.tag as u16);
            out.put_u16_le(entry.permissions);
            out.put_u32_le(entry.id);
        }
        out.into()
    }

    /// As it is to be stored beside a mode with its bits: not at all if it says no more than they
    /// do.
    fn encode_if_it_says_more(&self) -> Bytes {
        let more = |tag: Tag| tag.names_someone() || tag == Tag::Mask;
        if self.0.iter().any(|entry| more(entry.tag)) { self.encode() } else { Bytes::new() }
    }

    /// The entries that the mode repeats, and by how much it shifts each.
    fn classes(&mut self) -> impl Iterator<Item = (&mut AclEntry, u32)> {
        let masked = self.0.iter().any(|entry| entry.tag == Tag::Mask);
        let group = if masked { Tag::Mask } else { Tag::OwningGroup };
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            Tag::Owner => Some((entry, 6)),
            tag if tag == group => Some((entry, 3)),
            Tag::Others => Some((entry, 0)),
            _ => None,
        })
    }

    /// The permission bits that it stands for.
    fn mode(&mut self) -> u32 {
        self.classes().fold(0, |mode, (entry, shift)| mode | u32::from(entry.permissions) << shift)
    }

    /// What chmod(2) does.
    fn set_mode(&mut self, mode: u32) {
        for (entry, shift) in self.classes() {
            entry.permissions = (mode >> shift & RWX) as u16;
        }
    }

    /// Allows no more than `mode` does, which takes the umask's place.
    fn restrict(&mut self, mode: u32) {
        for (entry, shift) in self.classes() {
            entry.permissions &= (mode >> shift & RWX) as u16;
        }
    }
}

const BITS: u32 = 0o777;

/// Sets a list. An access list sets the mode, and takes the set-group-id bit if `clear_setgid`.
/// Changes nothing if it refuses: `Invalid`, `NoSpace`, `NotSupported`, and `AccessDenied` for a
/// default list of what is no directory.
pub(crate) fn set(
    inode: &mut Inode,
    which: Which,
    value: &[u8],
    clear_setgid: bool,
) -> Result<(), Fault> {
    let ino = inode.ino();
    if inode.kind() == FileKind::Symlink {
        return refuse(ErrorKind::NotSupported, format!("symbolic link {ino} can have no ACL"));
    }
    if which == Which::Default && !inode.is_dir() {
        return refuse(
            ErrorKind::AccessDenied,
            format!("{ino} is no directory and has nothing to inherit from it"),
        );
    }
    let Some(mut acl) = Acl::parse(value)? else {
        remove(inode, which);
        return Ok(());
    };
    match which {
        Which::Access => {
            let kept = if clear_setgid { !(BITS | SETGID) } else { !BITS };
            inode.attr.mode = inode.attr.mode & kept | acl.mode();
            which.store(inode, acl.encode_if_it_says_more());
        }
        Which::Default => which.store(inode, acl.encode()),
    }
    Ok(())
}

/// Removes a list, if there is one. The mode stays.
pub(crate) fn remove(inode: &mut Inode, which: Which) {
    which.store(inode, Bytes::new());
}

/// To be called when the mode was changed: the access list follows.
pub(crate) fn follow_mode(inode: &mut Inode) -> StoreResult<()> {
    if let Some(mut acl) = Acl::stored(&inode.access_acl)? {
        acl.set_mode(inode.attr.mode);
        Which::Access.store(inode, acl.encode());
    }
    Ok(())
}

/// What a new inode has from its directory: its lists and with them its mode, or, where there is
/// nothing to inherit, the mode that was asked for less the umask.
pub(crate) fn inherit(dir: &Inode, child: &mut Inode, umask: u32) -> StoreResult<()> {
    if child.kind() == FileKind::Symlink {
        return Ok(());
    }
    let Some(mut acl) = Acl::stored(&dir.default_acl)? else {
        child.attr.mode = mode_of_new(child.attr.mode, umask);
        return Ok(());
    };
    acl.restrict(child.attr.mode);
    child.attr.mode = child.attr.mode & !BITS | acl.mode();
    Which::Access.store(child, acl.encode_if_it_says_more());
    if child.is_dir() {
        Which::Default.store(child, dir.default_acl.clone());
    }
    Ok(())
}

/// Whether this is a list, which is then written as it was read.
#[cfg(feature = "fuzz")]
pub(crate) fn is_read(value: &[u8]) -> bool {
    let Ok(Some(read)) = Acl::parse(value) else { return false };
    assert_eq!(Acl::parse(&read.encode()), Ok(Some(read)));
    true
}

#[cfg(test)]
mod tests;
