//! What every long-running role needs: a runtime, a signal that ends it, enough descriptors.

use crate::output;
use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How often a daemon looks whether its own port answers.
const READY_INTERVAL: Duration = Duration::from_millis(50);
/// Most threads that may wait for a disk. Each index that hangs keeps 64 of a storage daemon from
/// the others: enough for more targets than a machine has.
const BLOCKING_THREADS: usize = 8192;
/// Blocks of so many bytes are given back; those of RocksDB's memtables have a MiB.
#[cfg(all(target_env = "gnu", not(target_arch = "x86_64")))]
const LARGE: usize = 256 << 10;

/// A runtime of `workers` threads (0: as many as cores, from 2 to 4).
pub fn runtime(workers: usize) -> Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let workers = if workers == 0 { cores.clamp(2, 4) } else { workers };
    Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the worker threads")
}

/// A runtime of the calling thread alone: requests that are mostly waiting for others are handed on
/// without waking a thread, which costs more than serving them.
pub fn single() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start the event loop")
}

/// Ends what runs there, and waits for what blocks, but not for ever: the process ends then, at
/// once and with this result, since threads of RocksDB are not fit for the end of one around them.
pub fn end(runtime: Runtime, limit: Duration, result: Result<()>) -> Result<()> {
    let begin = Instant::now();
    runtime.shutdown_timeout(limit);
    if begin.elapsed() < limit {
        return result;
    }
    tracing::warn!("some work has not ended within {limit:?}, and is left");
    if let Err(error) = &result {
        output::complain(&format!("weft: {}", output::describe(error)));
    }
    // SAFETY: it ends the process, and nothing of it runs any more.
    unsafe { libc::_exit(i32::from(result.is_err())) }
}

/// Turns true at the first SIGTERM or SIGINT. Must be called inside a runtime.
pub fn shutdown_on_signal() -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let (tx, rx) = watch::channel(false);
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!("{name}: stopping");
        // Keep the sender until the process ends: a closed channel would read as "never".
        tx.send_replace(true);
        tx.closed().await;
    });
    Ok(rx)
}

/// Raises the limit of open descriptors as far as allowed: RocksDB and many peers need them.
pub fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(e) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!("open descriptors stay limited to {soft}: {e}");
    }
}

/// Has the allocator give large blocks back to the kernel when they are freed. By itself glibc has
/// them in its heaps as soon as one was freed (mallopt(3), `M_MMAP_THRESHOLD`). There what is small
/// and lives longer comes to lie between them, and memtables that were written out leave holes that
/// nothing uses: the process grows although what it uses does not. On x86-64 there is another
/// allocator ([`crate::ALLOCATOR`]).
pub fn give_back_large_blocks() {
    #[cfg(all(target_env = "gnu", not(target_arch = "x86_64")))]
    // SAFETY: it only sets a number of the allocator's.
    if unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE as i32) } == 0 {
        tracing::warn!("the allocator keeps large blocks that are freed");
    }
}

/// Tells the service manager that started this process, if one did, when connections to `listen`
/// are taken; and from then on that its event loop turns, as often as the manager wants to hear of
/// that (`WatchdogSec=`, sd_watchdog_enabled(3)). Must be called inside a runtime.
pub fn attend(listen: &str) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let watched = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let every = number("WATCHDOG_USEC").filter(|_| watched).map(Duration::from_micros);
    let listen = listen.to_owned();
    tokio::spawn(async move {
        while TcpStream::connect(&listen).await.is_err() {
            sleep(READY_INTERVAL).await;
        }
        tell_manager("READY=1");
        while let Some(every) = every {
            sleep(every / 2).await;
            tell_manager("WATCHDOG=1");
        }
    });
}

/// Tells the service manager that started this process how it stands (`READY=1`), as sd_notify(3)
/// does. Without one, nobody is told.
pub fn tell_manager(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
    };
    if let Err(e) = send() {
        tracing::warn!("cannot tell the service manager {state}: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    /// As many as the indexes of ten targets take when they hang.
    #[test]
    fn disks_that_hang_leave_threads_for_others() {
        let hanging = 10 * 64;
        let runtime = runtime(1).unwrap();
        let last = Arc::new(Barrier::new(hanging + 1));
        for _ in 0..hanging {
            let last = last.clone();
            runtime.spawn_blocking(move || last.wait());
        }
        let other = runtime.spawn_blocking(|| ());
        let other = async { tokio::time::timeout(Duration::from_secs(60), other).await };
        let done = runtime.block_on(other);
        if done.is_ok() {
            last.wait();
        }
        runtime.shutdown_background();
        done.expect("all threads are taken").unwrap();
    }

    #[cfg(all(target_env = "gnu", not(target_arch = "x86_64")))]
    #[test]
    fn large_blocks_are_given_back() {
        give_back_large_blocks();
        // SAFETY: it only reads what the allocator counts.
        let mapped = || unsafe { libc::mallinfo2() }.hblkhd;
        let blocks = || (0..64).map(|_| vec![1u8; 4 * LARGE]).collect::<Vec<_>>();
        // Once one was freed, glibc by itself would take the next from its heaps.
        drop(blocks());
        let before = mapped();
        let kept = blocks();
        let more = mapped().saturating_sub(before);
        drop(kept);
        assert!(more > 48 * 4 * LARGE, "{more} bytes of blocks that the kernel gets back");
    }
}
