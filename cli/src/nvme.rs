//! `weft nvme`: what drives other machines offer over NVMe-oF, and the connections to them.

use crate::output::{OutputArgs, Table};
use crate::size::Size;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::path::PathBuf;
use weft_storaged::nvmeof::{self, Address, Found, Log, Options, Remote, Roots, Transport};

/// Find and connect drives over NVMe-oF
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft nvme discover 10.0.0.5
  weft nvme connect nvme-tcp://10.0.0.5:4420/nqn.2025-01.com.example:box1
  weft nvme list                     # the names to write into storaged.toml
  weft nvme disconnect nqn.2025-01.com.example:box1

A storage daemon connects by itself what its configuration names; connecting by hand serves to \
look.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Ask a discovery controller what it offers
    Discover {
        /// host, host:port or [v6]:port of the target [default port: 8009 then 4420, for RDMA 4420]
        address: String,
        /// What carries the commands: tcp or rdma (RoCE, InfiniBand, iWARP)
        #[arg(long, default_value = "tcp", value_parser = transport)]
        transport: Transport,
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Connect a subsystem, at every address that is named
    Connect {
        /// nvme-tcp://HOST:PORT[,HOST:PORT..]/NQN or nvme-rdma://..
        #[arg(value_parser = remote)]
        location: Remote,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// End all connections to a subsystem; whatever uses its drives gets errors
    Disconnect { nqn: String },
    /// List the namespaces that are connected, each as a storage daemon's configuration names it
    List {
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Secrets and timeouts.
#[derive(clap::Args, Debug)]
struct ConfigArgs {
    /// Configuration of a storage daemon, of which the section [nvmeof] is used
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    fn options(&self) -> Result<Options> {
        match &self.config {
            None => Ok(Options::default()),
            Some(path) => Ok(crate::storaged::read(path)?.nvmeof),
        }
    }
}

fn transport(text: &str) -> Result<Transport, String> {
    text.parse().map_err(|e: weft_proto::Error| e.message)
}

fn remote(text: &str) -> Result<Remote, String> {
    text.parse().map_err(|e: weft_proto::Error| e.message)
}

pub fn run(args: Args) -> Result<()> {
    let roots = Roots::default();
    match args.command {
        Command::Discover { address, transport, config, output } => {
            let log = discover(&roots, &address, transport, &config.options()?)?;
            output.print(&log, table)
        }
        Command::Connect { location, config } => connect(&roots, &location, &config.options()?),
        Command::Disconnect { nqn } => match nvmeof::disconnect(&roots, &nqn)? {
            0 => bail!("{nqn} is not connected; `weft nvme list` shows what is"),
            n => crate::output::say(&format!("{n} connections ended")),
        },
        Command::List { output } => output.print(&rows(&roots), |rows| list(rows)),
    }
}

fn discover(roots: &Roots, text: &str, transport: Transport, options: &Options) -> Result<Log> {
    let mut last = None;
    for &port in transport.discovery_ports() {
        let address = Address::parse(transport, text, port)?;
        match nvmeof::discover(roots, &address, options) {
            Ok(log) => return Ok(log),
            // Where a port was named, it is the only one to try.
            Err(e) if address.port != port || e.kind != weft_proto::ErrorKind::Unavailable => {
                return Err(e.into());
            }
            Err(e) => last = last.or(Some(e)),
        }
        if Address::parse(transport, text, 1)?.port != 1 {
            break;
        }
    }
    last.map_or_else(|| bail!("no port to ask"), |e| Err(e.into()))
}

fn table(log: &Log) -> String {
    if log.records.is_empty() {
        return "the target offers nothing to this host".into();
    }
    let mut table = Table::new(&["TRANSPORT", "ADDRESS", "PORT", "KIND", "NQN"]);
    for r in &log.records {
        table.row([&r.transport, &r.address, &r.port, &r.kind, &r.nqn]);
    }
    let mut out = table.render("");
    if let Some(r) = log.records.iter().find(|r| r.is_subsystem()) {
        out += &format!("\nConnect one to see its drives: weft nvme connect {}", location(r));
    }
    out
}

fn location(r: &Found) -> String {
    let host = if r.address.contains(':') { format!("[{}]", r.address) } else { r.address.clone() };
    format!("nvme-{}://{host}:{}/{}", r.transport, r.port, r.nqn)
}

fn connect(roots: &Roots, location: &Remote, options: &Options) -> Result<()> {
    for address in &location.addresses {
        let name = nvmeof::connect(roots, location, address, options)
            .with_context(|| location.to_string())?;
        let name = name.map_or_else(|| "was connected already".into(), |n| format!("is {n}"));
        crate::output::say(&format!("{address} {name}"))?;
    }
    Ok(())
}

/// A namespace that is connected.
#[derive(Serialize)]
struct Row {
    device: PathBuf,
    bytes: u64,
    /// live, connecting or another; several for several paths
    state: String,
    transport: String,
    nqn: String,
    nsid: u32,
    /// For `path` in the configuration of a storage daemon; null for local drives
    location: Option<String>,
}

fn rows(roots: &Roots) -> Vec<Row> {
    let controllers = nvmeof::controllers(roots);
    let row = |n: nvmeof::Namespace| {
        let paths: Vec<_> = controllers.iter().filter(|c| c.nqn == n.nqn).collect();
        let join = |of: &dyn Fn(&nvmeof::Controller) -> String| {
            let mut all: Vec<_> = paths.iter().map(|c| of(c)).collect();
            all.dedup();
            all.join(",")
        };
        let transport = join(&|c| c.transport.clone());
        let location = n.id().filter(|_| transport == "tcp" || transport == "rdma").map(|id| {
            let addresses = join(&|c| c.endpoint());
            format!("nvme-{transport}://{addresses}/{}?{id}", n.nqn)
        });
        let state = join(&|c| c.state.clone());
        Row {
            device: n.device,
            bytes: n.bytes,
            state,
            transport,
            nqn: n.nqn,
            nsid: n.nsid,
            location,
        }
    };
    nvmeof::namespaces(roots).into_iter().map(row).collect()
}

fn list(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no NVMe drives; `weft nvme connect` brings some".into();
    }
    let mut table = Table::new(&["DEVICE", "SIZE", "STATE", "LOCATION"]);
    for r in rows {
        let local = || format!("local, {}", r.nqn);
        table.row([
            r.device.display().to_string(),
            Size(r.bytes).to_string(),
            r.state.clone(),
            r.location.clone().unwrap_or_else(local),
        ]);
    }
    table.render("")
}
