//! What hangs is shown and ended: an end-to-end test by the guard of its cluster, any other program
//! by `scripts/limit`, which cargo starts tests with.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

const STUCK: &str = env!("CARGO_BIN_EXE_stuck");
const LIMIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/limit");

/// Runs what hangs. Answers how it ended, and what the guard said.
fn stuck(how: &str) -> Result<(Output, String)> {
    let out = Command::new(STUCK).arg(how).output().context("run what hangs")?;
    let (printed, said) = (String::from_utf8(out.stdout.clone())?, out.stderr.clone());
    let said = String::from_utf8_lossy(&said).into_owned();
    let dir = Path::new(printed.trim());
    ensure!(!out.status.success() && dir.is_absolute(), "{}: {said}", out.status);
    // Logs of those that stand still, that serve and that are no more.
    for log in ["mount.log", "metadata-1.log", "storage-6.log"] {
        ensure!(said.contains(&format!("==> {}", dir.join("log").join(log).display())), "{said}");
    }
    ensure!(said.contains("mounted at"), "the mount's log is not shown: {said}");
    ensure!(said.contains("wchan") && said.contains("weft storaged"), "{said}");
    // SAFETY: geteuid only reads the credentials of this process.
    if unsafe { libc::geteuid() } == 0 {
        let waits = if how == "read" { "fuse" } else { "futex" };
        ensure!(said.contains(waits), "the stack of what hangs is not shown: {said}");
    }
    Ok((out, said))
}

/// Everything of a cluster that was ended is gone once its guard is.
fn gone(out: &Output) -> Result<bool> {
    let dir = String::from_utf8(out.stdout.clone())?;
    let dir = Path::new(dir.trim()).parent().context("a folder")?;
    let mounts = fs::read_to_string("/proc/mounts")?;
    Ok(!dir.exists() && !mounts.contains(dir.to_str().context("text")?))
}

#[test]
fn a_test_that_waits_for_a_mount_is_shown_and_fails() -> Result<()> {
    let (out, said) = stuck("read")?;
    ensure!(out.status.code() == Some(101) && said.contains("took too long"), "{said}");
    ensure!(gone(&out)?, "it left something behind: {said}");
    Ok(())
}

#[test]
fn a_test_that_waits_for_nothing_is_shown_and_ended() -> Result<()> {
    let (out, said) = stuck("forever")?;
    ensure!(out.status.signal() == Some(libc::SIGABRT), "{}: {said}", out.status);
    // The guard holds standard error, and lets go of it at its very end.
    ensure!(gone(&out)?, "it left something behind: {said}");
    Ok(())
}

#[test]
fn a_program_gets_its_time_and_no_more() -> Result<()> {
    let run = |seconds: &str, script: &str| -> Result<(Option<i32>, String)> {
        let out = Command::new(LIMIT).args([seconds, "sh", "-c", script]).output()?;
        Ok((out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned()))
    };
    let quick = run("600", "exit 7")?;
    ensure!(quick == (Some(7), String::new()), "{quick:?}");
    // A child that is left behind is shown and ended, too, or this would wait for its standard
    // error.
    let (code, said) = run("1", "sleep 86400 & wait")?;
    ensure!(code == Some(124), "{code:?}: {said}");
    for part in ["limit: not done after 1 s", "sleep 86400", "wchan"] {
        ensure!(said.contains(part), "no {part:?}: {said}");
    }
    Ok(())
}
