//! How many requests to the metadata group something costs.
//!
//! A machine that is busy with other things may cost more: what is told each second is told more
//! often by who is slow, and leases go when the leader does. So a test allows about half of what it
//! would cost without what it is about; and what costs nothing does so sooner or later.

use crate::{eventually, path, weft_ok, xattr};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Only what is never free takes so long to be it.
const PATIENCE: Duration = Duration::from_secs(120);

/// What was read through a mount is told now, and not while requests are counted.
pub fn tell_accesses(mount: &Path) -> Result<()> {
    weft_ok(&["sync", path(mount)]).map(drop)
}

/// Requests to the metadata group that operations on this mount have made.
pub fn requests(mount: &Path) -> Result<u64> {
    let stats: Value = serde_json::from_slice(&xattr(mount, "user.weft.stats")?)?;
    stats["metadata_requests"].as_u64().context("no counter of requests")
}

/// How many a run makes.
pub fn cost(mount: &Path, run: impl FnOnce() -> Result<()>) -> Result<u64> {
    tell_accesses(mount)?;
    let before = requests(mount)?;
    run()?;
    Ok(requests(mount)? - before)
}

/// Runs it until it makes none: each time what is needed for that is known already, unless a lease
/// was lost meanwhile.
pub fn await_free(mount: &Path, what: &str, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    let mut last = 0;
    eventually(PATIENCE, &format!("no request is made to {what}"), || match cost(mount, &mut run) {
        Ok(0) => Some(Ok(())),
        Ok(asked) => {
            last = asked;
            None
        }
        Err(error) => Some(Err(error)),
    })
    .with_context(|| format!("the last took {last}"))?
}
