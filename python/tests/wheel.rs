//! Builds the wheel, installs it in a clean environment, and runs the tests of the Python package
//! against a cluster and its mount.

mod support;

use anyhow::Result;
use std::os::unix::fs::symlink;
use std::time::Duration;
use weft_tests::not_tested;

#[test]
fn the_wheel_installs_and_its_tests_pass() -> Result<()> {
    if std::env::var_os("WEFT_NO_PYTHON").is_some() {
        not_tested("the Python package: WEFT_NO_PYTHON is set");
        return Ok(());
    }
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    let torch = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch");
    let gpu = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu");
    let python = support::python("tests/requirements.txt")?;
    // Both end a hang only, within what the runner of tests allows.
    let (limit, rest) = (Duration::from_secs(450), Duration::from_secs(240));
    support::pytest(&python, limit, &["--ignore", torch, "--ignore", gpu, tests], None)?;
    // With the driver of a GPU that is simulated.
    let driver = tempfile::tempdir()?;
    symlink(weft_cuda_sim::library(), driver.path().join("libcuda.so.1"))?;
    support::pytest(&python, rest, &[gpu], Some(driver.path()))
}
