//! The event loop driven by hand: the test is its peers, its clock and, where it wants to, its
//! disk. Time stands still: however slow the machine is, who was heard of just now was.

mod appends;
mod backups;
mod control;
mod known;
mod members;
mod service;
mod sessions;
mod snapshots;
mod soft;
mod succession;

use super::*;
use crate::config::Member;
use crate::env::SystemClock;
use crate::folder::LOG;
use crate::node::Effect;
use crate::node::setup::log_writer;
use crate::replication;
use crate::replication::Link;
use crate::service::MetadataService;
use parking_lot::Mutex;
use prost::Message as _;
use raft::eraftpb::{ConfState, HardState, Snapshot, SnapshotMetadata};
use raft_prost::Message as _;
use std::time::Duration;
use tokio::time::{advance, timeout};
use weft_net::Service as _;
use weft_proto::{op, v1};

type Answer = oneshot::Receiver<Result<(Position, v1::StoredReply)>>;

/// Server 1 of three.
struct Rig {
    driver: Driver,
    sent: Arc<Mutex<BTreeMap<u64, mpsc::Receiver<Message>>>>,
    dir: tempfile::TempDir,
    reports: mpsc::UnboundedSender<Report>,
    stop: watch::Sender<bool>,
}

impl Rig {
    fn new(admitted: Position, tune: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let member = |id: u64| Member { id: NodeId(id), address: format!("127.0.0.1:{id}") };
        let members: Vec<_> = (1..=3).map(member).collect();
        let data = dir.path().to_path_buf();
        let address = members[0].address.clone();
        let mut config = Config::new(NodeId(1), address, members.clone(), data);
        tune(&mut config);
        LogStorage::make(&dir.path().join(LOG), vec![1, 2, 3], &HardState::default()).unwrap();
        let env = Env { clock: Arc::new(SystemClock), seed: 1, threads: false };
        let state = Arc::new(StateMachine::open(&dir.path().join("state")).unwrap());
        let me = weft_net::Identity { name: "1".into(), cluster: None };
        let (stop, shutdown) = watch::channel(false);
        let (first, stopped) = (members[0].clone(), shutdown.clone());
        let snapshots = Snapshots::open(dir.path(), first, env.clone(), state.clone(), stopped);
        let (reports, reported) = mpsc::unbounded_channel();
        let lost_tx = reports.clone();
        let sent: Arc<Mutex<BTreeMap<u64, mpsc::Receiver<Message>>>> = Arc::default();
        let all = sent.clone();
        let links = Links::new(
            &[],
            Box::new(move |to: &Member| {
                let (link, sent) = Link::to(to.id, lost_tx.clone());
                all.lock().insert(to.id.0, sent);
                link
            }),
        );
        let wiring = Wiring {
            peers: Peers::new(weft_net::tcp(), me),
            links,
            inbox: mpsc::channel(1).1,
            reports: reported,
            snapshots: Arc::new(snapshots.unwrap()),
            admitted,
            shutdown,
        };
        let (_, driver) = Driver::open(config, env, state, wiring).unwrap();
        Self { driver, sent, dir, reports, stop }
    }

    /// Follows server 2, in term 5, with this many entries, all applied.
    async fn following(entries: u64, tune: impl FnOnce(&mut Config)) -> Self {
        let mut rig = Self::new(Position::default(), tune);
        rig.receive(append(0, &(1..=entries).map(|_| Vec::new()).collect::<Vec<_>>())).await;
        assert_eq!(rig.driver.raw.raft.raft_log.applied, entries);
        rig
    }

    /// Leads, ready to answer.
    async fn leading() -> Self {
        let mut rig = Self::new(Position::default(), |_| {});
        rig.driver.raw.campaign().unwrap();
        rig.settle().await;
        for kind in [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse] {
            let term = rig.driver.raw.raft.term
                + u64::from(kind == MessageType::MsgRequestPreVoteResponse);
            rig.receive(Message { term, ..message(2, kind) }).await;
        }
        rig.acknowledge(&[2]).await;
        assert!(rig.driver.leads.is_some() && rig.driver.ready);
        rig.sent_to(2);
        rig.sent_to(3);
        rig
    }

    /// What the loop does after anything has happened.
    async fn settle(&mut self) {
        while self.driver.raw.has_ready() || !self.driver.in_place.is_empty() {
            self.driver.on_readies().await.unwrap();
            self.driver.write_in_place().await.unwrap();
            // What the workers did: a busy machine's disk may have been slow.
            self.driver.drain().unwrap();
        }
        self.driver.publish().unwrap();
    }

    /// What it answers to server 3, if it does, when that asks whether it would be elected with
    /// this log.
    async fn votes(&mut self, log_term: u64, index: u64) -> Vec<bool> {
        let kind = MessageType::MsgRequestPreVote;
        self.receive(Message { term: 9, index, log_term, ..message(3, kind) }).await;
        self.sent_to(3).iter().map(|vote| !vote.reject).collect()
    }

    async fn receive(&mut self, message: Message) {
        self.driver.on_messages(vec![message]).unwrap();
        self.settle().await;
    }

    /// These peers have all of the leader's log.
    async fn acknowledge(&mut self, peers: &[u64]) {
        let raft = &self.driver.raw.raft;
        let (term, index) = (raft.term, raft.raft_log.last_index());
        for &from in peers {
            let kind = MessageType::MsgAppendResponse;
            self.receive(Message { term, index, ..message(from, kind) }).await;
        }
    }

    fn propose(&mut self, body: v1::log_entry::Body) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.driver.propose(&mut vec![Proposal::new(body, Vec::new(), Effect::Nothing, reply)]);
        answer
    }

    /// Lets what the node was asked for go through the log. Answers how many entries that makes.
    async fn pump(&mut self) -> usize {
        let mut proposals = Vec::new();
        for _ in 0..10 {
            tokio::task::yield_now().await;
            proposals.extend(std::iter::from_fn(|| self.driver.proposals.try_recv().ok()));
        }
        let many = proposals.len();
        self.driver.propose(&mut proposals);
        self.settle().await;
        self.acknowledge(&[2]).await;
        many
    }

    fn sent_to(&mut self, peer: u64) -> Vec<Message> {
        let mut all = self.sent.lock();
        let Some(sent) = all.get_mut(&peer) else { return Vec::new() };
        std::iter::from_fn(|| sent.try_recv().ok()).collect()
    }

    /// From now on the log's disk writes nothing before it is told to.
    fn hold_disk(&mut self) -> HeldDisk {
        let (done, written) = mpsc::unbounded_channel();
        let held = Arc::new(Mutex::new(Vec::new()));
        let jobs = held.clone();
        let hold = move |new: Vec<LogJob>| jobs.lock().extend(new);
        self.driver.writer = Worker::start("held", false, hold).unwrap();
        self.driver.written = written;
        self.driver.slow_until = Some(Instant::now() + Duration::from_secs(3600));
        let write = log_writer(self.driver.log.clone(), done);
        HeldDisk { held, write: Box::new(write) }
    }

    /// Has a fetched snapshot at `index` where one is installed from. Answers its announcement.
    fn fetched(&self, index: u64) -> Message {
        let made = self.dir.path().join(format!("other-{index}"));
        let state = StateMachine::open(&made).unwrap();
        state.set_applied(index).unwrap();
        let snapshot = format!("snapshot-{index}");
        state.checkpoint(&self.dir.path().join("incoming").join(&snapshot)).unwrap();
        announced(index)
    }
}

struct HeldDisk {
    held: Arc<Mutex<Vec<LogJob>>>,
    write: Box<dyn FnMut(Vec<LogJob>)>,
}

impl HeldDisk {
    fn write(&mut self) {
        let jobs = std::mem::take(&mut *self.held.lock());
        assert!(!jobs.is_empty(), "nothing waits for the disk");
        (self.write)(jobs);
    }
}

fn message(from: u64, kind: MessageType) -> Message {
    Message { from, to: 1, msg_type: kind as i32, ..Default::default() }
}

/// From server 2, in term 5: entries after `index`, all of them committed.
fn append(index: u64, data: &[Vec<u8>]) -> Message {
    let entry = |(i, data): (u64, &Vec<u8>)| Entry {
        index: i,
        term: 5,
        data: data.clone(),
        ..Default::default()
    };
    let entries: Vec<_> = (index + 1..).zip(data).map(entry).collect();
    let commit = index + entries.len() as u64;
    let log_term = if index == 0 { 0 } else { 5 };
    Message { term: 5, index, log_term, entries, commit, ..message(2, MessageType::MsgAppend) }
}

/// From server 2, in term 5: a snapshot without files, which is fetched at once.
fn announced(index: u64) -> Message {
    let manifest = v1::SnapshotManifest {
        snapshot: format!("snapshot-{index}"),
        address: "127.0.0.1:2".into(),
        files: Vec::new(),
    };
    let conf_state = Some(ConfState::from((vec![1, 2, 3], Vec::new())));
    let metadata = Some(SnapshotMetadata { conf_state, index, term: 5 });
    let snapshot = Some(Snapshot { data: manifest.encode_to_vec(), metadata });
    Message { term: 5, snapshot, ..message(2, MessageType::MsgSnapshot) }
}

fn admit(node: u64) -> v1::log_entry::Body {
    v1::log_entry::Body::AdmitServer(v1::AdmitServerEntry { node })
}

async fn refused(answer: Answer) -> ErrorKind {
    answer.await.unwrap().unwrap_err().kind
}

#[tokio::test(start_paused = true)]
async fn what_a_deposed_leader_has_in_its_log_is_in_doubt() {
    let mut rig = Rig::leading().await;
    let in_log = rig.propose(admit(9));
    rig.settle().await;
    let term = rig.driver.raw.raft.term + 1;
    rig.receive(Message { term, ..message(2, MessageType::MsgHeartbeat) }).await;
    // It may be committed yet, by server 2: not `NotLeader`, which says that it was not done.
    let error = in_log.await.unwrap().unwrap_err();
    assert_eq!((error.kind, error.hint.as_str()), (ErrorKind::Unavailable, "127.0.0.1:2"));
    let not_in_log = rig.propose(admit(9));
    assert_eq!(refused(not_in_log).await, ErrorKind::NotLeader);
}

/// Between Raft's step down and its publication, in one round of the loop.
#[tokio::test(start_paused = true)]
async fn a_leader_just_deposed_forwards_nothing() {
    let mut rig = Rig::leading().await;
    let term = rig.driver.raw.raft.term + 1;
    let deposed = Message { term, ..message(2, MessageType::MsgHeartbeat) };
    rig.driver.on_messages(vec![deposed]).unwrap();
    let late = rig.propose(admit(9));
    let (reader, read) = oneshot::channel();
    rig.driver.on_reader(reader);
    rig.driver.ask_for_readers();
    rig.settle().await;
    assert_eq!(refused(late).await, ErrorKind::NotLeader);
    assert_eq!(read.await.unwrap().unwrap_err().kind, ErrorKind::NotLeader);
    // Server 2 would refuse the whole batch, with the answer to its heartbeat.
    let sent = rig.sent_to(2);
    let answers = sent.iter().any(|m| m.msg_type == MessageType::MsgHeartbeatResponse as i32);
    assert!(answers);
    let messages = sent.iter().map(|m| m.encode_to_vec().into()).collect();
    let batch = v1::RaftBatch { from: 1, messages, ..Default::default() };
    replication::decode(&batch, NodeId(2)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_log_disk_hangs_steps_down() {
    let mut rig = Rig::leading().await;
    let mut disk = rig.hold_disk();
    let answer = rig.propose(admit(9));
    rig.settle().await;
    rig.acknowledge(&[2, 3]).await;
    let heartbeats = |sent: Vec<Message>| {
        sent.iter().filter(|m| m.msg_type == MessageType::MsgHeartbeat as i32).count()
    };
    advance(rig.driver.node.config.election_timeout()).await;
    rig.driver.on_tick().unwrap();
    rig.settle().await;
    assert!(rig.driver.leads.is_some(), "not before an election timeout has passed");
    rig.sent_to(2);
    advance(Duration::from_millis(1)).await;
    rig.driver.on_tick().unwrap();
    rig.settle().await;
    assert_eq!(rig.driver.leads, None);
    assert_eq!(refused(answer).await, ErrorKind::Unavailable);
    rig.sent_to(2);
    for _ in 0..20 {
        advance(rig.driver.node.config.tick()).await;
        rig.driver.on_tick().unwrap();
        rig.settle().await;
    }
    // It neither keeps others from being elected nor stands itself, before its disk writes.
    assert_eq!(heartbeats(rig.sent_to(2)), 0);
    assert_eq!(rig.sent_to(3).iter().filter(|m| m.term > 1).count(), 0);
    disk.write();
    rig.driver.drain().unwrap();
    rig.settle().await;
    assert!(!rig.sent_to(3).is_empty(), "then it does");
}

/// Who is as slow as all others need not go: nobody would do better.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_disk_is_as_slow_as_the_others_leads_on() {
    let mut rig = Rig::leading().await;
    let mut disk = rig.hold_disk();
    let answer = rig.propose(admit(9));
    rig.settle().await;
    advance(2 * rig.driver.node.config.election_timeout()).await;
    rig.driver.on_tick().unwrap();
    rig.settle().await;
    disk.write();
    rig.driver.drain().unwrap();
    rig.acknowledge(&[2]).await;
    assert_eq!(answer.await.unwrap().unwrap().1.error, 0);
}

#[tokio::test(start_paused = true)]
async fn an_installation_waits_for_the_truncation_before_it() {
    let mut rig = Rig::following(60, |config| config.log_entries = 16).await;
    let announced = rig.fetched(100);
    let mut disk = rig.hold_disk();
    rig.driver.truncate(60).unwrap();
    let begins = rig.driver.raw.store().truncated().index;
    assert!(begins > 0);
    rig.driver.on_side(Side::Fetched(Box::new(announced), Ok(PathBuf::new()))).unwrap();
    let log = rig.driver.log.clone();
    {
        let mut install = std::pin::pin!(rig.driver.on_readies());
        // Time passes only while nothing can go on.
        let early = timeout(Duration::from_millis(1), &mut install).await;
        disk.write();
        match early {
            Ok(installed) => installed.unwrap(),
            Err(_) => install.await.unwrap(),
        }
    }
    assert_eq!(log.recover(100).unwrap().truncated.index, 100);
}

#[tokio::test(start_paused = true)]
async fn a_second_snapshot_leaves_the_one_that_is_installed() {
    let mut rig = Rig::following(3, |_| {}).await;
    let first = rig.fetched(50);
    rig.driver.on_side(Side::Fetched(Box::new(first), Ok(PathBuf::new()))).unwrap();
    // Raft has it, and it is not installed yet.
    rig.driver.on_messages(vec![announced(60)]).unwrap();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    rig.settle().await;
    assert_eq!(rig.driver.node.state.applied(), 50);
    assert_eq!(rig.driver.raw.store().truncated().index, 50);
    // The next is taken when it comes again.
    rig.driver.on_messages(vec![announced(60)]).unwrap();
    assert!(rig.driver.fetching);
}

/// A follower that has it goes on from there.
#[tokio::test(start_paused = true)]
async fn the_log_behind_a_snapshot_that_is_sent_stays() {
    let mut rig = Rig::following(60, |config| config.log_entries = 16).await;
    let grow = async |rig: &mut Rig, from: u64| {
        let entries = (0..200).map(|_| Vec::new()).collect::<Vec<_>>();
        rig.receive(append(from, &entries)).await;
        rig.driver.compactable()
    };
    rig.driver.making = Some(60);
    assert_eq!(grow(&mut rig, 60).await, 60);
    rig.driver.making = None;
    let snapshot = rig.driver.wiring.snapshots.make().await.unwrap();
    assert_eq!(snapshot.index, 260);
    rig.driver.offer(snapshot);
    assert_eq!(grow(&mut rig, 260).await, 260);
    rig.driver.raw.mut_store().offer_snapshot(None);
    assert!(rig.driver.compactable() > 260);
}

#[tokio::test(start_paused = true)]
async fn a_log_of_few_large_entries_is_shortened() {
    let large = v1::PurgeInodesEntry { inos: vec![u64::MAX; 20_000] };
    let body = Some(v1::log_entry::Body::PurgeInodes(large));
    let data = v1::LogEntry { time_ns: 1, body, ..Default::default() }.encode_to_vec();
    let mut rig = Rig::new(Position::default(), |config| config.log_bytes = 1 << 20);
    for index in 0..40 {
        rig.receive(append(index, std::slice::from_ref(&data))).await;
        rig.driver.compact();
        if rig.driver.syncing {
            let synced = rig.driver.side.recv().await.unwrap();
            rig.driver.on_side(synced).unwrap();
            rig.settle().await;
        }
        let kept = (rig.driver.raw.raft.raft_log.last_index()
            - rig.driver.raw.store().truncated().index) as usize;
        assert!(kept * data.len() < 2 << 20, "{kept} entries of {} bytes", data.len());
    }
    assert!(rig.driver.raw.store().truncated().index > 20);
    assert!(rig.driver.log.entries(1, 21, u64::MAX).is_err(), "on disk, too");
}

#[tokio::test(start_paused = true)]
async fn who_starts_anew_is_sent_the_log_from_its_beginning() {
    let mut rig = Rig::leading().await;
    for _ in 0..5 {
        rig.propose(admit(9));
    }
    rig.settle().await;
    rig.acknowledge(&[2, 3]).await;
    let answer = rig.propose(admit(3));
    rig.settle().await;
    rig.acknowledge(&[2]).await;
    assert_eq!(answer.await.unwrap().unwrap().1.error, 0);
    rig.sent_to(3);
    rig.driver.on_tick().unwrap();
    rig.settle().await;
    let heartbeat = rig.sent_to(3).pop().unwrap();
    assert_eq!(heartbeat.commit, 0, "nothing is known of it");
    let term = rig.driver.raw.raft.term;
    let alive = Message { term, ..message(3, MessageType::MsgHeartbeatResponse) };
    rig.receive(alive).await;
    let first = rig.sent_to(3).remove(0);
    assert_eq!(first.msg_type, MessageType::MsgAppend as i32);
    assert_eq!((first.index, first.entries[0].index), (0, 1));
    assert_eq!(rig.driver.raw.raft.prs().get(3).unwrap().matched, 0);
}

#[tokio::test(start_paused = true)]
async fn who_catches_up_stands_for_no_election_and_elects_who_has_what_it_forgot() {
    // The second was noted by an earlier version, which did not say in which term that was.
    for admitted in [Position { index: 4, term: 5 }, Position { index: 4, term: 0 }] {
        let mut rig = Rig::new(admitted, |_| {});
        let patience = 10 * rig.driver.node.config.election_ticks();
        for have in 0..4 {
            for _ in 0..patience {
                rig.driver.on_tick().unwrap();
                rig.settle().await;
            }
            assert_eq!(rig.sent_to(3).len(), 0, "with {have} entries it does not stand");
            // Longer logs than its own, shorter ones than it answers for.
            for (log_term, index) in [(4, 100), (5, 3)] {
                assert!(rig.votes(log_term, index).await.is_empty(), "with {have} entries");
            }
            let votes = rig.votes(5, 4).await;
            assert_eq!(votes, if admitted.term > 0 { vec![true] } else { vec![] });
            // What was counted before its disk was lost, and then one entry.
            let counted = Message { term: 5, commit: 99, ..message(2, MessageType::MsgHeartbeat) };
            rig.receive(counted).await;
            rig.receive(append(have, &[Vec::new()])).await;
            assert_eq!(rig.sent_to(2).len(), 2, "it follows");
            assert!(rig.votes(5, 100).await.is_empty(), "it has just heard of a leader");
        }
        for _ in 0..patience {
            rig.driver.on_tick().unwrap();
            rig.settle().await;
        }
        assert!(!rig.sent_to(3).is_empty(), "it stands");
        assert_eq!(rig.votes(5, 100).await, [true]);
        assert_eq!(rig.votes(5, 3).await, [false]);
    }
}

#[tokio::test(start_paused = true)]
async fn who_lost_entries_that_others_count_on_ends_for_good() {
    let mut rig = Rig::following(3, |_| {}).await;
    let counted = Message { term: 5, commit: 4, ..message(2, MessageType::MsgHeartbeat) };
    let error = rig.driver.on_messages(vec![counted]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    let log = rig.dir.path().join(LOG);
    let Rig { driver, dir: _dir, .. } = rig;
    drop(driver);
    let refused = LogStorage::open(&log, 3).err().expect("it is not opened again");
    assert!(refused.message.contains("move the whole data folder away"), "{refused}");
}

/// What it asks for goes through the log once, until it has lost its disk again.
#[tokio::test(start_paused = true)]
async fn a_server_is_admitted_once_for_each_lost_disk() {
    let mut rig = Rig::leading().await;
    let node = rig.driver.node.clone();
    let ask = |server: u64, nonce: &'static str| {
        let node = node.clone();
        let request = v1::JoinRequest { node: server, nonce: nonce.into() };
        tokio::spawn(async move { node.admit(request).await })
    };
    for stranger in [1, 4] {
        let refused = ask(stranger, "a");
        assert_eq!(rig.pump().await, 0);
        assert_eq!(refused.await.unwrap().unwrap_err().kind, ErrorKind::NotFound);
    }
    // Who asks may give up waiting: its entry is under way all the same, and no other is made.
    let impatient = ask(3, "a");
    tokio::task::yield_now().await;
    impatient.abort();
    assert!(impatient.await.unwrap_err().is_cancelled());
    let (again, twice) = (ask(3, "a"), ask(3, "a"));
    assert_eq!(rig.pump().await, 1);
    assert_eq!(rig.pump().await, 0);
    let admitted = again.await.unwrap().unwrap();
    let last = rig.driver.raw.raft.raft_log.last_index();
    let term = rig.driver.raw.raft.term;
    assert_eq!((admitted.term, admitted.index), (term, last), "where the entry lies");
    rig.propose(admit(9));
    rig.settle().await;
    rig.acknowledge(&[2]).await;
    assert_eq!(twice.await.unwrap().unwrap(), admitted);
    // It may have acknowledged what was counted since, and has forgotten it.
    let lost_again = ask(3, "b");
    assert_eq!(rig.pump().await, 1);
    assert_eq!(lost_again.await.unwrap().unwrap().index, last + 2);
    // An earlier version does not say which start of it asks.
    for more in [3, 4] {
        let unnamed = ask(3, "");
        assert_eq!(rig.pump().await, 1);
        assert_eq!(unnamed.await.unwrap().unwrap().index, last + more);
    }
}

/// Else it would keep its lead, and answer nobody.
#[tokio::test(start_paused = true)]
async fn a_server_whose_worker_has_ended_ends() {
    for of_log in [false, true] {
        let mut rig = Rig::leading().await;
        match of_log {
            true => rig.driver.written = mpsc::unbounded_channel().1,
            false => rig.driver.applied = mpsc::unbounded_channel().1,
        }
        let Rig { driver, dir: _dir, stop: _stop, .. } = rig;
        let ended = timeout(Duration::from_secs(3600), driver.run()).await;
        assert_eq!(ended.expect("it ends").unwrap_err().kind, ErrorKind::Internal);
    }
}
