//! Another process goes on with a mount while programs use it.

// How long calls take in real time is part of what is shown.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use weft_proto::v1;
use weft_tests::load::{Load, Program};
use weft_tests::{Cluster, Shape, eventually, path, weft, weft_binary, weft_ok};

const PATIENCE: Duration = Duration::from_secs(60);
const TAKEOVERS: usize = 12;

/// Waits for a lock; says when it has it.
const WAITER: &str = r#"
import fcntl, sys
f = open(sys.argv[1], "r+")
print("waits", flush=True)
fcntl.lockf(f, fcntl.LOCK_EX)
print("has it", flush=True)
"#;

/// Whoever has a file open, mapped, locked or removed notices nothing; nor does who waits for a
/// lock, and a signal still ends that wait. Servers and daemons are restarted meanwhile, too.
#[test]
fn a_mount_goes_from_process_to_process_under_load() -> Result<()> {
    let cluster = Cluster::start()?;
    let load = Load::start(&cluster)?;
    let dir = load.dir().to_owned();
    let [mut waiter, mut signalled] =
        [Program::start(WAITER, &dir.join("lock"))?, Program::start(WAITER, &dir.join("lock"))?];
    for program in [&mut waiter, &mut signalled] {
        ensure!(program.hear()? == "waits");
        program.await_request()?;
    }
    let mut served = vec![cluster.pid_of_mount(cluster.mnt())?];
    for round in 0..TAKEOVERS {
        load.goes_on()?;
        weft_ok(&["mount", "--takeover", path(cluster.mnt())])?;
        let now = cluster.pid_of_mount(cluster.mnt())?;
        ensure!(!served.contains(&now), "round {round}: {now} in {served:?}");
        eventually(PATIENCE, "the process before has ended", || {
            let last = served.last()?;
            let status = fs::read_to_string(format!("/proc/{last}/status"));
            status.map_or(true, |text| text.contains("State:\tZ")).then_some(())
        })?;
        served.push(now);
        match round {
            2..6 => cluster.kill_storage(round - 2)?,
            6 | 8 => drop(cluster.kill_leader()?),
            9 => {
                signalled.signal(Signal::SIGTERM)?;
                ensure!(!signalled.child.wait()?.success(), "a signal ended no wait");
            }
            _ => continue,
        }
        cluster.start_again()?;
        cluster.await_targets("up", 6)?;
    }
    waiter.await_request()?;
    println!("{TAKEOVERS} takeovers: {}", load.end()?);
    ensure!(waiter.hear()? == "has it");
    drop(waiter);
    cluster.await_clean()?;
    weft_ok(&["umount", path(cluster.mnt())])?;
    ensure!(weft(&["mount", "--takeover", path(cluster.mnt())])?.status.code() == Some(1));
    Ok(())
}

/// Everything of a cluster that runs and is in use becomes of this version, one after the other.
/// The version before: `WEFT_PREVIOUS`, a binary that `make test-upgrade` builds, or else this one.
#[test]
fn a_cluster_of_the_version_before_is_upgraded_under_load() -> Result<()> {
    let previous = std::env::var_os("WEFT_PREVIOUS").map_or_else(weft_binary, PathBuf::from);
    let cluster = Cluster::start_by(&previous, Shape::default())?;
    let load = Load::start(&cluster)?;
    // In the order in which README has an admin do it.
    for index in 0..6 {
        load.goes_on()?;
        cluster.stop_daemon("storage", index)?;
        cluster.start_again()?;
        cluster.await_targets("up", 6)?;
    }
    for index in 0..3 {
        load.goes_on()?;
        cluster.stop_daemon("metadata", index)?;
        // With servers of both versions, whoever leads.
        load.goes_on()?;
        cluster.start_again()?;
        load.goes_on()?;
    }
    weft_ok(&["mount", "--takeover", path(cluster.mnt())])?;
    load.goes_on()?;
    // What needs all servers to be of this version.
    weft_ok(&["fsck", "--repair", "--cluster", &cluster.address()?])?;
    println!("upgraded: {}", load.end()?);
    cluster.await_clean()?;
    weft_ok(&["umount", path(cluster.mnt())]).map(drop)
}

/// As a process that is to go on with the mount, which the test gives up at any point.
struct Successor(UnixStream);

impl Successor {
    fn connect(cluster: &Cluster) -> Result<Self> {
        let (folder, pid) = (run_folder()?, cluster.pid_of_mount(cluster.mnt())?);
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            // One that was killed, and had this number before, has left its own.
            let is_its = path.to_string_lossy().contains(&format!("/{pid}-"));
            if is_its && let Ok(socket) = UnixStream::connect(&path) {
                return Ok(Self(socket));
            }
        }
        bail!("{pid} has no socket in {}", folder.display())
    }

    fn say(&mut self, message: &impl prost::Message) -> Result<()> {
        let bytes = message.encode_to_vec();
        self.0.write_all(&u32::try_from(bytes.len())?.to_le_bytes())?;
        Ok(self.0.write_all(&bytes)?)
    }

    fn hear<M: prost::Message + Default>(&mut self) -> Result<M> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len)?;
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(M::decode(&bytes[..])?)
    }

    /// Asks, and takes the state; the mount waits from then on.
    fn take(&mut self) -> Result<v1::MountState> {
        self.take_as(ask(true))
    }

    fn take_as(&mut self, asked: v1::TakeoverRequest) -> Result<v1::MountState> {
        self.say(&asked)?;
        let offer: v1::TakeoverOffer = self.hear()?;
        ensure!(offer.error.is_none() && offer.metadata.len() == 3, "{offer:?}");
        self.say(&v1::TakeoverWord::default())?;
        self.hear()
    }
}

fn ask(takes_names: bool) -> v1::TakeoverRequest {
    v1::TakeoverRequest { version: 1, software: "a test".into(), takes_names }
}

fn run_folder() -> Result<PathBuf> {
    let folder = std::env::var_os("WEFT_RUN_DIR").map_or_else(|| "/run/weft".into(), PathBuf::from);
    Ok(folder.join("mounts"))
}

/// Nobody else serves it, so it goes on where it was.
#[test]
fn a_mount_that_nobody_takes_over_goes_on() -> Result<()> {
    let cluster = Cluster::start()?;
    let served = cluster.pid_of_mount(cluster.mnt())?;
    let load = Load::start(&cluster)?;
    let dir = load.dir().to_owned();
    let mut waiter = Program::start(WAITER, &dir.join("lock"))?;
    ensure!(waiter.hear()? == "waits");
    waiter.await_request()?;

    // Of another version; what cannot be understood; gone at each step.
    let mut other = Successor::connect(&cluster)?;
    other.say(&v1::TakeoverRequest { version: 99, ..Default::default() })?;
    ensure!(other.hear::<v1::TakeoverOffer>()?.error.is_some());
    for garbage in [&[0xff; 64][..], &[8, 0, 0, 0, 0xff, 0xff], b""] {
        Successor::connect(&cluster)?.0.write_all(garbage)?;
    }
    for _ in 0..5 {
        let mut successor = Successor::connect(&cluster)?;
        let state = successor.take()?;
        ensure!(state.error.is_none(), "{:?}", state.error);
        let client = state.client.context("no state")?;
        ensure!(client.session > 0 && !client.files.is_empty() && !client.locks.is_empty());
        ensure!(state.requests.len() == 1, "{} wait for a lock", state.requests.len());
    }
    // It says that it cannot.
    let mut unable = Successor::connect(&cluster)?;
    unable.take()?;
    let error = Some(v1::ErrorHead { code: 5, message: "no".into(), ..Default::default() });
    unable.say(&v1::TakeoverWord { error })?;
    ensure!(unable.0.read(&mut [0; 64])? > 0, "the descriptor");

    println!("{}", load.end()?);
    ensure!(waiter.hear()? == "has it");
    ensure!(cluster.pid_of_mount(cluster.mnt())? == served);
    weft_ok(&["mount", "--takeover", path(cluster.mnt())])?;
    cluster.await_clean()
}

/// An older version takes no names back from the kernel: it gets a mount of which that has none.
#[test]
fn who_knows_of_no_names_in_the_kernel_finds_none_there() -> Result<()> {
    const NAMES: u64 = 100;
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let look = || (0..NAMES).try_for_each(|i| fs::metadata(m.join(i.to_string())).map(drop));
    // Requests of the kernel are most of what the process reads.
    let asked = || -> Result<u64> {
        let io = format!("/proc/{}/io", cluster.pid_of_mount(m)?);
        let reads = || -> Result<u64> {
            let counts = fs::read_to_string(&io)?;
            let count = counts.lines().find_map(|line| line.strip_prefix("syscr: "));
            Ok(count.context("reads are not counted")?.parse()?)
        };
        let before = reads()?;
        look()?;
        Ok(reads()? - before)
    };
    (0..NAMES).try_for_each(|i| fs::write(m.join(i.to_string()), ""))?;
    eventually(Duration::from_secs(60), "names in the kernel", || {
        (asked().ok()? < NAMES / 4).then_some(())
    })?;
    let mut heir = Successor::connect(&cluster)?;
    let state = heir.take_as(ask(false))?;
    ensure!(state.error.is_none() && state.known.is_none());
    drop(heir);
    // A name and its attributes each.
    let again = asked()?;
    ensure!(again >= 2 * NAMES, "{again} requests for {NAMES} names");
    let state = Successor::connect(&cluster)?.take()?;
    ensure!(state.known.is_some_and(|known| known.dirs.iter().any(|dir| dir.names.len() > 90)));
    cluster.await_clean()
}

/// Without a cluster that answers nothing can be committed first.
#[test]
fn a_takeover_in_an_outage_fails_and_costs_nothing() -> Result<()> {
    let cluster = Cluster::start()?;
    let load = Load::start(&cluster)?;
    let served = cluster.pid_of_mount(cluster.mnt())?;
    let mut successor = Successor::connect(&cluster)?;
    successor.say(&ask(true))?;
    successor.hear::<v1::TakeoverOffer>()?;
    let paused = cluster.pause_metadata()?;
    successor.say(&v1::TakeoverWord::default())?;
    let state: v1::MountState = successor.hear()?;
    let error = state.error.context("the mount came to rest without a cluster")?;
    ensure!(error.message.contains("go on") || error.message.contains("to rest"), "{error:?}");
    drop(paused);
    println!("{}", load.end()?);
    ensure!(cluster.pid_of_mount(cluster.mnt())? == served);
    weft_ok(&["mount", "--takeover", path(cluster.mnt())])?;
    cluster.await_clean()
}

/// It is told to stop while another process has its state, and is the one that serves still.
#[test]
fn a_mount_that_is_offered_and_told_to_stop_stops() -> Result<()> {
    let cluster = Cluster::start()?;
    fs::write(cluster.mnt().join("f"), "kept")?;
    let served = cluster.pid_of_mount(cluster.mnt())?;
    let mut successor = Successor::connect(&cluster)?;
    successor.take()?;
    kill(served, Signal::SIGTERM)?;
    eventually(PATIENCE, "the mount is gone", || {
        weft_fuse::mount_at(cluster.mnt()).ok()?.is_none().then_some(())
    })?;
    let mut rest = Vec::new();
    successor.0.read_to_end(&mut rest)?;
    ensure!(rest.len() > 5, "it was not told that the offer is taken back: {rest:?}");
    ensure!(successor.say(&v1::TakeoverWord::default()).is_err());
    cluster.start_again()?;
    ensure!(fs::read(cluster.mnt().join("f"))? == b"kept");
    cluster.await_opens(&[0])
}

/// Whatever becomes of the command, one process serves.
#[test]
fn a_takeover_whose_command_is_killed_is_made_or_not() -> Result<()> {
    let cluster = Cluster::start()?;
    let load = Load::start(&cluster)?;
    for after in 0..30 {
        let mut command = Command::new(weft_binary())
            .args(["mount", "--takeover", path(cluster.mnt())])
            .stderr(Stdio::null())
            .spawn()?;
        // At any point of what takes some 20 ms.
        std::thread::sleep(Duration::from_millis(after));
        command.kill()?;
        command.wait()?;
    }
    println!("{}", load.end()?);
    eventually(PATIENCE, "a takeover at rest", || {
        weft_ok(&["mount", "--takeover", path(cluster.mnt())]).ok()
    })?;
    cluster.await_clean()?;
    weft_ok(&["umount", path(cluster.mnt())]).map(drop)
}
