//! Daemons that `weft dev` knows nothing of.

use crate::{Cluster, certificates, eventually, path, weft_binary, weft_ok};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// What has a daemon show its certificate, where there are any.
pub type Environment = Vec<(&'static str, PathBuf)>;

/// A daemon; ends with the test.
pub struct Daemon {
    arguments: Vec<String>,
    environment: Environment,
    log: PathBuf,
    process: Child,
}

impl Daemon {
    /// Starts `weft` with these arguments, with a log beside those of the cluster.
    pub fn start(
        cluster: &Cluster,
        name: &str,
        arguments: Vec<String>,
        environment: Environment,
    ) -> Result<Self> {
        let log = cluster.dir().join("log").join(format!("{name}.log"));
        let process = spawn(&arguments, &environment, &log)?;
        Ok(Self { arguments, environment, log, process })
    }

    /// Stops it as an admin does, and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        kill(Pid::from_raw(self.process.id() as i32), Signal::SIGTERM)?;
        self.process.wait()?;
        self.process = spawn(&self.arguments, &self.environment, &self.log)?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(arguments: &[String], environment: &Environment, log: &Path) -> Result<Child> {
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(weft_binary());
    command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // SAFETY: one system call, which takes no memory.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn().context("start a daemon")
}

/// A metadata server.
pub struct Server {
    pub address: String,
    pub daemon: Daemon,
}

impl Server {
    /// Starts one with an empty folder, which knows of the group where to ask.
    pub fn start(cluster: &Cluster, id: u64, ask: &str) -> Result<Self> {
        // An address of this process alone: no connection comes from it, nor does another test
        // listen there.
        let [.., a, b] = std::process::id().to_be_bytes();
        let listener = std::net::TcpListener::bind((Ipv4Addr::new(127, 77, a, b), 0))?;
        let address = listener.local_addr()?.to_string();
        drop(listener);
        Self::start_at(cluster, id, &address, Some(ask))
    }

    /// What says which server it is, to a command that makes or serves its folder.
    pub fn place(cluster: &Cluster, id: u64, address: &str) -> Result<Vec<String>> {
        let folder = cluster.scratch(&format!("metadata-{id}"))?;
        let (id, peer) = (id.to_string(), format!("{id}={address}"));
        let place = ["--id", &id, "--data-dir", path(&folder), "--peer", &peer];
        Ok(place.map(str::to_owned).into())
    }

    /// Starts one at this address, with what its folder holds.
    pub fn start_at(cluster: &Cluster, id: u64, address: &str, ask: Option<&str>) -> Result<Self> {
        let mut arguments = vec!["metadata".to_owned()];
        arguments.extend(Self::place(cluster, id, address)?);
        if let Some(ask) = ask {
            arguments.extend(["--peer".into(), format!("1={ask}")]);
        }
        let (id, address) = (id.to_string(), address.to_owned());
        let name = format!("metadata-{id}");
        let environment = cluster.has_certificates().then(|| issue(cluster, &name, &id, &address));
        let environment = environment.transpose()?.unwrap_or_default();
        let daemon = Daemon::start(cluster, &name, arguments, environment)?;
        Ok(Self { address, daemon })
    }
}

/// Has the cluster's authority issue a certificate for a metadata server.
fn issue(cluster: &Cluster, name: &str, id: &str, address: &str) -> Result<Environment> {
    let dir = cluster.tls_dir();
    let (out, host) = (dir.join(name), address.rsplit_once(':').context("no port")?.0);
    let args = ["--role", "metadata", "--name", id, "--host", host, "--out", path(&out)];
    weft_ok(&[&["ca", "issue", "--dir", path(&dir)], &args[..]].concat())?;
    certificates::know(address, &dir);
    Ok(certificates::environment(&dir, name))
}

/// Puts new servers in the places of all three of the cluster, one after the other.
pub fn replace_metadata(cluster: &Cluster) -> Result<Vec<Server>> {
    let (seeds, mut servers) = (cluster.address()?, Vec::<Server>::new());
    let mut ask = seeds.split(',').next().context("no server is known")?.to_owned();
    for old in 1..=3u64 {
        let server = Server::start(cluster, old + 3, &ask)?;
        let (id, replaced) = ((old + 3).to_string(), old.to_string());
        let known = format!("{seeds},{ask}");
        weft_ok(&["metadata", "replace", &replaced, &id, &server.address, "--cluster", &known])?;
        ask = server.address.clone();
        servers.push(server);
        eventually(PATIENCE, "the old server has ended", || {
            let status = cluster.status().ok()?;
            status["metadata"][old as usize - 1]["pid"].is_null().then_some(())
        })?;
    }
    Ok(servers)
}
