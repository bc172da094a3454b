//! Files that were overwritten here and there, while they are used: what nobody shows any more
//! gives its room back, and nobody sees anything but the same bytes.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use weft_tests::{Cluster, eventually, path, status_of, weft_ok};

const LEN: usize = 16 << 20;
const BLOCK: usize = 4096;
/// Files are left alone for ten seconds first.
const PATIENCE: Duration = Duration::from_secs(90);

/// Chunks and segments that a check counts, all of them good.
fn counted(cluster: &Cluster) -> Result<(u64, u64)> {
    let report = weft_ok(&["fsck", "--cluster", &cluster.address()?, "--output", "json"])?;
    let report: serde_json::Value = serde_json::from_str(&report)?;
    let count = |name: &str| report[name].as_u64().with_context(|| format!("{name} in {report}"));
    Ok((count("chunks")?, count("segments")?))
}

#[test]
fn what_was_overwritten_gives_its_room_back_and_nobody_sees_it() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    let mut content = vec![1; LEN];
    fs::write(a.join("f"), &content)?;
    let file = OpenOptions::new().read(true).write(true).open(a.join("f"))?;
    // Another mount knows where everything is, and goes on reading.
    let other = File::open(b.join("f"))?;
    let mut got = vec![0; LEN];
    for round in 0..2000usize {
        let at = round * 2_654_435_761 % (LEN / BLOCK) * BLOCK;
        let block = [(round % 251) as u8 + 2; BLOCK];
        file.write_all_at(&block, at as u64)?;
        content[at..at + BLOCK].copy_from_slice(&block);
        if round % 100 == 99 {
            file.sync_all()?;
            other.read_exact_at(&mut got, 0)?;
            ensure!(got == content, "round {round}");
        }
    }
    let (_, before) = counted(&cluster)?;
    ensure!(before > 5, "{before} segments: it was not scattered at all");
    eventually(PATIENCE, "it lies in one piece", || {
        other.read_exact_at(&mut got, 0).ok()?;
        assert!(got == content, "other bytes are read while they are moved");
        (counted(&cluster).ok()?.1 <= 2).then_some(())
    })?;
    eventually(PATIENCE, "the status says how it went, and that nothing is left", || {
        let status = status_of(&cluster.address().ok()?).ok()?;
        let number = |name: &str| status[name].as_u64();
        let went = number("compacted_files_per_hour")? > 0 && number("compacted_bytes")? > 0;
        let left = (number("scattered_files")?, number("compaction_eta_s")?);
        (went && left == (0, 0)).then_some(())
    })?;
    // Who has it open writes on, on what was moved.
    let block = [1; BLOCK];
    file.write_all_at(&block, 5 << 20)?;
    content[5 << 20..(5 << 20) + BLOCK].copy_from_slice(&block);
    other.read_exact_at(&mut got, 0)?;
    ensure!(got == content);
    drop((file, other));
    ensure!(fs::read(a.join("f"))? == content && fs::read(b.join("f"))? == content);
    weft_ok(&["umount", path(&b)])?;
    cluster.await_clean()
}

/// Bytes that all targets say they hold.
fn used(cluster: &Cluster) -> Result<u64> {
    let status = status_of(&cluster.address()?)?;
    let targets = status["targets"].as_array().context("no targets")?;
    let used = targets.iter().map(|t| t["used_bytes"].as_u64().context("a target is silent"));
    used.sum()
}

#[test]
fn what_was_written_while_targets_were_away_gets_the_width_of_its_layout() -> Result<()> {
    let cluster = Cluster::start()?;
    let empty = used(&cluster)?;
    cluster.kill_storage(0)?;
    cluster.kill_storage(3)?;
    // With two data shards and two of parity.
    let content: Vec<u8> = (0..LEN).map(|i| (i * 31 % 251) as u8).collect();
    let name = cluster.mnt().join("f");
    fs::write(&name, &content)?;
    File::open(&name)?.sync_all()?;
    cluster.start_again()?;
    eventually(PATIENCE, "it takes the room of four and two", || {
        (used(&cluster).ok()?.saturating_sub(empty) < LEN as u64 * 8 / 5).then_some(())
    })?;
    ensure!(fs::read(&name)? == content);
    cluster.await_clean()
}
