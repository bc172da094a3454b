//! A disk that forgets what was not flushed when the power goes: a FUSE filesystem of this process,
//! all in memory.
//!
//! What a program has flushed (`fsync` of a file for its bytes, of a folder for the names in it) is
//! there afterwards. Of all else, by dice: sectors are there or are not, each by itself; the names
//! of a folder are as they were flushed last, or as they are. That is more than most filesystems
//! would lose, and no more than POSIX lets them.
//!
//! Invariant: from the moment of the cut nothing is read, written, flushed or named, and an error
//! comes once all who use the disk are killed: nobody goes on with what he could not have known.

mod served;
mod supply;
mod tree;

use crate::process::{await_end, kill_hard};
use crate::{Cluster, Shape, eventually, path, run, weft_binary};
use anyhow::{Context, Result};
use fuser::{MountOption, Session, SessionACL};
use nix::mount::umount;
use nix::unistd::geteuid;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use served::Served;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use supply::{Power, Shared};
use tree::Tree;

/// A mounted disk. Unmounted when dropped; who uses it has to be gone by then.
pub struct Disk {
    shared: Arc<Shared>,
    at: PathBuf,
    session: Option<fuser::BackgroundSession>,
}

impl Disk {
    /// An empty disk, mounted at a folder that is made.
    pub fn mount(at: &Path) -> Result<Self> {
        std::fs::create_dir_all(at)?;
        // SAFETY: both only read the credentials of this process.
        let owner = unsafe { (libc::geteuid(), libc::getegid()) };
        let shared = Arc::new(Shared::new(Tree::new(owner)));
        let session = Some(serve(&shared, at)?);
        Ok(Self { shared, at: at.to_path_buf(), session })
    }

    /// The power goes now. All that used the disk is to be killed before it is back.
    pub fn cut(&self, seed: u64) {
        self.shared.cut(|tree| tree.cut(&mut SmallRng::seed_from_u64(seed)));
    }

    /// Fails the requests that wait, so that who was killed can go.
    pub fn fail_requests(&self) {
        self.shared.set(Power::Off);
    }

    /// From now on nothing is answered.
    pub fn hang(&self) -> Result<()> {
        self.shared.set(Power::Cut);
        Ok(())
    }

    /// From now on everything fails.
    pub fn fail(&self) -> Result<()> {
        self.shared.set(Power::Off);
        Ok(())
    }

    /// From now on nothing more can be written.
    pub fn fill(&self) -> Result<()> {
        self.shared.fill(true);
        Ok(())
    }

    /// It answers again, has room, and has lost nothing.
    pub fn mend(&self) -> Result<()> {
        self.shared.fill(false);
        self.shared.set(Power::On);
        Ok(())
    }

    /// The power is back: the disk is mounted with what is left on it. Error: somebody uses it.
    pub fn power_on(&mut self) -> Result<()> {
        self.fail_requests();
        // What a process that was killed had under way is let go of a moment later.
        eventually(Duration::from_secs(60), "nobody uses the disk", || unmount(&self.at).ok())?;
        if let Some(session) = self.session.take() {
            session.join()?;
        }
        self.shared.set(Power::On);
        self.session = Some(serve(&self.shared, &self.at)?);
        Ok(())
    }
}

/// Processes that use a disk.
pub struct Consumers(Vec<i32>);

impl Cluster {
    /// A cluster with all its files, but for the logs, on such a disk.
    pub fn start_on_disk(shape: Shape) -> Result<(Disk, Self)> {
        let temp = tempfile::Builder::new().prefix("weft-test-").tempdir()?;
        let (at, logs) = (temp.path().join("disk"), temp.path().join("log"));
        let (disk, dir) = (Disk::mount(&at)?, at.join("cluster"));
        std::fs::create_dir(&dir)?;
        std::fs::create_dir(&logs)?;
        std::os::unix::fs::symlink(&logs, dir.join("log"))?;
        File::open(&dir)?.sync_all()?;
        File::open(&at)?.sync_all()?;
        Ok((disk, Self::start_in(&weft_binary(), shape, temp, dir)?))
    }

    /// All that is to lose its power. To be asked while nobody is killed or started.
    pub fn consumers(&self) -> Result<Consumers> {
        Ok(Consumers(self.pids()?))
    }

    /// The power of everything goes at once: all processes, and what its disk has not flushed. It
    /// is back when this answers.
    pub fn cut_power(&self, disk: &mut Disk, consumers: Consumers, seed: u64) -> Result<()> {
        disk.cut(seed);
        for pid in &consumers.0 {
            // Who has ended by himself says so in his log.
            let _ = kill_hard(*pid);
        }
        disk.fail_requests();
        consumers.0.into_iter().try_for_each(await_end)?;
        disk.power_on()?;
        self.start_again()
    }
}

fn unmount(at: &Path) -> Result<()> {
    match geteuid().is_root() {
        true => Ok(umount(at)?),
        false => run("fusermount3", &["-u", path(at)], Path::new("/")).map(drop),
    }
}

fn serve(shared: &Arc<Shared>, at: &Path) -> Result<fuser::BackgroundSession> {
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::FSName("weft-test-power".into())];
    config.acl = SessionACL::Owner;
    Session::new(Served(shared.clone()), at, &config)
        .and_then(Session::spawn)
        .with_context(|| format!("cannot mount FUSE at {}", at.display()))
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.fail_requests();
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_program_finds_what_it_flushed_and_nothing_is_answered_meanwhile() -> Result<()> {
        let temp = tempfile::tempdir()?;
        let mut disk = Disk::mount(&temp.path().join("disk"))?;
        let at = temp.path().join("disk");
        fs::create_dir(at.join("d"))?;
        File::open(&at)?.sync_all()?;
        let mut lost = 0;
        for seed in 0..20 {
            let mut file = File::create(at.join("d/new"))?;
            file.write_all(&[seed as u8; 10_000])?;
            file.sync_all()?;
            fs::rename(at.join("d/new"), at.join("d/f"))?;
            File::open(at.join("d"))?.sync_all()?;
            file.write_all_at(b"never flushed", 0)?;
            File::create(at.join("d/unflushed"))?;
            disk.cut(seed);
            let path = at.join("d/f");
            let writer = std::thread::spawn(move || file.write_all_at(b"late", 0).is_err());
            let waits = || disk.shared.is_awaited().then_some(());
            eventually(Duration::from_secs(60), "a request that waits", waits)?;
            assert!(!writer.is_finished(), "it was answered");
            disk.fail_requests();
            assert!(writer.join().is_ok_and(|failed| failed), "it was done");
            disk.power_on()?;
            let content = fs::read(&path)?;
            assert!(content.len() == 10_000 && content[512..].iter().all(|b| *b == seed as u8));
            lost += u32::from(!at.join("d/unflushed").exists());
            let _ = fs::remove_file(at.join("d/unflushed"));
        }
        assert!((1..20).contains(&lost), "{lost}");
        Ok(())
    }
}
