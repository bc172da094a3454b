//! Somebody who sees the mounts of this machine as they are, as a container does: in a namespace of
//! his own, in which they come and go with those outside.

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Ended with the test.
pub struct Container {
    child: Child,
    /// Where it sees the folder that it was given.
    at: PathBuf,
}

impl Container {
    /// Begins one that sees what is mounted at `place` at `at`, as Kubernetes gives it one with
    /// `mountPropagation: HostToContainer`.
    pub fn begin(place: &Path, at: &Path) -> Result<Self> {
        fs::create_dir_all(at)?;
        let is_of_test = |dir: &Path| {
            dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"weft-test-"))
        };
        let own = place.ancestors().find(|dir| is_of_test(dir)).unwrap_or(place);
        // What it has of the mounts of other tests would keep those from ending.
        let see = "mount --bind \"$0\" \"$1\" && mount --make-rslave \"$1\" || exit
            for other in $(grep -F ' - fuse.weft ' /proc/self/mountinfo | cut -d ' ' -f 5); do
                case $other in
                    \"$2\"/*|\"$0\"*|\"$1\"*) ;;
                    *) umount --internal-only --lazy \"$other\" || : ;;
                esac
            done
            echo && exec sleep 600";
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "slave", "sh", "-c", see])
            .args([place, at, own])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("run unshare")?;
        let said = child.stdout.as_mut().context("no output")?.read(&mut [0])?;
        let container = Self { child, at: at.to_owned() };
        ensure!(said == 1, "{} cannot be shown to a container", place.display());
        Ok(container)
    }

    /// The folder that it was given, as it sees it.
    pub fn folder(&self) -> PathBuf {
        self.sees(&self.at)
    }

    /// Any place, as it sees it.
    pub fn sees(&self, place: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.child.id());
        Path::new(&root).join(place.strip_prefix("/").unwrap_or(place))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder in which what is mounted comes to all who follow, as the kubelet's is.
pub struct Shared(PathBuf);

impl Shared {
    pub fn make(folder: &Path) -> Result<Self> {
        let none = None::<&str>;
        mount(Some(folder), folder, none, MsFlags::MS_BIND, none)?;
        let shared = Self(folder.to_owned());
        // By itself alone first: what it is made of may be shared with others already.
        for propagation in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
            mount(none, folder, none, propagation, none)?;
        }
        Ok(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
