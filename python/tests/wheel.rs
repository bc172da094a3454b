//! Builds the wheel, installs it in a clean environment, and runs the tests of the Python package
//! against a cluster and its mount.

mod support;

use anyhow::Result;
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
    let python = support::python("tests/requirements.txt")?;
    support::pytest(&python, Duration::from_secs(300), &["--ignore", torch, tests])
}
