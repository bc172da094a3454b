//! The key of a mount's session, where the next process that mounts at the same path finds it: if
//! this one dies without ending its session, that one does, and nobody waits for what it held until
//! its time is over.
//!
//! Invariant: the file is locked while the process lives whose key is in it, so that no session of
//! one that lives is ended. The kernel takes the lock back with the process, in whatever namespace
//! that is. Keys of another boot, or of another machine that shares the folder, are not believed:
//! their locks are not seen here.

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use weft_proto::Uuid;

/// Keys in one file, and bytes of it; more is not from here.
const MAX_KEYS: usize = 16;
const MAX_BYTES: u64 = 1024;

/// The file of one mount.
pub struct SessionFile {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Nothing if another process that lives has it, or it cannot be locked.
    file: Option<Flock<File>>,
    /// Sessions of processes that are dead, which may live still.
    dead: Vec<Uuid>,
    own: Option<Uuid>,
}

impl SessionFile {
    /// Takes the file, if no process that lives has it. Else the mount goes without.
    pub fn take(path: PathBuf) -> Arc<Self> {
        let taken = lock(&path, FlockArg::LockExclusiveNonblock).and_then(|file| {
            let dead = file.as_ref().map(|file| read(file)).transpose()?;
            Ok(State { file, dead: dead.unwrap_or_default(), own: None })
        });
        let state = taken.unwrap_or_else(|e| {
            tracing::warn!("the session of this mount is not noted: {e:#}");
            State::default()
        });
        Arc::new(Self { path, state: Mutex::new(state) })
    }

    /// Takes the file of the process that hands its mount over, with the key of its session, as
    /// soon as that has ended.
    pub fn take_over(path: PathBuf) -> Arc<Self> {
        let own = File::open(&path).and_then(|file| read(&file)).ok().and_then(|mut k| k.pop());
        let state = Mutex::new(State { own, ..State::default() });
        let taken = Arc::new(Self { path, state });
        let waits = taken.clone();
        // It ends with this process.
        thread::spawn(move || match lock(&waits.path, FlockArg::LockExclusive) {
            Ok(file) => {
                let mut state = waits.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.file = file;
                waits.write(&state);
            }
            Err(e) => tracing::warn!("the session of this mount is not noted: {e:#}"),
        });
        taken
    }

    /// Keys of sessions whose processes are dead.
    pub fn dead(&self) -> Vec<Uuid> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).dead.clone()
    }

    /// Notes the key of the session that is being opened.
    pub fn keep(&self, key: Uuid) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.own = Some(key);
        self.write(&state);
    }

    /// The dead ones are over.
    pub fn forget_dead(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.dead.clear();
        self.write(&state);
    }

    /// The session is another process's, which may not know of this file.
    pub fn hand_over(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &state.file
            && let Err(e) = file.set_len(0)
        {
            tracing::warn!("cannot empty {}: {e}", self.path.display());
        }
    }

    /// There is no session any more.
    pub fn remove(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.file.is_some()
            && let Err(e) = fs::remove_file(&self.path)
        {
            tracing::warn!("cannot remove {}: {e}", self.path.display());
        }
    }

    fn write(&self, state: &State) {
        let (Some(file), Some(own)) = (&state.file, &state.own) else { return };
        let keys = state.dead.iter().take(MAX_KEYS - 1).chain([own]);
        let Some(boot) = boot() else { return };
        let text = boot + &keys.map(|key| format!("{key}\n")).collect::<String>();
        let written = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        if let Err(e) = written {
            tracing::warn!("{}: the session is not noted: {e}", self.path.display());
        }
    }
}

/// Opens the file and locks it; `None` if another process has it.
fn lock(path: &Path, how: FlockArg) -> Result<Option<Flock<File>>> {
    let what = || format!("cannot use {}", path.display());
    loop {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = match Flock::lock(file.open(path).with_context(what)?, how) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, Errno::EINTR)) => continue,
            Err((_, e)) => return Err(e).with_context(what),
        };
        // Whoever had it may have removed it meanwhile.
        let there = match fs::metadata(path) {
            Ok(there) => Some((there.dev(), there.ino())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e).with_context(what),
        };
        let own = file.metadata().with_context(what)?;
        if there == Some((own.dev(), own.ino())) {
            return Ok(Some(file));
        }
    }
}

/// The line that tells this boot of this machine from any other; without one no key is believed.
fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("boot {}\n", id.trim()))
}

/// The keys in a file, if they are of this boot; what is none was being written when its process
/// died.
fn read(file: &File) -> io::Result<Vec<Uuid>> {
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let keys = boot().and_then(|boot| text.strip_prefix(boot.as_str()));
    let lines = keys.unwrap_or_default().split_inclusive('\n');
    Ok(lines.filter_map(|line| line.strip_suffix('\n')?.parse().ok()).take(MAX_KEYS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_dead_are_found_and_those_of_the_living_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.session");
        let key = |n: u8| Uuid([n; 16]);
        let first = SessionFile::take(path.clone());
        assert!(first.dead().is_empty());
        first.keep(key(1));
        first.keep(key(2));
        let beside = SessionFile::take(path.clone());
        assert!(beside.dead().is_empty(), "it lives");
        beside.keep(key(9));
        beside.remove();
        drop(first);
        // It dies before it has ended what it found.
        let second = SessionFile::take(path.clone());
        assert_eq!(second.dead(), [key(2)]);
        second.keep(key(3));
        drop(second);
        let third = SessionFile::take(path.clone());
        assert_eq!(third.dead(), [key(2), key(3)]);
        third.keep(key(4));
        third.forget_dead();
        drop(third);
        let fourth = SessionFile::take(path.clone());
        assert_eq!(fourth.dead(), [key(4)]);
        fourth.remove();
        assert!(!path.exists());
        drop(fourth);
        assert!(SessionFile::take(path).dead().is_empty());
    }

    #[test]
    fn who_takes_over_waits_for_the_end_of_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.session");
        let key = |n: u8| Uuid([n; 16]);
        let first = SessionFile::take(path.clone());
        first.keep(key(1));
        let second = SessionFile::take_over(path.clone());
        second.keep(key(2));
        let noted = || fs::read_to_string(&path).unwrap();
        let with = |key: Uuid| format!("{}{key}\n", boot().unwrap());
        assert_eq!(noted(), with(key(1)), "the other has it");
        first.hand_over();
        assert_eq!(noted(), "", "who took it over may be of a version that knows of no file");
        drop(first);
        let given = std::time::Instant::now();
        while noted() != with(key(2)) {
            assert!(given.elapsed().as_secs() < 60, "{:?}", noted());
            thread::yield_now();
        }
        assert!(SessionFile::take(path).dead().is_empty());
    }

    #[test]
    fn garbage_is_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.session");
        let good = format!("{}\n", Uuid([7; 16]));
        for (text, keys) in [
            ("", 0),
            ("zz\n", 0),
            ("\u{e4}\n", 0),
            (&format!("\n\n{good}"), 1),
            (&format!("{good}{}", &good[..20]), 1),
            (&format!("{good}{}", good.trim_end()), 1),
            (&format!("0{good}{good}"), 1),
            (&good.repeat(1_000_000), MAX_KEYS),
        ] {
            fs::write(&path, boot().unwrap() + text).unwrap();
            assert_eq!(SessionFile::take(path.clone()).dead().len(), keys, "{text:.99}");
            fs::write(&path, format!("boot of another machine\n{text}")).unwrap();
            assert!(SessionFile::take(path.clone()).dead().is_empty());
        }
    }
}
