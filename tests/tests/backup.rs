//! The metadata group is lost, with all its disks, and begun anew from a backup.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use weft_tests::server::Server;
use weft_tests::{Cluster, Shape, await_health, data, eventually, path, status_of, weft, weft_ok};

const PATIENCE: Duration = Duration::from_secs(60);

/// Ends all metadata servers, and takes their disks away.
fn lose_the_group(cluster: &Cluster) -> Result<()> {
    for index in 0..3 {
        cluster.stop_daemon("metadata", index)?;
        fs::remove_dir_all(cluster.dir().join(format!("metadata-{}", index + 1)))?;
    }
    Ok(())
}

/// Arguments of a command as text.
fn all<'a>(words: &[&'a str], place: &'a [String]) -> Vec<&'a str> {
    words.iter().copied().chain(place.iter().map(String::as_str)).collect()
}

#[test]
fn a_group_that_was_lost_begins_anew_from_a_backup() -> Result<()> {
    let cluster = Cluster::start_as(Shape { profile: "2+1", storage: 4, ..Shape::default() })?;
    let (mnt, old) = (cluster.mnt(), cluster.address()?);
    fs::create_dir(mnt.join("kept"))?;
    for n in 0..20u8 {
        fs::write(mnt.join(format!("kept/{n}")), vec![n; usize::from(n) * 50_000])?;
    }
    let digest = data::digest_tree(&mnt.join("kept"))?;
    fs::write(mnt.join("last"), "just before")?;
    weft_ok(&["sync", path(mnt)])?;
    let backup = cluster.scratch("backups")?.join("first");
    weft_ok(&["metadata", "backup", path(&backup), "--cluster", &old])?;
    weft_ok(&["metadata", "verify", path(&backup)])?;
    // It has all names.
    let mode = |path: &Path| -> Result<u32> { Ok(fs::metadata(path)?.mode() & 0o777) };
    ensure!(mode(&backup)? == 0o700);
    for entry in fs::read_dir(&backup)? {
        ensure!(mode(&entry?.path())? == 0o600);
    }
    let again = weft(&["metadata", "backup", path(&backup), "--cluster", &old])?;
    ensure!(!again.status.success(), "a backup went into another");
    fs::write(mnt.join("after"), vec![7; 300_000])?;
    weft_ok(&["umount", path(mnt)])?;
    let chunks = |address: &str| -> Result<u64> {
        let status = status_of(address)?;
        let targets = status["targets"].as_array().context("no targets")?.iter();
        Ok(targets.filter_map(|t| t["chunks"].as_u64()).sum())
    };
    lose_the_group(&cluster)?;

    // At an address that daemons and mounts know.
    let address = old.split(',').next().context("no server")?.to_owned();
    let refused = |id: u64, word: &str| -> Result<()> {
        let place = Server::place(&cluster, id, &address)?;
        let out = weft(&all(&["metadata", "restore", path(&backup)], &place))?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(!out.status.success() && said.contains(word), "{id}: {said}");
        Ok(())
    };
    refused(2, "above 3")?;
    // Nothing was claimed for that number.
    refused(3, "above 3")?;
    let place = Server::place(&cluster, 4, &address)?;
    println!("{}", weft_ok(&all(&["metadata", "restore", path(&backup)], &place))?);
    refused(4, "empty")?;
    let first = Server::start_at(&cluster, 4, &address, None)?;
    await_health(&address, 4)?;
    let more = [5, 6].map(|id| -> Result<Server> {
        let server = Server::start(&cluster, id, &address)?;
        weft_ok(&["metadata", "add", &id.to_string(), &server.address, "--cluster", &address])?;
        Ok(server)
    });
    ensure!(more.iter().all(Result::is_ok), "a server was not added");

    weft_ok(&["mount", "--cluster", &address, path(mnt)])?;
    ensure!(data::digest_tree(&mnt.join("kept"))? == digest, "the tree has changed");
    ensure!(fs::read_to_string(mnt.join("last"))? == "just before");
    ensure!(!mnt.join("after").exists(), "it came after the backup");
    fs::write(mnt.join("new"), vec![9; 200_000])?;
    fs::remove_file(mnt.join("kept/19"))?;
    weft_ok(&["sync", path(mnt)])?;
    ensure!(fs::read(mnt.join("new"))? == vec![9; 200_000]);
    // A newer backup could still be taken: what it names is there.
    let before = chunks(&address)?;
    weft_ok(&["metadata", "transfer-leader", "--cluster", &address])?;
    await_health(&address, 4)?;
    // It has to hear of all targets first.
    let there = || chunks(&address).is_ok_and(|chunks| chunks >= before).then_some(());
    eventually(PATIENCE, "all chunks, or something was deleted", there)?;

    // Another attempt: what daemons were told in the first is not in its way.
    weft_ok(&["umount", path(mnt)])?;
    drop((first, more));
    let place = Server::place(&cluster, 7, &address)?;
    weft_ok(&all(&["metadata", "restore", path(&backup)], &place))?;
    let _second = Server::start_at(&cluster, 7, &address, None)?;
    await_health(&address, 4)?;
    weft_ok(&["mount", "--cluster", &address, path(mnt)])?;
    ensure!(data::digest_tree(&mnt.join("kept"))? == digest, "the tree has changed");
    ensure!(!mnt.join("new").exists(), "it is of the first attempt");
    fs::write(mnt.join("new"), vec![8; 300_000])?;
    weft_ok(&["sync", path(mnt)])?;
    weft_ok(&["umount", path(mnt)])?;
    weft_ok(&["mount", "--cluster", &address, path(mnt)])?;
    ensure!(fs::read(mnt.join("new"))? == vec![8; 300_000]);
    Ok(())
}

/// Without a time in which nothing is deleted, what the backup does not know goes.
#[test]
fn what_a_backup_does_not_know_is_deleted_in_the_end() -> Result<()> {
    let cluster = Cluster::start_as(Shape { profile: "2+1", storage: 4, ..Shape::default() })?;
    let (mnt, old) = (cluster.mnt(), cluster.address()?);
    fs::write(mnt.join("kept"), vec![1; 400_000])?;
    let backup = cluster.scratch("backups")?.join("first");
    weft_ok(&["metadata", "backup", path(&backup), "--cluster", &old])?;
    fs::write(mnt.join("after"), vec![7; 3_000_000])?;
    weft_ok(&["umount", path(mnt)])?;
    lose_the_group(&cluster)?;
    let address = old.split(',').next().context("no server")?.to_owned();
    let place = Server::place(&cluster, 4, &address)?;
    // What lies there is looked at before it is used.
    let manifest = fs::read_to_string(backup.join("backup.toml"))?;
    fs::write(backup.join("backup.toml"), manifest.replacen("crc32 = ", "crc32 = 1", 1))?;
    let out = weft(&all(&["metadata", "restore", path(&backup)], &place))?;
    ensure!(!out.status.success(), "a damaged backup was taken");
    let out = weft(&["metadata", "verify", path(&backup)])?;
    ensure!(!out.status.success(), "a damaged backup passes for a whole one");
    fs::write(backup.join("backup.toml"), &manifest)?;
    weft_ok(&all(&["metadata", "restore", path(&backup), "--hold", "0"], &place))?;
    let _server = Server::start_at(&cluster, 4, &address, None)?;
    eventually(PATIENCE, "the server listens", || TcpStream::connect(&address).ok())?;
    await_health(&address, 4)?;
    weft_ok(&["mount", "--cluster", &address, path(mnt)])?;
    ensure!(fs::read(mnt.join("kept"))? == vec![1; 400_000]);
    eventually(PATIENCE, "a clean fsck", || {
        let out = weft(&["fsck", "--cluster", &address]).ok()?;
        out.status.success().then_some(())
    })
}

/// Two of three servers are lost, and there is no backup: what the third has is one.
#[test]
fn a_group_of_which_one_server_is_left_begins_anew_from_it() -> Result<()> {
    let cluster = Cluster::start_as(Shape { profile: "2+1", storage: 4, ..Shape::default() })?;
    let (mnt, old) = (cluster.mnt(), cluster.address()?);
    fs::create_dir(mnt.join("kept"))?;
    for n in 0..50u8 {
        fs::write(mnt.join(format!("kept/{n}")), vec![n; usize::from(n) * 10_000])?;
    }
    let digest = data::digest_tree(&mnt.join("kept"))?;
    // From here on two make the majority, and the second is one of them.
    cluster.stop_daemon("metadata", 0)?;
    fs::write(mnt.join("last"), "just before")?;
    weft_ok(&["umount", path(mnt)])?;
    let mut servers = old.split(',');
    let address = servers.next().context("no server")?.to_owned();
    let left = servers.next().context("no second server")?.to_owned();
    let dir = cluster.dir().join("metadata-2");
    let peer = format!("2={left}");
    let place = ["--id", "2", "--data-dir", path(&dir), "--peer", &peer];
    let rescued = cluster.scratch("backups")?.join("rescued");
    let salvage = [&["metadata", "salvage", path(&rescued)][..], &place[..]].concat();
    ensure!(!weft(&salvage)?.status.success(), "it runs");
    ensure!(fs::read_dir(&rescued)?.next().is_none(), "something was left");
    for index in [2, 1] {
        cluster.stop_daemon("metadata", index)?;
    }
    for lost in [1, 3] {
        fs::remove_dir_all(cluster.dir().join(format!("metadata-{lost}")))?;
    }
    println!("{}", weft_ok(&salvage)?);
    let again = cluster.scratch("again")?;
    let salvage = [&["metadata", "salvage", path(&again)][..], &place[..]].concat();
    weft_ok(&salvage)?;
    let place = Server::place(&cluster, 4, &address)?;
    weft_ok(&all(&["metadata", "restore", path(&rescued)], &place))?;
    let _server = Server::start_at(&cluster, 4, &address, None)?;
    await_health(&address, 4)?;
    weft_ok(&["mount", "--cluster", &address, path(mnt)])?;
    ensure!(data::digest_tree(&mnt.join("kept"))? == digest, "the tree has changed");
    ensure!(fs::read_to_string(mnt.join("last"))? == "just before");
    weft_ok(&["fsck", "--cluster", &address])?;
    Ok(())
}
