//! Files that are there whole or not at all, whenever the power goes.

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, renameat2};
use nix::unistd::{geteuid, linkat};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

/// Puts a file of these bytes in the place of the one that is there, or where there is none,
/// durably. It has these permissions, or those of a new file, and the owner and group of the one
/// before. A link stays, and leads to it. One writer at a time.
pub fn replace(path: &Path, bytes: &[u8], permissions: Option<Permissions>) -> Result<()> {
    let path = match path.canonicalize() {
        Err(e) if e.kind() == ErrorKind::NotFound => path.to_owned(),
        found => found?,
    };
    let (folder, name) = place(&path)?;
    let new = folder.join(format!(".{name}.new"));
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = File::create_new(&new)?;
    match fs::metadata(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        before => keep_owner(&file, &before?)?,
    }
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(folder)?.sync_all()
}

/// Root changes what services have to read, and are not root. Others give away what they may.
fn keep_owner(file: &File, before: &Metadata) -> Result<()> {
    let now = file.metadata()?;
    if (now.uid(), now.gid()) == (before.uid(), before.gid()) {
        return Ok(());
    }
    match fchown(file, Some(before.uid()), Some(before.gid())) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied && !geteuid().is_root() => Ok(()),
        given => given,
    }
}

/// Makes a file that is not there yet, durably. From its first moment it has no more than this
/// mode. The first of several writers that is done wins. Errors: `AlreadyExists`.
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let (folder, _) = place(path)?;
    match create_nameless(folder, path, bytes, mode) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => {
            create_named(path, bytes, mode, |from, to| fs::hard_link(from, to))?;
        }
        made => made?,
    }
    File::open(folder)?.sync_all()
}

/// Of who is cut off nothing stays, which may be a key. Many filesystems cannot do that.
fn create_nameless(folder: &Path, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let mut nameless = OpenOptions::new();
    nameless.write(true).mode(mode).custom_flags(OFlag::O_TMPFILE.bits());
    let mut file = nameless.open(folder)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    let here = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(AT_FDCWD, here.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?;
    Ok(())
}

/// With a name of its own until it is whole.
fn create_named(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    link: impl Fn(&Path, &Path) -> Result<()>,
) -> Result<()> {
    let (folder, name) = place(path)?;
    let new = folder.join(format!(".{name}.{:016x}", rand::random::<u64>()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    let made = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| {
        match link(&new, path) {
            // Many filesystems have no links: FAT, those of clouds, some of a network.
            Err(e) if e.kind() != ErrorKind::AlreadyExists => rename_new(&new, path),
            linked => linked,
        }
    });
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => made,
    }
}

/// Renames to a name that is free.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    let flags = RenameFlags::RENAME_NOREPLACE;
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, flags) {
        // Not known there.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {}
        renamed => return Ok(renamed?),
    }
    match fs::symlink_metadata(to) {
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(e) if e.kind() == ErrorKind::NotFound => fs::rename(from, to),
        Err(e) => Err(e),
    }
}

/// The folder of a file, and its name there.
fn place(path: &Path) -> Result<(&Path, std::path::Display<'_>)> {
    let name = path.file_name().ok_or(Error::from(ErrorKind::InvalidInput))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok((folder.unwrap_or(Path::new(".")), Path::new(name).display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn what_is_made_is_whole_and_replaces_nothing_also_without_links() {
        let dir = tempfile::tempdir().unwrap();
        let no_links = |_: &Path, _: &Path| Err(Errno::EPERM.into());
        let link = |from: &Path, to: &Path| fs::hard_link(from, to);
        let file = |name: &str| dir.path().join(name);
        let all = |name: &str, bytes: &[u8]| {
            [
                create(&file(name), bytes, 0o600),
                create_named(&file(&format!("{name}1")), bytes, 0o600, link),
                create_named(&file(&format!("{name}2")), bytes, 0o600, no_links),
            ]
        };
        all("key", b"first").into_iter().for_each(|made| made.unwrap());
        for made in all("key", b"second") {
            assert_eq!(made.unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        let mut count = 0;
        for entry in fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()) {
            assert_eq!(fs::read(&entry).unwrap(), b"first", "{entry:?}");
            assert_eq!(fs::metadata(&entry).unwrap().mode() & 0o777, 0o600);
            count += 1;
        }
        assert_eq!(count, 3, "something else was left");
    }

    #[test]
    fn what_is_replaced_keeps_its_owner_and_the_links_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("there/file"), dir.path().join("link"));
        fs::create_dir(dir.path().join("there")).unwrap();
        replace(&file, b"new", None).unwrap();
        symlink("there/file", &link).unwrap();
        // Only root can give it to another.
        let is_root = geteuid().is_root();
        if is_root {
            chown(&file, Some(4321), Some(1234)).unwrap();
        }
        replace(&link, b"newer", Some(Permissions::from_mode(0o640))).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"newer");
        let now = fs::metadata(&file).unwrap();
        assert_eq!(now.mode() & 0o777, 0o640);
        if is_root {
            assert_eq!((now.uid(), now.gid()), (4321, 1234));
        }
        assert_eq!(fs::read_dir(dir.path().join("there")).unwrap().count(), 1);
    }
}
