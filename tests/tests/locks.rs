//! Locks of fcntl(2) and flock(2) across mounts, taken by processes of their own.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;
use tokio::time::Instant;
use weft_tests::{Cluster, eventually, path, requests};

/// Longer than anything takes, a change of the leader or the end of a session included.
const PATIENCE: Duration = Duration::from_secs(120);
/// The leader gives somebody up after so long.
const GIVEN_UP: Duration = Duration::from_secs(2);

/// A process that locks what it is told to: see `locks.py`.
struct Agent {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Agent {
    fn start() -> Result<Self> {
        let mut child = Command::new("python3")
            .args(["-c", include_str!("locks.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start python3")?;
        let commands = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let (tell, answers) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        Ok(Self { child, commands, answers })
    }

    /// One that has opened `file` as `f`.
    fn with(file: &Path) -> Result<Self> {
        let mut agent = Self::start()?;
        agent.must(&format!("open f {}", path(file)), "ok")?;
        Ok(agent)
    }

    fn say(&mut self, command: &str) -> Result<()> {
        writeln!(self.commands, "{command}").with_context(|| format!("say {command:?}"))
    }

    fn hear(&mut self) -> Result<String> {
        self.answers.recv_timeout(PATIENCE).context("the process does not answer")
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        self.say(command)?;
        self.hear().with_context(|| command.to_owned())
    }

    /// Asks, and fails unless the answer is this.
    fn must(&mut self, command: &str, want: &str) -> Result<()> {
        let answer = self.ask(command)?;
        ensure!(answer == want, "{command:?} answered {answer:?}, not {want:?}");
        Ok(())
    }

    /// Begins a call that has to wait, and comes back when it does.
    fn blocks(&mut self, command: &str) -> Result<()> {
        self.say(command)?;
        let file = format!("/proc/{}/syscall", self.child.id());
        let lock = [libc::SYS_fcntl, libc::SYS_flock].map(|number| format!("{number} "));
        eventually(PATIENCE, "a process that waits for a lock", || {
            let call = fs::read_to_string(&file).ok()?;
            lock.iter().any(|number| call.starts_with(number)).then_some(())
        })?;
        self.waits()
    }

    /// Fails if what blocked has ended.
    fn waits(&self) -> Result<()> {
        match self.answers.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            other => anyhow::bail!("it was to wait: {other:?}"),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child.id() as i32), signal)?)
    }

    /// Kills it and waits until it is gone.
    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        eventually(PATIENCE, "the end of a killed process", || self.child.try_wait().ok()?)?;
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // It may hang in a mount that is gone: whoever takes that away ends it.
        let _ = self.child.try_wait();
    }
}

fn two_mounts() -> Result<(Cluster, [PathBuf; 2])> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_owned(), cluster.mount_again("second")?];
    Ok((cluster, mounts))
}

/// Runs a python script in several processes at once, each with its number, on alternating mounts.
fn run_all(script: &str, count: usize, mounts: &[PathBuf; 2]) -> Result<()> {
    let children: Vec<_> = (0..count)
        .map(|i| {
            Command::new("python3")
                .args(["-c", script, &i.to_string()])
                .current_dir(&mounts[i % 2])
                .spawn()
                .context("start python3")
        })
        .collect::<Result<_>>()?;
    for mut child in children {
        let status = child.wait()?;
        ensure!(status.success(), "a process ended with {status}");
    }
    Ok(())
}

#[test]
fn the_holder_of_a_lock_is_told_also_after_it_unlocked_something_else() -> Result<()> {
    let cluster = Cluster::start()?;
    let file = cluster.mnt().join("f");
    let (mut holder, mut other) = (Agent::with(&file)?, Agent::with(&file)?);
    holder.must("try f w 10 5", "ok")?;
    holder.must("try f u 5 5", "ok")?;
    let held = format!("w 10 5 {}", holder.child.id());
    other.must("get f w 0 0", &held)?;
    // Once the group knows of it, too.
    let mut away = Agent::with(&cluster.mount_again("b")?.join("f"))?;
    away.must("try f w 12 1", "EAGAIN")?;
    other.must("get f w 0 0", &held)?;
    holder.must("try f u 5 5", "ok")?;
    other.must("get f w 0 0", &held)
}

#[test]
fn who_locks_is_alone_on_all_mounts() -> Result<()> {
    let (cluster, mounts) = two_mounts()?;
    let (processes, rounds) = (6, 20);
    for (name, lock, unlock) in [
        ("posix", "fcntl.lockf(f, fcntl.LOCK_EX)", "fcntl.lockf(f, fcntl.LOCK_UN)"),
        ("range", "fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)", "fcntl.lockf(f, fcntl.LOCK_UN, 10, 5)"),
        ("bsd", "fcntl.flock(f, fcntl.LOCK_EX)", "fcntl.flock(f, fcntl.LOCK_UN)"),
        // Closing the file gives a lock up too.
        ("close", "fcntl.lockf(f, fcntl.LOCK_EX)", "os.close(f); f = os.open('close', os.O_RDWR)"),
    ] {
        fs::write(mounts[0].join(name), "0")?;
        let script = format!(
            "import fcntl, os\n\
             f = os.open('{name}', os.O_RDWR)\n\
             for _ in range({rounds}):\n    \
                 {lock}\n    \
                 n = int(os.pread(f, 20, 0))\n    \
                 os.pwrite(f, str(n + 1).encode(), 0)\n    \
                 {unlock}\n"
        );
        run_all(&script, processes, &mounts).context(name)?;
        let sum = fs::read_to_string(mounts[1].join(name))?;
        ensure!(sum == (processes * rounds).to_string(), "{name}: {sum}");
    }
    drop(mounts);
    cluster.await_clean()
}

#[test]
fn databases_are_shared_by_mounts() -> Result<()> {
    let (_cluster, mounts) = two_mounts()?;
    let (writers, rows) = (4, 15);
    let open =
        "import sqlite3, sys\ndb = sqlite3.connect('db', timeout=300, isolation_level=None)\n";
    let make =
        format!("{open}db.execute('create table t(writer, row, primary key (writer, row))')");
    run_all(&make, 1, &mounts)?;
    let insert = format!(
        "{open}\
         for row in range({rows}):\n    \
             db.execute('begin immediate')\n    \
             db.execute('insert into t values (?, ?)', (sys.argv[1], row))\n    \
             db.execute('commit')\n"
    );
    run_all(&insert, writers, &mounts)?;
    let check = format!(
        "{open}\
         assert db.execute('pragma integrity_check').fetchall() == [('ok',)]\n\
         assert db.execute('select count(*) from t').fetchone() == ({writers} * {rows},)\n"
    );
    run_all(&check, 2, &mounts)
}

#[test]
fn locks_are_seen_waited_for_and_given_up() -> Result<()> {
    let (_cluster, [here, there]) = two_mounts()?;
    let (near, far) = (here.join("file"), there.join("file"));
    let (mut a, mut b) = (Agent::with(&near)?, Agent::with(&far)?);

    // Ranges: seen by others, split and joined.
    a.must("try f w 0 100", "ok")?;
    b.must("get f r 50 10", "w 0 100 0")?;
    a.must("get f w 0 0", "u")?;
    b.must("try f r 99 5", "EAGAIN")?;
    b.must("try f w 100 0", "ok")?;
    a.must("try f u 40 20", "ok")?;
    a.must("try f r 0 10", "ok")?;
    b.must("get f w 0 100", "r 0 10 0")?;
    b.must("try f r 0 10", "ok")?;
    b.must("get f r 10 90", "w 10 30 0")?;
    b.must("try f w 40 20", "ok")?;
    a.must("get f r 55 0", "w 40 20 0")?;
    // On one mount there are process ids to tell.
    let mut c = Agent::with(&near)?;
    let pid = a.child.id();
    c.must("get f w 60 1", &format!("w 60 40 {pid}"))?;
    // Whatever descriptor a process closes, it locks nothing of the file any more.
    a.must(&format!("open-to-read g {}", path(&near)), "ok")?;
    a.must("close g", "ok")?;
    c.must("get f w 60 40", "u")?;
    b.must("try f u 0 0", "ok")?;

    // Waiting, in order, and the end of a wait.
    a.must("try f w 0 0", "ok")?;
    b.blocks("wait f w 0 1")?;
    c.blocks("wait f w 1 1")?;
    b.waits()?;
    a.must("try f u 1 0", "ok")?;
    ensure!(c.hear()? == "ok");
    b.waits()?;
    a.must("close f", "ok")?;
    ensure!(b.hear()? == "ok");

    // A signal ends a wait, and nothing is locked by it then.
    c.must("try f u 0 0", "ok")?;
    c.blocks("wait f w 0 1")?;
    c.signal(Signal::SIGUSR1)?;
    ensure!(c.hear()? == "EINTR");
    b.must("try f u 0 0", "ok")?;
    b.must("get f w 0 0", "u")?;

    // So does a kill; and what a killed process held, others get.
    b.must("try f w 0 0", "ok")?;
    c.blocks("wait f w 0 0")?;
    c.kill()?;
    a.must(&format!("open f {}", path(&near)), "ok")?;
    a.blocks("wait f r 5 1")?;
    b.kill()?;
    ensure!(a.hear()? == "ok");
    a.must("try f w 0 0", "ok")?;
    Ok(())
}

/// Three processes on two mounts, and three on a local filesystem, do the same: every call must
/// answer the same.
#[test]
fn locks_are_those_of_a_local_filesystem() -> Result<()> {
    let (cluster, [here, there]) = two_mounts()?;
    let local = cluster.scratch("local")?;
    for seed in [1, 2, rand::random()] {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let name = format!("file-{seed}");
        let start = |dir: &Path| -> Result<Agent> {
            let mut agent = Agent::with(&dir.join(&name))?;
            agent.must(&format!("open g {}", path(&dir.join(&name))), "ok")?;
            Ok(agent)
        };
        let mut ours = [start(&here)?, start(&there)?, start(&here)?];
        let mut theirs = [start(&local)?, start(&local)?, start(&local)?];
        for step in 0..150 {
            let (who, file) = (rng.random_range(0..3), ["f", "g"][rng.random_range(0..2)]);
            let kind = ["r", "w", "u"][rng.random_range(0..3)];
            let (from, len) = (rng.random_range(0..10), rng.random_range(0..10));
            let commands = match rng.random_range(0..12) {
                0..4 => vec![format!("try {file} {kind} {from} {len}")],
                4..7 => vec![format!("try-ofd {file} {kind} {from} {len}")],
                7..9 => vec![format!("try-flock {file} {kind}")],
                9..11 => vec![format!("get {file} {} {from} {len}", ["r", "w"][who % 2])],
                // What a close gives up a moment later only, it has given up before.
                _ => vec![
                    format!("try-flock {file} u"),
                    format!("try-ofd {file} u 0 0"),
                    format!("close {file}"),
                    format!("open {file} "),
                ],
            };
            for command in commands {
                let of = |agent: &mut Agent, dir: &Path| match command.starts_with("open") {
                    true => agent.ask(&format!("{command}{}", path(&dir.join(&name)))),
                    false => agent.ask(&command),
                };
                let at = if who == 1 { &there } else { &here };
                let (our, their) = (of(&mut ours[who], at)?, of(&mut theirs[who], &local)?);
                // Of several locks that stand in the way, either may be told.
                let same =
                    our == their || (command.starts_with("get") && our != "u" && their != "u");
                ensure!(
                    same,
                    "seed {seed}, step {step}, process {who}: {command:?}: {our}, not {their}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn circles_of_waiters_are_broken() -> Result<()> {
    let (_cluster, [here, there]) = two_mounts()?;
    let files = ["x", "y", "z"];
    let mut agents: Vec<Agent> = Vec::new();
    for (i, own) in files.iter().enumerate() {
        let mut agent = Agent::start()?;
        for file in files {
            let at = if i % 2 == 0 { &here } else { &there };
            agent.must(&format!("open {file} {}", path(&at.join(file))), "ok")?;
        }
        agent.must(&format!("try {own} w 0 0"), "ok")?;
        agents.push(agent);
    }
    for (i, next) in ["y", "z", "x"].iter().enumerate() {
        agents[i].say(&format!("wait {next} w 0 1"))?;
    }
    // One is told; when it has given up what it held, the others go on.
    let told = eventually(PATIENCE, "an end of the deadlock", || {
        agents.iter().position(|agent| agent.answers.try_recv().is_ok_and(|a| a == "EDEADLK"))
    })?;
    for other in [(told + 2) % 3, (told + 1) % 3] {
        let gives = (other + 1) % 3;
        agents[gives].must(&format!("try {} u 0 0", files[gives]), "ok")?;
        ensure!(agents[other].hear()? == "ok");
    }
    Ok(())
}

#[test]
fn locks_of_open_files() -> Result<()> {
    let (_cluster, [here, there]) = two_mounts()?;
    let (near, far) = (here.join("file"), there.join("file"));
    let (mut a, mut b) = (Agent::with(&near)?, Agent::with(&far)?);

    // Shared and not; the two sorts do not meet.
    a.must("try-flock f r", "ok")?;
    b.must("try-flock f r", "ok")?;
    a.must("try f w 0 0", "ok")?;
    b.must("try-flock f w", "EAGAIN")?;
    // That attempt gave up what it held, as on Linux.
    a.must("try-flock f w", "ok")?;
    b.blocks("wait-flock f r")?;
    b.signal(Signal::SIGUSR1)?;
    ensure!(b.hear()? == "EINTR");
    b.blocks("wait-flock f w")?;
    a.must("try-flock f u", "ok")?;
    ensure!(b.hear()? == "ok");
    // The end of the process ends it.
    a.blocks("wait-flock f w")?;
    b.kill()?;
    ensure!(a.hear()? == "ok");

    // An open file that was closed holds nothing soon.
    let mut c = Agent::with(&near)?;
    c.must("try-flock f w", "EAGAIN")?;
    a.must("close f", "ok")?;
    eventually(PATIENCE, "the lock of a closed file", || {
        (c.ask("try-flock f w").ok()? == "ok").then_some(())
    })?;
    c.must("try-flock f u", "ok")?;
    a.must(&format!("open f {}", path(&near)), "ok")?;

    // Those of fcntl(2) that open files own: by another descriptor of the process too.
    let mut b = Agent::with(&far)?;
    a.must(&format!("open g {}", path(&near)), "ok")?;
    a.must("try-ofd f w 0 10", "ok")?;
    a.must("try-ofd g w 0 10", "EAGAIN")?;
    a.must("try-ofd g w 10 10", "ok")?;
    b.must("try f r 5 1", "EAGAIN")?;
    b.blocks("wait-ofd f w 5 10")?;
    a.must("close g", "ok")?;
    b.waits()?;
    a.must("close f", "ok")?;
    ensure!(b.hear()? == "ok");
    Ok(())
}

#[test]
fn who_does_not_lock_pays_nothing() -> Result<()> {
    let cluster = Cluster::start()?;
    let file = cluster.mnt().join("file");
    let mut agent = Agent::with(&file)?;
    agent.must("write f something", "ok")?;
    agent.must("sync f", "ok")?;
    let before = requests(cluster.mnt())?;
    for _ in 0..100 {
        agent.must(&format!("open-to-read g {}", path(&file)), "ok")?;
        agent.must("close g", "ok")?;
        // Unlocking what was never locked is nothing either.
        agent.must("try f u 0 0", "ok")?;
    }
    agent.must("close f", "ok")?;
    let asked = requests(cluster.mnt())? - before;
    ensure!(asked < 100, "200 closes made {asked} requests");
    Ok(())
}

/// Who alone may write a file locks it without asking; whoever comes finds the locks that are held.
#[test]
fn locks_of_who_is_alone_cost_nothing_and_are_found() -> Result<()> {
    let (cluster, [here, there]) = two_mounts()?;
    let near = here.join("file");
    let (mut a, mut b) = (Agent::with(&near)?, Agent::with(&near)?);
    a.must("write f something", "ok")?;
    a.must("sync f", "ok")?;
    let before = requests(cluster.mnt())?;
    let alone = |a: &mut Agent, b: &mut Agent| -> Result<()> {
        a.must("try f r 10 10", "ok")?;
        b.must("try f w 15 1", "EAGAIN")?;
        b.must("try-ofd f r 12 1", "ok")?;
        a.must("try f w 10 10", "EAGAIN")?;
        let pid = a.child.id();
        b.must("get f w 19 5", &format!("r 10 10 {pid}"))?;
        b.must("try-ofd f u 0 0", "ok")?;
        a.must("wait f w 0 0", "ok")?;
        b.must("get f r 5 1", &format!("w 0 0 {pid}"))?;
        a.must("try f u 0 0", "ok")?;
        a.must("try-flock f w", "ok")?;
        b.must("try-flock f r", "EAGAIN")?;
        a.must("try-flock f u", "ok")
    };
    for _ in 0..20 {
        alone(&mut a, &mut b)?;
    }
    // What a descriptor held is free when it is closed.
    b.must("try f w 0 0", "ok")?;
    b.must("close f", "ok")?;
    a.must("try f w 3 1", "ok")?;
    let asked = requests(cluster.mnt())? - before;
    ensure!(asked < 100, "locks of who is alone made {asked} requests");

    // From another mount they are found, waited for, and held against all others.
    b.must(&format!("open f {}", path(&near)), "ok")?;
    a.must("try-flock f w", "ok")?;
    b.must("try-ofd f r 10 10", "ok")?;
    let mut c = Agent::with(&there.join("file"))?;
    c.must("get f w 2 5", "w 3 1 0")?;
    c.must("try f w 10 1", "EAGAIN")?;
    c.must("try-flock f r", "EAGAIN")?;
    c.must("try f w 0 3", "ok")?;
    a.must("try f r 0 1", "EAGAIN")?;
    c.blocks("wait f r 3 1")?;
    b.blocks("wait f r 0 1")?;
    c.waits()?;
    b.waits()?;
    a.must("try f u 0 0", "ok")?;
    ensure!(c.hear()? == "ok");
    c.must("try f u 0 0", "ok")?;
    ensure!(b.hear()? == "ok");
    for file in [&near, &there.join("file")] {
        drop(Agent::with(file)?);
    }
    Ok(())
}

/// Whoever waited in line sets its lock at the leader also where its mount may lock without asking:
/// else those behind it wait until the leader has given up that it does.
#[test]
fn a_lock_that_was_waited_for_is_handed_on_at_once() -> Result<()> {
    let cluster = Cluster::start()?;
    let file = cluster.mnt().join("file");
    let mut agents = [Agent::with(&file)?, Agent::with(&file)?, Agent::with(&file)?];
    agents[0].must("write f something", "ok")?;
    agents[0].must("sync f", "ok")?;
    agents[0].must("try f w 0 0", "ok")?;
    agents[1].blocks("wait f w 0 0")?;
    agents[2].blocks("wait f w 0 0")?;
    let (rounds, mut late, mut holder) = (20, 0, 0);
    for _ in 0..rounds {
        let begun = Instant::now();
        agents[holder].must("try f u 0 0", "ok")?;
        let before = holder;
        holder = eventually(PATIENCE, "the next holder", || {
            let has = |agent: &Agent| agent.answers.try_recv().is_ok_and(|answer| answer == "ok");
            (0..agents.len()).find(|&at| at != before && has(&agents[at]))
        })?;
        // Who waits for it to be given up does so since before this was begun.
        late += usize::from(begun.elapsed() >= GIVEN_UP / 2);
        agents[before].blocks("wait f w 0 0")?;
    }
    ensure!(late < rounds / 2, "{late} of {rounds} locks were handed on late");
    Ok(())
}

#[test]
fn locks_outlive_the_leader() -> Result<()> {
    let (cluster, [here, there]) = two_mounts()?;
    let (mut a, mut b) = (Agent::with(&here.join("file"))?, Agent::with(&there.join("file"))?);
    let mut waiter = Agent::with(&there.join("file"))?;
    a.must("try f w 0 10", "ok")?;
    a.must("try-flock f w", "ok")?;
    waiter.blocks("wait f w 5 1")?;
    for _ in 0..2 {
        cluster.kill_leader()?;
        b.must("try f r 9 1", "EAGAIN")?;
        b.must("try-flock f r", "EAGAIN")?;
        b.must("get f w 0 0", "w 0 10 0")?;
        b.must("try f w 10 1", "ok")?;
        waiter.waits()?;
        cluster.start_again()?;
    }
    a.must("try f u 0 0", "ok")?;
    ensure!(waiter.hear()? == "ok");
    b.must("try f r 5 1", "EAGAIN")?;
    drop(waiter);
    b.must("wait f w 0 0", "ok")?;
    Ok(())
}

#[test]
fn locks_end_with_their_mount() -> Result<()> {
    let (cluster, [here, there]) = two_mounts()?;
    let third = cluster.mount_again("third")?;
    let mut near = Agent::with(&here.join("file"))?;
    // One whose mount is killed, and one whose mount is silent for so long that it is given up.
    let mut killed = Agent::with(&there.join("file"))?;
    let mut silent = Agent::with(&third.join("file"))?;
    killed.must("try f w 0 10", "ok")?;
    silent.must("write f mine", "ok")?;
    silent.must("cut f", "ok")?;
    silent.must("try f w 10 10", "ok")?;
    silent.must("try-flock f w", "ok")?;
    near.must("try f r 0 1", "EAGAIN")?;
    cluster.kill_mount(&there)?;
    near.must("wait f w 0 10", "ok")?;
    let pause = cluster.pause_mount(&third)?;
    near.must("wait f w 10 10", "ok")?;
    near.must("wait-flock f w", "ok")?;
    near.must("write f ours", "ok")?;
    drop(pause);
    // It is told, and may not believe that it is alone, until it opens the file anew.
    for call in ["write f mine", "try f w 30 1", "try f u 0 0", "try-flock f u", "read f", "cut f"]
    {
        silent.must(call, "EIO").or_else(|_| {
            // The mount may need a moment to hear of it; a write that came before was refused then.
            eventually(PATIENCE, "EIO from who lost its locks", || {
                (silent.ask(call).ok()? == "EIO").then_some(())
            })
        })?;
    }
    silent.ask("close f")?;
    near.must("read f", "ours")?;
    silent.must(&format!("open f {}", path(&third.join("file"))), "ok")?;
    silent.must("read f", "ours")?;
    silent.must("try f w 15 1", "EAGAIN")?;
    silent.must("try f w 30 1", "ok")?;
    Ok(())
}
