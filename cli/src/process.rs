//! Processes that outlive the command that started them: start, recognise, signal, await.
//!
//! Invariant: a process is named by its id, its start time and the boot it lives in, and is
//! signalled through a pidfd that was checked against them, so that a recycled id is never
//! mistaken for it.

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often is looked whether a process that serves a mount has died and cannot go.
const DYING_INTERVAL: Duration = Duration::from_secs(1);
/// Whether a process holds a folder is told at once, or it begins a program and waits for files
/// that it closes.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// Threads that may be left behind by such looks.
const STUCK: usize = 8;

/// One process of this machine, for as long as it lives and never another one after it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    started: u64,
    /// The kernel's boot id.
    boot: String,
}

impl Process {
    /// The process that has this id now; `None` if there is none or it is a zombie.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid).ok().filter(|stat| !stat.ended)?;
        Some(Self { pid, started: stat.started, boot: boot_id() })
    }

    /// When it was started, in clock ticks since boot.
    pub fn started(&self) -> u64 {
        self.started
    }

    pub fn this() -> Option<Self> {
        Self::of(std::process::id() as i32)
    }

    pub fn alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self) && !dumps_core(self.pid)
    }

    /// Does it end, without its last thread being gone? Who ends as it should does so for a moment.
    /// One that was killed, or has crashed, does so for as long as a thread of it waits in the
    /// kernel: its files are open until then, and its end is told to nobody.
    pub fn is_dying(&self) -> bool {
        let ends = |stat: Stat| {
            stat.started == self.started && (stat.ended && stat.threads > 1 || dumps_core(self.pid))
        };
        Stat::of(self.pid).is_ok_and(ends) && self.boot == boot_id()
    }

    /// Is its last thread gone? No, if that cannot be told.
    pub fn is_gone(&self) -> bool {
        match Stat::of(self.pid) {
            Ok(stat) => stat.started != self.started || stat.ended && stat.threads <= 1,
            Err(error) => {
                error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
            }
        }
    }

    /// A handle to exactly this process; `None` when it has ended.
    fn handle(&self) -> Option<OwnedFd> {
        // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the kernel just gave us this descriptor; nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        // The id is pinned by the descriptor now, so this check cannot be overtaken.
        self.alive().then_some(fd)
    }

    /// Sends a signal; a process that has ended is no error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(fd) = self.handle() else { return Ok(()) };
        // SAFETY: plain integers and a null siginfo, as the manual page allows.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                fd.as_raw_fd(),
                signal as i32,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match io::Error::last_os_error() {
            _ if rc == 0 => Ok(()),
            e if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            e => Err(e),
        }
    }

    /// Waits until the process has ended; false if it still lives after `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        let Some(fd) = self.handle() else { return true };
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
            match nix::poll::poll(&mut fds, left) {
                Ok(0) => return false,
                Err(nix::errno::Errno::EINTR) => continue,
                _ => return true,
            }
        }
    }

    /// Asks with SIGTERM, waits up to `limit`, then kills. True if it went by itself.
    pub fn stop(&self, limit: Duration) -> Result<bool> {
        let what = || format!("cannot signal process {}", self.pid);
        self.signal(Signal::SIGTERM).with_context(what)?;
        if self.wait(limit) {
            return Ok(true);
        }
        self.signal(Signal::SIGKILL).with_context(what)?;
        self.wait(Duration::from_secs(5));
        Ok(false)
    }
}

/// SIGINT, SIGTERM and SIGHUP: from now on they end nothing by themselves, so that what a command
/// has started in the background can be stopped before it ends.
pub struct Interrupt(SignalFd);

impl Interrupt {
    /// To be called before there are other threads, which would take the signals.
    pub fn catch() -> Result<Self> {
        let signals: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().context("cannot catch signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(&signals, flags).context("cannot catch signals")?))
    }

    /// Has a signal come?
    pub fn came(&self) -> bool {
        self.wait(None, Duration::ZERO).unwrap_or(true)
    }

    /// Waits this long. Fails as soon as a signal came.
    pub fn pause(&self, time: Duration) -> Result<()> {
        anyhow::ensure!(!self.wait(None, time)?, "interrupted");
        Ok(())
    }

    /// Waits until a process has ended, or ends and cannot go (true), or a signal has come.
    pub fn outlasts(&self, process: &Process) -> Result<bool> {
        while let Some(handle) = process.handle() {
            if self.wait(Some(handle.as_fd()), DYING_INTERVAL)? {
                return Ok(false);
            }
            if process.is_dying() {
                break;
            }
        }
        Ok(true)
    }

    /// Reads until the end; `None` if a signal comes first.
    pub fn read_to_end(&self, from: &mut (impl Read + AsFd)) -> Result<Option<Vec<u8>>> {
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        loop {
            if self.wait(Some(from.as_fd()), Duration::MAX)? {
                return Ok(None);
            }
            match from.read(&mut piece)? {
                0 => return Ok(Some(all)),
                n => all.extend_from_slice(&piece[..n]),
            }
        }
    }

    /// Waits until a signal has come (true), until there is something to read, or until the end.
    fn wait(&self, other: Option<BorrowedFd>, limit: Duration) -> Result<bool> {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::NONE);
        let fds = [Some(self.0.as_fd()), other].into_iter().flatten();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match nix::poll::poll(&mut fds, limit) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(fds[0].any() == Some(true)),
            Err(e) => Err(e).context("cannot wait"),
        }
    }
}

/// Processes that work in this folder or below it, or have something there open or mapped, each
/// with its name. Those of other users are seen by root only, and one that begins a program only
/// when it has begun. Asks nothing of the filesystem there.
pub fn holders(folder: &Path) -> Vec<(i32, String)> {
    holders_by(folder, |told| told.recv_timeout(LOOK_TIMEOUT))
}

fn holders_by(
    folder: &Path,
    next: impl FnMut(&Told<(i32, String)>) -> Heard<(i32, String)>,
) -> Vec<(i32, String)> {
    let folder = folder.to_owned();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found = each(all.collect(), next, move |proc| held(proc, &folder));
    found.sort_unstable();
    found
}

/// Id and name of a process, by its folder in `/proc`, if it works below `folder` or has something
/// open or mapped there.
fn held(proc: PathBuf, folder: &Path) -> Option<(i32, String)> {
    let pid = proc.file_name()?.to_str()?.parse().ok()?;
    let name = fs::read_to_string(proc.join("comm")).ok()?;
    let open = fs::read_dir(proc.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
    let links = ["cwd", "root", "exe"].map(|name| proc.join(name)).into_iter().chain(open);
    let mut targets = links.filter_map(|link| fs::read_link(link).ok());
    let holds = targets.any(|target| target.starts_with(folder)) || maps(&proc, folder);
    holds.then(|| (pid, name.trim().to_owned()))
}

/// Whether the process maps a file below `folder`. A line of its maps (proc(5)) ends with the path.
fn maps(proc: &Path, folder: &Path) -> bool {
    let maps = fs::read(proc.join("maps")).unwrap_or_default();
    let mut paths = maps.split(|&b| b == b'\n').filter_map(|line| {
        let at = line.iter().position(|&b| b == b'/')?;
        Some(Path::new(OsStr::from_bytes(&line[at..])))
    });
    paths.any(|path| path.starts_with(folder))
}

/// Where a thread tells what it found.
type Told<F> = Receiver<Option<F>>;
/// What it told next, or that this takes too long, or that it is through.
type Heard<F> = Result<Option<F>, RecvTimeoutError>;

/// What `look` finds at each, but for those where `next` says that it takes too long: a thread
/// stays behind there. After [`STUCK`] of those it is enough.
fn each<T: Send + 'static, F: Send + 'static>(
    all: Vec<T>,
    mut next: impl FnMut(&Told<F>) -> Heard<F>,
    look: impl Fn(T) -> Option<F> + Send + Sync + 'static,
) -> Vec<F> {
    let (rest, look) = (Arc::new(Mutex::new(all.into_iter())), Arc::new(look));
    let mut found = Vec::new();
    for _ in 0..STUCK {
        let (tell, told) = channel();
        let (rest, look) = (rest.clone(), look.clone());
        thread::spawn(move || {
            let left = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(one) = left() {
                if tell.send(look(one)).is_err() {
                    return;
                }
            }
        });
        loop {
            match next(&told) {
                Ok(answer) => found.extend(answer),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return found,
            }
        }
    }
    found
}

/// What `/proc/PID/stat` tells (proc(5)).
struct Stat {
    /// It is a zombie.
    ended: bool,
    threads: u32,
    /// In clock ticks since boot.
    started: u64,
}

impl Stat {
    fn of(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(stat: &str) -> Option<Self> {
        // The command name may hold spaces and parentheses; what follows the last one is regular,
        // and begins with field 3.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some(Self {
            ended: matches!(*fields.first()?, "Z" | "X"),
            threads: fields.get(20 - 3)?.parse().ok()?,
            started: fields.get(22 - 3)?.parse().ok()?,
        })
    }
}

/// Has it crashed, and waits for all its threads to stop? Nothing leads back from there.
fn dumps_core(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| text.lines().any(|line| line == "CoreDumping:\t1"))
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// This program: what is installed in its place by now, if it was replaced, or else itself.
pub fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let name = own.to_str().and_then(|name| name.strip_suffix(" (deleted)"));
    Ok(match name.map(PathBuf::from) {
        _ if own.exists() => own,
        Some(replaced) if replaced.exists() => replaced,
        _ => PathBuf::from("/proc/self/exe"),
    })
}

/// Starts this very binary with `args`, in a session of its own so that it outlives the caller's
/// terminal; standard error goes to the end of `log`, standard output where `stdout` says.
pub fn spawn_detached<S: AsRef<std::ffi::OsStr>>(
    args: &[S],
    log: &Path,
    stdout: Stdio,
) -> Result<Child> {
    let program = program()?;
    let mut command = Command::new(&program);
    // Under its own name, whatever it was called by.
    command
        .arg0("weft")
        .args(args)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(open_log(log)?);
    // SAFETY: both are async-signal-safe and touch nothing of the parent.
    unsafe {
        command.pre_exec(|| {
            // What this command holds back (see [`Interrupt`]) has to end the new process.
            SigSet::empty().thread_set_mask()?;
            Ok(nix::unistd::setsid().map(drop)?)
        });
    }
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

/// Opens a log for appending, with its folder.
pub fn open_log(path: &Path) -> Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write the log {}", path.display()))
}

/// Length of a log now, to know later what was added.
pub fn log_len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |m| m.len())
}

/// The last lines that were added to a log since it was `from` bytes long, for an error message.
pub fn log_tail(path: &Path, from: u64) -> String {
    use std::io::{Seek, SeekFrom};
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(len.saturating_sub(4096))))?;
        let mut bytes = Vec::new();
        file.take(4096).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

#[cfg(test)]
mod tests;
