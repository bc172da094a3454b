//! The client library without FUSE: one large file written and read through it.

use super::context::{Context, Sample, own_name};
use super::task::{Outcome, check_stamps, goes_on, noise, stamp};
use anyhow::{Context as _, Result, ensure};
use std::time::{Duration, Instant};
use weft_client::{Creator, Filesystem, HandleId, OpenFlags, Options, copied_bytes};

/// Bytes of one call.
const REQUEST: usize = 1 << 20;
/// Reads in flight.
const DEPTH: u64 = 4;

pub fn run(context: &Context) -> Result<Vec<Sample>> {
    ensure!(
        !context.cluster.addresses.is_empty(),
        "give --cluster or --dir to measure the client library"
    );
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut options = Options::new(context.cluster.addresses.clone(), crate::network::transport());
    options.client_name = "weft bench".into();
    options.op_deadline = Duration::from_secs(60);
    let fs = runtime.block_on(Filesystem::connect(options)).context("cannot connect")?;
    let samples = transfer(context, &runtime, &fs);
    let closed = runtime.block_on(fs.shutdown());
    let samples = samples?;
    closed.context("cannot close the session")?;
    Ok(samples)
}

fn transfer(
    context: &Context,
    runtime: &tokio::runtime::Runtime,
    fs: &Filesystem,
) -> Result<Vec<Sample>> {
    let name = format!("{}.library", own_name());
    let (root, flags) = (fs.root(), OpenFlags { exclusive: true, ..OpenFlags::default() });
    // SAFETY: both only read the credentials of this process.
    let by = unsafe { Creator { uid: libc::geteuid(), gid: libc::getegid(), umask: 0 } };
    let opened = runtime
        .block_on(fs.create(root, name.as_bytes(), 0o600, by, flags))
        .context("cannot create a file in the root directory")?;
    let work = || -> Result<Vec<Sample>> {
        let (file, limit) = (opened.handle, context.limit);
        let written = context
            .measure("library_write", || runtime.block_on(write(fs, file, context.size, limit)))?;
        // What the time was too short for is not there.
        let bytes = written.outcome.bytes;
        let read =
            context.measure("library_read", || runtime.block_on(read(fs, file, bytes, limit)))?;
        Ok(vec![written, read])
    };
    let samples = work();
    let removed = runtime.block_on(async {
        fs.release(opened.handle).await?;
        fs.unlink(root, name.as_bytes()).await
    });
    let samples = samples?;
    removed.with_context(|| format!("/{name} is left behind"))?;
    Ok(samples)
}

/// Whole requests.
async fn write(fs: &Filesystem, handle: HandleId, size: u64, limit: Duration) -> Result<Outcome> {
    let mut buffer = noise(REQUEST, size);
    let (start, before) = (Instant::now(), copied_bytes());
    let mut bytes = 0;
    for offset in (0..size).step_by(REQUEST) {
        if !goes_on(start, limit) {
            break;
        }
        stamp(&mut buffer, offset);
        let taken = fs.write(handle, offset, &buffer).await?;
        ensure!(taken == REQUEST, "a write of {REQUEST} bytes took {taken}");
        bytes += taken as u64;
    }
    fs.fsync(handle, true).await?;
    let (seconds, copied) = (start.elapsed().as_secs_f64(), Some(copied_bytes() - before));
    Ok(Outcome { bytes, seconds, copied, ..Outcome::default() })
}

async fn read(fs: &Filesystem, handle: HandleId, bytes: u64, limit: Duration) -> Result<Outcome> {
    let (start, before) = (Instant::now(), copied_bytes());
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..DEPTH {
        let fs = fs.clone();
        lanes.spawn(async move {
            let (first, mut done) = (lane * REQUEST as u64, 0);
            for offset in (first..bytes).step_by(REQUEST * DEPTH as usize) {
                if !goes_on(start, limit) {
                    break;
                }
                let data = fs.read(handle, offset, REQUEST).await?;
                ensure!(data.len() == REQUEST, "a read answered {} bytes", data.len());
                let mut at = offset;
                for part in data.parts() {
                    // Stamps lie at whole blocks of the file.
                    let skip = (at.next_multiple_of(4096) - at) as usize;
                    if skip < part.len() {
                        check_stamps(&part[skip..], at + skip as u64)?;
                    }
                    at += part.len() as u64;
                }
                done += REQUEST as u64;
            }
            Ok(done)
        });
    }
    let mut bytes = 0;
    for lane in lanes.join_all().await {
        let done: Result<u64> = lane;
        bytes += done?;
    }
    let (seconds, copied) = (start.elapsed().as_secs_f64(), Some(copied_bytes() - before));
    Ok(Outcome { bytes, seconds, copied, ..Outcome::default() })
}
