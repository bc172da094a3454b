//! Processes that stand still for a while.

use crate::eventually;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Processes that stand still until this is dropped, or for five minutes: a mount that stands still
/// hangs whoever looks at the processes that use it, and also what ends with a file open there or
/// starts another program.
pub struct Paused(Child);

impl Paused {
    /// Those with these numbers.
    pub fn all(pids: Vec<i32>) -> Result<Self> {
        let resumes = Command::new("sh")
            .args([
                "-c",
                "kill -STOP \"$@\"; echo; timeout 300 head -c 1; kill -CONT \"$@\"",
                "resume",
            ])
            .args(pids.iter().map(i32::to_string))
            // What ends the test's group does not end it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut paused = Self(resumes);
        let said = paused.0.stdout.as_mut().context("no output")?.read(&mut [0])?;
        ensure!(said == 1, "processes cannot be paused");
        // A thread that runs goes on until it sees the signal, and may answer a request meanwhile.
        let stand_still = || pids.iter().all(|pid| stands_still(*pid)).then_some(());
        eventually(Duration::from_secs(60), "all threads stand still", stand_still)?;
        Ok(paused)
    }
}

/// Whether no thread of a process runs (T: stopped, Z and X: over; proc_pid_stat(5)).
fn stands_still(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        // The name before the state is in brackets, and may have some of its own.
        fs::read_to_string(thread.path().join("stat")).map_or(true, |stat| {
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
        })
    })
}

impl Drop for Paused {
    fn drop(&mut self) {
        // Not by the end of input: a program that this process starts may hold a copy until it has
        // begun.
        if let Some(mut stdin) = self.0.stdin.take() {
            let _ = stdin.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}
