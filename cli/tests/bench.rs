//! `weft bench` on a plain folder: the cases that start processes of their own and the ones that
//! mount, through the real binary.

use serde_json::Value;
use std::process::{Command, Output};

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
