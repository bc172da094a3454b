//! Makes a backup from the folder of a server that is stopped, when most of its group is lost.
//!
//! All entries of its log are in it, also those of which it did not know yet that they were
//! committed: what a majority had that this server was part of was acknowledged. The server may
//! start again on the folder: the others may come back after all.

use crate::backup::{Manifest, copy_files};
use crate::config::Config;
use crate::folder::{LOG, Owner, STATE};
use crate::identity::{Identity, Standing};
use crate::node::apply::apply;
use crate::raftlog::LogDb;
use crate::snapshot::{io, remove};
use crate::state::StateMachine;
use crate::store::unheard;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use weft_proto::{Error, ErrorKind, Result, Uuid};

/// Entries of the log that are applied at a time, and their bytes.
const BATCH: u64 = 4096;
const BATCH_BYTES: u64 = 16 << 20;

/// Copies what the configured server has into a folder, which is there and has no file of a backup;
/// `taken`, in seconds since 1970, is now. Answers the manifest, which the folder still lacks; on
/// an error nothing is left there; and why not all of it reads, if so. Errors: `NotFound` without
/// such a server; `Invalid` if it had not caught up with its group; `Io` if it runs; `Corrupt`.
pub fn salvage(config: &Config, to: &Path, taken: i64) -> Result<(Manifest, Option<Error>)> {
    config.validate()?;
    let dir = &config.data_dir;
    let (log, state) = (dir.join(LOG), dir.join(STATE));
    for part in [&log, &state] {
        if !part.try_exists().map_err(|e| io("look for", part, &e))? {
            let what = format!("{} is not there: this is no server's folder", part.display());
            return Err(Error::new(ErrorKind::NotFound, what));
        }
    }
    let identity = Identity::claim(dir, config.id, config.peers.iter().map(|p| p.id).collect())?;
    let (Standing::Member, Some(cluster)) = (identity.standing(), identity.cluster()) else {
        let what = format!(
            "server {} has lost its disk and not caught up with its group, or never was in one",
            config.id
        );
        return Err(Error::new(ErrorKind::Invalid, what));
    };
    let machine = StateMachine::open(&state)?;
    // That has locked it: no server uses the folder. Whoever does this is root, and the server is
    // not.
    let _owner = Owner(dir.clone());
    let manifest = copy(machine, &log, to, cluster, taken)?;
    // It may be all that is left.
    let damage = manifest.verify(to, &mut unheard).err();
    Ok((manifest, damage))
}

/// Closes all that it opens.
fn copy(
    machine: StateMachine,
    log: &Path,
    to: &Path,
    cluster: Uuid,
    taken: i64,
) -> Result<Manifest> {
    let log = LogDb::open(log)?;
    let recovered = log.recover(machine.applied())?;
    let scratch = Scratch::make(to.join("scratch"))?;
    let Scratch(scratch) = &scratch;
    let (part, whole, copied) =
        (scratch.join("part"), scratch.join("whole"), scratch.join("copied"));
    machine.checkpoint(&part)?;
    let copy = StateMachine::open(&scratch.join("state"))?;
    copy.replace(&part)?;
    let last = recovered.last.index;
    while copy.applied() < last {
        let from = copy.applied() + 1;
        let entries = log.entries(from, last.min(from + BATCH) + 1, BATCH_BYTES)?;
        apply(&copy, entries.into_iter())?;
        if copy.applied() < from {
            let what = format!("entry {from} of the log is missing");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
    }
    let (index, _) = copy.checkpoint(&whole)?;
    let at = (index, recovered.last.term);
    let manifest = Manifest::of(&whole, cluster, at, taken, copy.numbers()?, &mut unheard)?;
    drop(copy);
    fs::create_dir(&copied).map_err(|e| io("create", &copied, &e))?;
    copy_files(&manifest, &whole, &copied)?;
    name_in(to, &manifest, &copied)?;
    Ok(manifest)
}

/// Gives the files of a backup their names, durably: all, or none if one is taken. Nobody else
/// makes a backup there; and not every filesystem to which one is saved has links.
fn name_in(to: &Path, manifest: &Manifest, copied: &Path) -> Result<()> {
    let mut named = Vec::new();
    let mut name = || {
        for part in &manifest.files {
            let path = to.join(&part.name);
            if fs::symlink_metadata(&path).is_ok() {
                let taken = std::io::ErrorKind::AlreadyExists.into();
                return Err(io("make", &path, &taken));
            }
            let from = copied.join(&part.name);
            fs::rename(&from, &path).map_err(|e| io("make", &path, &e))?;
            named.push((path, from));
        }
        File::open(to).and_then(|dir| dir.sync_all()).map_err(|e| io("sync", to, &e))
    };
    let all = name();
    if all.is_err() {
        named.iter().for_each(|(path, from)| drop(fs::rename(path, from)));
    }
    all
}

/// What is of no use behind that.
struct Scratch(PathBuf);

impl Scratch {
    /// Makes it. What is there already is not removed.
    fn make(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path).map_err(|e| io("create", &path, &e))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = remove(&self.0) {
            tracing::warn!("{e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_to_nothing_leaves_what_others_have_made() {
        let dir = tempfile::tempdir().unwrap();
        let (copied, to) = (dir.path().join("copied"), dir.path().join("to"));
        let scratch = to.join("scratch");
        [&copied, &to, &scratch].iter().for_each(|folder| fs::create_dir(folder).unwrap());
        ["a", "b", "c"].iter().for_each(|name| fs::write(copied.join(name), "ours").unwrap());
        let manifest = Manifest::of(&copied, Uuid::NIL, (1, 1), 0, vec![1], &mut unheard).unwrap();
        fs::write(to.join("b"), "another's").unwrap();
        assert!(name_in(&to, &manifest, &copied).is_err());
        assert!(!to.join("a").exists() && !to.join("c").exists());
        assert_eq!(fs::read_to_string(to.join("b")).unwrap(), "another's");
        assert!(Scratch::make(scratch.clone()).is_err());
        assert!(scratch.exists());

        fs::remove_file(to.join("b")).unwrap();
        fs::remove_dir(&scratch).unwrap();
        drop(Scratch::make(scratch.clone()).unwrap());
        name_in(&to, &manifest, &copied).unwrap();
        manifest.verify_files(&to, &mut unheard).unwrap();
        assert!(!scratch.exists());
    }
}
