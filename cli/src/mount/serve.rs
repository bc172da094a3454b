//! Serves a mount until it is taken away, or another process takes over.

use super::args::Args;
use super::background::TakenAway;
use super::client::{Started, client_options};
use super::metrics;
use super::session_file::SessionFile;
use super::spec::source;
use super::{background, guard, hand_over, take_over};
use crate::logging::LogArgs;
use crate::mounts::{self, MountRecord};
use crate::output::describe;
use crate::process::Process;
use crate::{daemon, umount};
use anyhow::{Context, Result, anyhow, bail};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use weft_client::Filesystem;
use weft_fuse::{Connection, MountEntry, Mounted, mount_at};

/// A process that has handed its mount over waits so long for the kernel to forget what it was
/// told.
const NOTICES_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a mount ends that nobody has taken away.
const RESTORED: &str = "the cluster was restored from a backup since it was mounted: mount it \
                        anew; what was not synced is lost, and what was synced may be";

/// How serving has ended.
enum Ended {
    Unmounted,
    HandedOver,
}

/// Serves the mount until it is unmounted, a signal comes, or another process takes over.
pub fn serve(args: &Args, log: &LogArgs) -> Result<()> {
    daemon::raise_descriptor_limit();
    let runtime = daemon::runtime(args.workers)?;
    let settings = background::settings(args, log, args.log_file.as_deref());
    let name = args.mount_point.display().to_string();
    let sending = args.collector.start("weft-mount", &name, args.trace_ratio)?;
    let started = runtime.block_on(async {
        if let Some(at) = args.metrics {
            metrics::start(at).await?;
        }
        match args.takeover {
            true => take_over::take_over(args, settings).await,
            false => start(args, settings).await,
        }
    });
    if let Ok(started) = &started
        && let Err(error) = guard::start(&started.record)
    {
        tracing::warn!("if this process is killed, who waits for it may hang: {error:#}");
    }
    if args.notify
        && let Err(error) = background::notify(&started)
    {
        // Whoever started it is gone; the mount is used by others.
        tracing::warn!("nobody hears that it was started: {}", describe(&error));
    }
    let served = started.and_then(|started| {
        let kept = runtime.spawn(started.record.clone().keep());
        daemon::tell_manager("READY=1");
        let limit = Duration::from_secs(args.stop_timeout);
        let (record, session) = (started.record.clone(), started.session.clone());
        let ended = runtime.block_on(until_ended(started, limit));
        // What is forgotten next does not come back.
        kept.abort();
        let _ = runtime.block_on(kept);
        match ended {
            // The record is the other process's now.
            Ok(Ended::HandedOver) => {
                session.hand_over();
                Ok(())
            }
            ended => {
                let ended = ended.map(drop);
                if ended.is_ok() {
                    session.remove();
                }
                record.end(&ended)?;
                ended
            }
        }
    });
    drop(sending);
    // A request that is still stuck must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn start(args: &Args, settings: Vec<String>) -> Result<Started> {
    let path = match args.again {
        true => weft_fuse::resolve_mount_point(&args.mount_point)?,
        false => weft_fuse::check_mount_point(&args.mount_point, args.allow_nonempty)?,
    };
    let session = SessionFile::take(mounts::session_file(&path)?);
    let options = client_options(args, &path, args.cluster.cluster.clone(), &session)?;
    let limit = Duration::from_secs(args.timeout);
    let cluster = args.cluster.cluster.join(", ");
    let fs = tokio::time::timeout(limit, Filesystem::connect(options))
        .await
        .with_context(|| {
            format!(
                "no metadata leader answered at {cluster} for {limit:?}; is the cluster running?"
            )
        })?
        .with_context(|| format!("cannot mount what {cluster} serves"))?;
    session.forget_dead();
    let mut fuse = weft_fuse::Options {
        source: source(&args.cluster.cluster, args.subdir.as_deref()),
        allow_nonempty: args.allow_nonempty,
        read_ahead_kib: u32::try_from(args.read_ahead.0 >> 10)?,
        io_uring: args.io_uring,
        flags: args.options.unwrap_or_default().flags,
        ..Default::default()
    };
    if let Some(source) = &args.source {
        fuse.source = source.clone();
    }
    // The kernel says so then, and asks nobody.
    fuse.flags.read_only |= fs.is_read_only();
    fuse.allow_other = args.allow_other.unwrap_or(fuse.allow_other);
    fuse.threads = args.fuse_threads.unwrap_or(fuse.threads);
    let made_room = if args.again { make_room(&path) } else { Ok(()) };
    let mounted = match made_room {
        Ok(()) => mount(fs.clone(), path, fuse, limit).await,
        Err(error) => Err(error),
    };
    match mounted {
        Ok(mounted) => {
            let (path, cluster) = (mounted.path().to_owned(), args.cluster.cluster.clone());
            let connection = mounted.connection().cloned();
            let record = MountRecord::of_this_process(path, cluster, settings, connection);
            let saved = record.and_then(|mut record| {
                record.supervisor = args.supervised.and_then(supervisor);
                let told = daemon::shutdown_on_signal()?;
                record.save_new().map(|()| (record, told))
            });
            match saved {
                Ok((record, told)) => {
                    tracing::info!("mounted at {}", record.path.display());
                    Ok(Started { fs, mounted, record, session, told })
                }
                // A mount that nobody can find does not stay behind.
                Err(e) => {
                    take_away(mounted.path().to_owned(), mounted.connection().cloned()).await;
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

/// What was left there by a process that has died goes only now: until here programs got an error
/// for what they looked for, and not the folder below. Errors: [`TakenAway`], it is not there, or
/// another was mounted in its place.
fn make_room(path: &Path) -> Result<()> {
    if !weft_fuse::mount_at(path)?.is_some_and(|mount| mount.is_weft()) {
        return Err(TakenAway.into());
    }
    // Until another is there it says who brings it back, and that it is not there meanwhile.
    let left = mounts::find(path)?.filter(|record| !record.process.alive());
    left.map_or(Ok(()), |record| record.make_room())?;
    umount::detach(path)?;
    let lives = mounts::find(path)?.is_some_and(|record| record.process.alive());
    if lives { Err(TakenAway.into()) } else { Ok(()) }
}

/// The process that looks after this one, which has started it.
fn supervisor(pid: i32) -> Option<Process> {
    Process::of(pid).filter(|_| nix::unistd::getppid().as_raw() == pid)
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

/// Ends when the mount is taken away and what was written is durable, or another process has taken
/// over; or, with an error, `limit` after a signal.
async fn until_ended(started: Started, limit: Duration) -> Result<Ended> {
    let (mut told, abandon) = (started.told.clone(), started.mounted.abandon());
    let handover = started.mounted.handover();
    let too_late = async move {
        signalled(&mut told).await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        ended = served(started) => ended,
        () = too_late => {
            if handover.is_over() {
                return Ok(Ended::HandedOver);
            }
            // Nobody is to wait for this process, nor it for them.
            abandon();
            bail!("told to stop, and not everything that was written is durable after {limit:?}")
        }
    }
}

async fn served(started: Started) -> Result<Ended> {
    let Started { fs, mounted, record, session: _, told: mut signal } = started;
    let (path, handover) = (mounted.path().to_owned(), mounted.handover());
    let (own, abandon) = (mounted.connection().cloned(), mounted.abandon());
    let mut session = tokio::task::spawn_blocking(move || mounted.join());
    let ended = tokio::select! {
        ended = &mut session => Ok(Some(ended?)),
        () = signalled(&mut signal) => Ok(None),
        () = hand_over::when_asked(&fs, &handover, &record) => Ok(Some(Ok(()))),
        () = fs.ended() => Err(anyhow!(RESTORED)),
    };
    if handover.is_over() {
        fs.leave();
        // What the kernel was to forget it is told before this process ends.
        let told = tokio::time::timeout(NOTICES_TIMEOUT, handover.notices_sent()).await;
        if told.is_err() {
            tracing::warn!("the kernel still uses pages that it was to forget");
        }
        fs.close_hot().await;
        tracing::info!("another process serves {} now", path.display());
        return Ok(Ended::HandedOver);
    }
    let ended = match ended {
        Ok(Some(ended)) => ended,
        // The mount stays, as if this process had died: programs get an error there, and not the
        // folder below, and who brings back what has died mounts it anew.
        Err(over) => {
            abandon();
            return Err(over);
        }
        Ok(None) => {
            take_away(path.clone(), own).await;
            // Files that are still open keep a detached mount going; what they wrote is flushed
            // below, and the kernel ends the mount with this process.
            let wait = tokio::time::timeout(Duration::from_secs(5), session).await;
            wait.unwrap_or(Ok(Ok(())))?
        }
    };
    tracing::info!("unmounted {}", path.display());
    fs.shutdown().await.context("some written data could not be made durable")?;
    ended.with_context(|| format!("the FUSE connection of {} broke", path.display()))?;
    Ok(Ended::Unmounted)
}

async fn signalled(shutdown: &mut watch::Receiver<bool>) {
    // An error means that nobody can signal any more: wait for the unmount alone.
    if shutdown.wait_for(|stop| *stop).await.is_err() {
        std::future::pending().await
    }
}

/// Unmounts what this process serves, lazily if files are open. Where that was detached, what
/// others have mounted there since stays.
async fn take_away(path: PathBuf, own: Option<Connection>) {
    let unmount = move |lazy| {
        if !mount_at(&path)?.is_some_and(|top| is_own(&top, own.as_ref())) {
            tracing::info!("what this process serves is not at {} any more", path.display());
            return Ok(());
        }
        if lazy {
            tracing::warn!("files in {} are open; detaching it anyway", path.display());
        }
        weft_fuse::unmount(&path, lazy)
    };
    let take = move || match unmount(false) {
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => unmount(true),
        other => other,
    };
    match tokio::task::spawn_blocking(take).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::warn!("cannot unmount: {e}"),
        Err(e) => tracing::warn!("cannot unmount: {e}"),
    }
}

/// Whether a mount is that of this process; its number is no other's while this one serves it.
pub(super) fn is_own(mount: &MountEntry, own: Option<&Connection>) -> bool {
    own.map_or(mount.is_weft(), |own| mount.device == own.device)
}
