//! Environments with the wheel, and tests in them against a cluster and its mount.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use weft_tests::{Cluster, weft_binary};

/// Runs a command to its end; its standard output.
fn run(command: &mut Command) -> Result<String> {
    let out = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let out = out.with_context(|| format!("run {command:?}"))?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    ensure!(out.status.success(), "{command:?} ended with {}:\n{said}", out.status);
    Ok(said)
}

/// The python of an environment with the wheel and what is required.
pub fn python(requirements: &str) -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let binary = weft_binary();
    let target = binary.ancestors().nth(2).context("weft lies in TARGET/release")?;
    let script = root.join("../scripts/python-env");
    let said = run(Command::new(script).arg(target).arg(root.join(requirements)))?;
    Ok(said.trim().into())
}

/// Runs tests with it; `libraries`: a folder that the dynamic linker looks into first.
pub fn pytest(
    python: &Path,
    limit: Duration,
    tests: &[&str],
    libraries: Option<&Path>,
) -> Result<()> {
    let cluster = Cluster::start()?;
    cluster.allow(limit)?;
    let folder = tempfile::tempdir()?;
    let mut pytest = Command::new(python);
    pytest
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        // What hangs says where, in each of its threads, before the guard ends it.
        .args(["-o", "faulthandler_timeout=120"])
        .args(tests)
        // Not from python/, where the package lies without its native part.
        .current_dir(folder.path())
        .env("TMPDIR", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(cluster.environment())
        .env("WEFT_CLUSTER", cluster.address()?)
        .env("WEFT_MOUNT", cluster.mnt())
        .envs(libraries.map(|folder| ("LD_LIBRARY_PATH", folder)));
    // Shown as it is said: who hangs is not asked at the end.
    let status = pytest.stdin(Stdio::null()).status().context("run pytest")?;
    ensure!(status.success(), "pytest ended with {status}");
    Ok(())
}
