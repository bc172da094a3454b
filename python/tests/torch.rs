//! What of the package needs torch, which takes gigabytes to install: `make test-torch`.

mod support;

use anyhow::Result;
use std::time::Duration;

#[test]
fn torch_loads_saves_and_goes_on() -> Result<()> {
    let python = support::python("tests/requirements-torch.txt")?;
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch");
    support::pytest(&python, Duration::from_secs(900), &[tests], None)
}
