//! pjdfstest, a suite of others, on a mount: see `tests/posix/`.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weft_tests::{Cluster, not_tested, path, run};

#[test]
fn pjdfstest_passes() -> Result<()> {
    // SAFETY: geteuid only reads the credentials of this process.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        not_tested("pjdfstest as other users, and remounts: that takes root");
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix");
    let program = program(&here)?;
    let cluster = Cluster::start()?;
    // mount(8) would leave a remount to a helper of FUSE's, which does not know one.
    let tools = cluster.scratch("tools")?;
    let real = run("sh", &["-c", "command -v mount"], &tools)?;
    let script = format!("#!/bin/sh\nexec {} -i \"$@\"\n", real.trim());
    fs::write(tools.join("mount"), script)?;
    fs::set_permissions(tools.join("mount"), fs::Permissions::from_mode(0o755))?;
    let suite = Suite { program, tools, elsewhere: cluster.scratch("elsewhere")? };
    let config = fs::read_to_string(here.join("pjdfstest.toml"))?;
    // Some tests leave files open, after which nothing can be remounted: those that do have a
    // process of their own.
    let first = suite.run(&cluster, &config.replace("allow_remount = true", ""), &[])?;
    let second = suite.run(&cluster, &config, &["::erofs"])?;
    if root {
        let allowed = fs::read_to_string(here.join("pjdfstest.skipped"))?;
        let allowed = allowed.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        let allowed: Vec<_> = allowed.filter_map(|line| line.split_whitespace().next()).collect();
        let (mut skipped, run) = (skipped(&first), passed(&second));
        skipped.retain(|name, _| !run.contains(name));
        let found: Vec<_> = skipped.keys().copied().collect();
        ensure!(found == allowed, "skipped: {skipped:#?}; pjdfstest.skipped names {allowed:#?}");
    }
    // What it left behind goes.
    cluster.await_clean()
}

/// Where the suite is, built if it was not.
fn program(here: &Path) -> Result<PathBuf> {
    let out = Command::new(here.join("pjdfstest.sh")).output().context("build pjdfstest")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "pjdfstest could not be built:\n{said}");
    Ok(PathBuf::from(String::from_utf8(out.stdout)?.trim()))
}

struct Suite {
    program: PathBuf,
    /// Programs that come before others.
    tools: PathBuf,
    /// A folder of another filesystem.
    elsewhere: PathBuf,
}

impl Suite {
    /// Runs tests whose names have one of these in them. Answers what is printed; fails if a test
    /// does.
    fn run(&self, cluster: &Cluster, config: &str, names: &[&str]) -> Result<String> {
        let file = self.tools.join("config.toml");
        fs::write(&file, config)?;
        let search = std::env::var("PATH").unwrap_or_default();
        let out = Command::new(&self.program)
            .env("PATH", format!("{}:{search}", path(&self.tools)))
            .args(["--configuration-file", path(&file), "--path", path(cluster.mnt())])
            .args(["--secondary-fs", path(&self.elsewhere)])
            .args(names)
            .stdin(Stdio::null())
            .output()
            .context("run pjdfstest")?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        println!("{text}");
        ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Ok(text)
    }
}

fn passed(text: &str) -> BTreeSet<&str> {
    text.lines().filter_map(|line| line.strip_suffix(" ok")).map(str::trim).collect()
}

/// Tests that were skipped, in order, and why.
fn skipped(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut last = None;
    for line in text.lines() {
        match line.strip_prefix('\t') {
            Some(reason) => {
                if let Some(reasons) = last.and_then(|name| all.get_mut(name)) {
                    reasons.push(reason);
                }
            }
            None => {
                last = line.strip_suffix("skipped").map(str::trim);
                all.extend(last.map(|name| (name, Vec::new())));
            }
        }
    }
    all
}
