//! The daemons and mounts of one run, each in its own host of a [`Network`].
//!
//! Invariant: whatever was started here is dead and unmounted when the cluster is dropped.

use crate::network::{Host, Network};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use weft_tests::{eventually, path, weft_binary};

/// One process on one host, that can be killed and started again.
pub struct Daemon {
    pub name: String,
    pub host: Host,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
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

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
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
    /// Where the clients have the filesystem mounted, in their order.
    pub mounts: Vec<PathBuf>,
    members: String,
    temp: TempDir,
    _network: Network,
}

const METADATA: u8 = 3;
const STORAGE: u8 = 6;
const PORT: u16 = 7000;
const TARGET_SIZE: &str = "512MiB";

impl Cluster {
    /// Three metadata servers, six storage daemons at 4+2, `clients` mounts. Needs root.
    pub fn start(clients: u8) -> Result<Self> {
        let network = Network::new(METADATA + STORAGE + clients)?;
        let temp = tempfile::Builder::new().prefix("weft-jepsen-").tempdir()?;
        let addresses: Vec<String> =
            (0..METADATA).map(|i| format!("{}:{PORT}", network.host(i).address)).collect();
        let mut cluster = Self {
            metadata: Vec::new(),
            storage: Vec::new(),
            clients: Vec::new(),
            mounts: Vec::new(),
            members: addresses.join(","),
            temp,
            _network: network,
        };
        for (i, address) in (0..METADATA).zip(&addresses) {
            let config = cluster.metadata_config(i, address, &addresses)?;
            prepare(&["metadata", "--bootstrap", "--config", path(&config)])?;
            let daemon =
                cluster.daemon(format!("metadata{i}"), i, &["metadata", "--config", path(&config)]);
            cluster.metadata.push(daemon);
        }
        for i in 0..STORAGE {
            let (config, target) = cluster.storage_config(i, METADATA + i, &addresses)?;
            prepare(&["target", "add", "--config", path(&config), path(&target)])?;
            let daemon = cluster.daemon(
                format!("storage{i}"),
                METADATA + i,
                &["storaged", "--config", path(&config)],
            );
            cluster.storage.push(daemon);
        }
        for i in 0..clients {
            let mount = cluster.temp.path().join(format!("mnt{i}"));
            fs::create_dir(&mount)?;
            let args = ["mount", "--foreground", "--cluster", &cluster.members, path(&mount)];
            let daemon = cluster.daemon(format!("client{i}"), METADATA + STORAGE + i, &args);
            cluster.clients.push(daemon);
            cluster.mounts.push(mount);
        }
        cluster.metadata.iter_mut().chain(&mut cluster.storage).try_for_each(Daemon::start)?;
        cluster.await_targets()?;
        cluster.clients.iter_mut().try_for_each(Daemon::start)?;
        cluster.await_mounts()?;
        Ok(cluster)
    }

    fn daemon(&self, name: String, host: u8, args: &[&str]) -> Daemon {
        Daemon {
            log: self.temp.path().join(format!("{name}.log")),
            name,
            host: self._network.host(host),
            args: args.iter().map(ToString::to_string).collect(),
            child: None,
        }
    }

    fn metadata_config(&self, i: u8, listen: &str, addresses: &[String]) -> Result<PathBuf> {
        let (file, data) = self.places(&format!("metadata{i}"));
        let mut text = format!(
            "id = {}\nlisten = {listen:?}\ndata_dir = {:?}\nprofile = \"4+2\"\n",
            i + 1,
            path(&data)
        );
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

    /// What `weft ARGS` prints when run on the first client's host.
    pub fn weft(&self, args: &[&str]) -> Result<(bool, String)> {
        let mut command = Command::new(weft_binary());
        command.args(args).stdin(Stdio::null()).env("WEFT_INSECURE", "1");
        self.clients[0].host.enter(&mut command)?;
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

    /// Starts what is dead, ends all cuts, and waits until the cluster is whole.
    pub fn heal(&mut self) -> Result<()> {
        for daemon in self.metadata.iter_mut().chain(&mut self.storage) {
            daemon.host.heal()?;
            daemon.start()?;
        }
        for client in &self.clients {
            client.host.heal()?;
        }
        self.await_targets()
    }

    /// Waits until every target is up.
    pub fn await_targets(&self) -> Result<()> {
        eventually(Duration::from_secs(60), "all targets up", || {
            let args = ["target", "list", "--cluster", &self.members, "--output", "json"];
            let (ok, text) = self.weft(&args).ok()?;
            let up = text.to_lowercase().matches("\"up\"").count();
            (ok && up == usize::from(STORAGE)).then_some(())
        })
    }

    fn await_mounts(&mut self) -> Result<()> {
        let mounts = self.mounts.clone();
        eventually(Duration::from_secs(30), "all mounts", || {
            let table = fs::read_to_string("/proc/mounts").ok()?;
            mounts.iter().all(|m| table.contains(path(m))).then_some(())
        })?;
        for client in &mut self.clients {
            ensure!(client.alive(), "{} died; its log: {}", client.name, log_of(client));
        }
        Ok(())
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
        for daemon in self.clients.iter_mut().chain(&mut self.storage).chain(&mut self.metadata) {
            if let Err(e) = daemon.kill() {
                eprintln!("cannot end {}: {e:#}", daemon.name);
            }
        }
        for mount in &self.mounts {
            let _ = nix::mount::umount2(mount, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}
