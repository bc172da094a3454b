//! The process that serves a mount hands it over to another.
//!
//! The other finds the cluster first. Then the mount is brought to rest: requests of programs wait
//! in the kernel from there on. If that does not come about, or the other does not say that it
//! serves, the mount goes on here, and programs notice only a pause.
//!
//! Invariant: at most one process serves. The other serves once it has said so; this one goes on
//! only if that was not said, and cannot be any more ([`take_back`]), however it comes to that: by
//! an error, in time, or because it is told to stop.

use super::words::{VERSION, give, hear, say, take_back, told};
use crate::daemon;
use crate::mounts::MountRecord;
use crate::output::describe;
use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};
use weft_client::Filesystem;
use weft_fuse::Handover;
use weft_proto::{Error, ErrorKind, v1};

/// Whoever connects says in this time what it wants.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// The other process finds the cluster in this time.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Programs wait so long at most for the mount to come to rest.
const REST_TIMEOUT: Duration = Duration::from_secs(3);
/// What the kernel is to forget it has forgotten after so long, mostly.
const NAMES_TIMEOUT: Duration = Duration::from_secs(3);
/// They get so long until that is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// It is tried for so long.
pub const TRY_TIMEOUT: Duration = Duration::from_secs(20);
/// Programs wait so long at most for the other process to serve.
pub const SERVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Hands the mount over to the first process that asks for it and can take it. Ends when that
/// serves; never, if none can be heard.
pub async fn when_asked(fs: &Filesystem, handover: &Handover, record: &MountRecord) {
    if std::process::id() == 1 {
        tracing::info!("no other process can take this mount over: with this one all end");
        return std::future::pending().await;
    }
    let asked = match Asked::bind(record) {
        Ok(asked) => asked,
        Err(error) => {
            tracing::warn!("no other process can take this mount over: {}", describe(&error));
            return std::future::pending().await;
        }
    };
    loop {
        let handed = match asked.listener.accept().await {
            Ok((socket, _)) => hand_over(fs, handover, record, socket).await,
            Err(error) => Err(error.into()),
        };
        match handed {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!("the mount is not handed over: {}", describe(&error));
                // Descriptors may be short.
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

async fn hand_over(
    fs: &Filesystem,
    handover: &Handover,
    record: &MountRecord,
    mut socket: UnixStream,
) -> Result<()> {
    let peer = socket.peer_cred()?;
    ensure!(peer.uid() == geteuid().as_raw() || peer.uid() == 0, "user {} asks", peer.uid());
    let heir = peer.pid().context("it is of another machine")?;
    let v1::TakeoverRequest { version, software, takes_names } =
        hear(&mut socket, ASK_TIMEOUT).await?;
    if version != VERSION {
        let what = format!("version {version} of this conversation is not spoken here");
        let error = Some(Error::new(ErrorKind::Protocol, what.clone()).into());
        say(&mut socket, &v1::TakeoverOffer { error, ..Default::default() }).await?;
        bail!(what);
    }
    tracing::info!("process {heir}, {software}, is to go on with this mount");
    let (metadata, cluster) = fs.cluster();
    let cluster = cluster.map_or_else(Vec::new, |of| of.0.to_vec()).into();
    say(&mut socket, &v1::TakeoverOffer { error: None, metadata, cluster }).await?;
    told(hear::<v1::TakeoverWord>(&mut socket, READY_TIMEOUT).await?.error)?;
    let (mut pause, client) = match rest(fs, handover, record, takes_names).await {
        Ok(rested) => rested,
        Err(error) => {
            let head = Error::new(ErrorKind::Busy, describe(&error)).into();
            say(&mut socket, &v1::MountState { error: Some(head), ..Default::default() }).await?;
            return Err(error);
        }
    };
    let requests = handover.requests().into_iter().map(Into::into).collect();
    let agreed = Some(handover.agreed());
    let known = takes_names.then(|| handover.known());
    let state = v1::MountState { error: None, client: Some(client), requests, agreed, known };
    let socket = pause.offered.insert(socket);
    let said = timeout(SERVE_TIMEOUT, async {
        say(socket, &state).await?;
        give(socket, handover.device()).await?;
        hear::<v1::TakeoverWord>(socket, SERVE_TIMEOUT).await
    });
    told(said.await.context("it does not say that it serves")??.error)?;
    pause.end();
    daemon::tell_manager(&format!("MAINPID={heir}"));
    Ok(())
}

/// Brings the mount to rest, if need be after some tries.
async fn rest<'a>(
    fs: &'a Filesystem,
    handover: &'a Handover,
    record: &'a MountRecord,
    takes_names: bool,
) -> Result<(Pause<'a>, v1::ClientState)> {
    let until = Instant::now() + TRY_TIMEOUT;
    loop {
        // What is committed now, programs do not wait for; nor for what is taken back now.
        fs.commit_all(until).await;
        handover.settle_names(takes_names, Instant::now() + NAMES_TIMEOUT).await;
        let begun = Instant::now();
        let mut pause = Pause { fs, handover, record, begun, rests: false, offered: None };
        let deadline = pause.begun + REST_TIMEOUT;
        let rested = match handover.rest(deadline).await {
            Ok(()) => fs.hand_over(deadline).await.map_err(anyhow::Error::from),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Err(error.into()),
            Err(error) => Err(error.into()),
        };
        match rested {
            Ok(state) => {
                pause.rests = true;
                if handover.names_rest() {
                    return Ok((pause, state));
                }
                if Instant::now() >= until {
                    bail!("names are always being taken back from the kernel");
                }
                tracing::info!("names are being taken back from the kernel; trying on");
            }
            Err(error) if Instant::now() >= until => return Err(error),
            Err(error) => tracing::info!("{}; trying on", describe(&error)),
        }
        drop(pause);
        sleep(RETRY_INTERVAL).await;
    }
}

/// Requests of programs wait. The mount goes on when this is dropped: here, unless the other
/// process has said that it serves.
struct Pause<'a> {
    fs: &'a Filesystem,
    handover: &'a Handover,
    record: &'a MountRecord,
    begun: Instant,
    /// The client is at rest, too.
    rests: bool,
    /// Where the other process may say that it serves, once it was given the state.
    offered: Option<UnixStream>,
}

impl Pause<'_> {
    /// The other process serves.
    fn end(&mut self) {
        self.handover.leave();
        let waited = self.begun.elapsed();
        tracing::info!("the mount is handed over; programs waited for {waited:?}");
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if self.handover.is_over() {
            return;
        }
        if let Some(socket) = &self.offered {
            if take_back(socket) {
                return self.end();
            }
            // The other one may have said already that it serves.
            if let Err(error) = self.record.save() {
                tracing::error!("commands do not find this mount: {}", describe(&error));
            }
        }
        if self.rests {
            self.fs.resume();
        }
        self.handover.resume();
    }
}

/// Where another process asks for the mount.
struct Asked {
    listener: UnixListener,
    path: PathBuf,
}

impl Asked {
    fn bind(record: &MountRecord) -> Result<Self> {
        let path = record.socket()?;
        // Of an earlier process with the same number.
        let _ = std::fs::remove_file(&path);
        let bound = UnixListener::bind(&path);
        let listener = bound.with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Self { listener, path })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
