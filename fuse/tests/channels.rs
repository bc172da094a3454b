//! Real mounts of a filesystem in memory, over each channel that the kernel offers.
//!
//! They need root, as all mounts in our tests do.

#[path = "../../tests/src/aio.rs"]
mod aio;
mod memory;

use aio::{Aio, Aligned};
use memory::{
    BAD, BORN, Event, Memory, SLOW, SLOW_TO_CLOSE, SLOW_TO_OPEN, SLOW_TO_READ, SLOW_TO_WRITE,
};
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use weft_fuse::{IoUring, MountError, Mounted, Options, mount_handler, unmount};

/// Longer than anything takes on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// A mount that is taken away when it is dropped.
struct Rig {
    memory: Arc<Memory>,
    events: Receiver<Event>,
    mounted: Option<Mounted>,
    runtime: Runtime,
    dir: TempDir,
}

impl Rig {
    fn mount(io_uring: IoUring, ttl: Duration) -> Result<Self, MountError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let dir = tempfile::Builder::new().prefix("weft-fuse-").tempdir().expect("a directory");
        let (tell, events) = channel();
        let memory = Memory::new(ttl, tell);
        let options = Options { io_uring, locks: true, threads: 2, ..Default::default() };
        let inside = runtime.enter();
        let mounted = mount_handler(memory.clone(), dir.path(), &options)?;
        drop(inside);
        Ok(Self { memory, events, mounted: Some(mounted), runtime, dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn wait(&self, told: impl Future<Output = std::io::Result<()>>) {
        self.runtime.block_on(told).unwrap();
    }

    /// As [`Self::wait`], of what may wait for the gate if something is wrong.
    fn wait_for(&self, told: impl Future<Output = std::io::Result<()>>) {
        let told = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, told).await });
        if told.is_err() {
            self.memory.open_gate();
        }
        told.expect("it waits").unwrap();
    }

    fn await_event(&self, event: Event) {
        let heard = self.events.recv_timeout(PATIENCE);
        if heard != Ok(event) {
            // Whoever waits would keep this test from failing.
            self.memory.open_gate();
        }
        assert_eq!(heard, Ok(event));
    }

    /// Waits until a process has ended.
    fn await_end(&self, child: &mut Child) -> ExitStatus {
        self.runtime.block_on(async {
            for _ in 0..PATIENCE.as_millis() / 20 {
                if let Some(status) = child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("process {} does not end", child.id());
        })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // What still waits would keep the mount busy.
        self.memory.open_gate();
        let unmounted = unmount(self.dir.path(), true);
        let joined = self.mounted.take().map(Mounted::join);
        if !std::thread::panicking() {
            unmounted.expect("unmount");
            joined.expect("mounted").expect("the threads of the mount");
        }
    }
}

/// Runs `test` on a mount over `/dev/fuse`, and over io_uring where the kernel has it.
fn on_each(ttl: Duration, test: impl Fn(&Rig)) {
    let rig = Rig::mount(IoUring::Off, ttl).expect("mount over /dev/fuse");
    test(&rig);
    drop(rig);
    match Rig::mount(IoUring::Auto, ttl).expect("mount") {
        rig if rig.mounted.as_ref().is_some_and(Mounted::over_io_uring) => test(&rig),
        _ => without_io_uring(),
    }
}

/// `make test` runs these tests once more when it has switched it on, where it may.
fn without_io_uring() {
    assert!(std::env::var_os("WEFT_TEST_IO_URING").is_none(), "it is said to be switched on");
    println!("not here: FUSE over io_uring, which this kernel has not switched on");
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn content_names_and_listings_come_through() {
    on_each(Duration::ZERO, |rig| {
        let content = pattern(5 << 20);
        fs::write(rig.path("big"), &content).unwrap();
        assert!(fs::read(rig.path("big")).unwrap() == content);
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(rig.path("big"))
            .unwrap();
        let mut part = vec![0; 3 << 20];
        direct.read_exact_at(&mut part, 1 << 20).unwrap();
        assert!(part == content[1 << 20..4 << 20]);
        // A name of every length, and bytes that are not UTF-8.
        for len in 1..=255 {
            fs::write(rig.path(&"n".repeat(len)), [len as u8]).unwrap();
        }
        let mut lens: Vec<usize> = fs::read_dir(rig.dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .filter(|name| name != "big")
            .map(|name| name.len())
            .collect();
        lens.sort_unstable();
        assert_eq!(lens, (1..=255).collect::<Vec<_>>());
        for len in 1..=255 {
            let path = rig.path(&"n".repeat(len));
            assert_eq!(fs::read(&path).unwrap(), [len as u8]);
            fs::remove_file(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
        }
    });
}

#[test]
fn many_threads_at_a_time_get_each_their_own() {
    on_each(Duration::ZERO, |rig| {
        let dir = rig.dir.path();
        std::thread::scope(|scope| {
            for thread in 0..16 {
                scope.spawn(move || {
                    for round in 0..50 {
                        let path = dir.join(format!("{thread}-{round}"));
                        let content = pattern(thread * 1000 + round * 37);
                        fs::write(&path, &content).unwrap();
                        assert!(fs::read(&path).unwrap() == content);
                        fs::remove_file(&path).unwrap();
                    }
                });
            }
        });
    });
}

#[test]
fn files_without_a_name_get_one_and_tell_when_they_were_born() {
    on_each(Duration::ZERO, |rig| {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(rig.dir.path())
            .unwrap();
        file.write_all(b"unnamed").unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read_dir(rig.dir.path()).unwrap().count(), 0);
        link(&file, &rig.path("named"));
        assert_eq!(fs::read(rig.path("named")).unwrap(), b"unnamed");
        assert_eq!(file.metadata().unwrap().nlink(), 1);
        let born = fs::metadata(rig.path("named")).unwrap().created().unwrap();
        let since = born.duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(since, Duration::new(BORN.seconds as u64, BORN.ns));
    });
}

/// linkat(2) of an open file.
fn link(file: &File, to: &Path) {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let to = CString::new(to.to_str().unwrap()).unwrap();
    let (cwd, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both are NUL-terminated strings that outlive the call.
    let linked = unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), follow) };
    assert_eq!(linked, 0, "linkat: {}", std::io::Error::last_os_error());
}

#[test]
fn a_panic_in_the_handler_is_an_error_of_one_request() {
    on_each(Duration::ZERO, |rig| {
        for _ in 0..20 {
            let error = fs::metadata(rig.path(BAD)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
        fs::write(rig.path("good"), "x").unwrap();
    });
}

#[test]
fn requests_that_wait_stand_in_nobodys_way() {
    on_each(Duration::ZERO, |rig| {
        rig.memory.put(SLOW, b"");
        let slow = File::open(rig.path(SLOW)).unwrap();
        // Far more than a queue of the kernel has entries to begin with.
        const WAITING: usize = 100;
        std::thread::scope(|scope| {
            // Not fsync: the kernel lets one of those at a time through for a file.
            let wait = |_| {
                let thread = scope.spawn(|| flock(&slow));
                rig.await_event(Event::Began);
                thread
            };
            let waiting: Vec<_> = (0..WAITING).map(wait).collect();
            fs::write(rig.path("other"), "x").unwrap();
            assert_eq!(fs::read(rig.path("other")).unwrap(), b"x");
            rig.memory.open_gate();
            for thread in waiting {
                assert_eq!(thread.join().unwrap(), 0);
            }
        });
        for _ in 0..WAITING {
            rig.await_event(Event::Ended);
        }
    });
}

/// Runs a program that gets stuck in the mount, and kills it.
fn kill_when_stuck(rig: &Rig, command: &mut Command) {
    let mut child = Reaped(command.spawn().unwrap());
    rig.await_event(Event::Began);
    child.0.kill().unwrap();
    // Does not end while the kernel waits for the answer.
    assert_eq!(rig.await_end(&mut child.0).signal(), Some(libc::SIGKILL));
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // It is gone unless the test failed.
        let _ = self.0.kill();
    }
}

#[test]
fn a_killed_process_does_not_wait_and_its_fsync_ends_all_the_same() {
    on_each(Duration::ZERO, |rig| {
        rig.memory.put(SLOW, b"");
        kill_when_stuck(rig, Command::new("sync").arg(rig.path(SLOW)));
        rig.memory.open_gate();
        rig.await_event(Event::Ended);
    });
}

/// The kernel tells of no signal to who waits for reads and writes past its pages.
#[test]
fn a_killed_process_does_not_wait_for_what_goes_past_the_pages() {
    on_each(Duration::ZERO, |rig| {
        for (name, how) in [
            (SLOW_TO_READ, ["if=it", "of=/dev/null", "iflag=direct"]),
            (SLOW_TO_WRITE, ["if=/dev/zero", "of=it", "oflag=direct"]),
        ] {
            rig.memory.put(name, &pattern(8192));
            let path = rig.path(name).display().to_string();
            let args = how.map(|arg| arg.replace("=it", &format!("={path}")));
            let more = ["conv=notrunc", "bs=8192", "count=1"];
            kill_when_stuck(rig, Command::new("dd").args(args).args(more));
        }
        rig.memory.open_gate();
        rig.await_event(Event::Ended);
        rig.await_event(Event::Ended);
    });
}

/// Where another test has itself run as a program, what that writes to.
const WRITES_TO: &str = "WEFT_TEST_WRITES_TO";

/// No test: a program of several threads, of which one writes asynchronously.
#[test]
fn program_of_several_threads() {
    let Some(path) = std::env::var_os(WRITES_TO) else { return };
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let others = (0..8).map(|_| std::thread::spawn(std::thread::park));
    let others: Vec<_> = others.collect();
    let page = Aligned::from(&[7; 4096]);
    let writes = std::thread::spawn(move || Aio::new()?.write(&file, 0, page.bytes()));
    writes.join().unwrap().unwrap();
    drop(others);
}

/// Its last thread waits for what another has begun, which is gone by then.
#[test]
fn a_killed_process_of_several_threads_does_not_wait_for_what_goes_past_the_pages() {
    on_each(Duration::ZERO, |rig| {
        rig.memory.put(SLOW_TO_WRITE, &pattern(8192));
        rig.memory.put(SLOW_TO_CLOSE, b"");
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "program_of_several_threads"]).stdout(Stdio::null());
        program.env(WRITES_TO, rig.path(SLOW_TO_WRITE));
        let mut program = Reaped(program.spawn().unwrap());
        rig.await_event(Event::Began);
        // A close that waits for longer than is looked at who waits.
        let closes = format!("exec 3<&-; exec 3<'{}'; exit 7", rig.path(SLOW_TO_CLOSE).display());
        let mut closes = Reaped(Command::new("sh").args(["-c", &closes]).spawn().unwrap());
        rig.await_event(Event::Began);
        assert_eq!(rig.await_end(&mut closes.0).code(), Some(7));
        program.0.kill().unwrap();
        assert_eq!(rig.await_end(&mut program.0).signal(), Some(libc::SIGKILL));
        rig.memory.open_gate();
        rig.await_event(Event::Ended);
        rig.await_event(Event::Ended);
    });
}

/// The kernel closes its files when it is dead to every signal, and waits for the answer.
#[test]
fn a_process_that_ends_does_not_wait_for_its_closes_for_ever() {
    on_each(Duration::ZERO, |rig| {
        rig.memory.put(SLOW_TO_CLOSE, b"");
        for (end, status) in [("kill -9 $$", Err(libc::SIGKILL)), ("exit 7", Ok(7))] {
            let path = rig.path(SLOW_TO_CLOSE);
            // 3 may be inherited. The file has to be opened as it, not copied to it: the shell
            // would close the first at once, and wait for that.
            let opens = format!("exec 3<&-; exec 3<'{}'; {end}", path.display());
            let mut child = Reaped(Command::new("sh").args(["-c", &opens]).spawn().unwrap());
            rig.await_event(Event::Began);
            let ended = rig.await_end(&mut child.0);
            assert_eq!(ended.code().ok_or(ended.signal().unwrap_or(0)), status);
        }
        rig.memory.open_gate();
        rig.await_event(Event::Ended);
        rig.await_event(Event::Ended);
    });
}

#[test]
fn whoever_waits_is_let_go_at_the_end() {
    on_each(Duration::ZERO, |rig| {
        rig.memory.put(SLOW, b"");
        let file = File::open(rig.path(SLOW)).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| file.sync_all().map_err(|e| e.raw_os_error()));
            rig.await_event(Event::Began);
            rig.mounted.as_ref().expect("mounted").abandon()();
            assert_eq!(waiting.join().unwrap(), Err(Some(libc::EIO)));
        });
        // And so is who comes later.
        assert_eq!(file.sync_all().map_err(|e| e.raw_os_error()), Err(Some(libc::EIO)));
    });
}

#[test]
fn what_a_killed_process_was_opening_is_not_left_open() {
    on_each(Duration::ZERO, |rig| {
        rig.memory.put(SLOW_TO_OPEN, b"");
        kill_when_stuck(rig, Command::new("cat").arg(rig.path(SLOW_TO_OPEN)));
        rig.memory.open_gate();
        rig.await_event(Event::Ended);
        rig.await_event(Event::Unwanted);
    });
}

#[test]
fn a_process_that_is_killed_while_it_waits_for_a_lock_gives_it_up() {
    on_each(Duration::ZERO, |rig| {
        rig.memory.put(SLOW, b"");
        kill_when_stuck(rig, Command::new("flock").arg(rig.path(SLOW)).arg("true"));
        rig.await_event(Event::Dropped);
    });
}

/// Waits for a lock as long as the filesystem wants; answers as flock(2) does.
fn flock(file: &File) -> i32 {
    // SAFETY: a descriptor that is open, and no pointers.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }
}

extern "C" fn heed(_: i32) {}

/// A thread of this process that got itself into a call; a signal to it ends nothing by itself.
fn heed_signals() -> Pthread {
    let action = SigAction::new(SigHandler::Handler(heed), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    pthread_self()
}

#[test]
fn a_signal_ends_the_wait_for_a_lock_and_nothing_else() {
    on_each(Duration::ZERO, |rig| {
        rig.memory.put(SLOW, b"");
        let file = OpenOptions::new().read(true).write(true).open(rig.path(SLOW)).unwrap();
        let interrupted = |call: &(dyn Fn() -> i32 + Sync), then: &dyn Fn()| {
            std::thread::scope(|scope| {
                let (tell, who) = channel();
                let thread = scope.spawn(move || {
                    tell.send(heed_signals()).unwrap();
                    (call(), std::io::Error::last_os_error().raw_os_error())
                });
                let who = who.recv_timeout(PATIENCE).unwrap();
                rig.await_event(Event::Began);
                pthread_kill(who, Signal::SIGUSR1).unwrap();
                then();
                thread.join().unwrap()
            })
        };
        let ended = interrupted(&|| flock(&file), &|| rig.await_event(Event::Dropped));
        assert_eq!(ended, (-1, Some(libc::EINTR)));
        // SAFETY: a descriptor that is open, and no pointers.
        let fsync = || unsafe { libc::fsync(file.as_raw_fd()) };
        let ended = interrupted(&fsync, &|| {
            // Long enough to see that the signal was heard, if it does harm.
            let harm = rig.events.recv_timeout(Duration::from_millis(300));
            assert_eq!(harm, Err(RecvTimeoutError::Timeout));
            rig.memory.open_gate();
            rig.await_event(Event::Ended);
        });
        assert_eq!(ended.0, 0);
    });
}

#[test]
fn what_the_kernel_keeps_is_taken_from_it_by_notices() {
    on_each(DAY, |rig| {
        let notifier = rig.mounted.as_ref().unwrap().notifier().clone();
        let ino = rig.memory.put("f", b"one");
        let (path, size) = (rig.path("f"), || fs::metadata(rig.path("f")).map(|m| m.len()));
        let mut file = File::open(&path).unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!((content.as_str(), size().unwrap()), ("one", 3));

        // The kernel was promised that nothing changes.
        rig.memory.put("f", b"longer");
        assert_eq!(size().unwrap(), 3);
        rig.wait(notifier.inval_inode(ino, 0, 0));
        assert_eq!(size().unwrap(), 6);
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"longer");

        rig.memory.remove("f");
        assert_eq!(size().unwrap(), 6);
        rig.wait(notifier.inval_entry(1, b"f"));
        assert_eq!(size().unwrap_err().kind(), ErrorKind::NotFound);

        // What it never saw is no error, and a name may be gone already.
        rig.wait(notifier.inval_inode(999, -1, 0));
        rig.wait(notifier.inval_entry(1, b"never"));
        let other = rig.memory.put("g", b"");
        fs::metadata(rig.path("g")).unwrap();
        rig.memory.remove("g");
        rig.wait(notifier.delete(1, other, b"g"));
        assert!(!rig.path("g").exists());
    });
}

/// The kernel forgets a page that is being read when it has been read; other files it forgets
/// meanwhile.
#[test]
fn a_notice_that_waits_holds_up_no_other() {
    on_each(DAY, |rig| {
        let notifier = rig.mounted.as_ref().unwrap().notifier().clone();
        let slow = rig.memory.put(SLOW_TO_READ, &pattern(100));
        std::thread::scope(|scope| {
            let mut file = File::open(rig.path(SLOW_TO_READ)).unwrap();
            let reads = scope.spawn(move || file.read(&mut [0; 100]).unwrap());
            rig.await_event(Event::Began);
            let waits = notifier.inval_inode(slow, 0, 0);
            for i in 0..20 {
                let name = format!("f{i}");
                let ino = rig.memory.put(&name, b"one");
                assert_eq!(fs::read(rig.path(&name)).unwrap(), b"one");
                rig.memory.put(&name, b"two");
                rig.wait_for(notifier.inval_inode(ino, 0, 0));
                assert_eq!(fs::read(rig.path(&name)).unwrap(), b"two");
            }
            rig.memory.open_gate();
            rig.wait(waits);
            reads.join().unwrap();
        });
    });
}

#[test]
fn a_mount_that_asks_for_io_uring_gets_it_or_is_told_why_not() {
    // To switch it on would change the machine under other tests.
    if std::env::var_os("WEFT_TEST_IO_URING").is_none() {
        return without_io_uring();
    }
    let rig = Rig::mount(IoUring::On, Duration::ZERO).expect("mount over io_uring");
    assert!(rig.mounted.as_ref().is_some_and(Mounted::over_io_uring));
    fs::write(rig.path("f"), "x").unwrap();
}
