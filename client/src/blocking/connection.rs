//! A connection, with the threads that serve it.

use super::forks::Process;
use crate::filesystem::Filesystem;
use crate::options::Options;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use weft_net::sync::{Condvar, Mutex};
use weft_proto::{Error, ErrorKind, Result};

/// A runtime that is given up waits so long for what still runs.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Most threads that a connection has unless it is told a number.
const MAX_UNTOLD: usize = 8;
/// More threads help nobody.
const MAX_THREADS: usize = 1024;

/// How to connect; see [`Options`] for what is not set here.
#[derive(Clone)]
pub struct ConnectOptions {
    /// The client behind it.
    pub client: Options,
    /// Threads that do the work, at most 1024; 0: one for each core, at most 8.
    pub threads: usize,
}

impl ConnectOptions {
    /// For the cluster with these metadata servers: `HOST:PORT[,HOST:PORT...]`. Certificates are
    /// those that the environment names ([`weft_net::from_env`]). Errors: `Invalid`.
    pub fn new(cluster: &str) -> Result<Self> {
        let servers: Vec<_> = cluster.split(',').map(str::trim).map(str::to_owned).collect();
        if let Some(bad) = servers.iter().find(|server| !is_address(server)) {
            let what = format!(
                "{bad:?} is no address of a metadata server: a cluster is named as \
                 HOST:PORT[,HOST:PORT...]"
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let mut client = Options::new(servers, weft_net::from_env()?);
        client.client_name = program_name();
        // A program without a mount is told when the cluster is away, and need not be killed.
        client.op_deadline = Duration::from_secs(300);
        Ok(Self { client, threads: 0 })
    }
}

fn is_address(server: &str) -> bool {
    let parts = server.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0))
}

/// What people see in the list of sessions. Its host first, as in the names of mounts: servers
/// share what they have among hosts.
fn program_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let program = std::env::current_exe().ok();
    let name = program.as_deref().and_then(std::path::Path::file_name);
    let name = name.map_or("program".into(), |name| name.to_string_lossy());
    format!("{}:{name}[{}]", host.trim(), std::process::id())
}

/// A filesystem that this process is connected to; clones share it.
///
/// Dropping the last one disconnects, and nobody is told what could not be made durable: call
/// [`Self::disconnect`].
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    fs: Filesystem,
    handle: Handle,
    process: Process,
    /// No call begins any more.
    closing: AtomicBool,
    /// Held by who disconnects, to the end.
    ending: Mutex<()>,
    calls: Mutex<Calls>,
    /// The last call has ended.
    idle: Condvar,
}

/// The threads, and who needs them.
struct Calls {
    /// Gone when it is disconnected.
    runtime: Option<Runtime>,
    /// Calls that have begun and not ended: none is left without threads.
    under_way: usize,
}

/// A call, until this is dropped.
struct Call<'a>(&'a Shared);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut calls = self.0.calls.lock();
        calls.under_way -= 1;
        if calls.under_way == 0 {
            self.0.idle.notify_all();
        }
    }
}

impl Connection {
    /// Connects. Errors: those of [`Filesystem::connect`]; `Invalid` of too many threads, `Io` if
    /// there can be none.
    pub fn connect(options: ConnectOptions) -> Result<Self> {
        if options.threads > MAX_THREADS {
            let what = format!("{} threads are over {MAX_THREADS}", options.threads);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let process = Process::current();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_UNTOLD));
        let threads = if options.threads == 0 { cores } else { options.threads };
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("weft-client")
            .on_thread_start(block_signals)
            .enable_all()
            .build()
            .map_err(|e| Error::new(ErrorKind::Io, format!("cannot start threads: {e}")))?;
        let fs = runtime.block_on(Filesystem::connect(options.client))?;
        let (handle, closing) = (runtime.handle().clone(), AtomicBool::new(false));
        let calls = Mutex::new(Calls { runtime: Some(runtime), under_way: 0 });
        Ok(Self {
            shared: Arc::new(Shared {
                fs,
                handle,
                process,
                closing,
                ending: Mutex::default(),
                calls,
                idle: Condvar::new(),
            }),
        })
    }

    /// The filesystem, for what only its asynchronous face has.
    pub fn filesystem(&self) -> &Filesystem {
        &self.shared.fs
    }

    /// Has the threads do something while this one goes on; it is dropped where it stands when the
    /// connection ends. Errors: `Disconnected`.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        self.shared.enter(|| drop(self.shared.handle.spawn(task)))
    }

    /// Waits for a future in this thread. Errors: those of the future; `Disconnected` in a process
    /// that was forked, and after [`Self::disconnect`]. Must not be called from asynchronous code.
    pub fn run<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.shared.enter(|| self.shared.handle.block_on(future))?
    }

    /// Makes all that was written durable, and closes the session. Calls that wait for the cluster
    /// are ended. The first error of what could not be made durable is answered; it is disconnected
    /// all the same. A second time nothing happens, nor does in a process that was forked.
    pub fn disconnect(&self) -> Result<()> {
        self.shared.disconnect()
    }

    /// Whether both are one and the same.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether it was made by this process, and not by one that this one was forked from.
    pub fn is_of_this_process(&self) -> bool {
        self.shared.process.is_current()
    }
}

impl Shared {
    /// Does something that needs the threads. Errors: `Disconnected`.
    fn enter<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        // First: any lock may have been held by another thread when this process was forked.
        if !self.process.is_current() {
            let what = "this process was forked from the one that connected: connect here, too";
            return Err(Error::new(ErrorKind::Disconnected, what));
        }
        let disconnected = || Error::new(ErrorKind::Disconnected, "it was disconnected");
        if self.closing.load(Ordering::Acquire) {
            return Err(disconnected());
        }
        let _call = {
            // Calls that have begun let others begin, also while one waits to disconnect.
            let mut calls = self.calls.lock();
            calls.runtime.as_ref().ok_or_else(disconnected)?;
            calls.under_way += 1;
            Call(self)
        };
        Ok(call())
    }

    fn disconnect(&self) -> Result<()> {
        if !self.process.is_current() {
            return Ok(());
        }
        // Another one that disconnects is waited for.
        let _ending = self.ending.lock();
        if self.closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // With this none waits for the cluster any more, and all calls end.
        let closed = self.handle.block_on(self.fs.shutdown());
        let mut calls = self.calls.lock();
        while calls.under_way > 0 {
            calls = self.idle.wait(calls);
        }
        let runtime = calls.runtime.take();
        drop(calls);
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(STOP_TIMEOUT);
        }
        closed
    }
}

impl Shared {
    /// [`Self::disconnect`] of what is dropped, by a thread of its own.
    fn disconnect_elsewhere(&mut self) {
        let (fs, runtime) = (self.fs.clone(), self.calls.get_mut().runtime.take());
        let Some(runtime) = runtime else { return };
        let end = move || {
            let _ = runtime.block_on(fs.shutdown());
            runtime.shutdown_timeout(STOP_TIMEOUT);
        };
        // Without a thread the cluster finds out by itself. The closure is dropped then, and the
        // runtime with it, which asynchronous code must not do.
        let end = std::mem::ManuallyDrop::new(end);
        let run = move || std::mem::ManuallyDrop::into_inner(end)();
        let _ = std::thread::Builder::new().name("weft-leave".into()).spawn(run);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.process.is_current() {
            // Nobody is there to be told.
            match Handle::try_current() {
                Err(error) if !error.is_thread_local_destroyed() => drop(self.disconnect()),
                // Asynchronous code does not wait for threads, nor can a thread that has ended.
                _ => self.disconnect_elsewhere(),
            }
            return;
        }
        // Its threads are not here to be waited for, and what it holds may be locked for ever.
        std::mem::forget(self.fs.clone());
        std::mem::forget(self.calls.get_mut().runtime.take());
    }
}

/// Signals are for the threads of the program.
fn block_signals() {
    // SAFETY: a set of signals is plain data, which is filled before it is used, and only the mask
    // of this thread is changed.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}
