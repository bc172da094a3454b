//! The drives as an admin sees them: added, shown, scrubbed, taken away, on a running cluster.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;
use weft_tests::not_tested;
use weft_tests::{Cluster, Shape, data, eventually, path, weft, weft_ok};

#[test]
fn drives_come_and_are_checked_and_go() -> Result<()> {
    let cluster = Cluster::start_as(Shape {
        metadata: 1,
        storage: 3,
        profile: "2+1",
        target_size: "128MiB",
        ..Shape::default()
    })?;
    let address = cluster.address()?;
    for target in cluster.target_paths()? {
        let (takes, has) = (fs::metadata(&target)?.blocks() * 512, fs::metadata(&target)?.len());
        ensure!(
            has == 128 << 20 && takes < has / 4,
            "an empty target takes {takes} of {has} bytes"
        );
    }
    let config = cluster.dir().join("config/storage-1.toml");
    let config = path(&config);
    let new = cluster.scratch("drives")?.join("new");
    let new = path(&new);

    // What holds something is asked for, and there is nobody to answer.
    let mut swap = vec![0; 32 << 20];
    swap[4086..4096].copy_from_slice(b"SWAPSPACE2");
    fs::write(new, &swap)?;
    let refused = weft(&["target", "add", new, "--config", config])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("swap space"), "{said}");
    ensure!(fs::read(new)? == swap, "a refused drive was changed");
    let said = weft_ok(&["target", "add", new, "--config", config, "--force"])?;
    ensure!(said.contains("reload"), "{said}");
    ensure!(weft_ok(&["target", "show", new])?.contains("which no cluster has"));

    // The daemon takes it over, and a second look refuses it.
    hang_up(&cluster, 0)?;
    eventually(Duration::from_secs(60), "a fourth target that is up", || {
        let list = weft_ok(&["target", "list", "--cluster", &address, "--output", "json"]).ok()?;
        let list: serde_json::Value = serde_json::from_str(&list).ok()?;
        let up = list.as_array()?.iter().filter(|t| t["state"] == "up").count();
        (up == 4).then_some(())
    })?;
    let busy = weft(&["target", "add", new, "--config", config, "--force"])?;
    ensure!(String::from_utf8_lossy(&busy.stderr).contains("nothing to do"));

    let bytes = data::bytes(7, 8 << 20);
    fs::write(cluster.mnt().join("f"), &bytes)?;
    File::open(cluster.mnt().join("f"))?.sync_all()?;
    let scrub = ["target", "scrub", "--cluster", &address, "--pace", "4GiB", "--output", "json"];
    let clean: serde_json::Value = serde_json::from_str(&weft_ok(&scrub)?)?;
    let read: u64 =
        clean.as_array().context("a list")?.iter().filter_map(|t| t["bytes"].as_u64()).sum();
    ensure!(read >= 8 << 20, "scrub read {read} bytes: {clean}");

    damage_is_found(&cluster, &scrub, &bytes)
}

/// A target with chunks does not go; the damage on it is found.
fn damage_is_found(cluster: &Cluster, scrub: &[&str], bytes: &[u8]) -> Result<()> {
    let (victim, its_config, at) = (1..=3)
        .find_map(|n| {
            let target = cluster.dir().join(format!("storage-{n}/target"));
            let at = data_on(&target, bytes)?;
            Some((target, cluster.dir().join(format!("config/storage-{n}.toml")), at))
        })
        .context("two of four targets hold data, of which one is new")?;
    let args = ["target", "remove", path(&victim), "--config", path(&its_config)];
    let kept = weft(&args)?;
    let said = String::from_utf8_lossy(&kept.stderr).into_owned();
    ensure!(!kept.status.success() && said.contains("holds chunks"), "{said}");
    let file = OpenOptions::new().read(true).write(true).open(&victim)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 1], at)?;
    let found = weft(scrub)?;
    ensure!(found.status.code() == Some(1), "scrub found nothing");
    let found: serde_json::Value = serde_json::from_slice(&found.stdout)?;
    let damaged: u64 =
        found.as_array().context("a list")?.iter().filter_map(|t| t["damaged"].as_u64()).sum();
    ensure!(damaged == 1, "{found}");
    ensure!(fs::read(cluster.mnt().join("f"))? == bytes);
    Ok(())
}

/// A card that is not there, or not any more, must keep nobody from serving, and must not go
/// unnoticed.
#[test]
fn a_daemon_that_is_to_serve_rdma_and_cannot_says_why() -> Result<()> {
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some()) {
        not_tested("daemons on a machine without RDMA; this one has a device");
        return Ok(());
    }
    let cluster = Cluster::start_as(Shape { tls: false, ..Shape::default() })?;
    let address = cluster.address()?;
    let status = || -> Result<Value> {
        let out = weft_ok(&["status", "--cluster", &address, "--output", "json"])?;
        Ok(serde_json::from_str(&out)?)
    };
    let told = |status: &Value| -> Vec<Value> {
        let daemons = status["storage_daemons"].as_array().into_iter().flatten();
        daemons.flat_map(|d| d["network"]["fallbacks"].as_array().cloned()).flatten().collect()
    };
    let before = status()?;
    ensure!(told(&before).is_empty(), "{before}");
    eventually(Duration::from_secs(60), "a session that tells what it goes over", || {
        let status = status().ok()?;
        let network = &status["sessions"][0]["network"];
        (network["tcp"].as_u64()? > 0 && network["fallbacks"] == json!([])).then_some(())
    })?;

    let config = cluster.dir().join("config/storage-1.toml");
    let text = fs::read_to_string(&config).with_context(|| config.display().to_string())?;
    let with_rdma = text + "\n[rdma]\n";
    fs::write(&config, &with_rdma)?;
    hang_up(&cluster, 0)?;
    let after = eventually(Duration::from_secs(60), "a daemon that says why", || {
        status().ok().filter(|status| !told(status).is_empty())
    })?;
    let told = told(&after);
    ensure!(told.len() == 1 && told[0]["server"].is_null(), "{told:?}");
    let why = told[0]["why"].as_str().context("no reason")?;
    ensure!(why.contains("RDMA") || why.contains("is not installed"), "{why}");
    let problems = after["problems"].as_array().context("no problems")?;
    let problem = problems.iter().find(|p| p["kind"] == "rdma_not_served");
    let text = problem.context("no problem")?["text"].as_str().unwrap_or_default();
    ensure!(text.contains(why), "{text}");
    let people = weft_ok(&["status", "--cluster", &address])?;
    ensure!(people.contains(text) && people.contains("storage daemons\n"), "{people}");
    // Certificates that do not read, and RDMA beside them: no daemon ends for that.
    let pid = || Ok::<_, anyhow::Error>(cluster.status()?["storage"][0]["pid"].clone());
    let before = pid()?;
    let files = "ca = \"/nonexistent\"\ncert = \"/nonexistent\"\nkey = \"/nonexistent\"\n";
    fs::write(&config, with_rdma + "\n[tls]\n" + files)?;
    hang_up(&cluster, 0)?;
    eventually(Duration::from_secs(60), "a daemon that goes on as before", || {
        cluster.logs().contains("SIGHUP: goes on as before").then_some(())
    })?;
    ensure!(pid()? == before, "the daemon ended");
    fs::write(cluster.mnt().join("f"), "it serves on")?;
    weft_ok(&["sync", path(cluster.mnt())])?;
    Ok(())
}

/// Tells storage daemon `index` to read its configuration again.
fn hang_up(cluster: &Cluster, index: usize) -> Result<()> {
    let pid = cluster.status()?["storage"][index]["pid"].as_i64().context("no pid")?;
    Ok(kill(Pid::from_raw(pid.try_into()?), Signal::SIGHUP)?)
}

/// Where a block of the file's data lies on the target.
fn data_on(target: &Path, bytes: &[u8]) -> Option<u64> {
    let image = fs::read(target).ok()?;
    let blocks: HashSet<&[u8]> = bytes.chunks(4096).collect();
    image.chunks(4096).position(|b| blocks.contains(b)).map(|block| block as u64 * 4096)
}
