//! What a cluster says of itself.

use crate::{eventually, weft_ok};
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

/// What `weft status` says of the cluster with these servers.
pub fn status_of(cluster: &str) -> Result<Value> {
    let status = weft_ok(&["status", "--cluster", cluster, "--output", "json"])?;
    serde_json::from_str(&status).with_context(|| format!("status printed {status:?}"))
}

/// The numbers of the targets that serve, by this status.
pub fn serving(status: &Value) -> Result<Vec<u64>> {
    let targets = status["targets"].as_array().context("no targets")?;
    let up = targets.iter().filter(|t| t["state"] == "up");
    up.map(|t| t["id"].as_u64().context("a target without a number")).collect()
}

/// Waits until all is well at these servers, and so many targets serve.
pub fn await_health(cluster: &str, targets: usize) -> Result<()> {
    let mut last = Value::Null;
    let well = || {
        last = status_of(cluster).ok()?;
        let up = serving(&last).ok()?.len();
        (last["health"] == "ok" && up == targets).then_some(())
    };
    let waited = eventually(Duration::from_secs(120), "all is well", well);
    waited.with_context(|| format!("the last was {last}"))
}
