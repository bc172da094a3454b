//! `weft events` tells what has happened, when and why, whoever leads.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::time::Duration;
use weft_tests::{Cluster, Shape, eventually, path, weft_ok};

const LIMIT: Duration = Duration::from_secs(60);

fn events(cluster: &Cluster, more: &[&str]) -> Result<Vec<Value>> {
    let address = cluster.address()?;
    let args = ["events", "--cluster", &address, "--output", "json", "-n", "1000"];
    let told: Value = serde_json::from_str(&weft_ok(&[&args, more].concat())?)?;
    Ok(told.as_array().context("a list")?.clone())
}

/// Waits until there is such an event with this in its text.
fn await_event(cluster: &Cluster, kind: &str, text: &str) -> Result<Value> {
    let what = format!("{kind}: {text}");
    eventually(LIMIT, &what, || {
        let told = events(cluster, &[]).ok()?;
        let fits = |e: &&Value| e["kind"] == kind && e["text"].as_str().unwrap().contains(text);
        told.iter().rev().find(fits).cloned()
    })
}

#[test]
fn what_happens_is_told_and_outlives_the_leader() -> Result<()> {
    let cluster = Cluster::start()?;
    std::fs::write(cluster.mnt().join("file"), vec![7; 8 << 20])?;
    std::fs::File::open(cluster.mnt().join("file"))?.sync_all()?;
    await_event(&cluster, "leader", "leads")?;
    await_event(&cluster, "target-new", "storage-6")?;
    let status = cluster.overview()?;
    let of_first = |t: &&Value| t["daemon"] == "storage-1";
    let first = status["targets"].as_array().and_then(|all| all.iter().find(of_first));
    let id = first.and_then(|t| t["id"].as_u64()).context("the first target")?;
    let name = format!("target {id} (");
    // Daemons say now and then how much they hold.
    eventually(LIMIT, "the first target has chunks", || {
        let status = cluster.overview().ok()?;
        let all = status["targets"].as_array()?;
        all.iter().find(|t| t["id"] == id)?["chunks"].as_u64().filter(|&chunks| chunks > 0)
    })?;
    cluster.kill_storage(0)?;
    let down = await_event(&cluster, "target-down", &name)?;
    ensure!(down["warning"] == true && down["time"].as_str().is_some_and(|t| t.ends_with('Z')));
    cluster.target("out", id)?;
    await_event(&cluster, "target-decision", &format!("given {name}"))?;
    await_event(&cluster, "repair-begins", "missing")?;
    cluster.kill_leader()?;
    cluster.start_again()?;
    cluster.target("in", id)?;
    await_event(&cluster, "target-up", &name)?;
    cluster.await_repaired(LIMIT)?;
    await_event(&cluster, "repair-ends", "nothing is left")?;

    let told = events(&cluster, &[])?;
    let numbers: Vec<_> = told.iter().filter_map(|e| e["number"].as_u64()).collect();
    ensure!(numbers == (1..=told.len() as u64).collect::<Vec<_>>(), "{told:#?}");
    let times: Vec<_> = told.iter().filter_map(|e| e["time"].as_str()).collect();
    ensure!(times.is_sorted() && times.len() == told.len(), "{told:#?}");
    ensure!(told.iter().filter(|e| e["kind"] == "leader").count() >= 2, "{told:#?}");
    let of = |kind: &str| told.iter().filter(|e| e["kind"] == kind).count();
    // The next leader goes on with what the one before has told.
    ensure!(of("repair-begins") - of("repair-ends") <= 1, "{told:#?}");
    let warnings = events(&cluster, &["--warnings"])?;
    ensure!(!warnings.is_empty() && warnings.iter().all(|e| e["warning"] == true));
    ensure!(warnings.len() < told.len());
    weft_ok(&["umount", path(cluster.mnt())]).map(drop)
}

#[test]
fn a_log_in_json_has_one_object_a_line() -> Result<()> {
    let cluster = Cluster::start_as(Shape { metadata: 1, ..Shape::default() })?;
    let m = cluster.scratch("json")?;
    let log = cluster.scratch("logs")?.join("log");
    let address = cluster.address()?;
    let options = ["--cluster", &address, "--log-format", "json", "--log-file", path(&log)];
    weft_ok(&[&["mount"], &options[..], &[path(&m)]].concat())?;
    weft_ok(&["umount", path(&m)])?;
    let log = std::fs::read_to_string(&log)?;
    ensure!(!log.is_empty(), "nothing is logged");
    for line in log.lines() {
        let told: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let is = |field: &Value| field.as_str().is_some_and(|text| !text.is_empty());
        let fields = [&told["timestamp"], &told["level"], &told["fields"]["message"]];
        ensure!(fields.into_iter().all(is), "{line}");
    }
    Ok(())
}
