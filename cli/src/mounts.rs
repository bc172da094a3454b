//! Which process serves which mount: one small record a mount in a folder that every command of
//! this user finds. The kernel's mount table is the truth about what is mounted; a record only
//! adds the process and the cluster to it.

mod folder;
mod name;

use crate::output::describe;
use crate::process::Process;
use anyhow::{Context, Result, bail};
use folder::{place_in, place_of};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weft_fuse::{Connection, MountEntry};

/// What is noted of a mount is made to look new so often: less than any machine sweeps after.
const KEEP_INTERVAL: Duration = Duration::from_secs(24 * 3600);

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
        place_of(&format!("{pid}-{started}.sock"))
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
        let said = last_word(&found_of(&self.path)?, &self.process);
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

    /// Remembers a mount that was made just now; replaces what was known of the same path.
    pub fn save_new(&self) -> Result<()> {
        self.save_new_among(&folder::own()?, &folder::others())
    }

    /// Remembers a mount that is remembered already, in that place: processes of a version before
    /// that serve it, guard it, or look after it, find it nowhere else.
    pub fn save(&self) -> Result<()> {
        self.save_among(&folder::own()?, &folder::others())
    }

    fn save_new_among(&self, own: &Path, others: &[PathBuf]) -> Result<()> {
        let name = file_name(own, others, &self.path);
        let known = read(&place_in(own, others, &name)).and_then(|known| known.supervisor);
        // Mounted anew by who looks after it.
        if known.is_some() && known == self.supervisor {
            return self.save_among(own, others);
        }
        self.save_in(&own.join("mounts").join(&name))?;
        others.iter().try_for_each(|dir| gone(fs::remove_file(dir.join("mounts").join(&name))))
    }

    fn save_among(&self, own: &Path, others: &[PathBuf]) -> Result<()> {
        self.save_in(&place_in(own, others, &file_name(own, others, &self.path)))
    }

    /// Keeps what is noted of this mount, which this process serves, from being swept for its age,
    /// and notes it anew where its folder has gone, until this is dropped.
    pub async fn keep(self) {
        loop {
            tokio::time::sleep(KEEP_INTERVAL).await;
            if let Err(error) = self.touch() {
                let at = self.path.display();
                tracing::warn!("what is noted of the mount at {at} may be swept: {error:#}");
            }
        }
    }

    fn touch(&self) -> Result<()> {
        let (dir, file) = (folder::own()?, found_of(&self.path)?);
        self.save_missing_in(&file, || self.is_mounted())?;
        let (session, log) = (session_file(&self.path)?, default_log(&self.path)?);
        touch_all(&[&dir.join("mounts"), &dir, &session, &log])?;
        // The record with the two folders that it is in.
        touch_all(&file.ancestors().take(3).collect::<Vec<_>>())
    }

    /// Remembers it again where nothing is remembered any more: `XDG_RUNTIME_DIR`, where a version
    /// before has noted it, goes when the user logs out. Who unmounts forgets it, too, but takes
    /// the mount away before that.
    fn save_missing_in(&self, file: &Path, is_mounted: impl FnOnce() -> bool) -> Result<()> {
        if file.exists() || !is_mounted() { Ok(()) } else { self.save_in(file) }
    }

    fn is_mounted(&self) -> bool {
        let mount = weft_fuse::mount_at(&self.path).ok().flatten();
        mount.is_some_and(|mount| mount.is_weft() && self.is_of(&mount))
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
        self.put_back_in(&found_of(&self.path)?, heir)
    }

    fn put_back_in(&self, file: &Path, heir: &Process) -> Result<()> {
        let is_heirs = read(file).is_some_and(|now| now.process == *heir);
        if is_heirs && self.process.alive() { self.save_in(file) } else { Ok(()) }
    }

    /// Forgets this mount, unless another process has taken the path over.
    pub fn remove(&self) -> Result<()> {
        match find(&self.path)? {
            Some(now) if now.process == self.process => {
                gone(fs::remove_file(found_of(&self.path)?))
            }
            _ => Ok(()),
        }
    }
}

/// What is recorded of the mount at this (resolved) path, alive or not.
pub fn find(path: &Path) -> Result<Option<MountRecord>> {
    Ok(read(&found_of(path)?).filter(|record| record.path == path))
}

/// All records of mounts that are there, ordered by path.
pub fn list() -> Result<Vec<MountRecord>> {
    let mut all = records_in(&folder::own()?);
    for record in folder::others().iter().flat_map(|dir| records_in(dir)) {
        if all.iter().all(|known| known.path != record.path) {
            all.push(record);
        }
    }
    let mounted = weft_fuse::mounts()?;
    let gone = |r: &MountRecord| {
        !r.process.alive() && !mounted.iter().any(|m| m.mount_point == r.path && m.is_weft())
    };
    let (gone, mut all): (Vec<_>, Vec<MountRecord>) = all.into_iter().partition(gone);
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

fn records_in(dir: &Path) -> Vec<MountRecord> {
    let entries = fs::read_dir(dir.join("mounts")).into_iter().flatten().flatten();
    entries.filter_map(|entry| read(&entry.path())).collect()
}

/// What is not there is gone.
fn gone(removed: std::io::Result<()>) -> Result<()> {
    match removed {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => Ok(other?),
    }
}

/// What is not there need not be kept.
fn touch_all(all: &[&Path]) -> Result<()> {
    let now = SystemTime::now();
    let times = FileTimes::new().set_accessed(now).set_modified(now);
    all.iter().try_for_each(|one| gone(File::open(one).and_then(|open| open.set_times(times))))
}

/// What the files of the mount at a path are called in these folders. One that a version before has
/// noted keeps its name: the processes of that find it nowhere else.
fn name_in(own: &Path, others: &[PathBuf], path: &Path) -> String {
    let (name, before) = (name::escape(path), name::before(path));
    let record = |name: &str| place_in(own, others, &format!("{name}.json"));
    let keeps = name != before
        && !record(&name).exists()
        && read(&record(&before)).is_some_and(|noted| noted.path == path);
    if keeps { before } else { name }
}

fn file_name(own: &Path, others: &[PathBuf], path: &Path) -> String {
    format!("{}.json", name_in(own, others, path))
}

/// Where a mount is recorded: perhaps a version before has done so, elsewhere.
fn found_of(path: &Path) -> Result<PathBuf> {
    place_for(path, "json")
}

/// Where the session of the mount at a path is noted.
pub fn session_file(path: &Path) -> Result<PathBuf> {
    place_for(path, "session")
}

/// The place of a file of the mount at a path.
fn place_for(path: &Path, ending: &str) -> Result<PathBuf> {
    let (own, others) = (folder::own()?, folder::others());
    Ok(place_in(&own, &others, &format!("{}.{ending}", name_in(&own, &others, path))))
}

/// Default log of a mount that was given none.
pub fn default_log(path: &Path) -> Result<PathBuf> {
    let own = folder::own()?;
    let name = name_in(&own, &folder::others(), path);
    let is_root = nix::unistd::geteuid().is_root();
    let dir = if is_root { PathBuf::from("/var/log/weft") } else { own.join("log") };
    Ok(dir.join(format!("mount-{name}.log")))
}

#[cfg(test)]
mod tests;
