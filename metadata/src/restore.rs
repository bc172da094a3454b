//! Begins a new group from a backup of a lost one: a data folder for one server, which is the
//! group. Others are added to it as to any group, with folders that are empty.
//!
//! Nothing of the old group may run any more: its servers would go on beside the new one. What was
//! acknowledged after the backup was made is lost, the names at least; the data of that is kept on
//! the targets for a while, so that a newer backup could still be taken instead.
//!
//! Invariant: the folder becomes that of a member with the last step. Before that it is still the
//! empty one of a server that may take no part, and this can be done once more.

use crate::backup::{Manifest, copy_files};
use crate::config::Config;
use crate::folder::{LOG, Owner, STATE};
use crate::identity::{Identity, Standing};
use crate::raftlog::{LogDb, LogStorage, Position};
use crate::snapshot::{io, remove};
use crate::state::{Founding, Skip, StateMachine, check_number};
use crate::store::unheard;
use raft::eraftpb::HardState;
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::Duration;
use weft_proto::{Error, ErrorKind, Result, Uuid, v1};

/// How far the clock may be behind that of the backup's leader: by it nothing is deleted for a
/// while, and it may just be set wrong on a new machine.
const MAX_BEHIND_S: i64 = 300;

/// Folder of the files of the backup, until they are the state.
const BESIDE: &str = "restoring";

/// A folder that was made.
#[derive(Debug)]
pub struct Restored {
    pub cluster: Uuid,
    /// When the backup was made, in seconds since 1970.
    pub taken: i64,
    /// Sessions that were ended.
    pub sessions: usize,
}

/// Makes the data folder of the configured server that of a new group, from the backup in a folder.
/// For `hold` from `now_ns` on nothing is deleted from targets. `bits` are random. With `damaged`
/// not all that is in the backup has to read, if its files are as they were made. Errors: `Exists`
/// if the folder is not empty, or the number is one that the old group has had; `Invalid` if the
/// backup is of the future; `Corrupt` if it is not whole, and then nothing was touched; `Busy`;
/// `NotSupported`; `Io`. On an error the folder is as empty as it was.
pub fn restore(
    config: &Config,
    from: &Path,
    hold: Duration,
    now_ns: i64,
    bits: u64,
    damaged: bool,
) -> Result<Restored> {
    config.validate()?;
    let manifest = Manifest::load(from)?;
    if now_ns / 1_000_000_000 + MAX_BEHIND_S < manifest.taken {
        let what = "the clock of this machine is before the time of the backup: set it right";
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    check_number(&manifest.servers, config.id.0)?;
    match damaged {
        true => manifest.verify_files(from, &mut unheard)?,
        false => manifest.verify(from, &mut unheard)?,
    }
    let dir = &config.data_dir;
    let _alone = lock(dir)?;
    let peers = config.peers.iter().map(|p| p.id).collect();
    let mut identity = Identity::claim(dir, config.id, peers)?;
    if identity.standing() != Standing::Empty {
        let what = format!("{} is the folder of a server: give an empty one", dir.display());
        return Err(Error::new(ErrorKind::Exists, what));
    }
    // Whoever does this is root, and the server is not.
    let _owner = Owner(dir.clone());
    let parts = [LOG, STATE, BESIDE].map(|part| dir.join(part));
    let clear = || parts.iter().try_for_each(|part| remove(part));
    // What an attempt has left that was cut off.
    clear()?;
    let cluster = manifest.cluster_id()?;
    let hold = i64::try_from(hold.as_nanos()).unwrap_or(i64::MAX);
    let hold = if hold == 0 { 0 } else { now_ns.saturating_add(hold) };
    let address = config.peers.iter().find(|p| p.id == config.id).map(|p| p.address.clone());
    let address = address.unwrap_or_default();
    let server = v1::NodeInfo { id: config.id.0, address, ..Default::default() };
    let founding = Founding { server, cluster, now: now_ns, hold, skip: Skip::new(now_ns, bits) };
    let made = make(dir, &manifest, from, &founding);
    let sessions = made.inspect_err(|_| {
        // It is of no use, and takes room.
        if let Err(e) = clear() {
            tracing::warn!("{e}");
        }
    })?;
    identity.set_cluster(cluster)?;
    identity.stand(Standing::Member, Position::default())?;
    Ok(Restored { cluster, taken: manifest.taken, sessions })
}

/// Nobody else restores to a folder meanwhile, who would take for left behind what is made there.
fn lock(dir: &Path) -> Result<File> {
    fs::create_dir_all(dir).map_err(|e| io("create", dir, &e))?;
    let folder = File::open(dir).map_err(|e| io("open", dir, &e))?;
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let what = format!("another command restores to {}", dir.display());
            Err(Error::new(ErrorKind::Busy, what))
        }
        // Not every filesystem has locks.
        _ => Ok(folder),
    }
}

/// Makes log and state, durably. Answers how many sessions were ended.
fn make(dir: &Path, manifest: &Manifest, from: &Path, founding: &Founding) -> Result<usize> {
    // Beside the state, which takes it in as a whole.
    let beside = dir.join(BESIDE);
    fs::create_dir(&beside).map_err(|e| io("create", &beside, &e))?;
    copy_files(manifest, from, &beside)?;
    let machine = StateMachine::open(&dir.join(STATE))?;
    machine.replace(&beside)?;
    if machine.applied() != manifest.index {
        let what = "the backup is not of the entry that its manifest says";
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    let (index, sessions) = machine.found_anew(founding)?;
    drop(machine);
    let at = Position { index, term: manifest.term.saturating_add(founding.skip.terms) };
    let promised = HardState { term: at.term, commit: index, ..Default::default() };
    let log = dir.join(LOG);
    LogStorage::make(&log, vec![founding.server.id], &promised)?;
    LogDb::open(&log)?.reset(at)?;
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| io("sync", dir, &e))?;
    Ok(sessions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup;
    use crate::config::Member;
    use weft_proto::NodeId;

    #[test]
    fn what_does_not_read_is_refused_before_anything_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (from, data) = (dir.path().join("backup"), dir.path().join("data"));
        backup::tests::make(&from, true);
        let me = Member { id: NodeId(2), address: "127.0.0.1:7100".into() };
        let config = Config::new(me.id, me.address.clone(), vec![me], data.clone());
        let restored = restore(&config, &from, Duration::ZERO, 1_000_000_000, 7, false);
        let error = restored.unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains("read"), "{error}");
        assert!(!data.exists());
    }

    /// A full disk, say. The next attempt finds the folder as it was.
    #[test]
    fn an_attempt_that_fails_leaves_nothing_and_one_works_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (from, data) = (dir.path().join("backup"), dir.path().join("data"));
        let good = backup::tests::make(&from, false);
        let me = Member { id: NodeId(2), address: "127.0.0.1:7100".into() };
        let config = Config::new(me.id, me.address.clone(), vec![me], data.clone());
        let restore = || restore(&config, &from, Duration::ZERO, 1_000_000_000, 7, true);
        // What is in it is of another entry, which is seen late where all of it need not read.
        let mut other = good.clone();
        other.index = 8;
        std::fs::write(from.join(backup::MANIFEST), other.to_text().unwrap()).unwrap();
        assert_eq!(restore().unwrap_err().kind, ErrorKind::Corrupt);
        assert!([LOG, STATE, BESIDE].iter().all(|part| !data.join(part).exists()));
        std::fs::write(from.join(backup::MANIFEST), good.to_text().unwrap()).unwrap();
        let other = lock(&data).unwrap();
        assert_eq!(restore().unwrap_err().kind, ErrorKind::Busy);
        drop(other);
        assert_eq!(restore().unwrap().cluster, Uuid([7; 16]));
        assert_eq!(restore().unwrap_err().kind, ErrorKind::Exists);
        assert!(data.join(STATE).exists());
    }
}
