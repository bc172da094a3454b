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
use std::fs;
use std::path::{Path, PathBuf};
use weft_proto::{Error, ErrorKind, Result};

/// Entries of the log that are applied at a time, and their bytes.
const BATCH: u64 = 4096;
const BATCH_BYTES: u64 = 16 << 20;

/// Copies what the configured server has into a folder, which is there and empty; `taken`, in
/// seconds since 1970, is now. Answers the manifest, which the folder still lacks. Errors:
/// `NotFound` without such a server; `Invalid` if it had not caught up with its group; `Io` if it
/// runs; `Corrupt`.
pub fn salvage(config: &Config, to: &Path, taken: i64) -> Result<Manifest> {
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
    // Whoever does this is root, and the server is not.
    let _owner = Owner(dir.clone());
    let machine = StateMachine::open(&state)?;
    let log = LogDb::open(&log)?;
    let recovered = log.recover(machine.applied())?;
    let scratch = Scratch(to.join("scratch"));
    let Scratch(scratch) = &scratch;
    fs::create_dir(scratch).map_err(|e| io("create", scratch, &e))?;
    let (part, whole) = (scratch.join("part"), scratch.join("whole"));
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
    let manifest = Manifest::of(&whole, cluster, at, taken, copy.numbers()?)?;
    drop(copy);
    copy_files(&manifest, &whole, to)?;
    Ok(manifest)
}

/// What is of no use behind that.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = remove(&self.0) {
            tracing::warn!("{e}");
        }
    }
}
