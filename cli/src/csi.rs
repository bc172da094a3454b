//! `weft csi`: the driver for Kubernetes, by the Container Storage Interface.

use crate::mount::metrics;
use crate::{daemon, network, process};
use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use weft_csi::{Cluster, Controller, Driver, Node, NodeOptions};

/// Longest name of a driver, and longest name of a machine, as the specification has them.
const MAX_NAME: usize = 63;
const MAX_NODE_ID: usize = 256;
/// Longest wait at the end for what blocks.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Serve volumes to Kubernetes, by the Container Storage Interface
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft csi --endpoint unix:///csi/csi.sock --mode controller --metadata 10.0.0.1:7100
  weft csi --endpoint unix:///csi/csi.sock --mode node --node-id $NODE \\
      --metadata 10.0.0.1:7100,10.0.0.2:7100 --state-dir /var/lib/kubelet/plugins/csi.weft/state

A volume is a folder below --root with a quota. On a node each is mounted by a process of its own;
those that have died are mounted again, also by the next process of the driver, from --state-dir.")]
pub struct Args {
    /// Where calls come in
    #[arg(long, env = "CSI_ENDPOINT", value_name = "unix:///PATH")]
    #[arg(value_parser = weft_csi::parse_endpoint)]
    endpoint: PathBuf,
    /// What this process does: make volumes, mount them here, or both
    #[arg(long, value_enum, default_value = "all")]
    mode: Mode,
    /// What the orchestrator calls this machine; needed to mount
    #[arg(long, env = "WEFT_CSI_NODE_ID", value_name = "NAME")]
    #[arg(required_if_eq_any = [("mode", "node"), ("mode", "all")])]
    node_id: Option<String>,
    /// Addresses of the metadata servers, host:port separated by commas; one that lives is enough
    #[arg(long, env = "WEFT_CLUSTER", value_name = "ADDR,..", value_delimiter = ',')]
    #[arg(required = true)]
    metadata: Vec<String>,
    /// Folder of this machine where it is noted what is mounted; it has to outlive the container
    #[arg(long, value_name = "DIR", default_value = "/var/lib/weft/csi")]
    state_dir: PathBuf,
    /// Folder of the filesystem that volumes lie in; it is made if it is not there
    #[arg(long, value_name = "PATH", default_value = "/volumes", value_parser = root)]
    root: String,
    /// Name of the driver, as the CSIDriver and storage classes have it
    #[arg(long, value_name = "NAME", default_value = "csi.weft", value_parser = driver_name)]
    driver_name: String,
    /// Answer Prometheus at this address, at /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Mode {
    /// Makes volumes, once a cluster
    Controller,
    /// Mounts volumes, on each machine
    Node,
    /// Both
    All,
}

fn root(text: &str) -> Result<String, String> {
    weft_csi::check_path(text).map_err(|e| e.message().to_owned())?;
    match text.trim_end_matches('/') {
        "" => Err("volumes need a folder of their own, such as /volumes".into()),
        root => Ok(root.to_owned()),
    }
}

fn driver_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let good = text.len() <= MAX_NAME
        && text.chars().all(plain)
        && edge(text.chars().next())
        && edge(text.chars().last());
    match good {
        true => Ok(text.to_owned()),
        false => Err("write a name as domains have, of at most 63 characters".into()),
    }
}

impl Args {
    fn driver(&self) -> Result<Driver> {
        let controller = (self.mode != Mode::Node).then(|| {
            let mut options =
                weft_client::Options::new(self.metadata.clone(), network::transport());
            options.client_name = format!("{} controller", self.driver_name);
            let cluster = Cluster::new(options, self.root.clone());
            (Controller::new(cluster.clone()), cluster)
        });
        let node = match (&self.node_id, self.mode) {
            (_, Mode::Controller) => None,
            (Some(id), _) => {
                ensure!(!id.is_empty() && id.len() <= MAX_NODE_ID, "--node-id cannot be {id:?}");
                Some(Node::new(self.node(id)?).with_context(|| {
                    format!("cannot use --state-dir {}", self.state_dir.display())
                })?)
            }
            (None, _) => anyhow::bail!("--node-id is needed to mount"),
        };
        let (name, version) = (self.driver_name.clone(), env!("CARGO_PKG_VERSION").to_owned());
        Ok(Driver { name, version, controller, node })
    }

    fn node(&self, id: &str) -> Result<NodeOptions> {
        Ok(NodeOptions {
            node_id: id.to_owned(),
            metadata: self.metadata.clone(),
            root: self.root.clone(),
            state_dir: self.state_dir.clone(),
            program: process::program()?,
            environment: network::environment(),
        })
    }
}

pub fn run(args: &Args) -> Result<()> {
    daemon::raise_descriptor_limit();
    let runtime = daemon::runtime(0)?;
    let served = runtime.block_on(async {
        let shutdown = daemon::shutdown_on_signal()?;
        let listener = weft_csi::listen(&args.endpoint)
            .await
            .with_context(|| format!("cannot listen at {}", args.endpoint.display()))?;
        if let Some(at) = args.metrics {
            metrics::start(at).await?;
        }
        let driver = args.driver()?;
        tracing::info!("{} serves at {}", driver.name, args.endpoint.display());
        daemon::tell_manager("READY=1");
        Ok(weft_csi::serve(driver, listener, shutdown).await?)
    });
    // A mount that does not answer must not keep the process.
    runtime.shutdown_timeout(STOP_TIMEOUT);
    served
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_folders_are_checked() {
        assert_eq!(root("/volumes/"), Ok("/volumes".into()));
        assert_eq!(root("/a/b"), Ok("/a/b".into()));
        for bad in ["", "/", "volumes", "/a/../b"] {
            assert!(root(bad).is_err(), "{bad}");
        }
        assert!(driver_name("csi.weft").is_ok());
        for bad in ["", ".a", "a.", "a b", &"x".repeat(64)] {
            assert!(driver_name(bad).is_err(), "{bad}");
        }
    }
}
