//! `weft mount`: one client process that serves one mount.
//!
//! By default the command starts that process in the background and returns when the mount is
//! usable. The two talk over the child's standard output: one line of JSON says how it went.

use crate::control::ClusterArgs;
use crate::mounts::{self, MountRecord};
use crate::output::describe;
use crate::process::{self, Interrupt, Process};
use crate::progress::Progress;
use crate::size::Size;
use crate::{daemon, logging::LogArgs, umount};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::sync::watch;
use weft_client::Filesystem;
use weft_fuse::{IoUring, MountFlags, Mounted};

/// Mount a cluster; returns when the mount is usable
///
/// The mount is served by a background process, which ends when it is unmounted.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:
  weft mount --cluster 10.0.0.1:7100,10.0.0.2:7100,10.0.0.3:7100 /datasets
  weft umount /datasets
  weft mount -o suid,dev --cluster 10.0.0.1:7100 /srv/root  # set-user-id programs, device nodes
  weft mount --foreground --cluster 127.0.0.1:7100 /mnt     # for a service manager")]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Where to mount: an empty folder
    #[arg(value_name = "MNT")]
    mount_point: PathBuf,
    /// Serve the mount in this process instead of a background one; ends on SIGTERM or unmount
    #[arg(long)]
    foreground: bool,
    /// Mount over a folder that is not empty; what it holds is hidden meanwhile
    #[arg(long)]
    allow_nonempty: bool,
    /// Let other users use the mount [default: yes when root mounts, else no]
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    allow_other: Option<bool>,
    /// Options that all mounts have: suid, dev, noexec, ro, noatime, dirsync, and their opposites;
    /// hard or soft=SECONDS. By default set-user-id bits and device nodes have no effect, only root
    /// may give them one; access times are kept as by relatime; that an empty file was made is
    /// durable a moment later, or when it or its folder is synced; and what needs a cluster that
    /// does not answer waits for it (hard), unless its process is killed. With soft it fails after
    /// so long
    #[arg(short, long, value_name = "OPTION,..", value_parser = mount_options)]
    options: Option<MountOptions>,
    /// Name of this client in the cluster's list of sessions [default: host:MNT]
    #[arg(long)]
    name: Option<String>,
    /// Most memory for data that was read ahead
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    cache: Size,
    /// Most memory for data that was written and is not durable yet
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    write_buffer: Size,
    /// How far the kernel reads ahead of a sequential reader (raising it needs root)
    #[arg(long, value_name = "SIZE", default_value = "512KiB")]
    read_ahead: Size,
    /// Threads that take requests from the kernel [default: the cores, from 2 to 4]
    #[arg(long, value_name = "N")]
    fuse_threads: Option<usize>,
    /// Take requests over io_uring: where the kernel has it switched on, always, or never. `on`
    /// switches it on for the whole machine, which needs root
    #[arg(long, value_name = "auto|on|off", default_value = "auto", value_parser = io_uring)]
    io_uring: IoUring,
    /// Threads that work on them [default: the cores, from 2 to 4]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    workers: usize,
    /// Where the background process logs [default for root: /var/log/weft/mount-MNT.log]
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Seconds to wait for the cluster
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
    /// Seconds that SIGTERM leaves it to make durable what was written; what is not then is lost
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    stop_timeout: u64,
    /// Report the outcome on standard output, for the process that started this one
    #[arg(long, hide = true)]
    notify: bool,
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("write yes or no".into()),
    }
}

/// What follows `-o`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct MountOptions {
    flags: MountFlags,
    /// Seconds after which an operation that finds no cluster fails; else it waits.
    soft: Option<u64>,
}

impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.soft {
            Some(seconds) => write!(f, "{},soft={seconds}", self.flags),
            None => write!(f, "{},hard", self.flags),
        }
    }
}

fn mount_options(text: &str) -> Result<MountOptions, String> {
    let mut options = MountOptions::default();
    for option in text.split(',') {
        match option.split_once('=') {
            _ if option == "hard" => options.soft = None,
            Some(("soft", seconds)) => match seconds.parse() {
                Ok(seconds @ 1..) => options.soft = Some(seconds),
                _ => return Err(format!("soft={seconds}: write whole seconds, as soft=60")),
            },
            _ if option == "soft" => return Err("say after how many seconds, as soft=60".into()),
            _ if options.flags.set(option) => {}
            _ => return Err(format!("there is no option {option:?}")),
        }
    }
    Ok(options)
}

fn io_uring(text: &str) -> Result<IoUring, String> {
    match text {
        "auto" => Ok(IoUring::Auto),
        "on" => Ok(IoUring::On),
        "off" => Ok(IoUring::Off),
        _ => Err("write auto, on or off".into()),
    }
}

/// What the background process tells its starter.
#[derive(Serialize, Deserialize)]
enum Outcome {
    Mounted,
    Failed(String),
}

pub fn run(args: &Args, log: &LogArgs) -> Result<()> {
    if args.foreground {
        log.start("info")?;
        return serve(args);
    }
    let path = weft_fuse::check_mount_point(&args.mount_point, args.allow_nonempty)?;
    let log_file = match &args.log_file {
        Some(file) => std::path::absolute(file)?,
        None => mounts::default_log(&path)?,
    };
    let interrupt = Interrupt::catch()?;
    let _progress = Progress::new(format!("mounting {}", path.display()));
    let arguments = background_arguments(args, log, &path);
    start_background(&arguments, &path, &log_file, &interrupt)
}

/// The command line of the process that serves what `args` ask for.
fn background_arguments(args: &Args, log: &LogArgs, path: &Path) -> Vec<OsString> {
    let mut out: Vec<OsString> = vec!["mount".into(), "--foreground".into(), "--notify".into()];
    let mut option = |name: &str, value: String| out.extend([name.into(), value.into()]);
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
    if let Some(allow) = args.allow_other {
        option("--allow-other", if allow { "yes" } else { "no" }.into());
    }
    if let Some(options) = args.options {
        option("--options", options.to_string());
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
    out.extend(args.allow_nonempty.then(|| "--allow-nonempty".into()));
    out.extend(["--".into(), path.into()]);
    out
}

/// Mounts with every default, in the background: what `weft dev` does.
pub fn mount_defaults(
    cluster: &[String],
    path: &Path,
    log: &Path,
    timeout: u64,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut arguments: Vec<OsString> = ["mount", "--foreground", "--notify"].map(Into::into).into();
    arguments.extend(["--cluster".into(), cluster.join(",").into()]);
    arguments.extend(["--timeout".into(), timeout.to_string().into(), "--".into(), path.into()]);
    start_background(&arguments, path, log, interrupt)
}

/// Starts the serving process and waits for its word.
fn start_background(
    arguments: &[OsString],
    path: &Path,
    log: &Path,
    interrupt: &Interrupt,
) -> Result<()> {
    let log_start = process::log_len(log);
    let mut child = process::spawn_detached(arguments, log, Stdio::piped())?;
    let mut stdout = child.stdout.take().context("the mount process has no output")?;
    let said = interrupt.read_to_end(&mut stdout).context("cannot hear from the mount process")?;
    let at = path.display();
    let Some(said) = said else {
        // It unmounts what it may have mounted.
        if let Some(process) = Process::of(child.id() as i32) {
            process.stop(Duration::from_secs(15))?;
            umount::detach_dead(path)?;
        }
        child.wait()?;
        bail!("interrupted; {at} is not mounted")
    };
    match serde_json::from_slice(&said) {
        Ok(Outcome::Mounted) => Ok(()),
        Ok(Outcome::Failed(why)) => {
            // It ends by itself now; leave no zombie.
            child.wait()?;
            bail!(why)
        }
        Err(_) => {
            let status = child.wait()?;
            let tail = process::log_tail(log, log_start);
            bail!(
                "the mount process for {at} ended early ({status}); {} says:\n{tail}",
                log.display()
            )
        }
    }
}

/// Serves the mount until it is unmounted or a signal comes.
fn serve(args: &Args) -> Result<()> {
    daemon::raise_descriptor_limit();
    let runtime = daemon::runtime(args.workers)?;
    let started = runtime.block_on(start(args));
    if args.notify {
        notify(&started)?;
    }
    let served = started.and_then(|(fs, mounted, record)| {
        daemon::tell_manager("READY=1");
        let limit = Duration::from_secs(args.stop_timeout);
        let result = runtime.block_on(until_unmounted(fs, mounted, limit));
        record.end(&result)?;
        result
    });
    // A request that is still stuck must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Tells the starter how it went, then lets go of its pipe: it reads until the end.
fn notify<T>(started: &Result<T>) -> Result<()> {
    let outcome = match started {
        Ok(_) => Outcome::Mounted,
        Err(e) => Outcome::Failed(describe(e)),
    };
    let mut out = io::stdout();
    writeln!(out, "{}", serde_json::to_string(&outcome)?).and_then(|()| out.flush())?;
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null).context("cannot detach standard output")
}

async fn start(args: &Args) -> Result<(Filesystem, Mounted, MountRecord)> {
    let path = weft_fuse::check_mount_point(&args.mount_point, args.allow_nonempty)?;
    let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let mut options = weft_client::Options::new(args.cluster.cluster.clone(), weft_net::tcp());
    options.client_name = args.name.clone().unwrap_or_else(|| format!("{host}:{}", path.display()));
    options.cache_bytes = usize::try_from(args.cache.0)?;
    options.write_buffer_bytes = usize::try_from(args.write_buffer.0)?;
    let MountOptions { flags, soft } = args.options.unwrap_or_default();
    options.op_deadline = soft.map_or(Duration::MAX, Duration::from_secs);
    options.access_times = !flags.noatime && !flags.read_only;
    options.dir_sync = flags.dirsync;
    let limit = Duration::from_secs(args.timeout);
    let cluster = args.cluster.cluster.join(", ");
    let fs = tokio::time::timeout(limit, Filesystem::connect(options))
        .await
        .with_context(|| {
            format!(
                "no metadata leader answered at {cluster} for {limit:?}; is the cluster running?"
            )
        })?
        .with_context(|| format!("cannot open a session with {cluster}"))?;
    let mut fuse = weft_fuse::Options {
        cluster: args.cluster.cluster.join(","),
        allow_nonempty: args.allow_nonempty,
        read_ahead_kib: u32::try_from(args.read_ahead.0 >> 10)?,
        io_uring: args.io_uring,
        flags,
        ..Default::default()
    };
    fuse.allow_other = args.allow_other.unwrap_or(fuse.allow_other);
    fuse.threads = args.fuse_threads.unwrap_or(fuse.threads);
    match mount(fs.clone(), path, fuse, limit).await {
        Ok(mounted) => {
            let (path, cluster) = (mounted.path().to_owned(), args.cluster.cluster.clone());
            let record = MountRecord::of_this_process(path, cluster);
            match record.and_then(|record| record.save().map(|()| record)) {
                Ok(record) => {
                    tracing::info!("mounted at {}", record.path.display());
                    Ok((fs, mounted, record))
                }
                // A mount that nobody can find does not stay behind.
                Err(e) => {
                    take_away(mounted.path().to_owned()).await;
                    let _ = fs.shutdown().await;
                    Err(e)
                }
            }
        }
        Err(e) => {
            let _ = fs.shutdown().await;
            Err(e)
        }
    }
}

/// Mounts and makes sure that the mount answers.
async fn mount(
    fs: Filesystem,
    path: PathBuf,
    options: weft_fuse::Options,
    limit: Duration,
) -> Result<Mounted> {
    let mounted =
        tokio::task::spawn_blocking(move || weft_fuse::mount(fs, &path, &options)).await??;
    let path = mounted.path().to_owned();
    let probe = tokio::task::spawn_blocking(move || std::fs::metadata(path));
    let answer = tokio::time::timeout(limit, probe).await;
    let failed = match answer {
        Ok(Ok(Ok(_))) => return Ok(mounted),
        Ok(Ok(Err(e))) => format!("the new mount answers {e}"),
        Ok(Err(e)) => format!("the new mount cannot be asked: {e}"),
        Err(_) => format!("the new mount does not answer for {limit:?}"),
    };
    let _ = mounted.unmount(true);
    bail!("{failed}; the log says more (try --log debug)")
}

/// Ends when the mount is taken away and what was written is durable; or, with an error, `limit`
/// after a signal.
async fn until_unmounted(fs: Filesystem, mounted: Mounted, limit: Duration) -> Result<()> {
    let mut told = daemon::shutdown_on_signal()?;
    let signal = told.clone();
    let abandon = mounted.abandon();
    let too_late = async move {
        signalled(&mut told).await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        ended = served(fs, mounted, signal) => ended,
        () = too_late => {
            // Nobody is to wait for this process, nor it for them.
            abandon();
            bail!("told to stop, and not everything that was written is durable after {limit:?}")
        }
    }
}

async fn served(fs: Filesystem, mounted: Mounted, mut signal: watch::Receiver<bool>) -> Result<()> {
    let path = mounted.path().to_owned();
    let mut session = tokio::task::spawn_blocking(move || mounted.join());
    let ended = tokio::select! {
        ended = &mut session => Some(ended?),
        _ = signalled(&mut signal) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            take_away(path.clone()).await;
            // Files that are still open keep a detached mount going; what they wrote is flushed
            // below, and the kernel ends the mount with this process.
            let wait = tokio::time::timeout(Duration::from_secs(5), session).await;
            wait.unwrap_or(Ok(Ok(())))?
        }
    };
    tracing::info!("unmounted {}", path.display());
    fs.shutdown().await.context("some written data could not be made durable")?;
    ended.with_context(|| format!("the FUSE connection of {} broke", path.display()))
}

async fn signalled(shutdown: &mut watch::Receiver<bool>) {
    // An error means that nobody can signal any more: wait for the unmount alone.
    if shutdown.wait_for(|stop| *stop).await.is_err() {
        std::future::pending().await
    }
}

/// Unmounts, lazily if files are open.
async fn take_away(path: PathBuf) {
    let unmount = move || match weft_fuse::unmount(&path, false) {
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
            tracing::warn!("files in {} are open; detaching it anyway", path.display());
            weft_fuse::unmount(&path, true)
        }
        other => other,
    };
    match tokio::task::spawn_blocking(unmount).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::warn!("cannot unmount: {e}"),
        Err(e) => tracing::warn!("cannot unmount: {e}"),
    }
}

#[cfg(test)]
mod tests;
