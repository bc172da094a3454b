//! The rules against a plain model, and against what the kernel answers on a local filesystem.

mod kernel;

use super::*;
use crate::types::{Attr, FileKind};
use proptest::prelude::*;
use weft_proto::{ErrorKind, InodeId};

fn attr(kind: FileKind, mode: u32, uid: u32, gid: u32, acls: bool) -> Attr {
    Attr {
        ino: InodeId(7),
        kind,
        mode,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        btime_ns: 0,
        data_version: 0,
        inline_bytes: 0,
        acls,
        xattrs: false,
    }
}

/// A list as it is stored, of tags, permissions and ids.
fn list(entries: &[(u16, u32, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend((*permissions as u16).to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// Users, groups, mask and others, beside the mode that says the rest.
#[derive(Clone, Debug)]
struct Lists {
    mode: u32,
    owning_group: u32,
    users: Vec<(u32, u32)>,
    groups: Vec<(u32, u32)>,
}

impl Lists {
    fn encode(&self) -> Vec<u8> {
        let mut all = vec![(1, self.mode >> 6 & 7, u32::MAX)];
        all.extend(self.users.iter().map(|(id, p)| (2, *p, *id)));
        all.push((4, self.owning_group, u32::MAX));
        all.extend(self.groups.iter().map(|(id, p)| (8, *p, *id)));
        all.push((16, self.mode >> 3 & 7, u32::MAX));
        all.push((32, self.mode & 7, u32::MAX));
        list(&all)
    }

    /// As acl(5) says it, in terms of sets of permissions, one after the other.
    fn model(&self, who: &Credentials, attr: &Attr, want: u32) -> bool {
        let (mask, allows) = (self.mode >> 3 & 7, |p: u32| p & want == want);
        if who.uid == attr.uid {
            return allows(self.mode >> 6 & 7);
        }
        let in_group = |g: u32| who.gid == g || who.groups.contains(&g);
        if mask == 0 {
            // Linux does not look at such a list.
            return allows(if in_group(attr.gid) { 0 } else { self.mode & 7 });
        }
        if let Some((_, p)) = self.users.iter().find(|(id, _)| *id == who.uid) {
            return allows(p & mask);
        }
        let own = in_group(attr.gid).then_some(self.owning_group);
        let others = self.groups.iter().filter(|(id, _)| in_group(*id)).map(|(_, p)| *p);
        let of_groups: Vec<u32> = own.into_iter().chain(others).collect();
        match of_groups.is_empty() {
            true => allows(self.mode & 7),
            false => of_groups.iter().any(|p| allows(p & mask)),
        }
    }
}

fn lists() -> impl Strategy<Value = Lists> {
    let named = || prop::collection::btree_map(1u32..5, 0u32..8, 0..3);
    (0u32..0o1000, 0u32..8, named(), named()).prop_map(|(mode, owning_group, users, groups)| {
        let (users, groups) = (users.into_iter().collect(), groups.into_iter().collect());
        Lists { mode, owning_group, users, groups }
    })
}

proptest! {
    #[test]
    fn a_list_allows_what_the_model_says(
        lists in lists(),
        who in (1u32..5, 1u32..5, prop::collection::vec(1u32..5, 0..3)),
        owner in (1u32..5, 1u32..5),
        want in 0u32..8,
    ) {
        let who = Credentials { uid: who.0, gid: who.1, groups: who.2 };
        let attr = attr(FileKind::Regular, lists.mode, owner.0, owner.1, true);
        let got = check(&who, &attr, Some(&lists.encode()), Access::from_bits(want));
        prop_assert_eq!(got.is_ok(), lists.model(&who, &attr, want));
        let surely = allows_in_any_group(&attr, who.uid, Access::from_bits(want));
        prop_assert!(got.is_ok() || !surely);
    }

    #[test]
    fn bits_allow_what_the_first_class_that_fits_says(
        mode in 0u32..0o10000,
        who in (0u32..4, 0u32..4, prop::collection::vec(0u32..4, 0..3)),
        owner in (0u32..4, 0u32..4),
        want in 0u32..8,
        dir: bool,
    ) {
        let who = Credentials { uid: who.0, gid: who.1, groups: who.2 };
        let kind = if dir { FileKind::Directory } else { FileKind::Regular };
        let attr = attr(kind, mode, owner.0, owner.1, false);
        let class = if who.uid == owner.0 { 6 } else if who.is_in(owner.1) { 3 } else { 0 };
        let mut allowed = mode >> class & want == want;
        if who.uid == 0 {
            allowed = dir || want & 1 == 0 || mode & 0o111 != 0;
        }
        prop_assert_eq!(check(&who, &attr, None, Access::from_bits(want)).is_ok(), allowed);
        let surely = allows_in_any_group(&attr, who.uid, Access::from_bits(want));
        prop_assert!(allowed || !surely || who.uid == 0);
        if who.uid == owner.0 {
            prop_assert_eq!(surely, mode >> 6 & want == want);
        }
    }

    #[test]
    fn no_bytes_that_pass_for_a_list_allow_more_or_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let attr = attr(FileKind::Regular, 0o770, 1, 1, true);
        let got = check(&Credentials::new(2, 2), &attr, Some(&bytes), Access::READ);
        prop_assert!(got.is_err());
    }
}

#[test]
fn a_list_that_does_not_read_is_an_error() {
    let attr = attr(FileKind::Regular, 0o777, 1, 1, true);
    for bad in [vec![], vec![2, 0, 0], list(&[]), list(&[(64, 7, 0)]), list(&[(1, 7, 0)])] {
        let got = check(&Credentials::new(2, 2), &attr, Some(&bad), Access::READ);
        assert_eq!(got.unwrap_err().kind, ErrorKind::Io, "{bad:?}");
    }
}

#[test]
fn who_is_not_in_the_group_makes_no_program_of_it() {
    let dir = attr(FileKind::Directory, 0o2777, 1, 50, false);
    let (member, other) = (Credentials::new(2, 50), Credentials::new(2, 2));
    assert_eq!(mode_of_new(&member, &dir, 0o2755), 0o2755);
    assert_eq!(mode_of_new(&other, &dir, 0o2755), 0o755);
    assert_eq!(mode_of_new(&other, &dir, 0o2745), 0o2745);
    assert_eq!(mode_of_new(&Credentials::root(), &dir, 0o2755), 0o2755);
}

#[test]
fn what_lies_in_a_sticky_directory_is_not_opened_to_be_made() {
    let alice = Credentials::new(1000, 1000);
    let dir = |mode| attr(FileKind::Directory, mode, 0, 0, false);
    let of = |kind, uid| attr(kind, 0o777, uid, uid, false);
    let refused = |dir: &Attr, found: &Attr| {
        let checked = check_create(&alice, dir, found).map_err(|error| error.kind);
        assert!(checked.is_ok() || checked == Err(ErrorKind::AccessDenied));
        checked.is_err()
    };
    for kind in [FileKind::Symlink, FileKind::Socket] {
        assert!(refused(&dir(0o1777), &of(kind, 1001)));
        assert!(!refused(&dir(0o1777), &of(kind, 1000)), "her own");
        assert!(!refused(&dir(0o1777), &of(kind, 0)), "of the directory's owner");
        assert!(!refused(&dir(0o777), &of(kind, 1001)), "not sticky");
        assert!(!refused(&dir(0o1775), &of(kind, 1001)), "not everybody's");
    }
    assert!(!refused(&dir(0o1777), &of(FileKind::Regular, 1001)), "a host's matter");
}
