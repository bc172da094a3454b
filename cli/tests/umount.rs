//! `weft umount` of what is not mounted, or of what nobody is known to serve.

use nix::mount::{MsFlags, mount};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command};

fn umount(path: &Path, run_dir: &Path) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("umount").arg(path).env("WEFT_RUN_DIR", run_dir).output().unwrap()
}

/// A process as records of mounts name it.
fn named(child: &Child) -> serde_json::Value {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let (_, behind) = stat.rsplit_once(')').unwrap();
    let started: u64 = behind.split_whitespace().nth(19).unwrap().parse().unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    serde_json::json!({ "pid": child.id(), "started": started, "boot": boot.trim() })
}

fn sleeper() -> Child {
    Command::new("sleep").arg("600").spawn().unwrap()
}

#[test]
fn a_dead_mount_that_is_about_to_come_back_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (run_dir, path) = (dir.path().join("run"), dir.path().join("mnt"));
    fs::create_dir_all(run_dir.join("mounts")).unwrap();
    fs::create_dir(&path).unwrap();
    let (mut dead, mut supervisor) = (sleeper(), sleeper());
    let process = named(&dead);
    dead.kill().unwrap();
    dead.wait().unwrap();
    let name = path.to_str().unwrap()[1..].replace('/', "-");
    let record = run_dir.join("mounts").join(format!("{name}.json"));
    let said = serde_json::json!({
        "path": path, "cluster": ["127.0.0.1:1"], "process": process,
        "settings": [], "supervisor": named(&supervisor),
    });
    fs::write(&record, said.to_string()).unwrap();
    let output = umount(&path, &run_dir);
    if !output.status.success() {
        supervisor.kill().unwrap();
    }
    let told = supervisor.wait();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // By a signal.
    assert_eq!(told.unwrap().code(), None);
    assert!(!record.exists());
    // Now there is nothing.
    let output = umount(&path, &run_dir);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("nothing is mounted"), "{said}");
}

/// Nobody can be waited for. Needs root, as every mount does that no helper makes.
#[test]
fn a_mount_whose_process_is_not_found_is_not_said_to_be_durable() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    let (run_dir, path) = (at.join("run"), at.join("mnt"));
    fs::create_dir(&path).unwrap();
    let mut dead = sleeper();
    let process = named(&dead);
    dead.kill().unwrap();
    dead.wait().unwrap();
    for (lazy, earlier) in [(false, false), (true, false), (false, true)] {
        // Its requests are never read.
        let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let (source, options) = (Some("weft:a:1"), Some(options.as_str()));
        mount(source, &path, Some("fuse.weft"), MsFlags::empty(), options).unwrap();
        if earlier {
            // Of a mount that was there before, that somebody has taken away by other means, and
            // whose number this one has got.
            let device = weft_fuse::mount_at(&path).unwrap().unwrap().device;
            let said = serde_json::json!({
                "path": path, "cluster": ["127.0.0.1:1"], "process": process, "device": device,
                "life": "1 1.000000000",
            });
            let name = path.to_str().unwrap()[1..].replace('/', "-");
            fs::write(run_dir.join(format!("mounts/{name}.json")), said.to_string()).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.arg("umount").args(lazy.then_some("--lazy")).arg(&path);
        let output = command.env("WEFT_RUN_DIR", &run_dir).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(weft_fuse::mount_at(&path).unwrap().is_none(), "{said}");
        assert_eq!(output.status.success(), lazy, "{said}");
        assert_eq!(said.contains("was not found"), !lazy, "{said}");
    }
}
