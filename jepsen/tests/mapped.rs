//! A page that another mount has just made a part of a file is there for whoever maps it.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use weft_tests::Cluster;

const ROUNDS: usize = 600;

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

    /// Makes a file, makes it long enough unless it is, and reads it.
    fn get(&mut self, at: &Path) -> Result<()> {
        writeln!(self.requests, "get {}", at.display())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(answer == "ok 0\n", "{}: {answer:?}: {:?}", at.display(), self.child.try_wait()?);
        Ok(())
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

#[test]
fn who_maps_a_file_that_others_make_longer_is_not_killed() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_owned(), cluster.mount_again("b")?, cluster.mount_again("c")?];
    fs::create_dir(mounts[0].join("d"))?;
    let together = Barrier::new(mounts.len());
    thread::scope(|scope| {
        let workers: Vec<_> = mounts
            .iter()
            .map(|mount| {
                let together = &together;
                scope.spawn(move || -> Result<()> {
                    let mut pager = Pager::start()?;
                    let mut failed = None;
                    for round in 0..ROUNDS {
                        together.wait();
                        thread::park_timeout(Duration::from_micros(rand::random_range(0..1500)));
                        let got = pager.get(&mount.join(format!("d/{round}")));
                        if let Err(error) = got {
                            pager = Pager::start()?;
                            failed = failed.or(Some(error));
                        }
                    }
                    failed.map_or(Ok(()), Err)
                })
            })
            .collect();
        for worker in workers {
            worker.join().ok().context("a thread panicked")??;
        }
        anyhow::Ok(())
    })?;
    cluster.await_clean()
}
