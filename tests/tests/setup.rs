//! `scripts/setup` on machines as it meets them, with an apt-get that stands for them.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use weft_tests::path;

/// Runs it where nothing is installed but what it calls. Each call of apt-get is noted with its
/// number, and goes as the script says. Answers whether it succeeded, what it said, and the calls.
fn setup(apt_get: &str) -> Result<(bool, String, Vec<String>)> {
    let folder = tempfile::tempdir()?;
    let bin = folder.path().join("bin");
    fs::create_dir(&bin)?;
    for tool in ["sh", "env", "cat", "grep", "mktemp", "rm", "wc"] {
        let real = ["/bin", "/usr/bin"].iter().map(|dir| Path::new(dir).join(tool));
        symlink(real.into_iter().find(|p| p.exists()).context(tool)?, bin.join(tool))?;
    }
    let calls = folder.path().join("calls");
    fs::write(&calls, "")?;
    let call = format!("echo \"$*\" >>{0}\nnth=$(wc -l <{0})\n{apt_get}", path(&calls));
    // Nothing here waits in real time.
    for (name, script) in [("apt-get", &*call), ("id", "echo 0"), ("cargo", ""), ("sleep", "")] {
        fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n"))?;
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755))?;
    }
    let out = Command::new("/bin/sh")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/setup"))
        .env("PATH", &bin)
        .env("TMPDIR", folder.path())
        .output()?;
    let calls = fs::read_to_string(&calls)?.lines().map(str::to_owned).collect();
    Ok((out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned(), calls))
}

const LOCKED: &str = "echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process \
    1 (apt)' >&2; exit 100";

#[test]
fn another_apt_is_waited_for() -> Result<()> {
    let (done, said, calls) = setup(&format!("test $nth -gt 3 || {{ {LOCKED}; }}"))?;
    ensure!(done && said.contains("waiting for another apt"), "{said}");
    ensure!(calls.len() == 5 && calls[..4].iter().all(|c| c.ends_with("update")), "{calls:?}");
    ensure!(calls[4].contains("install -y") && calls[4].contains("protobuf-compiler"), "{calls:?}");
    // For dpkg's own lock apt-get waits itself.
    ensure!(calls.iter().all(|c| c.contains("DPkg::Lock::Timeout=")), "{calls:?}");
    Ok(())
}

#[test]
fn what_does_not_help_is_not_waited_for() -> Result<()> {
    let (done, said, calls) = setup(LOCKED)?;
    ensure!(!done && said.contains("install these first"), "{said}");
    ensure!(calls.len() > 10, "it waited for {} calls only", calls.len());
    let (done, said, calls) = setup("echo 'E: no network' >&2; exit 100")?;
    ensure!(
        !done && said.contains("no network") && said.contains("apt-get update failed"),
        "{said}"
    );
    ensure!(calls.len() == 1, "{calls:?}");
    Ok(())
}
