//! Processes that stand still for a while.

use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Processes that stand still until this is dropped, or for five minutes: a mount that stands still
/// hangs whoever looks at the processes that use it, and also what ends with a file open there or
/// starts another program.
pub struct Paused(Child);

impl Paused {
    /// Those with these numbers.
    pub fn all(pids: Vec<i32>) -> Result<Self> {
        let pids: Vec<_> = pids.iter().map(i32::to_string).collect();
        let resumes = Command::new("sh")
            .args([
                "-c",
                "kill -STOP \"$@\"; echo; timeout 300 head -c 1; kill -CONT \"$@\"",
                "resume",
            ])
            .args(pids)
            // What ends the test's group does not end it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut paused = Self(resumes);
        let said = paused.0.stdout.as_mut().context("no output")?.read(&mut [0])?;
        ensure!(said == 1, "processes cannot be paused");
        Ok(paused)
    }
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
