//! What of the files of simulated servers was not synced: a power cut takes it.
//!
//! RocksDB writes its files itself. So that this is seen, the functions of the C library that
//! write, name and sync are ours in this program.

mod calls;
mod names;
mod writes;

use libc::c_int;
use names::{Folder, Power, folders, quietly};
use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weft_tests::sim::{Disks, Left};
use writes::{DEVICE, left_of, unsynced};

/// From now on it is seen what is written below this folder.
pub fn watch(folder: &Path) -> io::Result<()> {
    let device = fs::metadata(folder)?.dev();
    DEVICE.get_or_init(|| device);
    let probe = folder.join("probe");
    let mut file = fs::File::create(&probe)?;
    file.write_all(b"unsynced")?;
    if !unsynced().contains_key(&file.metadata()?.ino()) {
        return Err(io::Error::other(format!("{}: writes are not seen", folder.display())));
    }
    fs::remove_file(probe)
}

/// The disks of this process, a folder each.
pub struct Here;

impl Disks for Here {
    fn watch(&self, folder: &Path) {
        names::watch(folder);
    }

    fn cut_at(&self, folder: &Path, syncs: u64, left: Left) {
        with(folder, |folder| folder.power = Power::Going(syncs, left));
    }

    fn cut(&self, folder: &Path, left: Left) -> io::Result<()> {
        with(folder, |folder| match folder.power {
            Power::Off => Ok(()),
            _ => cut(folder, left),
        })
    }

    fn is_off(&self, folder: &Path) -> bool {
        with(folder, |folder| matches!(folder.power, Power::Off))
    }

    fn turn_on(&self, folder: &Path) -> io::Result<()> {
        let left = left(folder);
        self.replace(folder)?;
        quietly(|| fs::rename(left, folder))
    }

    fn replace(&self, folder: &Path) -> io::Result<()> {
        with(folder, Folder::renew);
        quietly(|| fs::remove_dir_all(folder))
    }
}

fn with<T>(path: &Path, act: impl FnOnce(&mut Folder) -> T) -> T {
    let mut folders = folders();
    act(folders.iter_mut().find(|folder| folder.path == path).expect("a folder that is watched"))
}

/// Where a copy of a folder is made as it is found when the power is back.
fn left(folder: &Path) -> PathBuf {
    folder.with_extension("left")
}

/// How much is left of what has a name.
type Share<'a> = &'a dyn Fn(&Path) -> f64;

/// As a seed says it: a disk writes one file and not the other.
fn share(left: Left, name: &Path) -> f64 {
    let hash = |seed| BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, name));
    left.map_or(0.0, |seed| hash(seed) as f64 / u64::MAX as f64)
}

/// Whether a sync of a file finds no power, which may go now.
fn is_cut_off(fd: c_int) -> bool {
    let folders = &mut *folders();
    if folders.iter().all(|folder| matches!(folder.power, Power::On)) {
        return false;
    }
    let Ok(path) = fs::read_link(format!("/proc/self/fd/{fd}")) else { return false };
    let Some(folder) = folders.iter_mut().find(|folder| path.starts_with(&folder.path)) else {
        return false;
    };
    match &mut folder.power {
        Power::Off => return true,
        Power::Going(0, left) if names::is_seen() => {
            let left = *left;
            cut(folder, left).expect("what is left can be copied");
            return true;
        }
        Power::Going(syncs, _) if names::is_seen() => *syncs -= 1,
        _ => {}
    }
    false
}

/// Copies a folder as it is found if the power goes now. Of what was written and not synced, of
/// each file some share of its writes is left, and half of the next; of names, what
/// [`Folder::undo`] says.
fn cut(folder: &mut Folder, left: Left) -> io::Result<()> {
    let (copy, share) = (self::left(&folder.path), |name: &Path| share(left, name));
    quietly(|| {
        copy_synced(&folder.path, &copy, &share)?;
        folder.undo(&copy, &share)?;
        keep_all(&copy)
    })?;
    folder.power = Power::Off;
    Ok(())
}

fn copy_synced(from: &Path, to: &Path, share: Share<'_>) -> io::Result<()> {
    let (mut files, mut folders) = (Vec::new(), vec![from.to_owned()]);
    let mut at = 0;
    let unsynced = unsynced();
    while let Some(folder) = folders.get(at).cloned() {
        at += 1;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let data = match fs::metadata(&path) {
                Ok(found) if found.is_dir() => {
                    folders.push(path);
                    continue;
                }
                Ok(found) => fs::read(&path).map(|data| (found.ino(), data)),
                Err(error) => Err(error),
            };
            match data {
                Ok((ino, data)) => {
                    let writes = unsynced.get(&ino).map_or(&[][..], |writes| writes);
                    let path = path.strip_prefix(from).map_err(io::Error::other)?;
                    files.push((path.to_owned(), left_of(data, writes, share(path))));
                }
                // RocksDB removes what it needs no more in the background.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    drop(unsynced);
    for folder in folders {
        fs::create_dir_all(to.join(folder.strip_prefix(from).map_err(io::Error::other)?))?;
    }
    files.into_iter().try_for_each(|(path, data)| fs::write(to.join(path), data))
}

/// What is left will not be lost by another cut.
fn keep_all(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let found = fs::metadata(&path)?;
        match found.is_dir() {
            true => keep_all(&path)?,
            false => drop(unsynced().remove(&found.ino())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// As RocksDB and `std` do it.
    #[test]
    fn what_was_synced_is_left() {
        let dir = tempfile::tempdir().unwrap();
        watch(dir.path()).unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        let mut file = fs::File::create(from.join("log")).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_data().unwrap();
        file.write_all(b" and some").unwrap();
        file.write_all(b" more").unwrap();
        file.write_all_at(b"S", 0).unwrap();
        fs::write(from.join("other"), b"never").unwrap();
        let left = |share| {
            copy_synced(&from, &to, &|_| share).unwrap();
            [fs::read(to.join("log")).unwrap(), fs::read(to.join("other")).unwrap()]
        };
        assert_eq!(left(0.99), [b"Synced and some more".to_vec(), b"never".to_vec()]);
        assert_eq!(left(0.0), [b"synced and".to_vec(), b"ne".to_vec()]);
        assert_eq!(left(0.25), [b"synced and some m".to_vec(), b"ne".to_vec()]);
        file.sync_all().unwrap();
        assert_eq!(left(0.0)[0], b"Synced and some more");
    }

    /// A folder of a server in a folder of a run.
    fn server() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        watch(dir.path()).unwrap();
        let server = dir.path().join("server");
        fs::create_dir(&server).unwrap();
        Here.watch(&server);
        (dir, server)
    }

    fn sync(folder: &Path) -> io::Result<()> {
        fs::File::open(folder)?.sync_all()
    }

    /// Files below a folder, with what they hold, as a cut leaves them.
    fn cut_copy(server: &Path, share: Share<'_>) -> Vec<String> {
        let copy = server.with_extension("copy");
        with(server, |folder| {
            quietly(|| {
                copy_synced(&folder.path, &copy, share).unwrap();
                folder.undo(&copy, share).unwrap();
            })
        });
        let (mut found, mut folders) = (Vec::new(), vec![copy.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(format!(
                        "{} {}",
                        path.strip_prefix(&copy).unwrap().display(),
                        String::from_utf8_lossy(&fs::read(&path).unwrap())
                    )),
                }
            }
        }
        found.sort();
        quietly(|| fs::remove_dir_all(copy).unwrap());
        found
    }

    #[test]
    fn names_that_were_synced_are_left_and_of_others_the_first() {
        let (_dir, server) = server();
        let write = |name: &str| {
            let mut file = fs::File::create(server.join(name)).unwrap();
            file.write_all(name.as_bytes()).unwrap();
            file.sync_all().unwrap();
        };
        write("old");
        sync(&server).unwrap();
        fs::create_dir(server.join("in")).unwrap();
        write("in/side");
        write("new");
        fs::rename(server.join("new"), server.join("old")).unwrap();
        fs::rename(server.join("in/side"), server.join("out")).unwrap();
        fs::remove_file(server.join("old")).unwrap();
        let from = |first: &'static str| {
            cut_copy(&server, &move |name| if name == Path::new(first) { 0.0 } else { 1.0 })
        };
        assert_eq!(from("none"), ["out in/side"]);
        assert_eq!(from("old/removed"), ["old new", "out in/side"]);
        assert_eq!(from("out/renamed"), ["in/side in/side", "old new"]);
        assert_eq!(from("old/renamed"), ["in/side in/side", "new new", "old old"]);
        assert_eq!(from("new/made"), ["in/side in/side", "old old"]);
        assert_eq!(from("in/made"), ["old old"]);
        assert_eq!(from("in/side/made"), ["old new"], "a file that was nowhere is nowhere");
        assert_eq!(cut_copy(&server, &|_| 0.0), ["old old"]);
        sync(&server).unwrap();
        assert_eq!(cut_copy(&server, &|_| 0.0), ["out in/side"]);
    }

    #[test]
    fn nothing_is_synced_once_the_power_is_off() {
        let (_dir, server) = server();
        let log = server.join("log");
        let mut file = fs::File::create(&log).unwrap();
        sync(&server).unwrap();
        Here.cut_at(&server, 1, None);
        file.write_all(b"first, ").unwrap();
        file.sync_data().unwrap();
        file.write_all(b"second").unwrap();
        file.sync_data().unwrap_err();
        assert!(Here.is_off(&server));
        file.write_all(b", third").unwrap();
        file.sync_data().unwrap_err();
        Here.cut(&server, None).unwrap();
        Here.turn_on(&server).unwrap();
        assert!(!Here.is_off(&server));
        assert_eq!(fs::read(&log).unwrap(), b"first, sec");
        sync(&server).unwrap();
    }
}
