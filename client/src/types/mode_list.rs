//! An access control list that says no more than a mode: setting it is setting that.

use weft_proto::mode::SETGID;

/// The attribute that holds the list which decides who may.
const ACCESS: &[u8] = b"system.posix_acl_access";
/// And the one that new inodes in a directory inherit.
const DEFAULT: &[u8] = b"system.posix_acl_default";
/// Version of the attribute's format; then eight bytes for each entry: tag, permissions, id.
const VERSION: [u8; 4] = 2u32.to_le_bytes();
/// Tags of the entries of owner, owning group and others, by how much a mode shifts each.
const CLASSES: [(u16, u32); 3] = [(0x01, 6), (0x04, 3), (0x20, 0)];
const BITS: u32 = 0o777;

/// Whether an extended attribute is an access control list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Permission bits, as a list of three entries sets them: `cp -a` and `rsync -A` do that to each
/// file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ModeList {
    bits: u32,
    clear_setgid: bool,
}

impl ModeList {
    /// What setting an extended attribute means, if it means no more than this. `clear_setgid` as
    /// in [`crate::Filesystem::set_xattr`].
    pub fn read(name: &[u8], value: &[u8], clear_setgid: bool) -> Option<Self> {
        let entries = value.strip_prefix(&VERSION).filter(|_| name == ACCESS)?;
        let (entries, rest) = entries.as_chunks::<8>();
        if entries.len() != CLASSES.len() || !rest.is_empty() {
            return None;
        }
        let mut bits = 0;
        for (&[t0, t1, p0, p1, ..], (tag, shift)) in entries.iter().zip(CLASSES) {
            let permissions = u16::from_le_bytes([p0, p1]);
            if u16::from_le_bytes([t0, t1]) != tag || permissions > 0o7 {
                return None;
            }
            bits |= u32::from(permissions) << shift;
        }
        Some(Self { bits, clear_setgid })
    }

    /// The mode after it was set.
    pub fn mode_after(self, mode: u32) -> u32 {
        let kept = if self.clear_setgid { !(BITS | SETGID) } else { !BITS };
        mode & kept | self.bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let entry = |&(tag, permissions): &(u16, u16)| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &[0xff; 4]].concat()
        };
        [VERSION.to_vec(), entries.iter().flat_map(entry).collect()].concat()
    }

    #[test]
    fn three_entries_are_a_mode() {
        let value = list(&[(1, 6), (4, 4), (0x20, 1)]);
        let read = |clear| ModeList::read(ACCESS, &value, clear).unwrap();
        assert_eq!(read(false).mode_after(0o6777), 0o6641);
        assert_eq!(read(true).mode_after(0o6777), 0o4641);
        assert_eq!(ModeList::read(DEFAULT, &value, false), None);
    }

    #[test]
    fn what_says_more_or_is_no_list_is_none() {
        let more = list(&[(1, 6), (2, 4), (4, 4), (0x10, 7), (0x20, 1)]);
        let masked = list(&[(1, 6), (4, 4), (0x10, 7), (0x20, 1)]);
        let disordered = list(&[(4, 6), (1, 4), (0x20, 1)]);
        let beyond = list(&[(1, 8), (4, 4), (0x20, 1)]);
        let whole = list(&[(1, 6), (4, 4), (0x20, 1)]);
        let longer = [&whole[..], b"\0"].concat();
        let mut newer = whole.clone();
        newer[0] = 3;
        for value in [more, masked, disordered, beyond, longer, newer, Vec::new()] {
            assert_eq!(ModeList::read(ACCESS, &value, false), None, "{value:?}");
        }
        (0..whole.len()).for_each(|len| {
            assert_eq!(ModeList::read(ACCESS, &whole[..len], false), None, "{len} bytes");
        });
    }
}
