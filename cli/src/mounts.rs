//! Which process serves which mount: one small record a mount in a folder that every command of
//! this user finds. The kernel's mount table is the truth about what is mounted; a record only
//! adds the process and the cluster to it.

use crate::output::describe;
use crate::process::Process;
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use weft_fuse::{Connection, MountEntry};

#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct MountRecord {
    pub path: PathBuf,
    /// Addresses of the metadata servers it was given.
    pub cluster: Vec<String>,
    pub process: Process,
    /// What it was mounted with, as options of `weft mount`. Empty: by a version that cannot hand a
    /// mount over.
    #[serde(default)]
    pub settings: Vec<String>,
    /// `major:minor` of what is mounted, which is the process's even where it was detached and
    /// something else is at the path.
    #[serde(default)]
    pub device: Option<String>,
    /// What tells it from what has that number later ([`Connection::life`]).
    #[serde(default)]
    pub life: Option<String>,
    /// The process that mounts it anew when this one has died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<Process>,
    /// What the process said at its end, if not all that was written could be made durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    /// What is left of it goes, or has gone, for another process to mount it anew.
    #[serde(default)]
    pub making_room: bool,
}

impl MountRecord {
    /// The mount at `path`, served by this very process. `connection`: the kernel's side.
    pub fn of_this_process(
        path: PathBuf,
        cluster: Vec<String>,
        settings: Vec<String>,
        connection: Option<Connection>,
    ) -> Result<Self> {
        let process = Process::this().context("cannot find this process in /proc")?;
        let (supervisor, failed) = (None, None);
        let (device, life) = connection.map_or((None, None), |c| (Some(c.device), c.life));
        let making_room = false;
        Ok(Self { path, cluster, process, settings, device, life, supervisor, failed, making_room })
    }

    /// The kernel's side of the mount, where it was noted.
    pub fn connection(&self) -> Option<Connection> {
        let (mount_point, life) = (self.path.clone(), self.life.clone());
        self.device.clone().map(|device| Connection { mount_point, device, life })
    }

    /// Whether this is what is mounted at its path, as far as both are known.
    pub fn is_of(&self, mount: &MountEntry) -> bool {
        let Some(device) = &self.device else { return true };
        // The number alone is given out again.
        let now = Connection::at(&self.path).and_then(|now| now.life);
        let same_life = self.life.is_none() || now.is_none() || self.life == now;
        *device == mount.device && same_life
    }

    /// The socket at which the process hands the mount over. Only this user may use its folder.
    pub fn socket(&self) -> Result<PathBuf> {
        let (pid, started) = (self.process.pid, self.process.started());
        Ok(folder()?.join("mounts").join(format!("{pid}-{started}.sock")))
    }

    /// Nobody mounts it anew any more; if its process lives, that is told to end.
    pub fn end_supervision(&self) {
        let told = self.supervisor.as_ref().map(|supervisor| supervisor.signal(Signal::SIGTERM));
        if let Some(Err(error)) = told {
            eprintln!("weft: {} may be mounted anew: {error}", self.path.display());
        }
    }

    /// The last word of the process: the record goes, unless something is to be told to who
    /// unmounts.
    pub fn end(self, result: &Result<()>) -> Result<()> {
        match result {
            Ok(()) => self.remove(),
            // Another process has taken the mount over.
            Err(_) if find(&self.path)?.is_some_and(|now| now.process != self.process) => Ok(()),
            Err(e) => Self { failed: Some(describe(e)), ..self }.save(),
        }
    }

    /// Once the process has ended: fails unless it said that everything is durable. Forgets it.
    pub fn verdict(&self) -> Result<()> {
        let said = last_word(&file_of(&self.path)?, &self.process);
        self.remove()?;
        let at = self.path.display();
        match said {
            Ok(()) => Ok(()),
            Err(Some(why)) => bail!("{at} is unmounted, but not all is durable: {why}"),
            Err(None) => bail!(
                "{at} is unmounted, but its process {} died before everything was durable: what \
                 was not synced may be lost",
                self.process.pid
            ),
        }
    }

    /// Remembers that what is left of it goes.
    pub fn make_room(self) -> Result<()> {
        Self { making_room: true, ..self }.save()
    }

    /// Remembers a mount; replaces what was known of the same path.
    pub fn save(&self) -> Result<()> {
        self.save_in(&file_of(&self.path)?)
    }

    fn save_in(&self, file: &Path) -> Result<()> {
        // Of its own for each process that writes: one may put back what is another's.
        let temporary = file.with_extension(format!("tmp{}", std::process::id()));
        let what = || format!("cannot write {}", file.display());
        fs::write(&temporary, serde_json::to_vec(self)?).with_context(what)?;
        fs::rename(&temporary, file).with_context(what)
    }

    /// Remembers this one again in the place of that of `heir`, which was to serve the mount and
    /// does not: if the process of this one lives, and so serves it, and nobody else has it.
    pub fn put_back(&self, heir: &Process) -> Result<()> {
        self.put_back_in(&file_of(&self.path)?, heir)
    }

    fn put_back_in(&self, file: &Path, heir: &Process) -> Result<()> {
        let is_heirs = read(file).is_some_and(|now| now.process == *heir);
        if is_heirs && self.process.alive() { self.save_in(file) } else { Ok(()) }
    }

    /// Forgets this mount, unless another process has taken the path over.
    pub fn remove(&self) -> Result<()> {
        match find(&self.path)? {
            Some(now) if now.process == self.process => {
                match fs::remove_file(file_of(&self.path)?) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    other => Ok(other?),
                }
            }
            _ => Ok(()),
        }
    }
}

/// What is recorded of the mount at this (resolved) path, alive or not.
pub fn find(path: &Path) -> Result<Option<MountRecord>> {
    Ok(read(&file_of(path)?).filter(|record| record.path == path))
}

/// All records of mounts that are there, ordered by path.
pub fn list() -> Result<Vec<MountRecord>> {
    let dir = fs::read_dir(folder()?.join("mounts"))?;
    let all = dir.filter_map(|entry| read(&entry.ok()?.path()));
    let mounted = weft_fuse::mounts()?;
    let gone = |r: &MountRecord| {
        !r.process.alive() && !mounted.iter().any(|m| m.mount_point == r.path && m.is_weft())
    };
    let (gone, mut all): (Vec<_>, Vec<MountRecord>) = all.partition(gone);
    // Whoever unmounts may wait for the last word of one that has just ended; nobody waits for what
    // has no mount point any more.
    for record in gone.iter().filter(|r| r.path.symlink_metadata().is_err()) {
        record.remove()?;
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// What this process left behind in its record: nothing if all went well, which takes it away.
fn last_word(file: &Path, process: &Process) -> Result<(), Option<String>> {
    match read(file).filter(|record| record.process == *process) {
        None => Ok(()),
        Some(record) => Err(record.failed),
    }
}

fn read(file: &Path) -> Option<MountRecord> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn file_of(path: &Path) -> Result<PathBuf> {
    Ok(folder()?.join("mounts").join(format!("{}.json", escape(path))))
}

/// Where the session of the mount at a path is noted.
pub fn session_file(path: &Path) -> Result<PathBuf> {
    Ok(folder()?.join("mounts").join(format!("{}.session", escape(path))))
}

/// Default log of a mount that was given none.
pub fn default_log(path: &Path) -> Result<PathBuf> {
    let dir = if nix::unistd::geteuid().is_root() {
        PathBuf::from("/var/log/weft")
    } else {
        folder()?.join("log")
    };
    Ok(dir.join(format!("mount-{}.log", escape(path))))
}

/// A path as one file name; different paths give different names.
fn escape(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut name = String::new();
    for &byte in path.as_os_str().as_bytes().strip_prefix(b"/").unwrap_or_default() {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => name.push(byte as char),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    // The kernel's limit for a name is 255 bytes; the end tells paths apart best.
    name.split_off(name.len().saturating_sub(200))
}

/// `$WEFT_RUN_DIR`, or `/run/weft` for root, or a folder of the user's own.
fn folder() -> Result<PathBuf> {
    let uid = nix::unistd::geteuid();
    let dir = if let Some(dir) = std::env::var_os("WEFT_RUN_DIR") {
        PathBuf::from(dir)
    } else if uid.is_root() {
        PathBuf::from("/run/weft")
    } else if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR") {
        PathBuf::from(dir).join("weft")
    } else {
        PathBuf::from(format!("/tmp/weft-{uid}"))
    };
    let what = || format!("cannot use {} for run-time records; set WEFT_RUN_DIR", dir.display());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir.join("mounts"))
        .with_context(what)?;
    let owner = fs::metadata(&dir).with_context(what)?.uid();
    anyhow::ensure!(
        owner == uid.as_raw(),
        "{} belongs to user {owner}; set WEFT_RUN_DIR",
        dir.display()
    );
    Ok(dir)
}

#[cfg(test)]
mod tests;
