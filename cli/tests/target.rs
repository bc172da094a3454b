//! `weft target add`, `remove` and `replace`: what they do to the configuration, and to indexes.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use weft_storaged::Config;
use weft_storaged::engine::Engine;

const CONFIG: &str = r#"name = "s1"
listen = "127.0.0.1:0"
metadata = ["127.0.0.1:1"]
"#;

fn weft(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.current_dir(dir).arg("target").args(args).args(["--config", "c.toml"]);
    command.stdin(Stdio::null());
    command
}

fn add(dir: &Path, more: &[&str]) -> Command {
    weft(dir, &[&["add", "--size", "16MiB", "--sparse"], more].concat())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn done(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
}

fn refused(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?}");
    said(&output)
}

fn config(dir: &Path) -> Config {
    toml::from_str(&fs::read_to_string(dir.join("c.toml")).unwrap()).unwrap()
}

/// Names of the targets of the configuration.
fn listed(dir: &Path) -> Vec<String> {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    config(dir).targets.iter().map(|target| name(&target.path)).collect()
}

/// Another command has read the file and not written it yet.
#[test]
fn a_command_waits_for_another_that_changes_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    fs::write(dir.join("c.toml"), CONFIG).unwrap();
    let lock = Flock::lock(File::open(dir).unwrap(), FlockArg::LockExclusive).unwrap();
    let mut waits = add(dir, &["b"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(waits.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let with = format!("{CONFIG}\n[[targets]]\npath = \"{}\"\n", dir.join("a").display());
    fs::write(dir.join("c.toml"), with).unwrap();
    drop(lock);
    assert!(waits.wait().unwrap().success(), "{line}");
    assert!(line.contains("waiting"), "{line}");
    assert_eq!(listed(dir), ["a", "b"]);
}

#[test]
fn an_index_goes_from_one_target_to_another_only_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    fs::write(dir.join("c.toml"), CONFIG).unwrap();
    done(add(dir, &["a", "--index", "index"]));
    assert!(refused(add(dir, &["b", "--index", "index"])).contains("same index"));
    fs::create_dir(dir.join("sub")).unwrap();
    assert!(refused(add(dir, &["b", "--index", "sub/../index"])).contains("same index"));
    assert!(!dir.join("b").exists());
    assert_eq!(listed(dir), ["a"]);
    drop(Engine::open(&config(dir).targets[0].options()).unwrap());

    let a = config(dir).targets[0].path.clone();
    let replace = |new: &str| {
        let old = a.to_str().unwrap();
        let new = [new, "--size", "16MiB", "--sparse", "--index", "index"];
        weft(dir, &[&["replace", old, "--abandon"], &new[..]].concat())
    };
    assert!(refused(replace("a")).contains("weft target add"));
    done(replace("b"));
    assert_eq!(listed(dir), ["b"]);
    drop(Engine::open(&config(dir).targets[0].options()).unwrap());

    // Its section may come back.
    let b = config(dir).targets[0].path.clone();
    done(weft(dir, &["remove", b.to_str().unwrap(), "--abandon"]));
    assert!(refused(add(dir, &["c", "--index", "index"])).contains("is that of target"));
    assert!(listed(dir).is_empty() && !dir.join("c").exists());
}

/// Its path names no file of this machine: the kernel is asked for it, as when it was added.
#[test]
fn a_target_behind_a_fabric_is_looked_at_where_the_kernel_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let id = "00000000-0000-4000-8000-000000000011";
    // Nobody listens there, whether or not this machine has an initiator.
    let drive = format!("nvme-tcp://127.0.0.1:1/nqn.2025-01.test.weft:none?uuid={id}");
    let index = dir.join("index");
    let target = format!("[[targets]]\npath = \"{drive}\"\nindex = \"{}\"\n", index.display());
    fs::write(dir.join("c.toml"), format!("{CONFIG}{target}")).unwrap();
    let added = refused(weft(dir, &["add", &drive]));
    let removed = refused(weft(dir, &["remove", &drive]));
    assert!(removed.contains(added.trim()) && removed.contains("--abandon"), "{added}{removed}");
    assert_eq!(config(dir).targets.len(), 1);
    done(weft(dir, &["remove", &drive, "--abandon"]));
    assert!(config(dir).targets.is_empty());
}
