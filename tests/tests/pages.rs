//! What the kernel's pages show: after writes past them, after a change whose caller was killed,
//! and through mappings on one mount and on two.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_tests::aio::Aio;
use weft_tests::{Cluster, eventually, path, requests, tell_accesses, weft_ok};

const LEN: usize = 640 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory at the start of a page.
fn aligned(buffer: &mut Vec<u8>) -> &mut [u8] {
    buffer.resize(LEN + 4096, 0);
    let skip = buffer.as_ptr().align_offset(4096);
    &mut buffer[skip..skip + LEN]
}

/// Threads fill the pages all the time; what is read from them after a write past them is what was
/// written, on the mount of the writer and on another.
#[test]
fn pages_show_what_was_written_past_them() -> Result<()> {
    const ROUNDS: u32 = 150;
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    for (how, readers) in [("here", vec![&a, &a]), ("on both mounts", vec![&a, &b])] {
        for asynchronous in [true, false] {
            let name = a.join("f");
            let direct = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(libc::O_DIRECT)
                .open(&name)?;
            let (looks, aio, stop) = (File::open(&name)?, Aio::new()?, AtomicBool::new(false));
            let (mut memory, mut got) = (Vec::new(), vec![0; LEN]);
            let buffer = aligned(&mut memory);
            std::thread::scope(|scope| -> Result<()> {
                for mount in readers.iter() {
                    let file = File::open(mount.join("f"))?;
                    let stop = &stop;
                    scope.spawn(move || {
                        let mut bytes = vec![0; LEN];
                        while !stop.load(Ordering::Relaxed) {
                            let _ = file.read_at(&mut bytes, 0);
                        }
                    });
                }
                let written = (0..ROUNDS).try_for_each(|round| -> Result<()> {
                    buffer.fill(if round % 2 == 0 { 0x55 } else { 0xaa });
                    match asynchronous {
                        true => aio.write(&direct, 0, buffer)?,
                        false => direct.write_all_at(buffer, 0)?,
                    }
                    looks.read_exact_at(&mut got, 0)?;
                    ensure!(
                        got == *buffer,
                        "stale after write {round}, read {how}, {asynchronous}"
                    );
                    Ok(())
                });
                stop.store(true, Ordering::Relaxed);
                written
            })?;
        }
    }
    weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}

/// The last page of a file that grows is read while bytes are appended to it.
#[test]
fn pages_show_what_was_appended() -> Result<()> {
    let cluster = Cluster::start()?;
    let name = cluster.mnt().join("log");
    let mut log = OpenOptions::new().append(true).create(true).open(&name)?;
    let (reader, stop) = (File::open(&name)?, AtomicBool::new(false));
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(|| {
            let mut bytes = vec![0; 1 << 16];
            while !stop.load(Ordering::Relaxed) {
                let _ = reader.read_at(&mut bytes, 0);
            }
        });
        let appended = (0..2000u32).try_for_each(|round| -> Result<()> {
            log.write_all(&[round as u8 | 1; 20])?;
            let mut got = [0; 20];
            reader.read_exact_at(&mut got, u64::from(round) * 20)?;
            ensure!(got == [round as u8 | 1; 20], "{got:?} is read of append {round}");
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        appended
    })?;
    cluster.await_clean()
}

/// A process that is ended with this.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that is killed while its file is cut does not wait; the file is cut all the same, a
/// moment later, and then nobody is shown what was there.
#[test]
fn what_a_killed_process_was_cutting_off_is_not_shown() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    let mut bytes = vec![0; 8192];
    fs::write(a.join("f"), [7; 8192])?;
    let (here, there) = (File::open(a.join("f"))?, File::open(b.join("f"))?);
    here.read_exact_at(&mut bytes, 0)?;
    there.read_exact_at(&mut bytes, 0)?;
    // It is started before that mount stands still: what starts closes what it inherits there, and
    // waits.
    let script = "import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY); print(fd, flush=True); \
                  sys.stdin.readline(); os.ftruncate(fd, 100)";
    let cutter = Command::new("python3")
        .args(["-c", script, path(&a.join("f"))])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut cutter = Reaped(cutter);
    BufReader::new(cutter.0.stdout.as_mut().context("no output")?).read_line(&mut String::new())?;
    tell_accesses(&a)?;
    // The one who is asked to give its lease back does not answer yet.
    let paused = cluster.pause_mount(&b)?;
    let asked = requests(&a)?;
    writeln!(cutter.0.stdin.as_mut().context("no input")?, "cut")?;
    let call = format!("/proc/{}/syscall", cutter.0.id());
    let cutting = libc::SYS_ftruncate.to_string();
    eventually(PATIENCE, "the file is being cut", || {
        // What the mount has not taken from the kernel yet goes with the process.
        let now = fs::read_to_string(&call).ok()?;
        let cuts = now.split(' ').next() == Some(cutting.as_str());
        (cuts && requests(&a).ok()? > asked).then_some(())
    })?;
    cutter.0.kill()?;
    cutter.0.wait()?;
    here.read_exact_at(&mut bytes, 0).context("it has not been cut yet")?;
    ensure!(bytes == [7; 8192]);
    drop(paused);
    eventually(PATIENCE, "the file is cut", || {
        (there.metadata().ok()?.len() == 100).then_some(())
    })?;
    // Nobody has looked at it here: the kernel was told.
    eventually(PATIENCE, "what was cut off is not shown", || {
        (here.read_at(&mut bytes, 4096).ok()? == 0).then_some(())
    })?;
    drop((here, there));
    weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}

/// A mapping of the first bytes of a file.
struct Mapping(*mut u8, usize);

impl Mapping {
    fn new(file: &File, len: usize, write: bool, flags: i32) -> io::Result<Self> {
        let prot = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address that nothing else is at.
        let at = unsafe { libc::mmap(none, len, prot, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(at.cast(), len))
    }

    fn load(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: within the mapping; others may store there, so it is read once.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn store(&self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: within the mapping, which is one to write.
        unsafe { self.0.add(at).write_volatile(byte) }
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: the whole mapping.
        match unsafe { libc::msync(self.0.cast(), self.1, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn both(name: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(name)
}

/// Any number of mounts map one file and store in it; each sees at once what the others stored.
#[test]
fn mounts_that_map_one_file_see_what_the_others_store() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    fs::write(a.join("f"), [0; 10_000])?;
    let files = [both(&a.join("f"))?, both(&b.join("f"))?];
    let appends = OpenOptions::new().read(true).append(true).open(b.join("f"))?;
    let maps = [&files[0], &files[1], &appends]
        .map(|file| Mapping::new(file, 10_000, true, libc::MAP_SHARED));
    let [here, there, again] = maps;
    let maps = [here?, there?, again?];
    for round in 0..60 {
        let byte = round as u8 + 1;
        maps[round % 3].store(round * 150, byte);
        for (which, map) in maps.iter().enumerate() {
            let seen: Vec<u8> = (0..=round).map(|at| map.load(at * 150)).collect();
            ensure!(seen == (1..=byte).collect::<Vec<_>>(), "{seen:?} at {which}, round {round}");
        }
        // Also past the pages, once it was synced.
        maps[round % 3].sync()?;
        let mut got = [0];
        files[(round + 1) % 2].read_exact_at(&mut got, round as u64 * 150)?;
        ensure!(got == [byte], "{got:?} is read after {byte} was stored and synced");
        files[round % 2].write_all_at(&[byte], round as u64 * 150 + 1)?;
        ensure!(maps.iter().all(|map| map.load(round * 150 + 1) == byte), "round {round}");
    }
    drop(maps);
    drop((files, appends));
    let content = fs::read(b.join("f"))?;
    ensure!(
        (0..60).all(|i| content[i * 150] == i as u8 + 1 && content[i * 150 + 1] == i as u8 + 1)
    );
    weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}

/// Mounts store at the same time, each its own bytes of the same pages: nobody loses any, not to
/// what the kernel writes either, which is whole pages.
#[test]
fn nothing_is_lost_of_what_mounts_store_at_the_same_time() -> Result<()> {
    const STORES: usize = 400;
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    fs::write(a.join("f"), [0; 8192])?;
    let opened = [both(&a.join("f"))?, both(&b.join("f"))?];
    std::thread::scope(|scope| -> Result<()> {
        let stores = opened.iter().enumerate().map(|(which, file)| {
            scope.spawn(move || -> Result<()> {
                let map = Mapping::new(file, 8192, true, libc::MAP_SHARED)?;
                for i in 0..STORES {
                    let at = i * 37 % 4096 * 2 + which;
                    map.store(at, which as u8 + 1);
                    if i % 50 == 0 {
                        map.sync()?;
                    }
                    ensure!(map.load(at) == which as u8 + 1, "store {i} of {which} is gone");
                }
                Ok(())
            })
        });
        let stores: Vec<_> = stores.collect();
        stores.into_iter().try_for_each(|store| store.join().expect("a thread panicked"))
    })?;
    drop(opened);
    for mount in [&a, &b] {
        let content = fs::read(mount.join("f"))?;
        for (which, i) in (0..2).flat_map(|which| (0..STORES).map(move |i| (which, i))) {
            ensure!(
                content[i * 37 % 4096 * 2 + which] == which as u8 + 1,
                "{which} lost store {i}"
            );
        }
    }
    weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}

/// A new leader knows who may map; a mount that died maps nothing.
#[test]
fn mappings_outlive_leaders_and_other_mounts() -> Result<()> {
    const SHARED: i32 = libc::MAP_SHARED;
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    fs::write(a.join("f"), [1; 5000])?;
    let (first, second) = (both(&a.join("f"))?, both(&b.join("f"))?);
    let here = Mapping::new(&first, 5000, true, SHARED)?;
    let there = Mapping::new(&second, 5000, true, SHARED)?;
    for round in 0..3usize {
        let byte = round as u8 + 7;
        here.store(round, byte);
        ensure!(there.load(round) == byte);
        // Either has opened the file once more, at the new leader.
        cluster.kill_leader()?;
        cluster.start_again()?;
        let (more, yet) = (both(&b.join("f"))?, both(&a.join("f"))?);
        let more = Mapping::new(&more, 5000, true, SHARED)?;
        let yet = Mapping::new(&yet, 5000, true, SHARED)?;
        there.store(100 + round, byte);
        ensure!(here.load(100 + round) == byte && yet.load(100 + round) == byte);
        yet.store(200 + round, byte);
        ensure!(there.load(200 + round) == byte && more.load(200 + round) == byte);
    }
    here.sync()?;
    cluster.kill_mount(&a)?;
    eventually(PATIENCE, "the dead mount's leases are over", || {
        (there.load(200) == 7).then_some(())
    })?;
    there.store(300, 9);
    drop((there, second));
    ensure!(fs::read(b.join("f"))?[300] == 9);
    drop((here, first));
    weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}

/// A program that inserts into a database, counts and checks, as it is told.
const SQLITE: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None)
def insert(count):
    done = 0
    try:
        for i in range(count):
            db.execute("insert into t values (?)", (sys.argv[2],))
            done += 1
    except sqlite3.OperationalError as error:
        print("refused", done, error, flush=True)
        return
    print("inserted", done, flush=True)
try:
    assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    db.execute("create table if not exists t (who text)")
    print("open", flush=True)
except sqlite3.OperationalError as error:
    print("refused", 0, error, flush=True)
for line in sys.stdin:
    if line.startswith("insert"): insert(50)
    else:
        ask = "pragma integrity_check" if line.startswith("check") else "select count(*) from t"
        print(db.execute(ask).fetchone()[0], flush=True)
"#;

struct Sqlite(Reaped, io::Lines<BufReader<std::process::ChildStdout>>);
impl Sqlite {
    fn start(at: &Path) -> Result<Self> {
        let mut child = Command::new("python3")
            .args(["-c", SQLITE, path(&at.join("db")), path(at)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self(Reaped(child), said))
    }

    fn hear(&mut self) -> Result<String> {
        Ok(self.1.next().context("it has ended")??)
    }

    fn tell(&mut self, what: &str) -> Result<()> {
        Ok(writeln!(self.0.0.stdin.as_mut().context("no input")?, "{what}")?)
    }

    fn ask(&mut self, what: &str) -> Result<String> {
        self.tell(what)?;
        self.hear()
    }

    fn end(mut self) -> Result<()> {
        drop(self.0.0.stdin.take());
        ensure!(self.0.0.wait()?.success());
        Ok(())
    }
}

/// SQLite with a write-ahead log keeps its index in a shared mapping. What it says is committed is
/// there, whoever writes.
#[test]
fn sqlite_with_a_log_works_on_two_mounts() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    let mut first = Sqlite::start(&a)?;
    ensure!(first.hear()? == "open" && first.ask("insert")? == "inserted 50");
    let mut beside = Sqlite::start(&a)?;
    ensure!(beside.hear()? == "open" && beside.ask("insert")? == "inserted 50");
    ensure!(first.ask("insert")? == "inserted 50" && beside.ask("count")? == "150");

    let mut second = Sqlite::start(&b)?;
    ensure!(second.hear()? == "open" && second.ask("count")? == "150");
    // Each in turn, then all at once.
    for count in 4..7 {
        ensure!(second.ask("insert")? == "inserted 50");
        ensure!(first.ask("count")? == format!("{}", count * 100 - 200));
        ensure!(beside.ask("insert")? == "inserted 50");
        ensure!(second.ask("count")? == format!("{}", count * 100 - 150));
    }
    let mut all = [first, beside, second];
    all.iter_mut().try_for_each(|sqlite| sqlite.tell("insert"))?;
    for sqlite in &mut all {
        let said = sqlite.hear()?;
        ensure!(said == "inserted 50", "one of several at a time says {said}");
    }
    for sqlite in &mut all {
        ensure!(sqlite.ask("count")? == "600" && sqlite.ask("check")? == "ok");
    }
    all.into_iter().try_for_each(Sqlite::end)?;
    let mut again = Sqlite::start(&b)?;
    ensure!(again.hear()? == "open" && again.ask("count")? == "600");
    again.end()?;
    weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}
