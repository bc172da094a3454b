//! `weft qos`: rules hold, are kept, and what tenants were given is told.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft_tests::{Cluster, Shape, eventually, path, weft, weft_ok};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn qos(cluster: &Cluster, args: &[&str]) -> Result<String> {
    let address = cluster.address()?;
    weft_ok(&[&["qos"], args, &["--cluster", &address]].concat())
}

fn show(cluster: &Cluster) -> Result<Value> {
    Ok(serde_json::from_str(&qos(cluster, &["show", "--output", "json"])?)?)
}

/// A mount of a tenant of this name.
fn mount(cluster: &Cluster, tenant: &str) -> Result<PathBuf> {
    let at = cluster.scratch(tenant)?;
    let (address, name) = (cluster.address()?, format!("{tenant}:/there"));
    weft_ok(&["mount", "--cluster", &address, "--name", &name, path(&at)])?;
    Ok(at)
}

/// Writes a file durably; answers how long that took.
fn write(file: &Path, bytes: usize) -> Result<Duration> {
    let begun = Instant::now();
    let mut file = File::create(file)?;
    file.write_all(&vec![5; bytes])?;
    file.sync_all()?;
    Ok(begun.elapsed())
}

/// Waits until something was told of a tenant's work at the storage daemons, or the leader.
fn await_told(cluster: &Cluster, at: &str, tenant: &str, what: &str) -> Result<u64> {
    eventually(LIMIT, &format!("{what} of {tenant}"), || {
        let shown = show(cluster).ok()?;
        let all = shown[at].as_array()?;
        let of = all.iter().find(|of| of["tenant"] == tenant)?;
        of[what].as_u64().filter(|told| *told > 0)
    })
}

fn rules(shown: &Value) -> Vec<Value> {
    shown["rules"].as_array().cloned().unwrap_or_default()
}

#[test]
fn rules_hold_and_outlive_leaders_and_restarts() -> Result<()> {
    // With certificates, tenants are those of the certificates, whatever mounts are called.
    let shape = Shape { storage: 3, profile: "1+1", tls: false, ..Shape::default() };
    let cluster = Cluster::start_as(shape)?;
    ensure!(rules(&show(&cluster)?).is_empty());
    let said = qos(&cluster, &["set", "--client", "slow", "--bandwidth", "16MiB/s"])?;
    ensure!(said.contains("slow: 16MiB/s"), "{said}");
    qos(&cluster, &["set", "--client", "slow", "--metadata", "20/s", "--weight", "50"])?;
    qos(&cluster, &["set", "--default", "--iops", "1000000"])?;
    let shown = show(&cluster)?;
    let wanted = serde_json::json!([
        { "tenant": null, "bandwidth": null, "iops": 1_000_000, "metadata": null, "weight": null },
        { "tenant": "slow", "bandwidth": 16 << 20, "iops": null, "metadata": 20, "weight": 50 },
    ]);
    ensure!(shown["rules"] == wanted, "{shown:#}");
    for wrong in [["--client", "slow:/mnt"], ["--client", ""]] {
        let address = cluster.address()?;
        let args = [&["qos", "set", "--weight", "0", "--cluster", &address][..], &wrong].concat();
        ensure!(!weft(&args)?.status.success(), "{wrong:?}");
    }

    // Daemons hear of it within a heartbeat, and the leader at once.
    let (slow, fast) = (mount(&cluster, "slow")?, mount(&cluster, "fast")?);
    let took = write(&slow.join("first"), 32 * MIB)?;
    // 64 MiB of shards, at three daemons with a third of the rate each.
    ensure!(took >= Duration::from_secs(2), "{took:?}");
    await_told(&cluster, "storage", "slow", "paced_us")?;
    write(&fast.join("first"), 32 * MIB)?;
    await_told(&cluster, "storage", "fast", "written_bytes")?;
    let shown = show(&cluster)?;
    let fast_is_paced = |of: &Value| of["tenant"] == "fast" && of["paced_us"] != 0;
    let all = shown["storage"].as_array().context("a list")?;
    ensure!(!all.iter().any(fast_is_paced), "{shown:#}");

    // Each of these asks the leader.
    let begun = Instant::now();
    for n in 0..60 {
        let missing = slow.join(format!("folder-{n}"));
        std::fs::create_dir(&missing)?;
        File::open(&missing)?.sync_all()?;
    }
    ensure!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    await_told(&cluster, "metadata", "slow", "paced_us")?;

    cluster.kill_leader()?;
    eventually(LIMIT, "another leader", || show(&cluster).ok().filter(|s| s["rules"] == wanted))?;
    let took = write(&slow.join("second"), 32 * MIB)?;
    ensure!(took >= Duration::from_secs(2), "{took:?}");
    cluster.start_again()?;
    cluster.kill_all()?;
    cluster.start_again()?;
    let shown = eventually(LIMIT, "a leader", || show(&cluster).ok())?;
    ensure!(shown["rules"] == wanted, "{shown:#}");
    qos(&cluster, &["set", "--client", "slow", "--metadata", "none", "--weight", "none"])?;
    qos(&cluster, &["clear", "--default"])?;
    let shown = show(&cluster)?;
    ensure!(rules(&shown).len() == 1 && shown["rules"][0]["metadata"].is_null(), "{shown:#}");
    qos(&cluster, &["clear", "--client", "slow"])?;
    ensure!(rules(&show(&cluster)?).is_empty());
    ensure!(qos(&cluster, &["clear", "--client", "slow"]).is_err(), "it is gone");
    Ok(())
}
