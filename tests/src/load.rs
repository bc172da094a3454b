//! Programs that use a mount with everything that a process can hold of a filesystem.

use crate::{Cluster, eventually, path};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(180);

/// Works until its input ends, with everything that a process can hold of a filesystem, and checks
/// that nothing is lost; says how often, and how long the slowest round took.
const LOAD: &str = r#"
import fcntl, mmap, os, select, sqlite3, struct, sys, time
d = sys.argv[1]
log = os.open(d + "/log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
gone = os.open(d + "/gone", os.O_CREAT | os.O_RDWR)
os.write(gone, b"still here")
os.unlink(d + "/gone")
lock = os.open(d + "/lock", os.O_CREAT | os.O_RDWR)
fcntl.lockf(lock, fcntl.LOCK_EX)
held, other = (os.open(d + "/held", os.O_CREAT | os.O_RDWR) for _ in range(2))
fcntl.flock(held, fcntl.LOCK_EX)
def is_free(file, take):
    try:
        take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
mapped = os.open(d + "/mapped", os.O_CREAT | os.O_RDWR)
os.ftruncate(mapped, 1 << 20)
memory = mmap.mmap(mapped, 1 << 20)
db = sqlite3.connect(d + "/db", isolation_level=None)
assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
db.execute("create table t (n integer)")
os.mkdir(d + "/many")
for i in range(2000):
    os.close(os.open(d + "/many/%d" % i, os.O_CREAT | os.O_WRONLY))
listing = os.scandir(d + "/many")
listed = [next(listing).name]
unsynced = os.open(d + "/unsynced", os.O_CREAT | os.O_RDWR)
print("ready", flush=True)
n, slowest = 0, 0
while not select.select([0], [], [], 0)[0]:
    begun = time.monotonic()
    with open(d + "/new", "w") as f:
        f.write("round %d" % n)
    os.rename(d + "/new", d + "/f%d" % (n % 20))
    with open(d + "/f%d" % (n % 20)) as f:
        assert f.read() == "round %d" % n
    os.write(log, b"round %d\n" % n)
    os.fsync(log)
    os.pwrite(unsynced, struct.pack("<Q", n), 8 * n)
    memory[n % 1000 * 8:][:8]
    memory[n % 1000 * 8:n % 1000 * 8 + 8] = struct.pack("<Q", n)
    db.execute("insert into t values (?)", (n,))
    assert os.pread(gone, 99, 0) == b"still here"
    assert not is_free(other, fcntl.flock), "the lock was lost"
    listed += [e.name for e in [next(listing, None)] if e]
    slowest = max(slowest, time.monotonic() - begun)
    n += 1
# That of the process, another has to ask for.
asks = os.fork()
if asks == 0:
    os._exit(is_free(os.open(d + "/lock", os.O_RDWR), fcntl.lockf))
assert os.waitpid(asks, 0)[1] == 0, "the lock was lost"
assert os.pread(log, 1 << 30, 0) == b"".join(b"round %d\n" % i for i in range(n))
assert os.pread(unsynced, 1 << 30, 0) == b"".join(struct.pack("<Q", i) for i in range(n))
listed += [e.name for e in listing]
assert sorted(listed, key=int) == [str(i) for i in range(2000)]
memory.flush()
with open(d + "/mapped", "rb") as f:
    stored = f.read()
for i in range(max(0, n - 1000), n):
    assert struct.unpack_from("<Q", stored, i % 1000 * 8)[0] == i
assert db.execute("select count(*), sum(n) from t").fetchone() == (n, n * (n - 1) // 2)
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
print("%d rounds, the slowest took %.3f s" % (n, slowest), flush=True)
"#;

/// A Python program.
pub struct Program {
    pub child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Program {
    pub fn start(script: &str, argument: &Path) -> Result<Self> {
        let mut child = Command::new("python3")
            .args(["-c", script, path(argument)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { child, said })
    }

    /// The next line that it says.
    pub fn hear(&mut self) -> Result<String> {
        Ok(self.said.next().context("it has ended")??)
    }

    /// What it says when its input ends.
    pub fn end(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        let said = self.hear()?;
        ensure!(self.child.wait()?.success(), "it says {said:?}, and fails");
        Ok(said)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child.id() as i32), signal)?)
    }

    /// Waits until it waits in the kernel for the mount.
    pub fn await_request(&self) -> Result<()> {
        eventually(PATIENCE, "a request that waits", || {
            let stack = fs::read_to_string(format!("/proc/{}/stack", self.child.id())).ok()?;
            stack.contains("fuse_setlk").then_some(())
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that works in a folder of a mount, and bears no error.
pub struct Load {
    program: Program,
    dir: PathBuf,
}

impl Load {
    /// It works from now on, in a folder of the cluster's mount.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let dir = cluster.mnt().join("work");
        fs::create_dir(&dir)?;
        let mut program = Program::start(LOAD, &dir)?;
        ensure!(program.hear()? == "ready");
        Ok(Self { program, dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until it has done some rounds more.
    pub fn goes_on(&self) -> Result<()> {
        let len = || fs::metadata(self.dir.join("log")).map_or(0, |m| m.len());
        let before = len();
        eventually(PATIENCE, "some rounds", || (len() > before + 100).then_some(()))
    }

    /// Checks that nothing is lost. Answers how often it went round, and how long the slowest took.
    pub fn end(self) -> Result<String> {
        self.program.end()
    }
}
