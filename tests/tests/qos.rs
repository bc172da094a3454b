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

/// Works until something is told of that tenant at the storage daemons, or the leader: what was
/// served before they heard of a rule, or just before a leader went, is not told.
fn work_until_told(
    (cluster, at): (&Cluster, &str),
    (tenant, what): (&str, &str),
    mut work: impl FnMut() -> Result<()>,
) -> Result<()> {
    eventually(LIMIT, &format!("{what} of {tenant}"), || {
        if let Err(error) = work() {
            return Some(Err(error));
        }
        let shown = show(cluster).ok()?;
        let of = shown[at].as_array()?.iter().find(|of| of["tenant"] == tenant)?;
        of[what].as_u64().filter(|told| *told > 0).map(|_| Ok(()))
    })?
}

fn rules(shown: &Value) -> Vec<Value> {
    shown["rules"].as_array().cloned().unwrap_or_default()
}

/// Two commands that change a part of one rule each, at the same time: what both say is done, is.
fn change_at_once(cluster: &Cluster) -> Result<()> {
    for rate in 1..6_u64 {
        let number = rate.to_string();
        let set = |what| qos(cluster, &["set", "--client", "both", what, &number]).is_ok();
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(|| set("--metadata"));
            set("--iops") & other.join().unwrap_or(false)
        });
        let shown = eventually(LIMIT, "the rules", || show(cluster).ok())?;
        let kept = |rule: &Value| rule["iops"] == rate && rule["metadata"] == rate;
        ensure!(!both || rules(&shown).iter().any(kept), "{rate}: {shown:#}");
    }
    eventually(LIMIT, "no such rule", || {
        let _ = qos(cluster, &["clear", "--client", "both"]);
        let left = rules(&show(cluster).ok()?);
        left.iter().all(|rule| rule["tenant"] != "both").then_some(())
    })
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

    change_at_once(&cluster)?;

    // Daemons hear of it within a heartbeat, and the leader at once.
    let (slow, fast) = (mount(&cluster, "slow")?, mount(&cluster, "fast")?);
    let store = |file: PathBuf| move || write(&file, 4 * MIB).map(drop);
    let storage = (&cluster, "storage");
    work_until_told(storage, ("slow", "paced_us"), store(slow.join("first")))?;
    let took = write(&slow.join("second"), 32 * MIB)?;
    // 64 MiB of shards, at three daemons with a third of the rate each.
    ensure!(took >= Duration::from_secs(2), "{took:?}");
    work_until_told(storage, ("fast", "written_bytes"), store(fast.join("first")))?;
    let shown = show(&cluster)?;
    let fast_is_paced = |of: &Value| of["tenant"] == "fast" && of["paced_us"] != 0;
    let all = shown["storage"].as_array().context("a list")?;
    ensure!(!all.iter().any(fast_is_paced), "{shown:#}");

    // Each of these asks the leader.
    let mut made = 0;
    let mut make_folder = || {
        made += 1;
        let missing = slow.join(format!("folder-{made}"));
        std::fs::create_dir(&missing)?;
        Ok(File::open(&missing)?.sync_all()?)
    };
    let begun = Instant::now();
    (0..60).try_for_each(|_| make_folder())?;
    ensure!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    work_until_told((&cluster, "metadata"), ("slow", "paced_us"), make_folder)?;

    cluster.kill_leader()?;
    eventually(LIMIT, "another leader", || show(&cluster).ok().filter(|s| s["rules"] == wanted))?;
    let took = write(&slow.join("third"), 32 * MIB)?;
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
