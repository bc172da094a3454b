//! `weft bench` on a plain folder: the cases that start processes of their own and the ones that
//! mount, through the real binary.

#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// This machine stalls for seconds.
const PATIENCE: Duration = Duration::from_secs(120);

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).arg("bench").args(args).output().unwrap()
}

#[test]
fn processes_and_the_fuse_floor_answer_and_clean_up() {
    let dir = tempfile::tempdir().unwrap();
    let (mount, scratch) = (dir.path().join("mount"), dir.path().join("scratch"));
    std::fs::create_dir(&mount).unwrap();
    std::fs::create_dir(&scratch).unwrap();
    let output = bench(&[
        "--mount",
        mount.to_str().unwrap(),
        "--scratch",
        scratch.to_str().unwrap(),
        "--only=metadata_4,small,checkpoint,fuse",
        "--size=16MiB",
        "--ops=40",
        "--files=3",
        "--repeat=2",
        "--keep-caches",
        "--output=json",
    ]);
    let says = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).expect(&says);
    assert_eq!(report["failed"], Value::Array(Vec::new()));
    assert!(output.status.success(), "{says}");

    let figure = |list: &str, name: &str| {
        let figures = report[list].as_array().unwrap();
        figures.iter().find(|f| f["name"] == name).unwrap_or_else(|| panic!("{name}")).clone()
    };
    for name in ["create_4", "stat_4", "unlink_4", "small_read_4", "checkpoint_4"] {
        let figure = figure("workloads", name);
        assert!(figure["median"].as_f64().unwrap() > 0.0, "{figure}");
        assert_eq!(figure["runs"].as_array().unwrap().len(), 2);
        assert!(!figure["compared"].as_array().unwrap().is_empty(), "{figure}");
    }
    assert!(figure("floors", "fuse_read")["median"].as_f64().unwrap() > 0.0);
    for folder in [mount, scratch] {
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    }
}

/// Also with fewer operations than processes, and one folder for everything.
#[test]
fn one_folder_may_be_both_and_little_is_measured_in_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    let places = ["--mount", here, "--scratch", here, "--keep-caches", "--output=json"];
    let what = ["--only=metadata_1,metadata_4", "--size=16MiB", "--ops=2", "--repeat=1"];
    let output = bench(&[&places[..], &what].concat());
    let says = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).expect(&says);
    assert!(output.status.success(), "{report} {says}");
    for figure in report["workloads"].as_array().unwrap() {
        assert!(figure["median"].as_f64().unwrap() > 0.0, "{figure}");
        assert!(figure["cpu_us_per_operation"]["bench"].is_f64(), "{figure}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Killed whatever becomes of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The terminal goes, or an admin has had enough: it ends, however long it was to go on.
#[test]
fn a_signal_ends_it_and_nothing_stays() {
    for (name, signal) in [("HUP", Signal::SIGHUP), ("TERM", Signal::SIGTERM)] {
        let dir = tempfile::tempdir().unwrap();
        // Who runs the tests may have switched it off.
        let mut command = Command::new("env");
        command.arg(format!("--default-signal={name}")).arg(env!("CARGO_BIN_EXE_weft"));
        command.args(["bench", "--only=log", "--ops=1000000000", "--limit=3600", "--scratch"]);
        command.arg(dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = Running(command.spawn().unwrap());
        let has_log = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.is_ok_and(|own| Path::new(&own.path()).join("log").exists())
        };
        eventually("its log", || std::fs::read_dir(dir.path()).unwrap().any(has_log).then_some(()));
        kill(Pid::from_raw(running.0.id() as i32), signal).unwrap();
        let ended = eventually(name, || running.0.try_wait().unwrap());
        assert_eq!(ended.code(), Some(1), "{name}: {ended}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().to_str().unwrap();
    let unknown = bench(&["--only=speed", "--scratch", scratch]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("--list"));
    // No mount: it is said before anything is measured.
    let homeless = bench(&["--only=sync_write", "--scratch", scratch, "--repeat=1", "--ops=5"]);
    assert_eq!(homeless.status.code(), Some(1));
    assert!(homeless.stdout.is_empty(), "floors were measured for nothing");
    let text = String::from_utf8_lossy(&homeless.stderr);
    assert!(text.contains("--mount") && text.contains("sync_write"), "{text}");
    let nowhere = bench(&["--mount=/nonexistent/weft"]);
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/nonexistent/weft"));
    let bad_dir = bench(&["--dir", scratch]);
    assert_eq!(bad_dir.status.code(), Some(1));
}
