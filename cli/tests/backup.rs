//! `weft metadata backup` through the real binary.

#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// This machine stalls for seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// As a timer of systemd's, or a shutdown, interrupts it. The next one can have the same folder.
#[test]
fn a_backup_that_is_interrupted_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("backup");
    // Takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut backup = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["metadata", "backup", folder.to_str().unwrap(), "--cluster"])
        .arg(silent.local_addr().unwrap().to_string())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    // It may fail by itself before that.
    while backup.try_wait().unwrap().is_none() {
        if folder.join(".being-made").exists() || begin.elapsed() > PATIENCE {
            kill(Pid::from_raw(backup.id() as i32), Signal::SIGTERM).unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = backup.wait().unwrap();
    assert_eq!(ended.code(), Some(1), "{ended}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}
