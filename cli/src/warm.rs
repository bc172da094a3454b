//! `weft warm`: has the hot tier of a mount keep files before they are read. Goes through the
//! mount, as the virtual attribute `user.weft.warm.OFF.LEN` of an open file.

use crate::output::OutputArgs;
use crate::progress::Progress;
use crate::size::Size;
use anyhow::{Context, Result, ensure};
use clap::value_parser;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// Bytes that the mount is asked for at once.
const PART: u64 = 64 << 20;
/// Files that were found and are not begun.
const FOUND: usize = 4096;
/// A drive that failed once is left alone for ten seconds by the mount; one that is longer is of no
/// use to any file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(15);
const BUSY_INTERVAL: Duration = Duration::from_secs(1);

/// Have the hot tier of a mount keep files before they are read
///
/// Reads what is not there yet from the cluster, and nothing twice. What was in the hot tier and is
/// used least makes room.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft mount --hot /nvme/weft --hot-size 2TiB --cluster 10.0.0.1:7100 /datasets
  weft warm /datasets/imagenet
  weft warm --jobs 32 /datasets/imagenet/train /datasets/imagenet/val

Ends with 1 if not everything is kept.")]
pub struct Args {
    /// Files, and folders with all below them, in a mount that has a hot tier
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Files at a time
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = value_parser!(u16).range(1..=1024))]
    jobs: u16,
    #[command(flatten)]
    output: OutputArgs,
}

/// What became of it.
#[derive(Serialize, Clone, Copy, Default)]
struct Report {
    /// Files that were looked at.
    files: u64,
    /// Bytes of them that lie on storage targets; small files lie with their names.
    bytes: u64,
    /// Bytes of those that are kept.
    kept_bytes: u64,
    /// Files that could not be read.
    failed_files: u64,
    /// Bytes that the hot tier has room for.
    room_bytes: u64,
}

/// What the mount says of a part of a file.
#[derive(Deserialize)]
struct Warmed {
    wanted: u64,
    kept: u64,
    room: u64,
}

struct State {
    report: Report,
    progress: Progress,
    /// Why it makes no sense to go on.
    stopped: Option<anyhow::Error>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let progress = Progress::new("keeping files in the hot tier");
    let state = Mutex::new(State { report: Report::default(), progress, stopped: None });
    let (found, files) = sync_channel(FOUND);
    let files = Mutex::new(files);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| work(&files, &state));
        }
        for path in &args.paths {
            let walked = find(path, &mut |file| {
                // Once all have stopped, nobody looks.
                lock(&state).stopped.is_none() && found.send(file).is_ok()
            });
            if let Err(error) = walked {
                lock(&state).fail(&error);
            }
        }
        drop(found);
    });
    let State { report, progress, stopped } =
        state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    drop(progress);
    if let Some(error) = stopped {
        return Err(error);
    }
    args.output.print(&report, text)?;
    let all = report.failed_files == 0 && report.kept_bytes == report.bytes;
    if report.bytes > report.room_bytes {
        let (bytes, room) = (Size(report.bytes), Size(report.room_bytes));
        eprintln!("weft: {bytes} are more than the hot tier has room for ({room}): see --hot-size");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(report: &Report) -> String {
    let Report { files, bytes, kept_bytes, failed_files, .. } = *report;
    let failed = match failed_files {
        0 => String::new(),
        n => format!("; {n} could not be read"),
    };
    format!("{files} files: {} of {} are kept{failed}", Size(kept_bytes), Size(bytes))
}

fn lock<'a>(state: &'a Mutex<State>) -> std::sync::MutexGuard<'a, State> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl State {
    fn fail(&mut self, error: &anyhow::Error) {
        self.report.failed_files += 1;
        eprintln!("weft: {}", crate::output::describe(error));
    }
}

/// Every file at and below a place, in its filesystem; links are not followed. `take` answers
/// whether to go on.
fn find(path: &Path, take: &mut dyn FnMut(PathBuf) -> bool) -> Result<()> {
    let look = |path: &Path| {
        fs::symlink_metadata(path).with_context(|| format!("cannot look at {}", path.display()))
    };
    let top = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    if top.is_file() {
        take(path.to_owned());
        return Ok(());
    }
    ensure!(top.is_dir(), "{} is neither a file nor a folder", path.display());
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let names = fs::read_dir(&folder);
        let names = names.with_context(|| format!("cannot list {}", folder.display()))?;
        for name in names {
            let name = name.with_context(|| format!("cannot list {}", folder.display()))?;
            let (path, kind) = (name.path(), name.file_type()?);
            if kind.is_dir() && look(&path)?.dev() == top.dev() {
                folders.push(path);
            } else if kind.is_file() && !take(path) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn work(files: &Mutex<Receiver<PathBuf>>, state: &Mutex<State>) {
    loop {
        let next = files.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
        let Ok(path) = next else { return };
        if lock(state).stopped.is_some() {
            // What is still on its way is not begun.
            continue;
        }
        let warmed = warm(&path, &mut |part| {
            let state = &mut *lock(state);
            state.report.bytes += part.wanted;
            state.report.kept_bytes += part.kept;
            state.report.room_bytes = part.room;
            let Report { files, bytes, .. } = state.report;
            state.progress.detail(format!("{files} files, {} are kept", Size(bytes)));
        });
        let state = &mut *lock(state);
        state.report.files += 1;
        match warmed {
            Ok(()) => {}
            Err(Failed::Everywhere(error)) => state.stopped = Some(error),
            Err(Failed::Here(error)) => state.fail(&error),
        }
    }
}

enum Failed {
    /// This file.
    Here(anyhow::Error),
    /// There is no use in asking for others.
    Everywhere(anyhow::Error),
}

fn warm(path: &Path, told: &mut dyn FnMut(Warmed)) -> Result<(), Failed> {
    let what = || format!("cannot read {}", path.display());
    let here = |error: anyhow::Error| Failed::Here(error.context(what()));
    let file = File::open(path).map_err(|e| here(e.into()))?;
    let len = file.metadata().map_err(|e| here(e.into()))?.len();
    let (mut at, mut busy) = (0, None);
    while at < len {
        let value = ask(&file, &format!("user.weft.warm.{at}.{PART}"));
        match value.map_err(|e| (e.raw_os_error(), e)) {
            Ok(value) => {
                let warmed: Result<Warmed, _> = serde_json::from_slice(&value);
                told(warmed.map_err(|e| here(e.into()))?);
            }
            Err((Some(libc::ENODATA | libc::EOPNOTSUPP), _)) => {
                let place = path.display();
                return Err(Failed::Everywhere(anyhow::anyhow!(
                    "{place} is in no mount of weft that has a hot tier: mount it with --hot and \
                     --hot-size"
                )));
            }
            Err((Some(libc::EBUSY), error)) => {
                if busy.get_or_insert_with(Instant::now).elapsed() >= BUSY_TIMEOUT {
                    let error = anyhow::Error::from(error).context(format!(
                        "{}: the drive of the hot tier cannot be used; the log of the mount says \
                         why",
                        path.display()
                    ));
                    return Err(Failed::Everywhere(error));
                }
                std::thread::sleep(BUSY_INTERVAL);
                continue;
            }
            Err((_, error)) => return Err(here(error.into())),
        }
        (at, busy) = (at + PART, None);
    }
    Ok(())
}

fn ask(file: &File, name: &str) -> io::Result<Vec<u8>> {
    let name = CString::new(name)?;
    let mut value = vec![0u8; 512];
    // SAFETY: the name is a C string and the buffer as long as it is said to be.
    let len = unsafe {
        libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    value.truncate(len);
    Ok(value)
}
