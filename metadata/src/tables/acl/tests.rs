//! Tests of `acl`.

use super::*;
use proptest::prelude::*;

fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.put_u16_le(*tag);
        out.put_u16_le(*permissions);
        out.put_u32_le(*id);
    }
    out
}

fn inode(kind: FileKind, mode: u32) -> Inode {
    let attr = v1::Attr { kind: kind.into(), mode, ..Default::default() };
    Inode { attr, ..Default::default() }
}

/// Owner rwx, user 7 rwx, group r-x, mask rw-, others r--.
fn list() -> Vec<u8> {
    bytes(&[(1, 7, NOBODY), (2, 7, 7), (4, 5, NOBODY), (16, 6, NOBODY), (32, 4, NOBODY)])
}

fn permissions(value: &[u8]) -> Vec<u16> {
    Acl::parse(value).unwrap().unwrap().0.iter().map(|entry| entry.permissions).collect()
}

#[test]
fn the_mode_follows_the_list_and_the_list_the_mode() {
    let mut file = inode(FileKind::Regular, 0o2640);
    set(&mut file, Which::Access, &list(), false).unwrap();
    assert_eq!((file.attr.mode, file.attr.acls), (0o2764, true));
    set(&mut file, Which::Access, &list(), true).unwrap();
    assert_eq!(file.attr.mode, 0o764);
    file.attr.mode = 0o4751;
    follow_mode(&mut file).unwrap();
    assert_eq!(permissions(&file.access_acl), [7, 7, 5, 5, 1]);
    // One that says no more than the bits do is not kept.
    let short = bytes(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)]);
    set(&mut file, Which::Access, &short, false).unwrap();
    assert_eq!((file.attr.mode, file.attr.acls), (0o4640, false));
}

#[test]
fn children_inherit() {
    let mut dir = inode(FileKind::Directory, 0o755);
    set(&mut dir, Which::Default, &list(), false).unwrap();
    assert_eq!((dir.attr.mode, dir.attr.acls), (0o755, true));
    let mut file = inode(FileKind::Regular, 0o2646);
    inherit(&dir, &mut file, 0o777).unwrap();
    assert_eq!((file.attr.mode, permissions(&file.access_acl)), (0o2644, vec![6, 7, 5, 4, 4]));
    assert!(file.default_acl.is_empty());
    let mut child = inode(FileKind::Directory, 0o777);
    inherit(&dir, &mut child, 0o777).unwrap();
    assert_eq!((child.attr.mode, &child.default_acl), (0o764, &dir.default_acl));
    let mut plain = inode(FileKind::Regular, 0o666);
    inherit(&inode(FileKind::Directory, 0o755), &mut plain, 0o1027).unwrap();
    assert_eq!((plain.attr.mode, plain.attr.acls), (0o640, false));
    let mut link = inode(FileKind::Symlink, 0o777);
    inherit(&dir, &mut link, 0o777).unwrap();
    assert_eq!((link.attr.mode, link.attr.acls), (0o777, false));
}

#[test]
fn what_cannot_be_a_list_is_refused_and_changes_nothing() {
    let (u, g, m, o) = ((1, 7, NOBODY), (4, 5, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY));
    let long: Vec<_> = std::iter::once(u)
        .chain((0..MAX_ENTRIES as u32).map(|id| (2, 7, id)))
        .chain([g, m, o])
        .collect();
    let cases = [
        (bytes(&[u, g]), ErrorKind::Invalid),
        (bytes(&[g, u, o]), ErrorKind::Invalid),
        (bytes(&[u, u, g, o]), ErrorKind::Invalid),
        (bytes(&[u, (2, 7, 5), g, o]), ErrorKind::Invalid),
        (bytes(&[u, (2, 7, NOBODY), g, m, o]), ErrorKind::Invalid),
        (bytes(&[u, g, m, m, o]), ErrorKind::Invalid),
        (bytes(&[(1, 8, NOBODY), g, o]), ErrorKind::Invalid),
        (bytes(&[u, (3, 7, 5), g, m, o]), ErrorKind::Invalid),
        (list()[..11].to_vec(), ErrorKind::Invalid),
        (vec![2, 0], ErrorKind::Invalid),
        (vec![1, 0, 0, 0], ErrorKind::NotSupported),
        (bytes(&long), ErrorKind::NoSpace),
    ];
    let mut dir = inode(FileKind::Directory, 0o755);
    set(&mut dir, Which::Access, &list(), false).unwrap();
    let before = dir.clone();
    let refused = |inode: &mut Inode, which, value: &[u8]| {
        Error::from(set(inode, which, value, true).unwrap_err()).kind
    };
    for (value, kind) in &cases {
        for which in Which::ALL {
            assert_eq!(refused(&mut dir, which, value), *kind, "{value:?}");
            assert_eq!(dir, before);
        }
    }
    let mut file = inode(FileKind::Regular, 0o600);
    assert_eq!(refused(&mut file, Which::Default, &list()), ErrorKind::AccessDenied);
    let mut link = inode(FileKind::Symlink, 0o777);
    assert_eq!(refused(&mut link, Which::Access, &list()), ErrorKind::NotSupported);
    // An empty list takes away what there is.
    set(&mut dir, Which::Access, &bytes(&[]), false).unwrap();
    assert_eq!((dir.attr.acls, dir.attr.mode), (false, before.attr.mode));
}

proptest! {
    #[test]
    fn garbage_is_refused_or_kept_as_it_is(
        entries in prop::collection::vec((0u16..40, 0u16..9, any::<u32>()), 0..7),
        tail in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut value = bytes(&entries);
        value.extend(tail);
        if let Ok(Some(acl)) = Acl::parse(&value) {
            prop_assert_eq!(Acl::parse(&acl.encode()).unwrap(), Some(acl));
        }
    }
}
