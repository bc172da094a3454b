//! `weft storaged`: one storage daemon with its targets.

use crate::collector::CollectorArgs;
use crate::network::DaemonTransportArgs;
use crate::output::describe;
use crate::{daemon, network};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use weft_net::Transport;
use weft_proto::Role;
use weft_storaged::{Config, Target};

/// Longest wait at the end for what blocks.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Run a storage daemon in the foreground; SIGTERM stops it, SIGHUP reads the file again
///
/// It serves what `weft target add` has made a target, and formats nothing by itself.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft storaged --config /etc/weft/storaged.toml
  weft target add --no-config /srv/weft/target --size 64GiB
  weft storaged --name rack1-a --listen 10.0.1.1:7200 \\
      --metadata 10.0.0.1:7100,10.0.0.2:7100,10.0.0.3:7100 --target /srv/weft/target")]
pub struct Args {
    /// Configuration file (TOML); with it of the flags only --workers and --otlp
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["name", "listen", "advertise", "metadata", "domain", "target"]
    )]
    config: Option<PathBuf>,
    /// Name of this daemon, unique in the cluster
    #[arg(long, required_unless_present = "config")]
    name: Option<String>,
    /// host:port to listen on
    #[arg(long, value_name = "ADDR", required_unless_present = "config")]
    listen: Option<String>,
    /// host:port at which clients reach this daemon, if it is not the one it listens on
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
    /// Addresses of the metadata servers
    #[arg(long, value_name = "ADDR,..", value_delimiter = ',', required_unless_present = "config")]
    metadata: Vec<String>,
    /// Failure domain, such as rack-1/node-3 [default: the name]
    #[arg(long)]
    domain: Option<String>,
    /// File to serve, which `weft target add --no-config` has made. Repeat the flag
    #[arg(long, value_name = "PATH", required_unless_present = "config")]
    target: Vec<PathBuf>,
    /// Worker threads [default: the cores, from 2 to 4]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    workers: usize,
    #[command(flatten)]
    transport: DaemonTransportArgs,
    #[command(flatten)]
    collector: CollectorArgs,
}

impl Args {
    fn config(self) -> Result<Config> {
        if let Some(path) = &self.config {
            return load(path);
        }
        let (Some(name), Some(listen)) = (self.name, self.listen) else {
            bail!("--name and --listen are needed without --config");
        };
        let mut config = Config::new(name, listen, self.metadata);
        config.advertise = self.advertise;
        config.domain = self.domain;
        config.targets = self.target.into_iter().map(|path| Target::new(path, None)).collect();
        config.validate_to_serve()?;
        Ok(config)
    }
}

/// Reads a configuration file that a daemon is to serve by.
fn load(path: &Path) -> Result<Config> {
    let config = read(path)?;
    config.validate_to_serve().with_context(|| path.display().to_string())?;
    Ok(config)
}

/// Reads and checks a configuration file, which may name no target yet.
pub fn read(path: &Path) -> Result<Config> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let what = || format!("{} is not a configuration of a storage daemon", path.display());
    let config: Config = toml::from_str(&text).with_context(what)?;
    config.validate().with_context(what)?;
    Ok(config)
}

pub fn run(args: Args) -> Result<()> {
    let (workers, file, collector) = (args.workers, args.config.clone(), args.collector.clone());
    args.transport.clone().set();
    let config = args.config()?;
    daemon::raise_descriptor_limit();
    let what = format!("storage daemon {} at {}", config.name, config.listen);
    let runtime = daemon::runtime(workers)?;
    let _sending = collector.start("weft-storaged", &config.name, 0.0)?;
    let result = runtime.block_on(serve(config, file));
    // A drive that hangs while it is opened is not waited for.
    runtime.shutdown_timeout(STOP_TIMEOUT);
    result.context(what)
}

/// Serves until a signal ends it; SIGHUP makes it serve on with what the file says then.
async fn serve(mut config: Config, file: Option<PathBuf>) -> Result<()> {
    let mut shutdown = daemon::shutdown_on_signal()?;
    daemon::attend(&config.listen);
    let mut hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
    let mut transport = transport_of(&config)?;
    loop {
        let (stop, stopped) = watch::channel(false);
        let mut serving = pin!(weft_storaged::run(config.clone(), transport, stopped));
        let next = loop {
            tokio::select! {
                result = &mut serving => return Ok(result?),
                _ = shutdown.wait_for(|stop| *stop) => break None,
                _ = hangup.recv() => match file.as_deref().map(reload) {
                    Some(Ok(next)) => break Some(next),
                    Some(Err(e)) => tracing::error!("SIGHUP: goes on as before: {}", describe(&e)),
                    None => tracing::warn!("SIGHUP: there is no --config to read again"),
                },
            }
        };
        stop.send_replace(true);
        serving.await?;
        let Some(next) = next else { return Ok(()) };
        tracing::info!("SIGHUP: goes on with the configuration as it is now");
        (config, transport) = next;
    }
}

fn transport_of(config: &Config) -> Result<Arc<dyn Transport>> {
    let (files, rdma) = (config.tls.as_ref(), config.rdma.as_ref());
    network::serving(files, config.insecure, rdma, Role::Storage, &config.name)
}

/// All that a daemon that runs needs to go on with what a file says now: nothing is ended before it
/// is there.
fn reload(path: &Path) -> Result<(Config, Arc<dyn Transport>)> {
    let config = load(path)?;
    let transport = transport_of(&config).with_context(|| path.display().to_string())?;
    Ok((config, transport))
}
