//! The daemons and mounts of one run, each in its own host of a [`Network`].
//!
//! Invariant: whatever was started here is dead and unmounted when the cluster is dropped.

use crate::network::{Host, Network};
use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::SmallRng;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use weft_tests::power::Disk;
use weft_tests::{eventually, path, weft_binary};

/// One process on one host, that can be killed and started again.
pub struct Daemon {
    pub name: String,
    pub host: Host,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    /// Where its files are, if that can fail.
    disk: Option<Disk>,
    /// Says by how much its clock is wrong, if that can be.
    clock: Option<PathBuf>,
    planted: Option<String>,
    /// It may be dead, or end by itself.
    suffers: bool,
    /// Its disk has erred, or was full, since it was started.
    distrusts_disk: bool,
    /// The seed of what its disk has lost since then.
    lost: Option<u64>,
}

impl Daemon {
    /// Starts it unless it runs.
    pub fn start(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && child.try_wait()?.is_none()
        {
            return Ok(());
        }
        let log = File::options().append(true).create(true).open(&self.log)?;
        let mut command = Command::new(weft_binary());
        command.args(&self.args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Its network is of its own, and has no strangers.
        command.env("WEFT_INSECURE", "1");
        if let Some(clock) = &self.clock {
            command.env("LD_PRELOAD", weft_tests::binary("libweft_jepsen_clock.so"));
            command.env("WEFT_CLOCK_OFFSET", clock);
        }
        if let Some(bug) = &self.planted {
            command.env("WEFT_PLANTED", bug);
        }
        self.host.enter(&mut command)?;
        // SAFETY: prctl is async-signal-safe. The daemon dies with the run, however that ends.
        unsafe {
            command.pre_exec(|| {
                nix::libc::prctl(nix::libc::PR_SET_PDEATHSIG, nix::libc::SIGKILL);
                Ok(())
            });
        }
        self.child = Some(command.spawn().with_context(|| format!("start {}", self.name))?);
        Ok(())
    }

    /// Of its process, if it was started.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> Result<()> {
        self.suffers = true;
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            // It is gone when its disk has answered.
            self.disk.iter().for_each(Disk::fail_requests);
            child.wait()?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    fn end(&mut self) -> Result<()> {
        self.suffers = true;
        self.signal(Signal::SIGTERM)?;
        if let Some(child) = &mut self.child {
            let ended = eventually(PATIENCE, "it ends", || child.try_wait().ok().flatten())?;
            ensure!(ended.success(), "{} ended with {ended}", self.name);
        }
        self.child = None;
        Ok(())
    }

    /// It stands still until it is healed.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let Some(child) = &self.child else { return Ok(()) };
        Ok(kill(Pid::from_raw(child.id() as i32), signal)?)
    }

    /// Its disk errs, and has lost what was not flushed. A daemon that has seen that uses it no
    /// more, until it is started again.
    pub fn fail_disk(&mut self, seed: u64) -> Result<()> {
        (self.distrusts_disk, self.lost) = (true, Some(seed));
        self.disk()?.fail()
    }

    /// Its disk is full, and has lost nothing; else as [`Self::fail_disk`].
    pub fn fill_disk(&mut self) -> Result<()> {
        self.distrusts_disk = true;
        self.disk()?.fill()
    }

    /// The disk of its files, which is about to fail.
    pub fn disk(&mut self) -> Result<&mut Disk> {
        self.suffers = true;
        self.disk.as_mut().context("its files are on no disk that can fail")
    }

    /// Its clock is wrong by so many seconds from now on.
    pub fn step_clock(&self, seconds: i64) -> Result<()> {
        let clock = self.clock.as_ref().context("its clock is everybody's")?;
        // In place: the process that has it mapped reads it all the while.
        let file = File::options().write(true).create(true).truncate(false).open(clock)?;
        Ok(file.write_all_at(&(seconds * 1_000_000_000).to_ne_bytes(), 0)?)
    }

    /// Undoes all that was done to it, and starts it if it is dead.
    fn heal(&mut self) -> Result<()> {
        self.host.heal()?;
        self.signal(Signal::SIGCONT)?;
        if let Some(disk) = self.disk.as_ref().filter(|_| !self.distrusts_disk) {
            disk.mend()?;
        }
        self.clock.is_some().then(|| self.step_clock(0)).transpose()?;
        if std::mem::take(&mut self.distrusts_disk) {
            let disk = self.disk.as_mut();
            disk.zip(self.lost.take()).into_iter().for_each(|(disk, seed)| disk.cut(seed));
            self.kill()?;
            self.disk.as_mut().map_or(Ok(()), Disk::power_on)?;
            self.disk.as_ref().map_or(Ok(()), Disk::mend)?;
        }
        self.start()?;
        self.suffers = false;
        Ok(())
    }

    fn alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }
}

/// A cluster over a network. Fields are dropped in this order: processes before their network.
pub struct Cluster {
    pub metadata: Vec<Daemon>,
    pub storage: Vec<Daemon>,
    pub clients: Vec<Daemon>,
    /// Where the clients have the filesystem mounted, in their order: links, to a folder of each
    /// mount's own. What is mounted no more is never looked for below.
    pub mounts: Vec<PathBuf>,
    members: String,
    /// Where commands are run: it is never cut off.
    admin: Host,
    config: Config,
    /// Storage daemons whose target was given up, and how.
    given_up: Vec<(usize, &'static str)>,
    temp: TempDir,
    _network: Network,
    _guard: Guard,
}

/// Cleans up when this process has ended without doing so.
struct Guard(Child);

impl Guard {
    fn start(temp: &Path, network: &Network) -> Result<Self> {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", include_str!("guard.sh")]);
        command
            .env("RUN", std::process::id().to_string())
            .env("TEMP", temp)
            .env("HOSTS", network.namespaces().join(" "));
        Ok(Self(command.stdin(Stdio::piped()).spawn().context("start the guard process")?))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// What a cluster is made for.
#[derive(Clone, Default, Debug)]
pub struct Config {
    pub clients: u8,
    /// The servers' files lie on disks that can fail.
    pub disks: bool,
    /// Clocks can be wrong.
    pub clocks: bool,
    /// A bug that everybody has.
    pub planted: Option<String>,
    /// Bytes of what metadata servers cache of their state, if not as many as by default.
    pub metadata_cache: Option<u64>,
}

const METADATA: u8 = 3;
const STORAGE: u8 = 6;
const PARITY: usize = 2;
const PORT: u16 = 7000;
const TARGET_SIZE: &str = "512MiB";
const PATIENCE: Duration = Duration::from_secs(60);
/// What a busy machine has to do for it takes long, and is well as long as it comes to its end.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(600);

impl Cluster {
    /// Three metadata servers, six storage daemons at 4+2, and mounts. Needs root.
    pub fn start(config: &Config) -> Result<Self> {
        let clients = config.clients;
        let network = Network::new(METADATA + STORAGE + clients + 1)?;
        let admin = network.host(METADATA + STORAGE + clients);
        let temp = tempfile::Builder::new().prefix("weft-jepsen-").tempdir()?;
        let guard = Guard::start(temp.path(), &network)?;
        let addresses: Vec<String> =
            (0..METADATA).map(|i| format!("{}:{PORT}", network.host(i).address)).collect();
        let mut cluster = Self {
            metadata: Vec::new(),
            storage: Vec::new(),
            clients: Vec::new(),
            mounts: Vec::new(),
            members: addresses.join(","),
            admin,
            config: config.clone(),
            given_up: Vec::new(),
            temp,
            _network: network,
            _guard: guard,
        };
        for (i, address) in (0..METADATA).zip(&addresses) {
            let name = format!("metadata{i}");
            let mut daemon = cluster.daemon(&name, i, &[])?;
            let config = cluster.metadata_config(i, address, &addresses)?;
            prepare(&["metadata", "--bootstrap", "--config", path(&config)])?;
            daemon.args = ["metadata", "--config", path(&config)].map(String::from).to_vec();
            cluster.metadata.push(daemon);
        }
        for i in 0..STORAGE {
            let mut daemon = cluster.daemon(&format!("storage{i}"), METADATA + i, &[])?;
            let (config, target) = cluster.storage_config(i, METADATA + i, &addresses)?;
            prepare(&["target", "add", "--config", path(&config), path(&target)])?;
            daemon.args = ["storaged", "--config", path(&config)].map(String::from).to_vec();
            cluster.storage.push(daemon);
        }
        for i in 0..clients {
            let daemon = cluster.daemon(&format!("client{i}"), METADATA + STORAGE + i, &[])?;
            cluster.clients.push(daemon);
            cluster.mounts.push(cluster.temp.path().join(format!("mnt{i}")));
        }
        cluster.metadata.iter_mut().chain(&mut cluster.storage).try_for_each(Daemon::start)?;
        cluster.await_targets()?;
        cluster.mount_all()?;
        Ok(cluster)
    }

    fn daemon(&self, name: &str, host: u8, args: &[&str]) -> Result<Daemon> {
        let is_server = host < METADATA + STORAGE;
        let place = self.places(name).1;
        let clock = self.config.clocks.then(|| self.temp.path().join(format!("{name}.clock")));
        let daemon = Daemon {
            log: self.temp.path().join(format!("{name}.log")),
            name: name.to_owned(),
            host: self._network.host(host),
            args: args.iter().map(ToString::to_string).collect(),
            child: None,
            disk: (self.config.disks && is_server).then(|| Disk::mount(&place)).transpose()?,
            clock,
            planted: self.config.planted.clone(),
            suffers: false,
            distrusts_disk: false,
            lost: None,
        };
        daemon.clock.is_some().then(|| daemon.step_clock(0)).transpose()?;
        Ok(daemon)
    }

    fn metadata_config(&self, i: u8, listen: &str, addresses: &[String]) -> Result<PathBuf> {
        let (file, data) = self.places(&format!("metadata{i}"));
        let mut text = format!(
            "id = {}\nlisten = {listen:?}\ndata_dir = {:?}\nprofile = \"4+2\"\n",
            i + 1,
            path(&data)
        );
        if let Some(bytes) = self.config.metadata_cache {
            text += &format!("cache_bytes = {bytes}\n");
        }
        for (peer, address) in (1..).zip(addresses) {
            text += &format!("[[peers]]\nid = {peer}\naddress = {address:?}\n");
        }
        fs::write(&file, text)?;
        Ok(file)
    }

    fn storage_config(&self, i: u8, host: u8, addresses: &[String]) -> Result<(PathBuf, PathBuf)> {
        let (file, data) = self.places(&format!("storage{i}"));
        fs::create_dir_all(&data)?;
        let target = data.join("target");
        let listen = format!("{}:{PORT}", self._network.host(host).address);
        let text = format!(
            "name = \"s{i}\"\nlisten = {listen:?}\nmetadata = {addresses:?}\ndomain = \"host{i}\"\n\
             [[targets]]\npath = {:?}\nsize = {TARGET_SIZE:?}\n",
            path(&target)
        );
        fs::write(&file, text)?;
        Ok((file, target))
    }

    fn places(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.temp.path().join(format!("{name}.toml")), self.temp.path().join(name))
    }

    /// What `weft ARGS` prints when run on the admin's host.
    pub fn weft(&self, args: &[&str]) -> Result<(bool, String)> {
        let mut command = Command::new(weft_binary());
        command.args(args).stdin(Stdio::null()).env("WEFT_INSECURE", "1");
        self.admin.enter(&mut command)?;
        let out = command.output().context("run weft")?;
        Ok((out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned()))
    }

    /// Addresses of the metadata servers, as `--cluster` takes them.
    pub fn members(&self) -> &str {
        &self.members
    }

    /// Which of `metadata` leads, if it can be told.
    pub fn leader(&self) -> Option<usize> {
        let (ok, text) =
            self.weft(&["status", "--cluster", &self.members, "--output", "json"]).ok()?;
        let status: serde_json::Value = ok.then(|| serde_json::from_str(&text).ok())??;
        let rows = status["metadata"].as_array()?;
        let leader = rows.iter().find(|row| row["state"] == "leader")?["id"].as_u64()?;
        usize::try_from(leader).ok()?.checked_sub(1).filter(|&i| i < self.metadata.len())
    }

    /// Undoes all faults, starts what is dead, and waits until the cluster is whole.
    pub fn heal(&mut self) -> Result<()> {
        for daemon in self.metadata.iter_mut().chain(&mut self.storage) {
            daemon.heal()?;
        }
        for client in &mut self.clients {
            if client.alive() {
                client.heal()?;
            }
        }
        self.mount_all()?;
        for (i, how) in std::mem::take(&mut self.given_up) {
            eventually(
                PATIENCE,
                &format!("a target that was given up ({how}) is taken back"),
                || {
                    let target = self.target_of(i)?;
                    self.weft(&["target", "in", "--cluster", &self.members, &target])
                        .ok()?
                        .0
                        .then_some(())
                },
            )?;
        }
        self.await_targets()
    }

    /// Mounts for each client that is dead, or not there yet, and takes its dead mount away.
    fn mount_all(&mut self) -> Result<()> {
        let mut new = Vec::new();
        for (i, client) in self.clients.iter_mut().enumerate() {
            if client.alive() {
                continue;
            }
            let mount =
                tempfile::Builder::new().prefix("mount").tempdir_in(self.temp.path())?.keep();
            let args = ["mount", "--foreground", "--cluster", &self.members, path(&mount)];
            client.args = args.map(String::from).to_vec();
            client.heal()?;
            new.push((i, mount));
        }
        for (i, mount) in new {
            let (client, link) = (&mut self.clients[i], &self.mounts[i]);
            eventually(PATIENCE, "a mount", || {
                let table = fs::read_to_string("/proc/mounts").ok()?;
                (table.contains(path(&mount)) || !client.alive()).then_some(())
            })?;
            ensure!(client.alive(), "{} died; its log: {}", client.name, log_of(client));
            let dead = fs::read_link(link).ok();
            let fresh = link.with_extension("new");
            symlink(&mount, &fresh)?;
            fs::rename(&fresh, link)?;
            dead.map(|dead| take_away(&dead)).transpose()?;
        }
        Ok(())
    }

    /// Unmounts everywhere, as an admin does, and mounts anew: clients know nothing.
    pub fn mount_anew(&mut self) -> Result<()> {
        for (client, link) in self.clients.iter_mut().zip(&self.mounts) {
            client.end().with_context(|| format!("unmount {}", link.display()))?;
        }
        self.mount_all()
    }

    /// Kills as many storage daemons as stripes can do without, until all is healed.
    pub fn lose_storage(&mut self, rng: &mut SmallRng) -> Result<()> {
        let mut all: Vec<_> = self.storage.iter_mut().collect();
        let (lost, _) = rand::seq::SliceRandom::partial_shuffle(&mut all[..], rng, PARITY);
        lost.iter_mut().try_for_each(|daemon| daemon.kill())
    }

    /// Ends all that waits in a mount.
    pub fn kill_clients(&mut self) {
        for (client, link) in self.clients.iter_mut().zip(&self.mounts) {
            if let Err(error) = client.kill() {
                eprintln!("cannot end {}: {error:#}", client.name);
            }
            let _ = fs::read_link(link).map(|mount| take_away(&mount));
        }
    }

    /// What ended though nothing was done to it.
    pub fn died(&mut self) -> Option<String> {
        let all = self.metadata.iter_mut().chain(&mut self.storage).chain(&mut self.clients);
        let mut dead = all
            .filter_map(|daemon| (!daemon.suffers && !daemon.alive()).then(|| daemon.name.clone()));
        dead.next()
    }

    /// The power of all servers goes, with what their disks have not flushed.
    pub fn cut_power(&mut self, seed: u64) -> Result<()> {
        let all = || (0u64..).map(|n| seed.wrapping_add(n));
        for (daemon, seed) in self.metadata.iter_mut().chain(&mut self.storage).zip(all()) {
            daemon.disk()?.cut(seed);
        }
        for daemon in self.metadata.iter_mut().chain(&mut self.storage) {
            daemon.disk()?.fail_requests();
            daemon.kill()?;
            daemon.disk()?.power_on()?;
        }
        Ok(())
    }

    /// Has everything moved off the target of a storage daemon (`drain`), or made elsewhere
    /// (`out`), until all is healed.
    pub fn give_up(&mut self, storage: usize, how: &'static str) -> Result<()> {
        self.given_up.push((storage, how));
        eventually(PATIENCE, "a target is given up", || {
            let target = self.target_of(storage)?;
            self.weft(&["target", how, "--cluster", &self.members, &target]).ok()?.0.then_some(())
        })
    }

    /// The number of the target of a storage daemon.
    fn target_of(&self, storage: usize) -> Option<String> {
        let args = ["target", "list", "--cluster", &self.members, "--output", "json"];
        let (ok, text) = self.weft(&args).ok()?;
        let list: serde_json::Value = ok.then(|| serde_json::from_str(&text).ok())??;
        let rows = list.as_array().or_else(|| list["targets"].as_array())?;
        let domain = format!("host{storage}");
        let row = rows.iter().find(|row| row["domain"] == domain.as_str())?;
        row["id"].as_u64().map(|id| id.to_string())
    }

    /// A check of the whole filesystem finds nothing, once what nobody needs is collected.
    pub fn check(&self) -> Result<()> {
        let mut last = String::new();
        eventually(CLEAN_TIMEOUT, "a clean fsck", || {
            let args = ["fsck", "--cluster", self.members(), "--output", "json"];
            let (clean, report) = self.weft(&args).ok()?;
            last = report;
            clean.then_some(())
        })
        .with_context(|| format!("last report: {last}"))
    }

    /// Waits until every target is up.
    pub fn await_targets(&self) -> Result<()> {
        eventually(CLEAN_TIMEOUT, "all targets up", || {
            let args = ["target", "list", "--cluster", &self.members, "--output", "json"];
            let (ok, text) = self.weft(&args).ok()?;
            let up = text.to_lowercase().matches("\"up\"").count();
            (ok && up == usize::from(STORAGE)).then_some(())
        })
    }

    /// All log text of all processes.
    pub fn logs(&self) -> String {
        self.metadata.iter().chain(&self.storage).chain(&self.clients).map(log_of).collect()
    }

    /// The run's own folder, removed with it.
    pub fn dir(&self) -> &Path {
        self.temp.path()
    }
}

/// Of a mount that may be gone already.
fn take_away(mount: &Path) -> Result<()> {
    match umount2(mount, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("take {} away", mount.display())),
    }
}

/// What an admin does once for each server, before it is started.
fn prepare(args: &[&str]) -> Result<()> {
    let out = Command::new(weft_binary()).args(args).stdin(Stdio::null()).output()?;
    ensure!(out.status.success(), "weft {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

fn log_of(daemon: &Daemon) -> String {
    fs::read_to_string(&daemon.log).unwrap_or_default()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_clients();
        for daemon in self.storage.iter_mut().chain(&mut self.metadata) {
            if let Err(error) = daemon.kill() {
                eprintln!("cannot end {}: {error:#}", daemon.name);
            }
        }
    }
}
