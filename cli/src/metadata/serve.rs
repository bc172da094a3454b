//! One metadata server.

use crate::collector::CollectorArgs;
use crate::network::DaemonTransportArgs;
use crate::{daemon, network};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::Duration;
use weft_metadata::{Config, Member};
use weft_proto::{NodeId, Role};

/// Longest wait at the end for what blocks.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Redundancy of the first pool: K+M or replica=N; counts when the cluster is made
    #[arg(long, conflicts_with = "config")]
    profile: Option<weft_proto::Profile>,
    /// Mark the empty data folder as that of a new cluster, and exit: once for each server of a
    /// cluster that has never run. A server whose folder is found empty later waits until the
    /// others admit it
    #[arg(long)]
    bootstrap: bool,
    /// Worker threads; the disk has threads of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    #[command(flatten)]
    transport: DaemonTransportArgs,
    #[command(flatten)]
    collector: CollectorArgs,
}

/// Which server it is.
#[derive(clap::Args, Debug)]
pub struct Place {
    /// Configuration file (TOML); with it of the flags only --bootstrap, --workers and --otlp
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "listen", "data_dir", "peer"])]
    config: Option<PathBuf>,
    /// Number of this server, one of the peers
    #[arg(long, value_name = "N", required_unless_present = "config")]
    id: Option<u64>,
    /// host:port to listen on [default: this server's address among the peers]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Folder for log, state and snapshots
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    data_dir: Option<PathBuf>,
    /// A server that a new group begins with, this one included; the same list on each. For one
    /// that joins a group: itself, and one that it can ask. Repeat the flag
    #[arg(long, value_name = "N=ADDR", required_unless_present = "config", value_parser = peer)]
    peer: Vec<Member>,
}

fn peer(text: &str) -> Result<Member, String> {
    let (id, address) = text.split_once('=').ok_or("write ID=HOST:PORT")?;
    let id = NodeId(id.parse().map_err(|_| format!("{id:?} is not a server number"))?);
    Ok(Member { id, address: address.to_owned() })
}

impl Place {
    /// Its configuration.
    pub fn config(self) -> Result<Config> {
        if let Some(path) = self.config {
            return Ok(Config::load(&path)?);
        }
        let (Some(id), Some(data_dir)) = (self.id.map(NodeId), self.data_dir) else {
            bail!("--id and --data-dir are needed without --config");
        };
        let own = self.peer.iter().find(|p| p.id == id).map(|p| p.address.clone());
        let listen = self
            .listen
            .or(own)
            .with_context(|| format!("--id {id} is not among the servers given with --peer"))?;
        let config = Config::new(id, listen, self.peer, data_dir);
        config.validate()?;
        Ok(config)
    }
}

pub fn run(args: Args) -> Result<()> {
    let (workers, bootstrap) = (args.workers, args.bootstrap);
    let mut config = args.place.config()?;
    if let Some(profile) = args.profile {
        config.profile = profile.to_string();
    }
    if bootstrap {
        return weft_metadata::bootstrap(&config)
            .with_context(|| format!("cannot bootstrap metadata server {}", config.id));
    }
    args.transport.set();
    daemon::raise_descriptor_limit();
    daemon::give_back_large_blocks();
    let (id, listen) = (config.id, config.listen.clone());
    let transport = network::serving(
        config.tls.as_ref(),
        config.insecure,
        config.rdma.as_ref(),
        Role::Metadata,
        &config.id.to_string(),
    )?;
    let _sending = args.collector.start("weft-metadata", &id.to_string(), 0.0)?;
    let runtime = if workers == 1 { daemon::single() } else { daemon::runtime(workers) }?;
    let served = runtime.block_on(async {
        let shutdown = daemon::shutdown_on_signal()?;
        daemon::attend(&listen);
        anyhow::Ok(weft_metadata::run(config, transport, shutdown).await?)
    });
    let served = served.with_context(|| format!("metadata server {id} at {listen}"));
    // What was acknowledged is in the log: who still reads does so for nobody.
    daemon::end(runtime, STOP_TIMEOUT, served)
}
