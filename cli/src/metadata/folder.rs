//! The folder that a backup is made in.
//!
//! Invariants: one command at a time makes something there, as a marker shows; what comes to
//! nothing takes back what it has made itself, and nothing else.

use crate::durable;
use anyhow::{Context, Result, bail};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weft_metadata::MANIFEST;

/// There while a backup is being made. No file of a backup has such a name.
const MARKER: &str = ".being-made";

/// A folder in which this command, and no other, makes a backup. Without [`Self::finish`] it is
/// empty again when this is dropped.
pub(super) struct Folder {
    dir: PathBuf,
    /// Files of this command, in the order in which they were made.
    made: Vec<PathBuf>,
}

impl Folder {
    /// Takes a folder that is new or empty.
    pub fn take(dir: PathBuf) -> Result<Self> {
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("cannot make {}", dir.display()))?,
        }
        let marker = dir.join(MARKER);
        match create(&marker) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => bail!(
                "{} is there: a backup is being made in this folder, or was cut off. Give another \
                 folder. If no command works in this one any more, it may go; but with a \
                 {MANIFEST} it is a whole backup, and only that mark may go",
                marker.display()
            ),
            made => made.with_context(|| format!("cannot write {}", marker.display()))?,
        };
        // From here on the mark goes with this.
        let folder = Self { dir, made: Vec::new() };
        let listed = fs::read_dir(&folder.dir).and_then(|all| all.collect::<io::Result<Vec<_>>>());
        let listed = listed.with_context(|| format!("read {}", folder.dir.display()))?;
        if listed.iter().any(|entry| entry.file_name() != MARKER) {
            bail!("{} is not empty: a backup has a folder of its own", folder.dir.display());
        }
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Makes a file.
    pub fn create(&mut self, name: &str) -> Result<File> {
        let path = self.dir.join(name);
        let file = create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        self.made.push(path);
        Ok(file)
    }

    /// These files were made there for it, by what works for this command.
    pub fn has(&mut self, names: impl Iterator<Item = String>) {
        self.made.extend(names.map(|name| self.dir.join(name)));
    }

    /// With its manifest it is a backup.
    pub fn finish(mut self, manifest: &str) -> Result<()> {
        let path = self.dir.join(MANIFEST);
        let what = || format!("cannot write {}", path.display());
        match durable::create(&path, manifest.as_bytes(), 0o600) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(e).with_context(what),
            written => {
                // It may be there even if that failed.
                self.made.push(path.clone());
                written.with_context(what)?;
            }
        }
        let parent = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = File::open(parent.unwrap_or(Path::new(".")));
        parent.and_then(|parent| parent.sync_all()).with_context(what)?;
        self.made.clear();
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The manifest first: what it names is there as long as it is.
        for path in self.made.iter().rev() {
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_file(self.dir.join(MARKER));
    }
}

/// Nobody else may read it: it has all names.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn refused(dir: &Path) -> String {
        Folder::take(dir.into()).err().expect("it was taken").to_string()
    }

    #[test]
    fn what_comes_to_nothing_takes_back_what_it_has_made() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("backup");
        let mut folder = Folder::take(dir.clone()).unwrap();
        folder.create("a").unwrap();
        fs::write(dir.join("b"), "salvaged").unwrap();
        folder.has(["b".to_owned()].into_iter());
        fs::write(dir.join("other"), "another's").unwrap();
        assert!(folder.create("other").is_err());
        drop(folder);
        assert_eq!(names(&dir), ["other"]);
        // And so does one that has not begun.
        assert!(refused(&dir).contains("not empty"));
        assert_eq!(names(&dir), ["other"]);
    }

    #[test]
    fn one_command_at_a_time_makes_a_backup_and_a_whole_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("backup");
        let mut folder = Folder::take(dir.clone()).unwrap();
        folder.create("a").unwrap();
        assert!(refused(&dir).contains(MARKER), "{}", refused(&dir));
        assert_eq!(names(&dir), [MARKER, "a"]);
        folder.finish("manifest").unwrap();
        assert_eq!(names(&dir), ["a", MANIFEST]);
        assert!(refused(&dir).contains("not empty"));
        assert_eq!(names(&dir), ["a", MANIFEST]);
        // One that was killed leaves its mark, of which is said what to do.
        fs::write(dir.join(MARKER), "").unwrap();
        assert!(refused(&dir).contains("another folder"), "{}", refused(&dir));
        assert_eq!(names(&dir), [MARKER, "a", MANIFEST]);
    }
}
