//! The whole daemon over TCP, beside a metadata server's control service that notes what it hears.

use crate::metadata::Metadata;
use crate::support::{data, id, make};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::tempdir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use weft_net::{Body, Identity, Peer, Peers};
use weft_proto::{ChunkId, ErrorKind, Result, Uuid, v1};
use weft_storaged::engine::TargetOptions;
use weft_storaged::nvmeof::Roots;
use weft_storaged::{Clock, Config, Daemon, Target};

pub const CLUSTER: Uuid = Uuid([7; 16]);
const SIZE: u64 = 32 << 20;

pub struct Running {
    pub address: String,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<()>>,
}

async fn start(dir: &Path, metadata: Vec<String>, targets: &[&str]) -> Running {
    let mut config = Config::new("s1", "127.0.0.1:0", metadata);
    config.domain = Some("rack-a".into());
    config.targets = (targets.iter()).map(|name| Target::new(dir.join(name), Some(SIZE))).collect();
    for target in config.targets.iter().filter(|t| !t.path.exists()) {
        make(&target.options());
    }
    run(config).await
}

pub async fn run(config: Config) -> Running {
    let daemon = Daemon::bind(config, weft_net::tcp()).await.unwrap();
    let address = daemon.address().to_string();
    let (stop, stopped) = watch::channel(false);
    Running { address, stop, task: tokio::spawn(daemon.run(stopped)) }
}

impl Running {
    pub async fn stop(self) -> Result<()> {
        self.stop.send_replace(true);
        self.task.await.unwrap()
    }

    pub fn peer(&self) -> Arc<Peer> {
        let identity = Identity { name: "test".into(), cluster: Some(CLUSTER) };
        Peers::new(weft_net::tcp(), identity).peer(&self.address)
    }
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub async fn put(peer: &Peer, target: u32, seq: u64, blocks: usize) -> Result<()> {
    let chunk = id(1, seq, 0);
    let (bytes, checksums) = data(chunk, blocks, 0);
    let head =
        v1::PutRequest { target, chunk: Some(chunk.into()), checksums, ..Default::default() };
    let body = Body { send: vec![bytes], into: Vec::new() };
    peer.exchange(&head, body, soon()).await.map(drop)
}

pub async fn get(
    peer: &Peer,
    target: u32,
    seq: u64,
    off: u64,
    len: u64,
) -> Result<(Vec<u32>, Vec<u8>)> {
    let head = v1::GetRequest {
        target,
        chunk: Some(id(1, seq, 0).into()),
        off,
        len,
        ..Default::default()
    };
    let answer = peer.exchange(&head, Body::default(), soon()).await?;
    Ok((answer.head.checksums, answer.payload.concat()))
}

/// Parts of chunks of session 1, each with the place of its ticket.
async fn get_many(
    peer: &Peer,
    parts: impl IntoIterator<Item = (u64, u64, u64, u32)>,
) -> Result<(Vec<u32>, Vec<u8>)> {
    let part = |(seq, off, len, ticket)| {
        let chunk = Some(id(1, seq, 0).into());
        v1::get_many_request::Part { chunk, off, len, ticket }
    };
    let parts = parts.into_iter().map(part).collect();
    let head = v1::GetManyRequest { target: 1, parts, tickets: vec![] };
    let answer = peer.exchange(&head, Body::default(), soon()).await?;
    Ok((answer.head.checksums, answer.payload.concat()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_parts_are_answered_in_order_or_none() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let daemon = start(dir.path(), vec![metadata.serve().await], &["a"]).await;
    let peer = daemon.peer();
    stat(&peer, 1).await;
    for seq in 1..=20 {
        put(&peer, 1, seq, seq as usize).await.unwrap();
    }
    let wanted = (1..=20).rev().map(|seq| (seq, (seq / 2) * 4096, (seq - seq / 2) * 4096, 0));
    let (mut sums, mut bytes) = (Vec::new(), Vec::new());
    for (seq, off, ..) in wanted.clone() {
        let (all, all_sums) = data(id(1, seq, 0), seq as usize, 0);
        bytes.extend_from_slice(&all[off as usize..]);
        sums.extend_from_slice(&all_sums[off as usize / 4096..]);
    }
    let answer = get_many(&peer, wanted).await.unwrap();
    assert!(answer == (sums, bytes));
    // The same block again and again, as often as that is allowed.
    let (_, bytes) = get_many(&peer, [(1, 0, 4096, 0); 256]).await.unwrap();
    assert_eq!(bytes.len(), 256 * 4096);
    let refused =
        async |parts: &[_]| get_many(&peer, parts.iter().copied()).await.unwrap_err().kind;
    let good = (1, 0, 4096, 0);
    assert_eq!(refused(&[]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[good; 257]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[good, (1, 0, u64::MAX, 0)]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[(1, 0, u64::MAX, 0), (1, 0, 2, 0)]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[good, (1, 4096, 4096, 0)]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[good, (1, 0, 0, 0)]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[good, (1, 0, 100, 0)]).await, ErrorKind::Invalid);
    assert_eq!(refused(&[good, (99, 0, 4096, 0)]).await, ErrorKind::NotFound);
    assert_eq!(refused(&[good, (1, 0, 4096, 1)]).await, ErrorKind::Protocol);
    let tickets = v1::GetManyRequest {
        target: 1,
        parts: vec![v1::get_many_request::Part {
            chunk: Some(id(1, 1, 0).into()),
            len: 4096,
            ..Default::default()
        }],
        tickets: vec![Default::default(); 2],
    };
    let refused = peer.exchange(&tickets, Body::default(), soon()).await.map(drop);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid, "more tickets than parts");
    let parts = vec![Default::default(); 200_000];
    let long = v1::GetManyRequest { target: 1, parts, tickets: vec![] };
    let refused = peer.exchange(&long, Body::default(), soon()).await.map(drop);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid, "it is not even looked at");
    let keyless = v1::GetManyRequest {
        target: 1,
        parts: vec![v1::get_many_request::Part { len: 4096, ..Default::default() }],
        tickets: vec![],
    };
    let refused = peer.exchange(&keyless, Body::default(), soon()).await.map(drop);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Protocol);
    daemon.stop().await.unwrap();
}

/// Asks until the target is served.
pub async fn stat(peer: &Peer, target: u32) -> v1::TargetStat {
    let until = soon();
    loop {
        match peer.call(&v1::TargetStatRequest { target }, soon()).await {
            Ok(stat) => return stat,
            Err(e) => assert!(Instant::now() < until, "{e}"),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_registers_and_comes_back() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let leader = metadata.serve().await;
    let follower = Metadata::default();
    *follower.1.leader.lock() = Some(leader.clone());
    let dead = "127.0.0.1:1".to_string();
    let addresses = vec![dead, follower.serve().await];

    let daemon = start(dir.path(), addresses.clone(), &["a", "b"]).await;
    let beat = metadata.wait_for_beat(|b| b.targets.len() == 2).await;
    assert_eq!(beat.cluster[..], CLUSTER.0);
    assert!(!beat.stopping && beat.failed.is_empty());
    let known = metadata.0.lock().clone();
    assert!(
        known
            .iter()
            .all(|t| t.address == daemon.address && t.domain == "rack-a" && t.capacity_bytes > 0)
    );

    let peer = daemon.peer();
    put(&peer, 1, 5, 33).await.unwrap();
    put(&peer, 1, 5, 33).await.unwrap();
    assert_eq!(put(&peer, 1, 5, 34).await.unwrap_err().kind, ErrorKind::Exists);
    // No chunk of it counts as missing.
    assert_eq!(put(&peer, 9, 5, 1).await.unwrap_err().kind, ErrorKind::StaleMap);
    let identity = Identity { name: "stranger".into(), cluster: Some(Uuid([8; 16])) };
    let stranger = Peers::new(weft_net::tcp(), identity).peer(&daemon.address);
    assert_eq!(put(&stranger, 1, 6, 1).await.unwrap_err().kind, ErrorKind::WrongCluster);
    assert_eq!(get(&stranger, 1, 5, 0, 4096).await.unwrap_err().kind, ErrorKind::WrongCluster);
    let (bytes, sums) = data(id(1, 5, 0), 33, 0);
    let (got_sums, got) = get(&peer, 1, 5, 4096, 8192).await.unwrap();
    assert_eq!((got_sums, got), (sums[1..3].to_vec(), bytes[4096..12288].to_vec()));
    for (off, len) in [(1, 4096), (0, 100), (0, 0), (33 * 4096, 4096), (u64::MAX - 4095, 4096)] {
        assert_eq!(
            get(&peer, 1, 5, off, len).await.unwrap_err().kind,
            ErrorKind::Invalid,
            "{off} {len}"
        );
    }
    assert_eq!(get(&peer, 2, 5, 0, 4096).await.unwrap_err().kind, ErrorKind::NotFound);

    let wrong = v1::PutRequest {
        target: 1,
        chunk: Some(id(1, 6, 0).into()),
        checksums: vec![1],
        ..Default::default()
    };
    let body = Body { send: vec![bytes.slice(..4096)], into: Vec::new() };
    let refused = peer.exchange(&wrong, body, soon()).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(stat(&peer, 1).await.chunks, 1);
    metadata.wait_for_beat(|b| b.targets.iter().any(|t| t.chunks == 1)).await;

    daemon.stop().await.unwrap();
    metadata.wait_for_beat(|b| b.stopping).await;

    serves_without_metadata(dir.path(), &bytes).await;
}

/// What is there is served.
async fn serves_without_metadata(dir: &Path, bytes: &[u8]) {
    let daemon = start(dir, vec!["127.0.0.1:1".into()], &["a", "b"]).await;
    let peer = daemon.peer();
    stat(&peer, 1).await;
    let (_, got) = get(&peer, 1, 5, 0, 33 * 4096).await.unwrap();
    assert!(got == bytes);
    let list = v1::ListRequest { target: 1, after: None, session: 1, limit: 10 };
    let listed = peer.call(&list, soon()).await.unwrap();
    assert_eq!(listed.items[0].length, 33 * 4096);
    let report = v1::ReportCorruptRequest {
        target: 1,
        chunk: Some(id(1, 5, 0).into()),
        off: 0,
        len: 0,
        length: 0,
    };
    peer.call(&report, soon()).await.unwrap();
    assert_eq!(stat(&peer, 1).await.checksum_errors, 0);
    let delete = v1::DeleteRequest {
        target: 1,
        chunks: vec![id(1, 5, 0).into(), id(1, 6, 0).into()],
        ..Default::default()
    };
    let deleted = peer.call(&delete, soon()).await.unwrap();
    assert_eq!(deleted.deleted, 1);
    let fence = |first, last| {
        let ended = vec![v1::SessionRange { first, last }];
        v1::FenceRequest { target: 1, ended }
    };
    let none = peer.call(&fence(2, 1), soon()).await;
    assert_eq!(none.unwrap_err().kind, ErrorKind::Invalid);
    peer.call(&fence(0, u64::MAX), soon()).await.unwrap();
    let late = put(&peer, 1, 5, 33).await;
    assert_eq!(late.unwrap_err().kind, ErrorKind::SessionExpired);
    let unknown = peer.call_op::<_, v1::PutReply>(99, &delete, soon()).await;
    assert_eq!(unknown.unwrap_err().kind, ErrorKind::Protocol);
    // Its address was that of a metadata server once, and who remembers it asks the others.
    let elsewhere = peer.call(&v1::MetaRequest::default(), soon()).await;
    assert_eq!(elsewhere.unwrap_err().kind, ErrorKind::NotLeader);
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_target_does_not_stop_the_others() {
    let dir = tempdir().unwrap();
    std::fs::write(dir.path().join("bad"), vec![9; SIZE as usize]).unwrap();
    let metadata = Metadata::default();
    let leader = metadata.serve().await;
    let daemon = start(dir.path(), vec![leader.clone()], &["bad", "good"]).await;
    let beat = metadata.wait_for_beat(|b| !b.targets.is_empty()).await;
    put(&daemon.peer(), beat.targets[0].target, 1, 1).await.unwrap();
    daemon.stop().await.unwrap();
    assert_eq!(std::fs::read(dir.path().join("bad")).unwrap(), vec![9; SIZE as usize]);

    // A clone of a target beside it is refused; with no other target the daemon says why.
    std::fs::copy(dir.path().join("good"), dir.path().join("clone")).unwrap();
    let before = std::fs::read(dir.path().join("clone")).unwrap();
    let metadata = Metadata::default();
    let other = metadata.serve().await;
    let daemon = start(dir.path(), vec![other], &["good", "clone"]).await;
    stat(&daemon.peer(), 1).await;
    // Targets are opened beside each other: the second would have come by then.
    let mut beats = metadata.1.beats.subscribe();
    let some = beats.wait_for(|all| all.iter().filter(|b| !b.targets.is_empty()).count() > 3);
    let all = tokio::time::timeout(Duration::from_secs(60), some).await.unwrap().unwrap().clone();
    assert!(all.iter().all(|beat| beat.targets.len() < 2), "both are served: {all:?}");
    daemon.stop().await.unwrap();
    assert!(std::fs::read(dir.path().join("clone")).unwrap() == before, "it was written to");
    let failed = start(dir.path(), vec![leader], &["bad"]).await.task.await.unwrap().unwrap_err();
    assert!(failed.message.contains("bad") && failed.message.contains("not blank"), "{failed}");
}

/// What is missing is not made, and what is blank is not formatted: only an admin does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_makes_no_targets() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a");
    let mut config = Config::new("s1", "127.0.0.1:0", vec!["127.0.0.1:1".into()]);
    config.targets = vec![Target::new(&path, Some(SIZE))];
    let missing = run(config.clone()).await.task.await.unwrap().unwrap_err();
    assert!(missing.message.contains("does not exist"), "{missing}");
    assert!(missing.message.contains("weft target add"), "{missing}");
    assert!(!path.exists());

    let zeros = vec![0; SIZE as usize];
    std::fs::write(&path, &zeros).unwrap();
    let blank = run(config.clone()).await.task.await.unwrap().unwrap_err();
    assert!(blank.message.contains("blank"), "{blank}");
    assert!(std::fs::read(&path).unwrap() == zeros);

    // A target whose beginning was wiped, index and all: it is not made anew over its chunks.
    std::fs::remove_file(&path).unwrap();
    let metadata = Metadata::default();
    let daemon = start(dir.path(), vec![metadata.serve().await], &["a"]).await;
    metadata.wait_for_beat(|b| !b.targets.is_empty()).await;
    put(&daemon.peer(), 1, 5, 200).await.unwrap();
    put(&daemon.peer(), 1, 6, 33).await.unwrap();
    daemon.stop().await.unwrap();
    std::fs::remove_dir_all(dir.path().join("a.index")).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[0; 1 << 20], 0).unwrap();
    file.write_all_at(&[0; 4096], SIZE - 4096).unwrap();
    let mut wiped = vec![0; SIZE as usize];
    file.read_exact_at(&mut wiped, 0).unwrap();
    let refused = run(config).await.task.await.unwrap().unwrap_err();
    assert!(refused.message.contains("not blank"), "{refused}");
    assert!(std::fs::read(&path).unwrap() == wiped);
}

/// An open that fails as a drive that is away for a moment fails does not wait for an admin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_target_whose_open_met_an_error_is_opened_once_it_can_be() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let leader = metadata.serve().await;
    let daemon = start(dir.path(), vec![leader.clone()], &["a"]).await;
    metadata.wait_for_beat(|b| !b.targets.is_empty()).await;
    put(&daemon.peer(), 1, 5, 33).await.unwrap();
    daemon.stop().await.unwrap();

    // Where its index is cannot be looked at.
    let (index, kept) = (dir.path().join("a.index"), dir.path().join("kept"));
    std::fs::rename(&index, &kept).unwrap();
    std::fs::write(&index, "not a folder").unwrap();
    let daemon = start(dir.path(), vec![leader], &["a"]).await;
    let peer = daemon.peer();
    let away = |r: &Result<_>| matches!(r, Err(e) if e.kind == ErrorKind::Unavailable);
    until(&peer, away).await;
    std::fs::remove_file(&index).unwrap();
    std::fs::rename(&kept, &index).unwrap();
    until(&peer, Result::is_ok).await;
    daemon.stop().await.unwrap();
}

/// A drive keeps its id in another machine, whose daemon rebuilds the index that stayed behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drive_that_moves_to_another_host_is_the_same_target() {
    let (old, new) = (tempdir().unwrap(), tempdir().unwrap());
    let metadata = Metadata::default();
    let leader = metadata.serve().await;
    let daemon = start(old.path(), vec![leader.clone()], &["a", "b"]).await;
    metadata.wait_for_beat(|b| b.targets.len() == 2).await;
    let (uuid, target) = {
        let known = metadata.0.lock();
        let moved = known.iter().find(|t| t.path.ends_with("/b")).unwrap();
        (moved.uuid.clone(), moved.id)
    };
    put(&daemon.peer(), target, 5, 33).await.unwrap();
    daemon.stop().await.unwrap();
    // It may have been heard of with this target alone, before the other was open.
    metadata.1.beats.send_modify(Vec::clear);
    std::fs::rename(old.path().join("b"), new.path().join("b")).unwrap();
    // Else an index that may be mounted late is waited for.
    std::fs::create_dir(new.path().join("b.index")).unwrap();
    let daemon = start(new.path(), vec![leader], &["b"]).await;
    let address = daemon.address.clone();
    let peer = daemon.peer();
    stat(&peer, target).await;
    let (_, got) = get(&peer, target, 5, 0, 33 * 4096).await.unwrap();
    assert!(got == data(id(1, 5, 0), 33, 0).0);
    metadata.wait_for_beat(|b| b.targets.len() == 1 && b.targets[0].target == target).await;
    let now = metadata.0.lock().iter().find(|t| t.uuid == uuid).cloned().unwrap();
    assert_eq!((now.id, now.address), (target, address));
    daemon.stop().await.unwrap();
}

/// Writes attributes as the kernel shows them.
fn show(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // At once, as in sysfs: who reads meanwhile must not find it empty.
        std::fs::write(root.join("new"), text).unwrap();
        std::fs::rename(root.join("new"), path).unwrap();
    }
}

/// Asks for the chunk until the answer is as wanted.
pub async fn until(peer: &Peer, wanted: impl Fn(&Result<(Vec<u32>, Vec<u8>)>) -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = get(peer, 1, 5, 0, 4096).await;
        if wanted(&answer) {
            return;
        }
        assert!(Instant::now() < patience, "{:?}", answer.map(|a| a.0));
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_behind_a_fabric_goes_and_comes_with_its_path() {
    let dir = tempdir().unwrap();
    let device = dir.path().join("dev/nvme7n3");
    let state = "sys/class/nvme/nvme7/state";
    show(
        dir.path(),
        &[
            ("dev/nvme7n3", ""),
            ("sys/class/nvme/nvme7/subsysnqn", "nqn.2025-01.test:box"),
            ("sys/class/nvme/nvme7/transport", "tcp"),
            ("sys/class/nvme/nvme7/address", "traddr=127.0.0.1,trsvcid=4420"),
            (state, "connecting"),
            ("sys/block/nvme7n3/size", "65536"),
            ("sys/block/nvme7n3/uuid", "12345678-9abc-def0-1234-56789abcdef0"),
            ("sys/block/nvme7n3/device/subsysnqn", "nqn.2025-01.test:box"),
        ],
    );
    std::fs::File::options().write(true).open(&device).unwrap().set_len(SIZE).unwrap();
    let metadata = Metadata::default();
    let mut config = Config::new("s1", "127.0.0.1:0", vec![metadata.serve().await]);
    config.roots = Roots::under(dir.path());
    let location =
        "nvme-tcp://127.0.0.1:4420/nqn.2025-01.test:box?uuid=12345678-9abc-def0-1234-56789abcdef0";
    let index = Some(dir.path().join("index"));
    make(&TargetOptions { index: index.clone(), ..TargetOptions::new(&device, None) });
    config.targets = vec![Target { index, ..Target::new(location, None) }];
    let daemon = run(config).await;
    let peer = daemon.peer();
    let away = |r: &Result<_>| matches!(r, Err(e) if e.kind == ErrorKind::Unavailable);
    until(&peer, away).await; // the daemon waits for the path
    let failed = |b: &v1::HeartbeatRequest| b.failed == [1];

    show(dir.path(), &[(state, "live")]);
    let beat = metadata.wait_for_beat(|b| b.targets.len() == 1).await;
    assert!(beat.failed.is_empty());
    assert_eq!(metadata.0.lock()[0].path, location);
    put(&peer, 1, 5, 1).await.unwrap();

    show(dir.path(), &[(state, "connecting")]);
    until(&peer, away).await;
    metadata.wait_for_beat(failed).await;
    show(dir.path(), &[(state, "live")]);
    until(&peer, Result::is_ok).await;

    // When the path is back, the device does not read as it did: it is opened anew, and repaired.
    show(dir.path(), &[(state, "connecting")]);
    until(&peer, away).await;
    let raw = std::fs::File::options().read(true).write(true).open(&device).unwrap();
    raw.write_all_at(&[0x55; 4096], 0).unwrap();
    show(dir.path(), &[(state, "live")]);
    until(&peer, Result::is_ok).await;
    let mut first = [0; 8];
    raw.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(&first, b"WEFTTGT\n", "both superblocks are whole again");
    put(&peer, 1, 6, 1).await.unwrap();
    metadata.1.beats.send_modify(Vec::clear);
    metadata.wait_for_beat(|b| b.failed.is_empty() && b.targets.len() == 1).await;
    daemon.stop().await.unwrap();
}

/// Changes one byte of the block of a drive in which `needle` lies.
pub fn damage(drive: &Path, needle: &[u8]) {
    let all = std::fs::read(drive).unwrap();
    let at = all.chunks(4096).position(|block| block.windows(needle.len()).any(|w| w == needle));
    let at = at.expect("it is on the drive") as u64 * 4096 + 40;
    let file = std::fs::OpenOptions::new().write(true).open(drive).unwrap();
    file.write_all_at(&[all[at as usize] ^ 1], at).unwrap();
    file.sync_all().unwrap();
}

/// What follows the magic number in the header of a chunk, up to its id.
pub fn header_of(drive: &Path, chunk: ChunkId) -> Vec<u8> {
    let all = std::fs::read(drive).unwrap();
    let is = |block: &&[u8]| block.starts_with(b"WEFTCHK\n") && block[24..41] == chunk.to_bytes();
    all.chunks(4096).find(is).expect("it is on the drive")[8..41].to_vec()
}

/// A daemon with one target that scrubs it in so many seconds.
fn scrubbing(drive: &Path, metadata: &str, scrub_period: u64) -> Config {
    let mut config = Config::new("s1", "127.0.0.1:0", vec![metadata.into()]);
    config.targets = vec![Target::new(drive, Some(SIZE))];
    (config.scrub_period, config.clock) = (scrub_period, Clock(|| 1_234_567));
    config
}

/// Makes the drive of `config` and leaves six chunks of three blocks on it.
async fn fill(metadata: &Metadata, config: Config) {
    make(&config.targets[0].options());
    let daemon = run(config).await;
    metadata.wait_for_beat(|b| b.targets.len() == 1).await;
    for seq in 1..=6 {
        put(&daemon.peer(), 1, seq, 3).await.unwrap();
    }
    daemon.stop().await.unwrap();
}

/// The chunks that a heartbeat says are damaged, in order.
pub fn damaged(beat: &v1::HeartbeatRequest) -> Vec<ChunkId> {
    let mut chunks: Vec<ChunkId> =
        beat.damaged.iter().map(|d| d.chunk.unwrap().try_into().unwrap()).collect();
    chunks.sort_unstable();
    chunks
}

/// A block and a header have changed on the drive. Scrub goes on behind a restart, and says when it
/// was through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_reads_is_read_by_scrub() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let (drive, leader) = (dir.path().join("a"), metadata.serve().await);
    let config = |scrub_period| scrubbing(&drive, &leader, scrub_period);
    fill(&metadata, config(0)).await;
    let beats = metadata.1.beats.borrow().clone();
    let scrubs = || beats.iter().flat_map(|b| &b.targets).filter_map(|t| t.scrub);
    assert!(scrubs().count() > 0 && scrubs().all(|scrub| scrub.last_s == 0), "it is off");

    let (bytes, _) = data(id(1, 2, 0), 3, 0);
    damage(&drive, &bytes[4096..8192]);
    damage(&drive, &[b"WEFTCHK\n", &header_of(&drive, id(1, 5, 0))[..]].concat());
    let daemon = run(config(1)).await;
    let beat = metadata
        .wait_for_beat(|b| b.targets.iter().any(|t| t.scrub.is_some_and(|s| s.last_s > 0)))
        .await;
    assert_eq!(beat.targets[0].scrub.unwrap().last_s, 1_234_567);
    let found = metadata.wait_for_beat(|b| b.damaged.len() >= 2).await;
    assert_eq!(damaged(&found), [id(1, 2, 0), id(1, 5, 0)]);
    daemon.stop().await.unwrap();
}

/// Until it is made good it is told of, whatever starts anew: a pass may take weeks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_scrub_has_found_is_found_again_soon_after_a_restart() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let (drive, leader) = (dir.path().join("a"), metadata.serve().await);
    let config = |scrub_period| scrubbing(&drive, &leader, scrub_period);
    fill(&metadata, config(0)).await;
    let (bytes, _) = data(id(1, 5, 0), 3, 0);
    damage(&drive, &bytes[4096..8192]);
    let daemon = run(config(1)).await;
    let is_through = |t: &v1::TargetStat| t.scrub.is_some_and(|s| s.last_s > 0);
    let told = |b: &v1::HeartbeatRequest| b.targets.iter().any(is_through) && !b.damaged.is_empty();
    metadata.wait_for_beat(told).await;
    daemon.stop().await.unwrap();
    metadata.1.beats.send_modify(Vec::clear);
    // The turn of that chunk is days away.
    let daemon = run(config(14 * 24 * 3600)).await;
    let again = metadata.wait_for_beat(|b| !b.damaged.is_empty()).await;
    assert_eq!(damaged(&again), [id(1, 5, 0)]);
    daemon.stop().await.unwrap();
}
