//! One machine's worth of network for each host of the cluster: a namespace per host, all joined by
//! a bridge in a namespace of its own. Nothing outside these namespaces is touched.

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Those that this process has made.
static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// A set of hosts that can reach each other, until they are cut off.
pub struct Network {
    prefix: String,
    hosts: u8,
}

/// What of a host's packets is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    Both,
    /// Those that come to it.
    In,
    Out,
    /// Three of ten.
    Lossy,
}

/// One host's place in the network.
#[derive(Clone, Debug)]
pub struct Host {
    namespace: String,
    pub address: String,
}

impl Network {
    /// Makes `hosts` namespaces with addresses 10.77.0.1 and up. Needs root.
    pub fn new(hosts: u8) -> Result<Self> {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let network = Self { prefix: format!("weft{}n{number}", std::process::id()), hosts };
        let hub = network.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "name", "bridge0", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "bridge0", "up"])?;
        for i in 0..hosts {
            let (host, port) = (network.host(i), format!("p{i}"));
            let ns = &host.namespace;
            ip(&["netns", "add", ns])?;
            ip(&[
                "-n", ns, "link", "add", "eth", "type", "veth", "peer", "name", &port, "netns",
                &hub,
            ])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "bridge0", "up"])?;
            ip(&["-n", ns, "address", "add", &format!("{}/24", host.address), "dev", "eth"])?;
            ip(&["-n", ns, "link", "set", "eth", "up"])?;
            ip(&["-n", ns, "link", "set", "lo", "up"])?;
        }
        Ok(network)
    }

    fn hub(&self) -> String {
        format!("{}hub", self.prefix)
    }

    /// The names of all of them.
    pub fn namespaces(&self) -> Vec<String> {
        (0..self.hosts).map(|i| self.host(i).namespace).chain([self.hub()]).collect()
    }

    pub fn host(&self, i: u8) -> Host {
        assert!(i < self.hosts);
        Host { namespace: format!("{}h{i}", self.prefix), address: format!("10.77.0.{}", i + 1) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for i in 0..self.hosts {
            let _ = ip(&["netns", "delete", &self.host(i).namespace]);
        }
        let _ = ip(&["netns", "delete", &self.hub()]);
    }
}

impl Host {
    /// Makes `command` run inside this host.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        let path = format!("/run/netns/{}", self.namespace);
        let namespace = File::open(&path).with_context(|| format!("open {path}"))?;
        // SAFETY: setns is async-signal-safe, and the file lives in the closure.
        unsafe {
            command.pre_exec(move || {
                setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)
            });
        }
        Ok(())
    }

    /// Drops packets to and from this host, without telling either side.
    pub fn cut(&self, how: Cut) -> Result<()> {
        let drop = |wanted: &[Cut]| match how {
            Cut::Lossy => "numgen random mod 10 < 3 drop",
            how if wanted.contains(&how) => "drop",
            _ => "accept",
        };
        let (into, out) = (drop(&[Cut::Both, Cut::In]), drop(&[Cut::Both, Cut::Out]));
        // What was dropped before is not dropped any more.
        self.nft(&format!(
            "table inet cut\ndelete table inet cut\ntable inet cut {{\n\
             chain in {{ type filter hook input priority 0; iifname \"eth\" {into}; }}\n\
             chain out {{ type filter hook output priority 0; oifname \"eth\" {out}; }}\n}}\n",
        ))
    }

    /// Ends [`Host::cut`].
    pub fn heal(&self) -> Result<()> {
        self.nft("table inet cut\ndelete table inet cut\n")
    }

    fn nft(&self, rules: &str) -> Result<()> {
        let mut command = Command::new("nft");
        command.args(["-f", "-"]).stdin(Stdio::piped());
        self.enter(&mut command)?;
        let mut child = command.spawn().context("run nft (Debian package nftables)")?;
        child.stdin.take().context("nft's input")?.write_all(rules.as_bytes())?;
        let status = child.wait()?;
        ensure!(status.success(), "nft in {} ended with {status}", self.namespace);
        Ok(())
    }
}

fn ip(args: &[&str]) -> Result<()> {
    let out = Command::new("ip").args(args).output().context("run ip (Debian package iproute2)")?;
    ensure!(
        out.status.success(),
        "ip {} ended with {}: {}",
        args.join(" "),
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(())
}
