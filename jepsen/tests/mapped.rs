//! A page that another mount has just made a part of a file is there for whoever maps it.

use anyhow::{Context, Result, ensure};
use nix::libc::SIGBUS;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use weft_tests::Cluster;

const ROUNDS: usize = 900;
/// So many are killed at most, of five to eight while notices overtook answers: a mount does not
/// hear what is in the kernel's queue
/// (docs/decisions/027-the-kernel-keeps-names-under-leases.md).
const MOST_KILLED: usize = 2;

/// Maps files, in a process that ends if it is killed by that.
struct Pager {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Pager {
    fn start() -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-jepsen-page"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = child.stdin.take().context("a pipe")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Self { child, requests, answers })
    }

    /// Makes a file, makes it long enough unless it is, and reads it. Answers whether that did not
    /// kill it.
    fn gets(&mut self, at: &Path) -> Result<bool> {
        writeln!(self.requests, "get {}", at.display())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer.is_empty() {
            let ended = self.child.wait()?;
            ensure!(ended.signal() == Some(SIGBUS), "{}: {ended}", at.display());
            return Ok(false);
        }
        ensure!(answer == "ok 0\n", "{}: {answer:?}", at.display());
        Ok(true)
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

#[test]
fn who_maps_a_file_that_others_make_longer_is_hardly_ever_killed() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_owned(), cluster.mount_again("b")?, cluster.mount_again("c")?];
    fs::create_dir(mounts[0].join("d"))?;
    let together = Barrier::new(mounts.len());
    thread::scope(|scope| {
        let workers: Vec<_> = mounts
            .iter()
            .map(|mount| {
                let together = &together;
                scope.spawn(move || -> Result<usize> {
                    let mut pager = Pager::start()?;
                    let mut killed = 0;
                    for round in 0..ROUNDS {
                        together.wait();
                        thread::park_timeout(Duration::from_micros(rand::random_range(0..1500)));
                        if !pager.gets(&mount.join(format!("d/{round}")))? {
                            pager = Pager::start()?;
                            killed += 1;
                        }
                    }
                    Ok(killed)
                })
            })
            .collect();
        let mut killed = 0;
        for worker in workers {
            killed += worker.join().ok().context("a thread panicked")??;
        }
        ensure!(killed <= MOST_KILLED, "{killed} were killed in {ROUNDS} rounds");
        anyhow::Ok(())
    })?;
    cluster.await_clean()
}
