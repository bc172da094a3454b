//! Closes that end, and mounts that end, whatever waits. Names the invariants (design §2) that each
//! test holds up.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use weft_tests::{Cluster, Shape, eventually, path, weft, weft_binary, weft_ok};

/// What is overwritten, whole, all the time.
const LEN: usize = 640 << 10;
const CLOSES: usize = 400;
/// Long enough for a mount to look more than once who waits for a close.
const OUTAGE: Duration = Duration::from_secs(6);
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Opens and closes a file again and again.
fn closer(file: PathBuf, write: bool) -> JoinHandle<Result<()>> {
    thread::spawn(move || {
        for _ in 0..CLOSES {
            drop(File::options().read(true).write(write).open(&file)?);
        }
        Ok(())
    })
}

/// One thread overwrites a file, others open and close it, on these mounts.
fn closes_end(writer: &Path, closers: [&Path; 2]) -> Result<()> {
    let name = "overwritten";
    let file = File::create(writer.join(name))?;
    file.write_all_at(&[b'a'; LEN], 0)?;
    let over = Arc::new(AtomicBool::new(false));
    let writing = thread::spawn({
        let over = over.clone();
        move || -> Result<()> {
            let contents = [b'a', b'b'].map(|byte| vec![byte; LEN]);
            for content in contents.iter().cycle() {
                file.write_all_at(content, 0)?;
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        }
    });
    let closing = [closer(closers[0].join(name), true), closer(closers[1].join(name), false)];
    let ended = |what: &str, thread: &JoinHandle<Result<()>>| {
        eventually(PATIENCE, what, || thread.is_finished().then_some(()))
    };
    closing.iter().try_for_each(|thread| ended("all closes return", thread))?;
    over.store(true, Ordering::Relaxed);
    ended("the last write returns", &writing)?;
    for thread in closing.into_iter().chain([writing]) {
        thread.join().expect("no panic")?;
    }
    let left = fs::read(writer.join(name))?;
    ensure!(left.len() == LEN && left.iter().all(|byte| *byte == left[0]), "torn content");
    Ok(())
}

#[test]
fn closes_end_while_the_file_is_overwritten() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt(), cluster.mount_again("b")?);
    closes_end(a, [a, a])?;
    closes_end(a, [a, &b])?;
    cluster.await_clean()
}

/// A program begins with the closes of what it does not inherit. Until it has begun, the kernel
/// lets nobody read its `/proc/PID/stat`, and so no mount that looks whether it was killed.
#[test]
fn a_program_that_begins_in_an_outage_begins_after_it() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.scratch("waits")?;
    weft_ok(&["mount", "-o", "closesync", "--cluster", &cluster.address()?, path(&m)])?;
    let file = File::create(m.join("f"))?;
    file.write_all_at(b"...", 0)?;
    file.sync_all()?;
    let paused = cluster.pause_metadata()?;
    file.write_all_at(b"abc", 0)?;
    let (begun, begins) = channel();
    let program = thread::spawn(move || begun.send(Command::new("true").status()));
    let early = begins.recv_timeout(OUTAGE);
    drop(paused);
    ensure!(early.is_err(), "a close did not wait for the cluster: {early:?}");
    let ended = begins.recv_timeout(PATIENCE).context("the program did not begin")?;
    ensure!(ended?.success());
    program.join().expect("no panic").expect("somebody listens");
    drop(file);
    ensure!(fs::read(m.join("f"))? == b"abc");
    cluster.await_clean()
}

/// Has a file hold something, durably.
fn save(mut file: &File) -> io::Result<()> {
    file.write_all(b"abc")?;
    file.sync_all()
}

/// I8: a mount that is told to end does so in the time that it was given, and says that data is
/// lost; and nobody waits for it for ever.
#[test]
fn a_mount_that_cannot_flush_ends_when_it_is_told_to() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.scratch("ends")?;
    let log = cluster.scratch("logs")?.join("log");
    let address = cluster.address()?;
    let options = ["--cluster", &address, "--stop-timeout", "2", "--log-file", path(&log)];
    weft_ok(&[&["mount"], &options[..], &[path(&m)]].concat())?;
    let process = cluster.pid_of_mount(&m)?;
    let file = File::create(m.join("f"))?;
    let paused = cluster.pause_metadata()?;
    let syncing = thread::spawn(move || save(&file));
    kill(process, Signal::SIGTERM)?;
    // One that nobody waits for stays, without a program.
    let program = format!("/proc/{process}/exe");
    let ended =
        eventually(PATIENCE, "the process ends", || fs::read_link(&program).is_err().then_some(()));
    drop(paused);
    ended?;
    ensure!(
        syncing.join().expect("no panic").is_err(),
        "an fsync that was not carried out succeeded"
    );
    let said = fs::read_to_string(&log).context("the log of the mount")?;
    ensure!(said.contains("not everything that was written is durable"), "{said}");
    Ok(())
}

/// I8: calls wait for a cluster that does not answer, and the log says so; where the mount is soft
/// they fail.
#[test]
fn an_outage_is_waited_for_unless_the_mount_is_soft() -> Result<()> {
    let cluster = Cluster::start()?;
    let (hard, soft) = (cluster.scratch("hard")?, cluster.scratch("soft")?);
    let log = cluster.scratch("logs")?.join("log");
    let address = cluster.address()?;
    weft_ok(&["mount", "--cluster", &address, "--log-file", path(&log), path(&hard)])?;
    weft_ok(&["mount", "--cluster", &address, "-o", "soft=1", path(&soft)])?;
    let (waits, fails) = (File::create(hard.join("waits"))?, File::create(soft.join("fails"))?);
    let paused = cluster.pause_metadata()?;
    let waiting = thread::spawn(move || save(&waits));
    let failed = save(&fails).map_err(|e| e.raw_os_error());
    let told = eventually(PATIENCE, "the log says what is waited for", || {
        fs::read_to_string(&log).ok()?.contains("no metadata leader answers").then_some(())
    });
    let waited = !waiting.is_finished();
    drop(paused);
    waiting.join().expect("no panic")?;
    told?;
    ensure!(failed == Err(Some(libc::ETIMEDOUT)), "a soft mount answered {failed:?}");
    ensure!(waited, "a call did not wait");
    ensure!(fs::read(cluster.mnt().join("waits"))? == b"abc");
    weft_ok(&["umount", path(&hard)])?;
    // It is open still: closed in the outage, its last failure would be told to who unmounts.
    eventually(PATIENCE, "what failed is durable", || fails.sync_all().ok())?;
    drop(fails);
    ensure!(fs::read(cluster.mnt().join("fails"))? == b"abc");
    weft_ok(&["umount", path(&soft)]).map(drop)
}

/// What was not read of the events of a mount keeps it busy, and no process is seen to use it.
fn watched(mount: &Path) -> Result<OwnedFd> {
    let path = CString::new(path(mount))?;
    // SAFETY: it is a new descriptor, and `path` outlives the call.
    let (watch, marked) = unsafe {
        let fd = libc::fanotify_init(libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC, 0);
        ensure!(fd >= 0, "fanotify_init: {}", io::Error::last_os_error());
        let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT;
        let (events, here) = (libc::FAN_OPEN | libc::FAN_ONDIR, libc::AT_FDCWD);
        let marked = libc::fanotify_mark(fd, flags, events, here, path.as_ptr());
        (OwnedFd::from_raw_fd(fd), marked)
    };
    ensure!(marked == 0, "fanotify_mark: {}", io::Error::last_os_error());
    fs::read_dir(mount)?;
    Ok(watch)
}

#[test]
fn who_only_looks_at_a_mount_is_waited_for_and_who_uses_it_is_named() -> Result<()> {
    let shape = Shape { metadata: 1, storage: 3, profile: "2+1", ..Default::default() };
    let cluster = Cluster::start_as(shape)?;
    let m = cluster.mnt();
    let watch = watched(m)?;
    let mut umount = Command::new(weft_binary()).args(["umount", path(m)]).spawn()?;
    let call = format!("/proc/{}/syscall", umount.id());
    let sleeps = libc::SYS_clock_nanosleep.to_string();
    let waits = eventually(PATIENCE, "it waits for who looks", || {
        let call = fs::read_to_string(&call).unwrap_or_default();
        let ended = !matches!(umount.try_wait(), Ok(None));
        (ended || call.split(' ').next() == Some(&sleeps)).then_some(())
    });
    let early = umount.try_wait()?;
    drop(watch);
    let ended = umount.wait()?;
    waits?;
    ensure!(early.is_none(), "it did not wait: {early:?}");
    ensure!(ended.success(), "weft umount ended with {ended}");

    let m = cluster.mount_with("again", &[])?;
    fs::write(m.join("f"), [0; 4096])?;
    let mapped = "import mmap, sys; f = open(sys.argv[1], 'rb'); \
                  m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); \
                  f.close(); print(flush=True); sys.stdin.read()";
    let mut user = Command::new("python3")
        .args(["-c", mapped, path(&m.join("f"))])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let begun = user.stdout.as_mut().context("no output")?.read(&mut [0])?;
    ensure!(begun == 1, "python3 ended");
    let out = weft(&["umount", path(&m)])?;
    drop(user.stdin.take());
    ensure!(user.wait()?.success());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let who = format!("({})", user.id());
    ensure!(!out.status.success() && said.contains("in use by") && said.contains(&who), "{said}");
    weft_ok(&["umount", path(&m)]).map(drop)
}
