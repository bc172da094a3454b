//! `weft`: the one binary, a subcommand per role. Logic of a role lives in its own crate.
//!
//! Exit codes: 0 done, 1 failed (or, for a check, not clean), 2 wrong usage.
#![allow(
    clippy::disallowed_methods,
    reason = "commands run on real machines and wait in real time"
)]

mod bench;
mod ca;
mod collector;
mod control;
mod csi;
mod daemon;
mod dev;
mod doctor;
mod durable;
mod events;
mod fsck;
mod layout;
mod logging;
mod manual;
mod metadata;
mod mount;
mod mounts;
mod network;
mod node;
mod nvme;
mod output;
mod plan;
mod pool;
mod process;
mod progress;
mod qos;
mod quota;
mod size;
mod status;
mod storaged;
mod sync;
mod target;
mod top;
mod trace;
mod umount;
mod warm;

use anyhow::Result;
use clap::{CommandFactory, Parser};
use mount::helper::Refusal;
use std::ffi::OsString;
use std::process::ExitCode;
use weft_proto::planted;

/// Processes that run for months give back what they no longer use
/// (docs/decisions/065-memory-is-given-back.md).
#[cfg(target_arch = "x86_64")]
#[global_allocator]
pub static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Weft, a distributed parallel filesystem
///
/// One binary for every role: servers, clients and administration.
#[derive(Parser, Debug)]
#[command(
    name = "weft",
    version,
    propagate_version = true,
    after_help = "Try it on this machine:
  mkdir -p /tmp/mnt
  weft dev start --dir /tmp/weft --mount /tmp/mnt
  weft dev status --dir /tmp/weft"
)]
struct Cli {
    #[command(flatten)]
    log: logging::LogArgs,
    #[command(flatten)]
    network: network::NetworkArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Dev(dev::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Sync(sync::Args),
    Warm(warm::Args),
    Status(status::Args),
    Top(top::Args),
    Trace(trace::Args),
    Events(events::Args),
    Target(target::Args),
    Node(node::Args),
    Pool(pool::Args),
    Layout(layout::Args),
    Quota(quota::Args),
    Qos(qos::Args),
    Fsck(fsck::Args),
    Bench(bench::Args),
    Nvme(nvme::Args),
    Plan(plan::Args),
    Doctor(doctor::Args),
    Ca(ca::Args),
    Csi(csi::Args),
    Metadata(metadata::Args),
    Storaged(storaged::Args),
    #[command(hide = true)]
    Man(manual::ManArgs),
    #[command(hide = true)]
    Completions(manual::CompletionsArgs),
}

fn main() -> ExitCode {
    if let Some(args) = mount::helper::called() {
        return for_mount(args).map_or_else(
            |refusal| {
                output::complain(&refusal.to_string());
                refusal.code()
            },
            |()| ExitCode::SUCCESS,
        );
    }
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            output::complain(&format!("weft: {}", output::describe(&error)));
            ExitCode::FAILURE
        }
    }
}

/// What mount(8) calls this program for.
fn for_mount(args: Vec<OsString>) -> Result<(), Refusal> {
    let call = mount::helper::Call::read(args)?;
    let cli = Cli::try_parse_from(&call.words).map_err(|e| Refusal::Usage(e.to_string()))?;
    let done = match &cli.command {
        Command::Mount(args) if call.fake => mount::check(args),
        _ => run(cli).map(drop),
    };
    done.map_err(|error| Refusal::Mount(output::describe(&error)))
}

/// Plants the bug that the environment names: a build for tests can have one.
fn plant() -> Result<()> {
    let Ok(name) = std::env::var(planted::VARIABLE) else { return Ok(()) };
    let planted = name.parse().and_then(planted::plant);
    planted.map_err(|why| anyhow::anyhow!("{}: {why}", planted::VARIABLE))
}

fn run(cli: Cli) -> Result<ExitCode> {
    let Cli { log, network, command } = cli;
    plant()?;
    network.set()?;
    match &command {
        Command::Mount(_) => {} // decides by itself: its background process logs, it does not
        Command::Metadata(args) if !args.serves() => log.start("error")?,
        Command::Metadata(_) | Command::Storaged(_) | Command::Csi(_) => log.start("info")?,
        _ => log.start("error")?,
    }
    let done = |result: Result<()>| result.map(|()| ExitCode::SUCCESS);
    let on_runtime = || daemon::runtime(2);
    match command {
        Command::Dev(args) => done(dev::run(args)),
        Command::Mount(args) => done(mount::run(&args, &log)),
        Command::Umount(args) => done(umount::run(&args)),
        Command::Sync(args) => done(sync::run(&args)),
        Command::Warm(args) => warm::run(args),
        Command::Status(args) => on_runtime()?.block_on(status::run(args)),
        Command::Top(args) => done(on_runtime()?.block_on(top::run(args))),
        Command::Trace(args) => on_runtime()?.block_on(trace::run(args)),
        Command::Events(args) => done(on_runtime()?.block_on(events::run(args))),
        Command::Target(args) => on_runtime()?.block_on(target::run(args)),
        Command::Node(args) => done(on_runtime()?.block_on(node::run(args))),
        Command::Pool(args) => on_runtime()?.block_on(pool::run(args)),
        Command::Layout(args) => done(layout::run(args)),
        Command::Quota(args) => done(quota::run(args)),
        Command::Qos(args) => done(on_runtime()?.block_on(qos::run(args))),
        Command::Fsck(args) => on_runtime()?.block_on(fsck::run(args)),
        Command::Bench(args) => on_runtime()?.block_on(bench::run(args)),
        Command::Nvme(args) => done(nvme::run(args)),
        Command::Doctor(args) => doctor::run(args),
        Command::Ca(args) => done(ca::run(args)),
        Command::Csi(args) => done(csi::run(&args)),
        Command::Plan(args) => done(plan::run(args)),
        Command::Metadata(args) => done(metadata::run(args)),
        Command::Storaged(args) => done(storaged::run(args)),
        Command::Man(args) => done(manual::man(&args, Cli::command())),
        Command::Completions(args) => done(manual::completions(&args, Cli::command())),
    }
}
