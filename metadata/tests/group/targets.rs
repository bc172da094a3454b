//! Storage daemons as the group sees them: registration, placement, silence, and the deletion of
//! garbage. The daemons here keep their chunks in a set.

mod compaction;
mod forgotten;
mod moved;
mod rebuilds;
mod watched;

use crate::support::*;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use v1::control_client::ControlClient;
use v1::meta_request::Op;
use weft_net::{Incoming, Outgoing, ServerOptions, Service};
use weft_proto::{ChunkId, Error, ErrorKind, Profile, Result, SegmentId, SessionId, op, v1};

type Chunks = Arc<Mutex<BTreeSet<(u32, ChunkId)>>>;
/// Sessions that a daemon was asked to list, in order; 0: all.
type Lists = Arc<Mutex<Vec<u64>>>;

/// Sessions that a daemon was told have ended, by their target.
type Fences = Arc<Mutex<Vec<(u32, RangeInclusive<u64>)>>>;

/// Chunks that a daemon was asked to verify.
type Verified = Arc<Mutex<BTreeSet<ChunkId>>>;

/// A daemon's chunk service without disks.
#[derive(Clone, Default)]
struct Daemon {
    /// It makes one chunk in the time of an order.
    slow: Arc<AtomicBool>,
    /// Targets that were asked to make chunks of seats that move there, in order.
    asked: Arc<Mutex<Vec<u32>>>,
    /// So many of them, the first, do not reach the others.
    cut_off: Arc<AtomicUsize>,
    verified: Verified,
    /// Orders to write something again.
    orders: Arc<Mutex<Vec<v1::CompactRequest>>>,
    /// Segments of which chunks were to be deleted.
    deleted: Arc<Mutex<BTreeSet<SegmentId>>>,
    chunks: Chunks,
    lists: Lists,
    fences: Fences,
}

impl Daemon {
    async fn start() -> (String, Chunks, watch::Sender<bool>) {
        let (address, chunks, _, _, stop) = Self::start_listed().await;
        (address, chunks, stop)
    }

    async fn start_listed() -> (String, Chunks, Lists, Fences, watch::Sender<bool>) {
        let (address, Self { chunks, lists, fences, .. }, stop) = Self::start_whole().await;
        (address, chunks, lists, fences, stop)
    }

    async fn start_whole() -> (String, Self, watch::Sender<bool>) {
        let listener = weft_net::tcp().bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap().to_string();
        let (stop, stopped) = watch::channel(false);
        let options = ServerOptions {
            max_payload: 4096,
            ..ServerOptions::new(weft_net::Identity { name: "daemon".into(), cluster: None })
        };
        let daemon = Self::default();
        tokio::spawn(weft_net::serve(listener, Arc::new(daemon.clone()), options, stopped));
        (address, daemon, stop)
    }

    /// Notes that a target is asked to make chunks. Answers whether it reaches the others.
    fn reaches_others(&self, target: u32) -> bool {
        let mut asked = self.asked.lock().unwrap();
        asked.push(target);
        let first = asked.iter().position(|at| *at == target).unwrap_or(asked.len());
        let before: BTreeSet<u32> = asked[..first].iter().copied().collect();
        before.len() >= self.cut_off.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl Service for Daemon {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        use prost::Message;
        let mut chunks = self.chunks.lock().unwrap();
        match request.op {
            op::DELETE => {
                let delete = v1::DeleteRequest::decode(request.head).unwrap();
                let keys =
                    delete.chunks.iter().map(|&c| (delete.target, ChunkId::try_from(c).unwrap()));
                let keys: Vec<_> = keys.collect();
                self.deleted.lock().unwrap().extend(keys.iter().map(|(_, chunk)| chunk.segment));
                let deleted = keys.iter().filter(|k| chunks.remove(k)).count() as u64;
                Ok(Outgoing::message(&v1::DeleteReply { deleted }))
            }
            op::VERIFY => {
                let verify = v1::VerifyRequest::decode(request.head).unwrap();
                let chunk = ChunkId::try_from(verify.chunk.unwrap()).unwrap();
                if !chunks.contains(&(verify.target, chunk)) {
                    return Err(Error::new(ErrorKind::NotFound, format!("{chunk}")));
                }
                self.verified.lock().unwrap().insert(chunk);
                Ok(Outgoing::message(&v1::VerifyReply::default()))
            }
            op::REBUILD => {
                let order = v1::RebuildRequest::decode(request.head).unwrap();
                let mut reply = v1::RebuildReply::default();
                let cut_off = !order.heal && !self.reaches_others(order.target);
                for item in order.items {
                    let (segment, shard) = (item.segment.unwrap().id, item.shard);
                    let chunk = ChunkId::try_from(v1::ChunkKey { segment, shard }).unwrap();
                    let at = (order.target, chunk);
                    let late = self.slow.load(Ordering::Relaxed) && reply.made > 0;
                    let late = late && !chunks.contains(&at);
                    let error = match (cut_off, late) {
                        (true, _) => ErrorKind::Busy.code(),
                        (_, true) => ErrorKind::TimedOut.code(),
                        _ => 0,
                    };
                    reply.made += u64::from(error == 0 && chunks.insert(at));
                    let message = String::new();
                    reply.outcomes.push(v1::rebuild_reply::Outcome { error, message });
                }
                Ok(Outgoing::message(&reply))
            }
            // It has room in pieces only.
            op::COMPACT => {
                let order = v1::CompactRequest::decode(request.head).unwrap();
                let again = |(seq, old): (u64, &v1::SegmentInfo)| v1::SegmentInfo {
                    id: Some(v1::SegmentKey { session: order.session, seq }),
                    ..old.clone()
                };
                let segments = (order.first_seq..).zip(&order.segments).map(again).collect();
                self.orders.lock().unwrap().push(order);
                Ok(Outgoing::message(&v1::CompactReply { segments }))
            }
            op::FENCE => {
                let fence = v1::FenceRequest::decode(request.head).unwrap();
                let ended = fence.ended.iter().map(|of| (fence.target, of.first..=of.last));
                self.fences.lock().unwrap().extend(ended);
                Ok(Outgoing::message(&v1::FenceReply {}))
            }
            op::LIST => {
                let list = v1::ListRequest::decode(request.head).unwrap();
                let after = list.after.map(|c| ChunkId::try_from(c).unwrap());
                self.lists.lock().unwrap().push(list.session);
                // What ends is fenced off before it is looked for.
                let fences = self.fences.lock().unwrap();
                let of = |at: u32| fences.iter().filter(move |(target, _)| *target == at);
                assert!(of(list.target).any(|(_, ended)| ended.contains(&list.session)));
                drop(fences);
                let of = |c: &ChunkId| [0, c.segment.session.0].contains(&list.session);
                // Small pages, so that paging is tried.
                let mut page: Vec<_> = chunks
                    .iter()
                    .filter(|(target, chunk)| *target == list.target && Some(*chunk) > after)
                    .filter(|(_, chunk)| of(chunk))
                    .take(4)
                    .map(|(_, chunk)| v1::list_reply::Item {
                        chunk: Some((*chunk).into()),
                        length: 4096,
                    })
                    .collect();
                let more = page.len() == 4;
                page.truncate(3);
                Ok(Outgoing::message(&v1::ListReply { items: page, more }))
            }
            _ => Err(Error::new(ErrorKind::Protocol, "not here")),
        }
    }
}

async fn control(address: &str) -> ControlClient<tonic::transport::Channel> {
    ControlClient::connect(format!("http://{address}")).await.unwrap()
}

async fn status(address: &str) -> v1::StatusReply {
    control(address).await.status(v1::StatusRequest {}).await.unwrap().into_inner()
}

/// Registers `n` targets of one daemon and keeps them alive until the answer is dropped.
async fn register(leader: &str, daemon: &str, n: u8) -> (Vec<u32>, tokio::task::JoinHandle<()>) {
    register_opened(leader, daemon, n, Arc::default()).await
}

/// The same; `opened` tells how often the daemon has opened them.
async fn register_opened(
    leader: &str,
    daemon: &str,
    n: u8,
    opened: Arc<AtomicU64>,
) -> (Vec<u32>, tokio::task::JoinHandle<()>) {
    let mut control = control(leader).await;
    let mut ids = Vec::new();
    for i in 0..n {
        let target = v1::TargetInfo {
            uuid: vec![i + 1; 16].into(),
            daemon: "d".into(),
            address: daemon.into(),
            domain: format!("d{i}"),
            capacity_bytes: 1 << 30,
            ..Default::default()
        };
        let request =
            v1::RegisterTargetRequest { cluster: Default::default(), target: Some(target) };
        let first = control.register_target(request.clone()).await.unwrap().into_inner();
        let again = control.register_target(request).await.unwrap().into_inner();
        assert_eq!(first, again, "registering twice changes nothing");
        ids.push(first.id);
    }
    let beating = ids.clone();
    let beats = tokio::spawn(async move {
        loop {
            let _ = control.heartbeat(beat(&beating, opened.load(Ordering::SeqCst))).await;
            sleep(Duration::from_millis(100)).await;
        }
    });
    (ids, beats)
}

/// The targets are served, and were opened so often.
fn beat(targets: &[u32], opened: u64) -> v1::HeartbeatRequest {
    let stat = |&target: &u32| v1::TargetStat {
        target,
        capacity_bytes: 1 << 30,
        used_bytes: 1 << 20,
        opened,
        ..Default::default()
    };
    let targets = targets.iter().map(stat).collect();
    v1::HeartbeatRequest { daemon: "d".into(), targets, ..Default::default() }
}

/// Follows the map of one server until it is as wanted.
async fn map_until(
    address: &str,
    what: &str,
    wanted: impl Fn(&v1::ClusterMap) -> bool,
) -> v1::ClusterMap {
    let mut maps = control(address)
        .await
        .watch_map(v1::WatchMapRequest::default())
        .await
        .unwrap()
        .into_inner();
    tokio::time::timeout(PATIENCE, async {
        let mut epoch = 0;
        loop {
            let map = maps.message().await.unwrap().expect("the watch goes on");
            assert!(map.epoch > epoch, "epochs only grow");
            epoch = map.epoch;
            if wanted(&map) {
                return map;
            }
        }
    })
    .await
    .unwrap_or_else(|_| panic!("not in time: {what}"))
}

fn active(map: &v1::ClusterMap) -> Vec<&v1::PgInfo> {
    map.pools.iter().flat_map(|p| &p.pgs).filter(|pg| !pg.retired).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_are_placed_watched_and_missed() {
    const DOWN_AFTER: Duration = Duration::from_secs(10);
    let mut group = Group::start(3, |c| c.target_down_ms = DOWN_AFTER.as_millis() as u64).await;
    let leader = group.leader().await;
    let address = group.addresses()[leader as usize - 1].clone();
    let (daemon, _, _stop) = Daemon::start().await;
    let (ids, beats) = register(&address, &daemon, 6).await;
    // Any server tells the map.
    let follower = (1..=3).find(|id| *id != leader).unwrap();
    let follower_address = group.addresses()[follower as usize - 1].clone();
    let map =
        map_until(&follower_address, "groups over six targets", |m| !active(m).is_empty()).await;
    for pg in active(&map) {
        let mut targets = pg.targets.clone();
        targets.sort();
        assert_eq!(targets, ids, "six targets, 4+2: every group has all of them");
    }
    assert_eq!(map.pools[0].pgs.len(), active(&map).len(), "one generation is enough");
    all_told(&address, 6).await;
    let mut client = group.client();
    let stat = match client.read(Op::StatFs(v1::StatFsOp {})).await.unwrap() {
        v1::meta_reply::Result::StatFs(stat) => stat,
        other => panic!("{other:?}"),
    };
    assert_eq!(stat.capacity_bytes, 4 << 30, "six GiB raw are four of 4+2");
    assert_eq!(stat.free_bytes, 4 * ((1 << 30) - (1 << 20)));
    assert_eq!(stat.available_bytes, Some((6 * (((1 << 30) * 95 / 100) - (1 << 20))) * 4 / 6));

    // A daemon asks the leader; others say who that is.
    let refused = control(&follower_address)
        .await
        .heartbeat(v1::HeartbeatRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.metadata().get("weft-leader").unwrap().to_str().unwrap(), address);
    let stranger = v1::HeartbeatRequest { cluster: vec![1; 16].into(), ..Default::default() };
    let refused = control(&address).await.heartbeat(stranger).await.unwrap_err();
    assert_eq!(refused.metadata().get("weft-error").unwrap().to_str().unwrap(), "1008");

    beats.abort();
    let silent = Instant::now();
    control(&address).await.heartbeat(beat(&ids, 0)).await.unwrap();
    let all = |state| move |m: &v1::ClusterMap| m.targets.iter().all(|t| t.state() == state);
    map_until(&address, "all down", all(v1::TargetState::Down)).await;
    assert!(silent.elapsed() >= DOWN_AFTER, "down too early");
    // A new leader waits before it believes in silence, and hears who beats again.
    group.kill(leader).await;
    let new = group.leader().await;
    let address = group.addresses()[new as usize - 1].clone();
    let (same, beats) = register(&address, &daemon, 6).await;
    assert_eq!(same, ids);
    let map = map_until(&address, "all up", all(v1::TargetState::Up)).await;
    assert_eq!(map.pools[0].pgs.len(), active(&map).len(), "a target that is down keeps its seats");
    all_told(&address, 6).await;
    beats.abort();
}

/// Waits until the leader has heard of so many targets how full they are.
async fn all_told(leader: &str, targets: usize) {
    let until = Instant::now() + PATIENCE;
    loop {
        let stats = status(leader).await.targets;
        if stats.iter().filter(|stat| stat.used_bytes > 0).count() == targets {
            return;
        }
        assert!(Instant::now() < until, "{stats:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A file with one segment on all targets; its chunks are put on the daemon.
async fn write_file(
    client: &mut Client,
    chunks: &Chunks,
    map: &v1::ClusterMap,
    name: &str,
    seq: u64,
) -> u64 {
    let ino = client.create(name).await.unwrap().ino;
    append(client, chunks, map, ino, 0, seq).await;
    ino
}

/// One more segment of a file.
async fn append(
    client: &mut Client,
    chunks: &Chunks,
    map: &v1::ClusterMap,
    ino: u64,
    file_off: u64,
    seq: u64,
) {
    let pg = active(map)[0];
    let id = SegmentId { session: SessionId(client.session), seq };
    let profile: Profile = "4+2".parse().unwrap();
    for shard in 0..6u8 {
        chunks
            .lock()
            .unwrap()
            .insert((pg.targets[usize::from(shard)], ChunkId { segment: id, shard }));
    }
    let segment = v1::SegmentInfo {
        id: Some(id.into()),
        profile: Some(profile.into()),
        unit: 4096,
        length: 16384,
        pg: pg.id,
        seats: vec![0, 1, 2, 3, 4, 5].into(),
    };
    let part = v1::SegmentPart { id: Some(id.into()), off: 0 };
    let extent =
        v1::Extent { file_off, len: 16384, source: Some(v1::extent::Source::Segment(part)) };
    let commit = v1::CommitExtentsOp {
        ino,
        extents: vec![extent],
        segments: vec![segment],
        ..Default::default()
    };
    client.write(Op::CommitExtents(commit)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_of_removed_files_and_of_dead_sessions_are_deleted() {
    let group = Group::start(3, |c| c.session_ttl_ms = 20_000).await;
    let mut first = group.client();
    first.open_session().await;
    let address = first.leader.clone();
    let (daemon, chunks, _stop) = Daemon::start().await;
    // Left by a session that was dead before this leader saw the target.
    let nobody = ChunkId { segment: SegmentId { session: SessionId(4_000_000), seq: 1 }, shard: 5 };
    chunks.lock().unwrap().insert((4, nobody));
    let (ids, beats) = register(&address, &daemon, 6).await;
    assert_eq!(ids[3], 4);
    let map = map_until(&address, "groups", |m| !active(m).is_empty()).await;
    // Not sooner: it would have to last while targets register.
    let mut client = group.client();
    client.open_session().await;
    let kept = write_file(&mut client, &chunks, &map, "kept", 1).await;
    for seq in 2..12 {
        let name = format!("gone{seq}");
        client.renew(None).await.unwrap();
        let ino = write_file(&mut client, &chunks, &map, &name, seq).await;
        client.unlink(&name).await.unwrap();
        let open_seq = client.number - 2;
        client.read(Op::Close(close(ino, open_seq))).await.unwrap();
    }
    // What the session has not committed is its own while it lives.
    let mine =
        ChunkId { segment: SegmentId { session: SessionId(client.session), seq: 99 }, shard: 0 };
    chunks.lock().unwrap().insert((ids[0], mine));
    let begin = Instant::now();
    while chunks.lock().unwrap().len() > 7 {
        assert!(begin.elapsed() < PATIENCE, "left: {:?}", chunks.lock().unwrap());
        client.renew(None).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    let left = chunks.lock().unwrap().clone();
    assert!(left.contains(&(ids[0], mine)) && !left.contains(&(ids[3], nobody)));
    assert!(left.iter().all(|(_, c)| [1, 99].contains(&c.segment.seq)), "{left:?}");
    while status(&address).await.garbage_segments > 0 {
        assert!(begin.elapsed() < PATIENCE);
        client.renew(None).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }

    // The session falls silent: what it had not committed goes, what it had committed stays.
    let mut other = group.client();
    other.open_session().await;
    while chunks.lock().unwrap().contains(&(ids[0], mine)) {
        assert!(begin.elapsed() < PATIENCE);
        other.renew(None).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(chunks.lock().unwrap().len(), 6);
    assert_eq!(other.lookup("kept").await.unwrap().ino, kept);
    beats.abort();
}

/// Returns when so many targets were looked at as a whole.
async fn all_listed(lists: &Lists, targets: usize) {
    let begin = Instant::now();
    while lists.lock().unwrap().iter().filter(|of| **of == 0).count() < targets {
        assert!(begin.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
}

/// To list all chunks of all targets again and again costs the one thread that answers everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_swept_is_not_listed_again() {
    let group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let address = client.leader.clone();
    let (daemon, chunks, lists, fences, _stop) = Daemon::start_listed().await;
    let (ids, beats) = register(&address, &daemon, 6).await;
    let begin = Instant::now();
    all_listed(&lists, ids.len()).await;
    let mut ending = group.client();
    ending.open_session().await;
    let session = ending.session;
    let left = |seq| ChunkId { segment: SegmentId { session: SessionId(session), seq }, shard: 0 };
    // More than a page, and on two targets.
    chunks.lock().unwrap().extend((1..10).map(|seq| (ids[1], left(seq))));
    chunks.lock().unwrap().insert((ids[4], left(1)));
    lists.lock().unwrap().clear();
    ending.write(Op::CloseSession(v1::CloseSessionOp {})).await.unwrap();
    // Nothing lies on the last of them, which is fenced all the same.
    let is_fenced = |of: &(u32, RangeInclusive<u64>)| of.0 == ids[5] && of.1.contains(&session);
    while !chunks.lock().unwrap().is_empty() || !fences.lock().unwrap().iter().any(is_fenced) {
        assert!(begin.elapsed() < PATIENCE, "left: {:?}", chunks.lock().unwrap());
        client.renew(None).await.unwrap();
        sleep(Duration::from_millis(20)).await;
    }
    let lists = lists.lock().unwrap().clone();
    assert!(lists.iter().all(|of| *of == session), "{lists:?}");
    let fences = fences.lock().unwrap().clone();
    let living = |ended: &RangeInclusive<u64>| ended.contains(&client.session);
    assert!(!fences.iter().any(|(_, ended)| living(ended)), "{fences:?}");
    beats.abort();
}

/// It was away for so short that nobody has missed it, and its index was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_was_opened_anew_is_looked_at_as_a_whole() {
    let group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let address = client.leader.clone();
    let (daemon, chunks, lists, _, _stop) = Daemon::start_listed().await;
    let opened = Arc::new(AtomicU64::new(1));
    let (ids, beats) = register_opened(&address, &daemon, 2, opened.clone()).await;
    let begin = Instant::now();
    all_listed(&lists, ids.len()).await;
    // Of a session that is long dead.
    let back = ChunkId { segment: SegmentId { session: SessionId(99), seq: 1 }, shard: 0 };
    chunks.lock().unwrap().insert((ids[0], back));
    opened.store(2, Ordering::SeqCst);
    while !chunks.lock().unwrap().is_empty() {
        assert!(begin.elapsed() < PATIENCE, "what came back is not deleted");
        sleep(Duration::from_millis(20)).await;
    }
    beats.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shard_of_a_segment_is_verified_in_the_course_of_time() {
    let group = Group::start(1, |c| c.sample_interval_ms = 10).await;
    let mut client = group.client();
    client.open_session().await;
    let address = client.leader.clone();
    let (daemon, Daemon { chunks, verified, .. }, _stop) = Daemon::start_whole().await;
    let (_, beats) = register(&address, &daemon, 6).await;
    let map = map_until(&address, "groups", |m| !active(m).is_empty()).await;
    for seq in [1, 2, 9] {
        write_file(&mut client, &chunks, &map, &format!("f{seq}"), seq).await;
    }
    let all: BTreeSet<_> = chunks.lock().unwrap().iter().map(|(_, chunk)| *chunk).collect();
    assert_eq!(all.len(), 18);
    let until = Instant::now() + PATIENCE;
    while *verified.lock().unwrap() != all {
        assert!(Instant::now() < until, "{:?}", verified.lock().unwrap());
        sleep(Duration::from_millis(20)).await;
    }
    beats.abort();
}
