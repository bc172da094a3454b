//! What the command line answers without any cluster: help, exit codes, errors that help.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

fn weft(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(args).env_remove("WEFT_CLUSTER").env_remove("WEFT_LOG").output().unwrap()
}

/// Runs `weft`, demands this exit code, and answers what it said on standard error.
fn refused(args: &[&str], code: i32) -> String {
    let output = weft(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?} prints errors on standard error only");
    said
}

#[test]
fn every_command_explains_itself() {
    for command in [
        &["dev", "start"][..],
        &["dev", "status"],
        &["dev", "stop"],
        &["mount"],
        &["umount"],
        &["status"],
        &["target", "list"],
        &["pool", "list"],
        &["layout", "get"],
        &["layout", "set"],
        &["quota", "set"],
        &["quota", "show"],
        &["quota", "report"],
        &["quota", "clear"],
        &["fsck"],
        &["bench"],
        &["nvme", "discover"],
        &["nvme", "connect"],
        &["nvme", "list"],
        &["doctor"],
        &["plan"],
        &["ca", "init"],
        &["ca", "issue"],
        &["ca", "revoke"],
        &["ca", "renew-crl"],
        &["ca", "list"],
        &["metadata"],
        &["storaged"],
    ] {
        let output = weft(&[command, &["--help"]].concat());
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{command:?}");
        assert!(help.starts_with(|c: char| c.is_uppercase()), "{command:?} says what it does");
        assert!(help.contains("Usage: weft"), "{command:?}");
    }
    let version = String::from_utf8(weft(&["--version"]).stdout).unwrap();
    assert_eq!(version.trim(), concat!("weft ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_is_2_and_failure_is_1() {
    refused(&[], 2);
    assert!(refused(&["mnt"], 2).contains("mnt"));
    assert!(refused(&["status"], 2).contains("--cluster"));
    assert!(refused(&["dev", "start", "--dir", "/x"], 2).contains("--mount"));
    assert!(
        refused(&["dev", "start", "--dir", "/x", "--no-mount", "--profile", "9"], 2)
            .contains("K+M")
    );
    assert!(
        refused(&["dev", "start", "--dir", "/x", "--no-mount", "--target-size", "1Q"], 2)
            .contains("1Q")
    );
    // What could never be a target is not found out when half of the cluster is made.
    let tiny = refused(&["dev", "start", "--dir", "/x", "--no-mount", "--target-size", "12"], 2);
    assert!(tiny.contains("16MiB"), "{tiny}");
    assert!(refused(&["layout", "set", "/x", "--ec", "3"], 2).contains("K+M"));
    // Without a cluster it is not the servers that are to blame.
    let nowhere = refused(&["target", "show", "99"], 1);
    assert!(nowhere.contains("--cluster") && !nowhere.contains("servers"), "{nowhere}");
    assert!(refused(&["metadata", "--id", "1"], 2).contains("--data-dir"));
    assert!(refused(&["status", "--log", "=x=", "--cluster", "127.0.0.1:1"], 1).contains("--log"));
    let unreachable = refused(&["pool", "list", "--cluster", "127.0.0.1:1"], 1);
    assert!(unreachable.contains("127.0.0.1:1"));
    assert_eq!(unreachable.matches("refused").count(), 1, "told twice: {unreachable}");
    assert!(refused(&["pool", "list", "--cluster", "no address"], 1).contains("host:port"));
    assert!(refused(&["layout", "get", "/nonexistent"], 1).contains("/nonexistent"));
    assert!(refused(&["layout", "get", "/proc"], 1).contains("not in a mount of weft"));
    assert!(refused(&["layout", "set", "/tmp"], 1).contains("/tmp"));
    assert!(refused(&["umount", "/nonexistent/x"], 1).contains("/nonexistent/x"));
    // A variable of a script that is empty must not be the rule of everybody.
    let nobody = ["qos", "set", "--client", "", "--iops", "1", "--cluster", "127.0.0.1:1"];
    assert!(refused(&nobody, 2).contains("--client"));
    assert!(refused(&["umount", "/"], 1).contains("not of weft"));
}

#[test]
fn mount_points_are_checked_before_the_cluster_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let mount = |at: &str| refused(&["mount", "--cluster", "127.0.0.1:1", at], 1);
    assert!(mount(&path("missing")).contains("does not exist"));
    fs::write(dir.path().join("file"), "x").unwrap();
    assert!(mount(&path("file")).contains("not a directory"));
    assert!(mount(dir.path().to_str().unwrap()).contains("not empty"));
    assert!(mount("/proc").contains("already a mount"));
}

#[test]
fn a_cluster_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["mount", "--foreground", "--timeout", "1", "--cluster", "127.0.0.1:1", at])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("127.0.0.1:1"), "{said}");
    // A background mount hands on what its process found out.
    let log = dir.path().with_extension("log");
    let log = log.to_str().unwrap();
    let background = ["mount", "--timeout", "1", "--log-file", log, "--cluster", "127.0.0.1:1", at];
    assert!(refused(&background, 1).contains("127.0.0.1:1"));
    fs::remove_file(log).unwrap();
}

#[test]
fn daemons_say_why_they_do_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let peer = format!("1={address}");
    let said = refused(&["metadata", "--id", "1", "--data-dir", data, "--peer", &peer], 1);
    assert!(said.contains(&address), "{said}");
    let said = refused(&["metadata", "--id", "2", "--data-dir", data, "--peer", &peer], 1);
    assert!(said.contains("--peer"), "{said}");
    let target = dir.path().join("target");
    let target = target.to_str().unwrap();
    let storaged = |listen: &str| {
        let fixed = ["storaged", "--name", "s", "--metadata", "127.0.0.1:1"];
        refused(&[&fixed[..], &["--target", target, "--listen", listen]].concat(), 1)
    };
    assert!(storaged(&address).contains(&address));
    let said = storaged("127.0.0.1:0");
    assert!(said.contains("does not exist") && said.contains("weft target add"), "{said}");
    let made = weft(&["target", "add", "--no-config", target, "--size", "64MiB", "--sparse"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(refused(&["target", "add", "--no-config", target], 1).contains("holds target"));
    let config = dir.path().join("bad.toml");
    fs::write(&config, "name = 1\ngarbage").unwrap();
    for role in ["metadata", "storaged"] {
        let said = refused(&[role, "--config", config.to_str().unwrap()], 1);
        assert!(said.contains("bad.toml"), "{said}");
    }
}

/// Runs `weft`, demands this exit code, and answers what it printed as JSON.
fn json(args: &[&str], codes: &[i32]) -> serde_json::Value {
    let output = weft(&[args, &["--output", "json"]].concat());
    let code = output.status.code().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(codes.contains(&code), "{args:?}: {code}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_doctor_and_a_planner_need_no_cluster() {
    // Whatever this machine is, the answer is whole and the exit code fits to it.
    let report = json(&["doctor"], &[0, 1]);
    let checks = report["checks"].as_array().unwrap();
    let failed = checks.iter().filter(|c| c["verdict"] == "fail").count();
    assert_eq!(report["failures"], failed);
    let code = if failed == 0 { 0 } else { 1 };
    assert_eq!(weft(&["doctor"]).status.code(), Some(code));
    assert!(
        json(&["doctor", "--role", "metadata"], &[0, 1])["checks"].as_array().unwrap().len()
            < checks.len()
    );
    assert!(refused(&["doctor", "--role", "king"], 2).contains("storage"));

    let need = ["plan", "--gpus", "32", "--gpu-gbytes-per-s", "10", "--dataset-tb", "500"];
    let plan = json(&[&need[..], &["--profile", "4+2"]].concat(), &[0]);
    assert_eq!((&plan["enclosures"], &plan["bound_by"]), (&5.into(), &"bandwidth".into()));
    assert!(refused(&[&need[..], &["--fill", "0"]].concat(), 2).contains("--fill"));
    assert!(refused(&["plan", "--gpus", "many"], 2).contains("many"));
}

#[test]
fn fabrics_are_asked_for_in_words_that_make_sense() {
    assert!(refused(&["nvme", "connect", "nvme-tcp://h/disk"], 2).contains("nqn."));
    assert!(refused(&["nvme", "discover", "h", "--transport", "fc"], 2).contains("rdma"));
    assert!(
        refused(&["nvme", "disconnect", "nqn.2025-01.test:nobody"], 1).contains("not connected")
    );
    let config = ["nvme", "discover", "127.0.0.1:1", "--config", "/nonexistent"];
    assert!(refused(&config, 1).contains("/nonexistent"));
    assert!(json(&["nvme", "list"], &[0]).is_array());
}

#[test]
fn dev_leaves_foreign_folders_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    assert!(refused(&["dev", "status", "--dir", at], 1).contains("no cluster"));
    assert!(refused(&["dev", "stop", "--dir", at], 1).contains("no cluster"));
    fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let said = refused(&["dev", "start", "--dir", at, "--no-mount"], 1);
    assert!(said.contains("not empty"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made there");
    let fresh = dir.path().join("fresh");
    let too_few =
        ["dev", "start", "--dir", fresh.to_str().unwrap(), "--no-mount", "--storage", "2"];
    assert!(refused(&too_few, 1).contains("storage daemons"));
    assert!(!fresh.exists(), "something was made");
}

/// Whatever keeps a new cluster from starting, nothing of it stays but what tells why.
#[test]
fn a_start_that_fails_leaves_nothing_half_made() {
    let dir = tempfile::tempdir().unwrap();
    let (at, mnt) = (dir.path().join("cluster"), dir.path().join("mnt"));
    let paths = ["--dir", at.to_str().unwrap(), "--mount", mnt.to_str().unwrap()];
    let start = |more: &[&str]| refused(&[&["dev", "start"], &paths[..], more].concat(), 1);

    let said = start(&["--target-size", "1PiB"]);
    assert!(said.contains("no room") && said.contains("6 targets of 1PiB"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something was made");

    fs::write(&mnt, "no folder").unwrap();
    let said = start(&["--target-size", "64MiB"]);
    assert!(said.contains("nothing was made"), "{said}");
    assert!(!at.exists());
    fs::remove_file(&mnt).unwrap();

    // Its daemons run by then.
    let said = start(&["--target-size", "64MiB", "--timeout", "0"]);
    assert!(said.contains("gave up") && said.contains("removed again"), "{said}");
    assert!(!said.contains("killed"), "the daemons do not hear SIGTERM: {said}");
    assert!(!mnt.exists(), "the mount point was made by this start");
    let mut left: Vec<_> =
        fs::read_dir(&at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["lock", "log"]);
    let everyone = fs::read_dir("/proc").unwrap().flatten();
    let running = everyone.filter(|p| {
        let line = fs::read(p.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(at.to_str().unwrap())
    });
    assert_eq!(running.count(), 0, "daemons are left");
    // And the next start is not in the way of the logs of this one.
    let said = start(&["--target-size", "64MiB", "--timeout", "0"]);
    assert!(said.contains("gave up"), "{said}");
}

#[test]
fn a_metadata_server_is_bootstrapped_once_and_never_after_it_ran() {
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (data, peer) = (dir.path().join("data"), format!("1=127.0.0.1:{port}"));
    let data = data.to_str().unwrap();
    let flags = ["metadata", "--id", "1", "--data-dir", data, "--peer", &peer];
    let bootstrap = [&flags[..], &["--bootstrap"]].concat();
    for _ in 0..2 {
        let output = weft(&bootstrap);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let identity = Path::new(data).join("identity");
    let text = fs::read_to_string(&identity).unwrap();
    assert!(text.contains("standing = \"new\""), "{text}");
    fs::write(&identity, text.replace("\"new\"", "\"member\"")).unwrap();
    assert!(refused(&bootstrap, 1).contains("has run"));
    // Its log is not made anew either.
    let said = refused(&flags, 1);
    assert!(said.contains("move the whole data folder away"), "{said}");
}

/// RocksDB's memory and ours come from an allocator that gives it back.
#[cfg(target_arch = "x86_64")]
#[test]
fn memory_comes_from_jemalloc() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.arg("--version").env("MALLOC_CONF", "confirm_conf:true").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("<jemalloc>"), "{said}");
}
