//! The process in the background that serves a mount: how it is started, and how it tells that it
//! can be used: by one line of JSON on its standard output.

use super::args::Args;
use crate::logging::LogArgs;
use crate::output::describe;
use crate::process::{self, Interrupt, Process};
use crate::{network, umount};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;
use weft_fuse::IoUring;

/// What the background process tells its starter.
#[derive(Serialize, Deserialize)]
enum Outcome {
    Mounted,
    Failed(String),
    TakenAway,
}

/// Why a mount is not brought back.
#[derive(Debug)]
pub struct TakenAway;

impl fmt::Display for TakenAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "somebody has taken the mount away")
    }
}

impl std::error::Error for TakenAway {}

/// What `args` ask for, as options of a command line, with all that has a default.
pub fn settings(args: &Args, log: &LogArgs, log_file: Option<&Path>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut option = |name: &str, value: String| out.push(format!("{name}={value}"));
    option("--cluster", args.cluster.cluster.join(","));
    option("--cache", args.cache.0.to_string());
    option("--write-buffer", args.write_buffer.0.to_string());
    option("--read-ahead", args.read_ahead.0.to_string());
    option("--workers", args.workers.to_string());
    option("--timeout", args.timeout.to_string());
    option("--stop-timeout", args.stop_timeout.to_string());
    let io_uring = match args.io_uring {
        IoUring::Auto => "auto",
        IoUring::On => "on",
        IoUring::Off => "off",
    };
    option("--io-uring", io_uring.into());
    if let Some(subdir) = &args.subdir {
        option("--subdir", subdir.clone());
    }
    if let (Some(dir), Some(size)) = (&args.hot, args.hot_size) {
        option("--hot", dir.display().to_string());
        option("--hot-size", size.0.to_string());
    }
    if let Some(source) = &args.source {
        option("--source", source.clone());
    }
    if let Some(allow) = args.allow_other {
        option("--allow-other", if allow { "yes" } else { "no" }.into());
    }
    if let Some(options) = args.options {
        option("--options", options.to_string());
    }
    if let Some(at) = args.metrics {
        option("--metrics", at.to_string());
    }
    if let Some(otlp) = args.collector.otlp() {
        option("--otlp", otlp.clone());
        option("--trace-ratio", args.trace_ratio.to_string());
    }
    if let Some(name) = &args.name {
        option("--name", name.clone());
    }
    if let Some(threads) = args.fuse_threads {
        option("--fuse-threads", threads.to_string());
    }
    if let Some(filter) = &log.log {
        option("--log", filter.clone());
    }
    option("--log-format", log.log_format.to_string());
    if let Some(file) = log_file.and_then(Path::to_str) {
        option("--log-file", file.into());
    }
    out.extend(network::options());
    out.extend(args.transport.options());
    out.extend(args.supervise.then(|| "--supervise".into()));
    out.extend(args.allow_nonempty.then(|| "--allow-nonempty".into()));
    out
}

/// The command line of the process that serves a mount so.
pub fn arguments(settings: &[String], path: &Path) -> Vec<OsString> {
    let begin = ["mount", "--foreground", "--notify"].map(OsString::from);
    let settings = settings.iter().map(OsString::from);
    begin.into_iter().chain(settings).chain(["--".into(), path.into()]).collect()
}

/// The command line of the process that looks after the one that serves a mount so.
pub fn supervisor_arguments(settings: &[String], path: &Path) -> Vec<OsString> {
    let begin = ["mount", "--supervisor", "--notify"].map(OsString::from);
    let settings = settings.iter().map(OsString::from);
    begin.into_iter().chain(settings).chain(["--".into(), path.into()]).collect()
}

/// Mounts with every default, in the background: what `weft dev` does.
pub fn mount_defaults(
    cluster: &[String],
    path: &Path,
    log: &Path,
    timeout: u64,
    network: Vec<String>,
    interrupt: &Interrupt,
) -> Result<()> {
    let cluster = format!("--cluster={}", cluster.join(","));
    let mut settings = vec![cluster, format!("--timeout={timeout}")];
    settings.extend(log.to_str().map(|log| format!("--log-file={log}")));
    settings.extend(network);
    start(&arguments(&settings, path), path, log, interrupt)
}

/// Starts the serving process and waits for its word.
pub fn start(arguments: &[OsString], path: &Path, log: &Path, interrupt: &Interrupt) -> Result<()> {
    let (mut child, mut stdout, log_start) = spawn(arguments, log)?;
    let said = interrupt.read_to_end(&mut stdout).context("cannot hear from the mount process")?;
    if let Some(said) = said {
        return outcome(&said, child, path, log, log_start);
    }
    // It unmounts what it may have mounted.
    if let Some(process) = Process::of(child.id() as i32) {
        process.stop(Duration::from_secs(15))?;
        umount::detach_dead(path)?;
    }
    child.wait()?;
    bail!("interrupted; {} is not mounted", path.display())
}

/// As [`start`], of a process that takes over from another: whatever becomes of this one, it ends
/// by itself or serves the mount.
pub fn start_to_take_over(arguments: &[OsString], path: &Path, log: &Path) -> Result<()> {
    let (child, mut stdout, log_start) = spawn(arguments, log)?;
    let mut said = Vec::new();
    stdout.read_to_end(&mut said).context("cannot hear from the mount process")?;
    outcome(&said, child, path, log, log_start)
}

/// The process, its output, and where in the log it begins.
fn spawn(arguments: &[OsString], log: &Path) -> Result<(Child, ChildStdout, u64)> {
    let log_start = process::log_len(log);
    let mut child = process::spawn_detached(arguments, log, Stdio::piped())?;
    let stdout = child.stdout.take().context("the mount process has no output")?;
    Ok((child, stdout, log_start))
}

fn outcome(said: &[u8], mut child: Child, path: &Path, log: &Path, log_start: u64) -> Result<()> {
    match serde_json::from_slice(said) {
        Ok(Outcome::Mounted) => Ok(()),
        Ok(Outcome::Failed(why)) => {
            // It ends by itself now; leave no zombie.
            child.wait()?;
            bail!(why)
        }
        Ok(Outcome::TakenAway) => {
            child.wait()?;
            Err(TakenAway.into())
        }
        Err(_) => {
            let status = child.wait()?;
            let tail = process::log_tail(log, log_start);
            bail!(
                "the mount process for {} ended early ({status}); {} says:\n{tail}",
                path.display(),
                log.display()
            )
        }
    }
}

/// Tells the starter how it went, then lets go of its pipe: it reads until the end.
pub fn notify<T>(started: &Result<T>) -> Result<()> {
    let outcome = match started {
        Ok(_) => Outcome::Mounted,
        Err(e) if e.is::<TakenAway>() => Outcome::TakenAway,
        Err(e) => Outcome::Failed(describe(e)),
    };
    let mut out = io::stdout();
    writeln!(out, "{}", serde_json::to_string(&outcome)?).and_then(|()| out.flush())?;
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null).context("cannot detach standard output")
}
