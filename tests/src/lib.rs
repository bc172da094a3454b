//! Harness of the end-to-end tests: a real cluster of real processes with a real mount.
//!
//! Invariants: every cluster has a directory, ports and a mount of its own, so tests run in
//! parallel; whatever a test started is stopped and unmounted when it ends, also when it panics or
//! is killed (a guard process waits for the end of a pipe); a test that takes too long is ended,
//! with the logs and what every thread waits for on standard error; a daemon that panicked fails
//! the test.

// Real processes live in real time: conditions are looked at again after a pause.
#![allow(clippy::disallowed_methods)]

pub mod aio;
pub mod certificates;
mod cost;
pub mod data;
pub mod drive;
pub mod fsx;
mod health;
pub mod load;
pub mod model;
mod not_tested;
mod paused;
pub mod power;
mod process;
pub mod server;
mod shape;
pub mod sim;
mod tries;
mod xattrs;

pub use cost::{await_free, cost, requests, tell_accesses};
pub use health::{await_health, serving, status_of};
pub use not_tested::not_tested;
pub use paused::Paused;
pub use process::eventually;
pub use shape::Shape;
pub use tries::tries;
pub use xattrs::{set_xattr, xattr};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use process::{await_end, kill_hard, kill_to_the_end};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use weft_net::Transport;

/// The `weft` binary that was built with this test, or `WEFT_BIN`.
pub fn weft_binary() -> PathBuf {
    std::env::var_os("WEFT_BIN").map_or_else(|| binary("weft"), PathBuf::from)
}

/// A binary that was built with this program: in one of the folders above it.
pub fn binary(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this program");
    let found = exe.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|p| p.exists());
    found.unwrap_or_else(|| {
        panic!("there is no {name} above {}: run `cargo build --release` first", exe.display())
    })
}

/// Runs `weft` with `args` and returns what it answered, whatever its exit code. To a cluster of a
/// test that has certificates it shows itself as a client, or an admin, as the command needs it.
pub fn weft(args: &[&str]) -> Result<Output> {
    Command::new(weft_binary())
        .args(args)
        .envs(certificates::shown_by(args))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run weft {args:?}"))
}

/// Runs `weft` and fails with its error output unless it succeeds; returns standard output.
pub fn weft_ok(args: &[&str]) -> Result<String> {
    succeeded(args, weft(args)?)
}

fn succeeded(args: &[&str], out: Output) -> Result<String> {
    ensure!(
        out.status.success(),
        "weft {} ended with {}: {}",
        args.join(" "),
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A cluster made by `weft dev start`, with its first mount.
pub struct Cluster {
    shape: Shape,
    mount: PathBuf,
    dir: PathBuf,
    guard: Option<Child>,
    // Removed last.
    _temp: TempDir,
}

impl Cluster {
    /// Starts the usual three metadata servers and six storage daemons at 4+2.
    pub fn start() -> Result<Self> {
        Self::start_as(Shape::default())
    }

    pub fn start_as(shape: Shape) -> Result<Self> {
        Self::start_by(&weft_binary(), shape)
    }

    /// Starts all daemons and the mount with another binary. Whatever is started later is of this
    /// build.
    pub fn start_by(binary: &Path, shape: Shape) -> Result<Self> {
        let temp = tempfile::Builder::new().prefix("weft-test-").tempdir()?;
        let dir = temp.path().join("cluster");
        Self::start_in(binary, shape, temp, dir)
    }

    fn start_in(binary: &Path, shape: Shape, temp: TempDir, dir: PathBuf) -> Result<Self> {
        let mount = temp.path().join("mnt");
        fs::create_dir(&mount)?;
        let guard = guard(&dir, temp.path())?;
        let cluster = Self { shape, mount, dir, guard: Some(guard), _temp: temp };
        cluster.allow(tries::limit())?;
        cluster.start_with(binary)?;
        Ok(cluster)
    }

    /// Gives the test this much time from now. If it takes longer, the logs and what everybody
    /// waits for are shown, the cluster is ended and the test fails.
    pub fn allow(&self, limit: Duration) -> Result<()> {
        let mut input = self.guard.as_ref().and_then(|g| g.stdin.as_ref()).context("no guard")?;
        writeln!(input, "{}", limit.as_secs()).context("tell the guard")
    }

    /// `weft dev start` on the same directory: starts whatever is not running.
    pub fn start_again(&self) -> Result<()> {
        self.start_with(&weft_binary())
    }

    fn start_with(&self, binary: &Path) -> Result<()> {
        let (metadata, storage) = (self.shape.metadata.to_string(), self.shape.storage.to_string());
        let mut args = vec![
            "dev",
            "start",
            "--dir",
            path(&self.dir),
            "--mount",
            path(&self.mount),
            "--metadata",
            &metadata,
            "--storage",
            &storage,
            "--profile",
            self.shape.profile,
        ];
        if !self.shape.target_size.is_empty() {
            args.extend(["--target-size", self.shape.target_size]);
        }
        args.extend(self.shape.tls.then_some("--tls"));
        let mut start = Command::new(binary);
        start.args(&args).envs(self.shape.environment.iter().cloned()).stdin(Stdio::null());
        succeeded(&args, start.output()?)?;
        if self.shape.tls {
            certificates::know(&self.address()?, &self.tls_dir());
        }
        Ok(())
    }

    /// `weft dev stop`.
    pub fn stop(&self) -> Result<()> {
        weft_ok(&["dev", "stop", "--dir", path(&self.dir)]).map(drop)
    }

    /// Where the filesystem is mounted.
    pub fn mnt(&self) -> &Path {
        &self.mount
    }

    /// The cluster's own directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether everybody proves who he is.
    pub fn has_certificates(&self) -> bool {
        self.shape.tls
    }

    /// Where the certificates are, if it has any.
    pub fn tls_dir(&self) -> PathBuf {
        self.dir.join("tls")
    }

    /// What has a program show itself to its daemons, as a client.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        match self.shape.tls {
            true => certificates::environment(&self.tls_dir(), "client"),
            false => Vec::new(),
        }
    }

    /// The way to its daemons, as this client or admin.
    pub fn transport_as(&self, name: &str) -> Result<Arc<dyn Transport>> {
        match self.shape.tls {
            true => certificates::transport(&self.tls_dir(), name),
            false => Ok(weft_net::tcp()),
        }
    }

    /// The way to its daemons, as a client.
    pub fn transport(&self) -> Result<Arc<dyn Transport>> {
        self.transport_as("client")
    }

    /// A folder beside the cluster, on the local filesystem, removed with it.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self._temp.path().join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    pub fn status(&self) -> Result<Value> {
        let out = weft_ok(&["dev", "status", "--dir", path(&self.dir), "--output", "json"])?;
        serde_json::from_str(&out).with_context(|| format!("dev status printed {out:?}"))
    }

    /// Addresses of the metadata servers, as `--cluster` takes them.
    pub fn address(&self) -> Result<String> {
        Ok(self.status()?["cluster"].as_str().context("status has no cluster address")?.to_string())
    }

    /// Mounts the filesystem a second time.
    pub fn mount_again(&self, name: &str) -> Result<PathBuf> {
        self.mount_with(name, &[])
    }

    /// As [`Self::mount_again`], with more options.
    pub fn mount_with(&self, name: &str, options: &[&str]) -> Result<PathBuf> {
        let mnt = self.scratch(name)?;
        self.mount_at(&mnt, options)?;
        Ok(mnt)
    }

    /// Mounts the filesystem, with a log beside those of the daemons.
    fn mount_at(&self, at: &Path, options: &[&str]) -> Result<()> {
        let name = at.file_name().and_then(|name| name.to_str()).context("a mount has a name")?;
        let log = self.dir.join("log").join(format!("mount-{name}.log"));
        let cluster = self.address()?;
        let own = ["mount", "--cluster", &cluster, "--log-file", path(&log)];
        weft_ok(&[&own, options, &[path(at)]].concat()).map(drop)
    }

    /// Takes a mount away and puts it back: the client starts with nothing cached.
    pub fn remount(&self) -> Result<()> {
        weft_ok(&["umount", path(&self.mount)])?;
        self.mount_at(&self.mount, &[])
    }

    /// Stops a daemon as an admin does, and waits until it has ended.
    pub fn stop_daemon(&self, role: &str, index: usize) -> Result<()> {
        let pid = pid(&self.status()?[role][index])?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).with_context(|| format!("stop {pid}"))?;
        await_end(pid)
    }

    /// Kills storage daemon `index` with SIGKILL.
    pub fn kill_storage(&self, index: usize) -> Result<()> {
        kill_to_the_end(pid(&self.status()?["storage"][index])?)
    }

    /// Kills the metadata leader with SIGKILL; returns its id.
    pub fn kill_leader(&self) -> Result<u64> {
        let leader = eventually(Duration::from_secs(60), "a metadata leader", || {
            let status = self.status().ok()?;
            status["metadata"].as_array()?.iter().find(|m| m["leader"] == true).cloned()
        })?;
        kill_to_the_end(pid(&leader)?)?;
        leader["id"].as_u64().context("leader without an id")
    }

    /// Kills a metadata server that does not lead with SIGKILL and takes its disk away; returns its
    /// folder.
    pub fn lose_metadata_disk(&self) -> Result<PathBuf> {
        let follower = eventually(Duration::from_secs(60), "a metadata leader", || {
            let status = self.status().ok()?;
            let servers = status["metadata"].as_array()?;
            servers.iter().find(|m| m["leader"] == true)?;
            servers.iter().find(|m| m["leader"] == false).cloned()
        })?;
        kill_to_the_end(pid(&follower)?)?;
        let folder = self.dir.join(format!("metadata-{}", follower["id"]));
        fs::remove_dir_all(&folder)?;
        Ok(folder)
    }

    /// Kills the process that serves a mount, with SIGKILL.
    pub fn kill_mount(&self, at: &Path) -> Result<()> {
        kill_to_the_end(self.pid_of_mount(at)?.as_raw())
    }

    /// The process that serves a mount.
    pub fn pid_of_mount(&self, at: &Path) -> Result<Pid> {
        let at = at.canonicalize()?;
        let status = self.status()?;
        let mounts = status["mounts"].as_array().context("status lists no mounts")?;
        let mount = mounts.iter().find(|m| m["path"].as_str().map(Path::new) == Some(&at));
        let mount = mount.with_context(|| format!("{} is not in {status}", at.display()))?;
        Ok(Pid::from_raw(pid(mount)?))
    }

    /// Has the process that serves a mount stand still.
    pub fn pause_mount(&self, at: &Path) -> Result<Paused> {
        Paused::all(vec![self.pid_of_mount(at)?.as_raw()])
    }

    /// Has the metadata group stand still.
    pub fn pause_metadata(&self) -> Result<Paused> {
        let status = self.status()?;
        let servers = status["metadata"].as_array().context("status lists no metadata servers")?;
        Paused::all(servers.iter().map(pid).collect::<Result<_>>()?)
    }

    /// Kills every process of the cluster at once, the mounts' too.
    pub fn kill_all(&self) -> Result<()> {
        let pids = self.pids()?;
        pids.iter().try_for_each(|pid| kill_hard(*pid))?;
        pids.into_iter().try_for_each(await_end)
    }

    /// Every process of the cluster, the mounts' too.
    fn pids(&self) -> Result<Vec<i32>> {
        let status = self.status()?;
        let pids = ["mounts", "storage", "metadata"]
            .iter()
            .flat_map(|kind| status[*kind].as_array().into_iter().flatten())
            .filter_map(|p| pid(p).ok())
            .collect::<Vec<_>>();
        ensure!(pids.len() > 3, "status lists too few processes: {status}");
        Ok(pids)
    }

    /// Files of the targets, in the order of the daemons.
    pub fn target_paths(&self) -> Result<Vec<PathBuf>> {
        let status = self.status()?;
        Ok(status["storage"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|s| s["targets"].as_array().into_iter().flatten())
            .filter_map(|t| t["path"].as_str().map(PathBuf::from))
            .collect())
    }

    /// Flips one byte on disk where `needle` lies in any target's file; answers how many were
    /// flipped.
    pub fn flip(&self, needle: &[u8]) -> Result<usize> {
        let mut flipped = 0;
        for path in self.target_paths()? {
            let mut file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
            let mut all = Vec::new();
            file.read_to_end(&mut all)?;
            // Chunks start on blocks of 4 KiB; the needle is the start of a block.
            for at in (0..all.len().saturating_sub(needle.len())).step_by(4096) {
                if &all[at..at + needle.len()] == needle {
                    file.write_all_at(&[needle[7] ^ 0x10], at as u64 + 7)?;
                    flipped += 1;
                }
            }
            file.sync_all()?;
        }
        Ok(flipped)
    }

    /// Puts target `index` behind a drive that can hang. Stops and starts the cluster.
    pub fn hang_drive(&self, index: usize) -> Result<drive::HangingDrive> {
        let target = self.target_paths()?.get(index).context("no such target")?.clone();
        self.stop()?;
        let backing = target.with_extension("backing");
        fs::rename(&target, &backing)?;
        let drive = drive::HangingDrive::mount(&backing, &target.with_extension("mnt"))?;
        std::os::unix::fs::symlink(drive.path(), &target)?;
        self.start_again()?;
        Ok(drive)
    }

    /// Waits until `count` targets are in `state`.
    pub fn await_targets(&self, state: &str, count: usize) -> Result<()> {
        eventually(Duration::from_secs(60), &format!("{count} targets {state}"), || {
            let status = self.status().ok()?;
            let found = status["storage"]
                .as_array()?
                .iter()
                .flat_map(|s| s["targets"].as_array().into_iter().flatten())
                .filter(|t| t["state"].as_str().is_some_and(|s| s.eq_ignore_ascii_case(state)))
                .count();
            (found == count).then_some(())
        })
    }

    /// `weft status`.
    pub fn overview(&self) -> Result<Value> {
        status_of(&self.address()?)
    }

    /// `weft target ACTION ID`.
    pub fn target(&self, action: &str, id: u64) -> Result<()> {
        let id = id.to_string();
        weft_ok(&["target", action, &id, "--cluster", &self.address()?]).map(drop)
    }

    /// Waits until nothing is left to be made at other targets.
    pub fn await_repaired(&self, limit: Duration) -> Result<()> {
        let mut last = Value::Null;
        let left = |status: &Value, what: &str| status["repair"][what].as_u64();
        eventually(limit, "nothing left to be repaired", || {
            last = self.overview().ok()?;
            let left = left(&last, "missing_chunks")? + left(&last, "moving_chunks")?;
            (left == 0 && last["health"] == "ok").then_some(())
        })
        .with_context(|| format!("the last was {last}"))
    }

    /// `weft dev start` with so many storage daemons in all; those whose folder is gone get an
    /// empty one.
    pub fn start_storage(&mut self, storage: u32) -> Result<()> {
        self.shape.storage = storage;
        self.start_again()
    }

    /// Kills storage daemon `index` with SIGKILL and takes its drive away.
    pub fn lose_storage(&self, index: usize) -> Result<()> {
        let folder = self.dir.join(format!("storage-{}", self.status()?["storage"][index]["id"]));
        self.kill_storage(index)?;
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))
    }

    /// How many inodes each session has open, as far as the metadata leader knows.
    pub fn opens(&self) -> Result<Vec<u64>> {
        let status = self.overview()?;
        let sessions = status["sessions"].as_array().context("status lists no sessions")?;
        let opens = sessions.iter().map(|session| session["opens"].as_u64());
        opens.collect::<Option<_>>().with_context(|| format!("no opens in {status}"))
    }

    /// Waits until each session has so many inodes open.
    pub fn await_opens(&self, wanted: &[u64]) -> Result<()> {
        let mut last = None;
        eventually(Duration::from_secs(60), &format!("{wanted:?} inodes are open"), || {
            last = self.opens().ok();
            (last.as_deref() == Some(wanted)).then_some(())
        })
        .with_context(|| format!("the last were {last:?}"))
    }

    /// Runs `weft fsck`; answers its exit success and its report.
    pub fn fsck(&self) -> Result<(bool, Value)> {
        self.fsck_with(&[])
    }

    /// As [`Self::fsck`], with more arguments.
    pub fn fsck_with(&self, more: &[&str]) -> Result<(bool, Value)> {
        let address = self.address()?;
        let args = [&["fsck", "--cluster", &address, "--output", "json"], more].concat();
        let out = weft(&args)?;
        let report = serde_json::from_slice(&out.stdout)
            .with_context(|| format!("fsck printed {:?}", String::from_utf8_lossy(&out.stdout)))?;
        Ok((out.status.success(), report))
    }

    /// Waits until fsck finds nothing wrong: what was deleted takes a moment to go.
    pub fn await_clean(&self) -> Result<()> {
        let mut last = Value::Null;
        eventually(Duration::from_secs(60), "a clean fsck", || {
            let (clean, report) = self.fsck().ok()?;
            last = report;
            clean.then_some(())
        })
        .with_context(|| format!("last report: {last}"))
    }

    /// All log text of all daemons.
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for entry in fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten() {
            all += &String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default());
        }
        all
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let logs = self.logs();
        // Shown of tests that fail, of which is not known here which those are.
        let notable = |line: &&str| ["WARN", "ERROR", "panicked"].iter().any(|w| line.contains(w));
        logs.lines().filter(notable).take(200).for_each(|line| eprintln!("{line}"));
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            let late = guard.wait().is_ok_and(|status| status.code() == Some(LATE));
            assert!(!late || std::thread::panicking(), "the test took too long and was ended");
        }
        if !std::thread::panicking() {
            assert!(!logs.contains("panicked at"), "a daemon panicked; its log says:\n{logs}");
        }
    }
}

/// What the guard exits with when it ended the test.
const LATE: i32 = 124;

/// A process that stops the cluster and removes its mounts and files once this process is gone or
/// lets go, and that shows and ends what takes too long.
fn guard(dir: &Path, temp: &Path) -> Result<Child> {
    let thread = std::thread::current();
    let program = std::env::args().next().unwrap_or_default();
    let name = thread.name().filter(|name| *name != "main").unwrap_or(&program);
    Command::new("setsid")
        .args(["sh", "-c", include_str!("guard.sh")])
        .env("WEFT", weft_binary())
        .env("STUCK", concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/stuck"))
        .env("NAME", name)
        .env("TEST", std::process::id().to_string())
        .env("DIR", dir)
        .env("TEMP", temp)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("start the guard process")
}

/// So many directories of so many files each, which the mount does not hold any more.
pub fn tree(
    cluster: &Cluster,
    [dirs, files]: [usize; 2],
    content: impl Fn(usize, usize) -> Vec<u8>,
) -> Result<()> {
    for d in 0..dirs {
        let dir = cluster.mnt().join("t").join(d.to_string());
        fs::create_dir_all(&dir)?;
        (0..files).try_for_each(|f| fs::write(dir.join(f.to_string()), content(d, f)))?;
    }
    cluster.remount()
}

/// A path as an argument; test paths are always text.
pub fn path(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

fn pid(process: &Value) -> Result<i32> {
    process["pid"]
        .as_i64()
        .and_then(|p| i32::try_from(p).ok())
        .filter(|&p| p > 1)
        .with_context(|| format!("no pid in {process}"))
}

/// Runs a program and fails with its output unless it succeeds.
pub fn run(program: &str, args: &[&str], dir: &Path) -> Result<String> {
    let out = Command::new(program)
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {program}"))?;
    ensure!(
        out.status.success(),
        "{program} {} ended with {}:\n{}{}",
        args.join(" "),
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
