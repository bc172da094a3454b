//! What an admin does, and what is said of what does not go well.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;
use weft_tests::server::{Daemon, Server};
use weft_tests::{Cluster, Shape, eventually, path, weft, weft_binary, weft_ok};

const PATIENCE: Duration = Duration::from_secs(60);

fn small() -> Result<Cluster> {
    let (profile, target_size) = ("1+1", "64MiB");
    Cluster::start_as(Shape { metadata: 1, storage: 3, profile, target_size, ..Shape::default() })
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn mounted(at: &Path) -> Result<bool> {
    let lines = fs::read_to_string("/proc/mounts")?;
    Ok(lines.lines().any(|line| line.split(' ').nth(1) == at.to_str()))
}

/// The process of a mount dies before it has said that all is durable: whoever unmounts is told.
#[test]
fn an_unmount_whose_last_flush_failed_fails() -> Result<()> {
    let cluster = small()?;
    let m = cluster.mnt().to_owned();
    let paused = cluster.pause_mount(&m)?;
    thread::scope(|s| -> Result<()> {
        let umount = s.spawn(|| weft(&["umount", path(&m)]));
        eventually(PATIENCE, "an unmount", || mounted(&m).ok()?.eq(&false).then_some(()))?;
        cluster.kill_mount(&m)?;
        let umount = umount.join().expect("no panic")?;
        ensure!(umount.status.code() == Some(1), "it succeeded");
        ensure!(said(&umount).contains("died before everything was durable"), "{}", said(&umount));
        Ok(())
    })?;
    drop(paused);
    // So is who stops the cluster, once all of it is stopped.
    cluster.start_again()?;
    let paused = cluster.pause_mount(&m)?;
    let stop = weft(&["dev", "stop", "--dir", path(cluster.dir()), "--timeout", "1"])?;
    drop(paused);
    ensure!(stop.status.code() == Some(1) && said(&stop).contains("was killed"), "{}", said(&stop));
    ensure!(cluster.status()?["metadata"][0]["pid"].is_null(), "the cluster runs on");
    // What went well is no failure.
    cluster.start_again()?;
    fs::write(m.join("f"), "x")?;
    weft_ok(&["umount", path(&m)]).map(drop)
}

/// No command could find the mount or end it.
#[test]
fn a_mount_that_cannot_be_recorded_does_not_stay() -> Result<()> {
    let cluster = small()?;
    let at = cluster.scratch("second")?;
    let file = cluster.scratch("files")?.join("file");
    fs::write(&file, "no folder")?;
    let log = cluster.dir().join("log/second.log");
    let mount = Command::new(weft_binary())
        .args(["mount", "--cluster", &cluster.address()?, "--log-file", path(&log), path(&at)])
        .env("WEFT_RUN_DIR", &file)
        .envs(cluster.environment())
        .stdin(Stdio::null())
        .output()?;
    ensure!(mount.status.code() == Some(1), "it succeeded");
    ensure!(said(&mount).contains("WEFT_RUN_DIR"), "{}", said(&mount));
    ensure!(!mounted(&at)?, "it is mounted");
    fs::read_dir(&at).context("the mount point is not usable")?;
    Ok(())
}

/// A mount answers nothing while the metadata servers are away: who starts them does not ask it
/// before.
#[test]
fn a_start_does_not_wait_for_a_mount_whose_cluster_is_away() -> Result<()> {
    let cluster = Cluster::start()?;
    let metadata = |status: &Value| -> Option<Vec<i64>> {
        status["metadata"].as_array()?.iter().map(|m| m["pid"].as_i64()).collect()
    };
    let before = metadata(&cluster.status()?).context("all run")?;
    let paused = cluster.pause_mount(cluster.mnt())?;
    for &pid in &before[..2] {
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
    }
    thread::scope(|s| -> Result<()> {
        let start = s.spawn(|| cluster.start_again());
        let back = eventually(PATIENCE, "a majority of metadata servers", || {
            metadata(&cluster.status().ok()?)
        });
        drop(paused);
        start.join().expect("no panic")?;
        back.map(drop)
    })?;
    ensure!(fs::read_dir(cluster.mnt())?.count() == 0);
    Ok(())
}

/// A start that cannot get any further, since a daemon of the cluster looks for it elsewhere.
#[test]
fn a_start_that_is_interrupted_stops_what_it_started() -> Result<()> {
    let cluster = small()?;
    cluster.stop()?;
    let config = cluster.dir().join("config/storage-1.toml");
    let text = fs::read_to_string(&config)?;
    let address = cluster.address()?;
    fs::write(&config, text.replace(&address, "127.0.0.1:1"))?;
    ensure!(fs::read_to_string(&config)? != text, "{text}");
    let start = Command::new(weft_binary())
        .args(["dev", "start", "--dir", path(cluster.dir()), "--no-mount"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let running = || -> Option<usize> {
        let status = cluster.status().ok()?;
        let all = ["metadata", "storage"].iter().flat_map(|r| status[*r].as_array());
        Some(all.flatten().filter(|d| !d["pid"].is_null()).count())
    };
    eventually(PATIENCE, "daemons that run", || running().filter(|&n| n == 4))?;
    kill(Pid::from_raw(i32::try_from(start.id())?), Signal::SIGINT)?;
    let ended = start.wait_with_output()?;
    ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, said(&ended));
    let words = said(&ended);
    ensure!(words.contains("interrupted") && words.contains("stopped again"), "{words}");
    ensure!(running() == Some(0), "daemons run on");
    fs::write(&config, text)?;
    cluster.start_again()
}

/// The process that serves a mount in the foreground, and its end.
struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_service_manager_knows_when_a_mount_is_usable_and_cleans_up_after_it() -> Result<()> {
    let cluster = small()?;
    let at = cluster.scratch("service")?;
    let socket = cluster.scratch("sockets")?.join("notify");
    let manager = UnixDatagram::bind(&socket)?;
    let log = File::create(cluster.dir().join("log/service.log"))?;
    let service = Command::new(weft_binary())
        .args(["mount", "--foreground", "--cluster", &cluster.address()?, path(&at)])
        .env("NOTIFY_SOCKET", &socket)
        .envs(cluster.environment())
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()?;
    let mut service = Foreground(service);
    let mut word = [0; 64];
    let len = manager.recv(&mut word)?;
    ensure!(&word[..len] == b"READY=1", "{:?}", String::from_utf8_lossy(&word[..len]));
    ensure!(mounted(&at)?, "it said so too early");
    fs::write(at.join("f"), "x")?;

    // A living one stays, a dead one goes.
    weft_ok(&["umount", "--dead", path(&at)])?;
    ensure!(fs::read(at.join("f"))? == b"x");
    // Its reload: another process is the service from then on.
    weft_ok(&["mount", "--takeover", path(&at)])?;
    let len = manager.recv(&mut word)?;
    let said = String::from_utf8_lossy(&word[..len]).into_owned();
    let main = cluster.pid_of_mount(&at)?;
    ensure!(said == format!("MAINPID={main}"), "{said}, not of {main}");
    ensure!(service.0.wait()?.success() && fs::read(at.join("f"))? == b"x");
    cluster.kill_mount(&at)?;
    ensure!(mounted(&at)?, "a dead mount stays until somebody takes it away");
    weft_ok(&["umount", "--dead", path(&at)])?;
    ensure!(!mounted(&at)?, "it is still there");
    weft_ok(&["umount", "--dead", path(&at)]).map(drop)
}

#[test]
fn a_service_manager_knows_that_a_daemon_takes_connections_and_lives() -> Result<()> {
    let (profile, target_size) = ("1+1", "64MiB");
    let small = Shape { metadata: 1, storage: 3, profile, target_size, ..Shape::default() };
    let cluster = Cluster::start_as(Shape { tls: false, ..small })?;
    let socket = cluster.scratch("sockets")?.join("notify");
    let manager = UnixDatagram::bind(&socket)?;
    manager.set_read_timeout(Some(PATIENCE))?;
    let hear = || -> Result<String> {
        let mut word = [0; 64];
        let len = manager.recv(&mut word).context("nothing is said")?;
        Ok(String::from_utf8_lossy(&word[..len]).into_owned())
    };
    let told = || vec![("NOTIFY_SOCKET", socket.clone()), ("WATCHDOG_USEC", "100000".into())];
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    drop(listener);
    let mut metadata = vec!["metadata".to_owned()];
    metadata.extend(Server::place(&cluster, 9, &address)?);
    metadata.extend(["--peer".into(), format!("1={}", cluster.address()?)]);
    let words = ["storaged", "--name", "idle", "--listen", &address];
    let mut storaged: Vec<String> = words.map(str::to_owned).into();
    storaged.extend(["--metadata".into(), cluster.address()?]);
    let target = cluster.scratch("idle")?.join("target");
    weft_ok(&["target", "add", path(&target), "--no-config", "--size", "64MiB", "--sparse"])?;
    storaged.extend(["--target".into(), path(&target).into()]);
    for (name, daemon) in [("idle-metadata", metadata), ("idle-storaged", storaged)] {
        let _daemon = Daemon::start(&cluster, name, daemon, told())?;
        ensure!(hear()? == "READY=1");
        TcpStream::connect(&address).context("it said so too early")?;
        for _ in 0..3 {
            ensure!(hear()? == "WATCHDOG=1");
        }
        drop(_daemon);
        // What it said last.
        manager.set_nonblocking(true)?;
        while hear().is_ok() {}
        manager.set_nonblocking(false)?;
    }
    Ok(())
}

#[test]
fn who_stops_a_cluster_hears_of_open_files_and_of_other_mounts() -> Result<()> {
    let cluster = small()?;
    let second = cluster.mount_again("second")?;
    let dir = path(cluster.dir());
    let held = File::create(second.join("held"))?;
    let busy = weft(&["umount", path(&second)])?;
    let me = format!("({})", std::process::id());
    ensure!(!busy.status.success() && said(&busy).contains(&me), "{}", said(&busy));

    // Killed: a later start brings back its own mount, and says what it leaves.
    cluster.kill_all()?;
    drop(held);
    let start = weft(&["dev", "start", "--dir", dir, "--mount", path(cluster.mnt())])?;
    ensure!(start.status.success(), "{}", said(&start));
    ensure!(
        said(&start).contains(&format!("the process of {}", second.display())),
        "{}",
        said(&start)
    );
    weft_ok(&["umount", path(&second)])?;

    let second = cluster.mount_again("third")?;
    let held = File::create(second.join("held"))?;
    let stop = weft(&["dev", "stop", "--dir", dir])?;
    ensure!(said(&stop).contains(&me), "{}", said(&stop));
    let words = String::from_utf8_lossy(&stop.stdout).into_owned();
    ensure!(words.contains(&format!("{} was unmounted, too", second.display())), "{words}");
    drop(held);
    cluster.start_again()
}

#[test]
fn what_a_layout_does_not_do_is_said() -> Result<()> {
    let cluster = small()?;
    let m = cluster.mnt();
    let (dir, file) = (m.join("dir"), m.join("file"));
    fs::create_dir(&dir)?;
    let wide = weft(&["layout", "set", path(&dir), "--ec", "4+1"])?;
    ensure!(wide.status.success() && said(&wide).contains("data is written as"), "{}", said(&wide));
    let fits = weft(&["layout", "set", path(&dir), "--replica", "2"])?;
    ensure!(fits.status.success() && said(&fits).is_empty(), "{}", said(&fits));
    fs::write(&file, "x")?;
    let full = weft(&["layout", "set", path(&file), "--replica", "2"])?;
    ensure!(!full.status.success() && said(&full).contains("holds data"), "{}", said(&full));
    Ok(())
}

/// A file that is open under a lease is not told to the leader, and counts all the same.
#[test]
fn open_files_are_counted() -> Result<()> {
    let cluster = small()?;
    let name = |i: usize| cluster.mnt().join(format!("f{i}"));
    let files = (0..5).map(|i| Ok(File::create(name(i))?)).collect::<Result<Vec<_>>>()?;
    let address = cluster.address()?;
    let await_open = |wanted: u64| {
        eventually(PATIENCE, &format!("{wanted} open files"), || {
            let status = weft_ok(&["status", "--cluster", &address, "--output", "json"]).ok()?;
            let status: Value = serde_json::from_str(&status).ok()?;
            (status["sessions"][0]["open_files"] == wanted).then_some(())
        })
    };
    await_open(5)?;
    drop(files);
    await_open(0)
}
