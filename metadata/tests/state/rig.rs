//! A state machine with one session, a log of what was applied, and readers of what it holds.

use std::path::Path;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_metadata::state::StateMachine;
use weft_proto::{ErrorKind, v1};

/// The root of the shard that the state machine owns.
pub const ROOT: u64 = ino(1);

/// An inode of that shard.
pub const fn ino(number: u64) -> u64 {
    (crate::SHARD as u64) << 48 | number
}

pub const TARGETS: u32 = 4;
pub const GROUP: u32 = 1;

pub struct Rig {
    pub machine: StateMachine,
    pub log: Vec<(u64, v1::LogEntry)>,
    pub session: u64,
    pub number: u64,
    pub time: i64,
}

/// What a request answered: the reply, or the kind of the refusal.
pub type Answer = Result<Reply, ErrorKind>;

pub fn answer(stored: v1::StoredReply) -> Answer {
    match stored.error {
        0 => Ok(stored.reply.and_then(|r| r.result).expect("a reply without a result")),
        code => Err(ErrorKind::from_code(code)),
    }
}

/// A request of the rig's session, the next one.
pub fn run(rig: &mut Rig, op: Op) -> Answer {
    let request = rig.next_request(op);
    rig.request(request)
}

impl Rig {
    pub fn in_memory() -> Self {
        Self::begin(StateMachine::open_in_memory())
    }

    pub fn on_disk(dir: &Path) -> Self {
        Self::begin(StateMachine::open_with_cache(dir, 4 << 20).expect("open"))
    }

    /// A cluster with four targets, one placement group over them, profile 2+1, and one session.
    fn begin(machine: StateMachine) -> Self {
        let mut rig = Self { machine, log: Vec::new(), session: 0, number: 0, time: 1_000 };
        let profile = Some(v1::ProfileInfo { k: 2, m: 1 });
        let (cluster, shard) = (vec![7; 16].into(), crate::SHARD.into());
        let init = v1::InitClusterEntry { cluster, profile, members: vec![], shard };
        rig.entry(Body::InitCluster(init)).expect("init");
        for i in 1..=TARGETS {
            let target = v1::TargetInfo { uuid: vec![i as u8; 16].into(), ..Default::default() };
            rig.entry(Body::RegisterTarget(v1::RegisterTargetEntry { target: Some(target) }))
                .expect("register");
        }
        let group = v1::PgInfo {
            id: GROUP,
            targets: (1..=TARGETS).collect(),
            retired: false,
            ..Default::default()
        };
        let based_on_epoch = rig.machine.cluster_map().expect("map").epoch;
        rig.entry(Body::SetPgs(v1::SetPgsEntry {
            pool: 1,
            pgs: vec![group],
            based_on_epoch,
            ..Default::default()
        }))
        .expect("groups");
        rig.session = rig.open_session(1);
        rig
    }

    pub fn open_session(&mut self, nonce: u8) -> u64 {
        let op = Op::OpenSession(v1::OpenSessionOp {
            client: format!("client-{nonce}"),
            nonce: vec![nonce; 16].into(),
            ..Default::default()
        });
        match self.request(v1::MetaRequest { op: Some(op), ..Default::default() }) {
            Ok(Reply::OpenSession(reply)) => reply.session,
            other => panic!("open session answered {other:?}"),
        }
    }

    /// Of the cluster map; 0 before there is one.
    pub fn epoch(&self) -> u64 {
        self.machine.cluster_map().map_or(0, |map| map.epoch)
    }

    pub fn entry(&mut self, body: Body) -> Answer {
        self.time += 1;
        let entry = v1::LogEntry {
            time_ns: self.time,
            body: Some(body),
            complete: true,
            ..Default::default()
        };
        let item = (self.machine.applied() + 1, entry);
        let (epoch, changes) = (self.epoch(), self.machine.map_changes());
        let mut replies = self.machine.apply(std::slice::from_ref(&item)).expect("apply");
        // Watchers of the map are told of every change, whatever brings it about, and of no other.
        assert_eq!(self.epoch() != epoch, self.machine.map_changes() != changes, "{item:?}");
        self.log.push(item);
        answer(replies.remove(0))
    }

    pub fn request(&mut self, request: v1::MetaRequest) -> Answer {
        self.entry(Body::Client(request))
    }

    pub fn next_request(&mut self, op: Op) -> v1::MetaRequest {
        self.number += 1;
        let acked_below = self.number.saturating_sub(3);
        v1::MetaRequest { session: self.session, number: self.number, acked_below, op: Some(op) }
    }

    /// Has inode numbers set aside for this session. Answers the first.
    pub fn reserve(&mut self, count: u32) -> Result<u64, ErrorKind> {
        match run(self, Op::ReserveInodes(v1::ReserveInodesOp { count, ..Default::default() }))? {
            Reply::ReserveInodes(reply) => Ok(reply.first),
            other => panic!("reserve answered {other:?}"),
        }
    }

    pub fn read(&self, op: Op) -> Answer {
        let request = v1::MetaRequest { op: Some(op), ..Default::default() };
        match self.machine.read(&request) {
            Ok(reply) => Ok(reply.result.expect("a reply without a result")),
            Err(e) => Err(e.kind),
        }
    }

    pub fn attr(&self, ino: u64) -> Result<v1::Attr, ErrorKind> {
        match self.read(Op::GetAttr(v1::GetAttrOp { ino }))? {
            Reply::Attr(attr) => Ok(attr),
            other => panic!("getattr answered {other:?}"),
        }
    }

    pub fn extents(&self, ino: u64, off: u64, len: u64) -> v1::ExtentsReply {
        match self.read(Op::GetExtents(v1::GetExtentsOp { ino, off, len })) {
            Ok(Reply::Extents(reply)) => reply,
            other => panic!("extents of {ino} answered {other:?}"),
        }
    }

    /// The whole directory, read `limit` names at a time.
    pub fn read_dir(&self, ino: u64, limit: u32) -> (Vec<v1::DirEntry>, u64) {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let op = Op::ReadDir(v1::ReadDirOp { ino, cookie, limit, attrs: true });
            let Ok(Reply::ReadDir(reply)) = self.read(op) else { panic!("readdir of {ino}") };
            all.extend(reply.entries);
            if reply.end {
                return (all, reply.parent);
            }
            cookie = all.last().expect("an empty answer that is not the end").cookie;
        }
    }

    /// What the names in a directory lead to.
    pub fn names(&self, dir: u64) -> Vec<(u64, String)> {
        let name = |e: v1::DirEntry| (e.ino, String::from_utf8_lossy(&e.name).into_owned());
        self.read_dir(dir, 100).0.into_iter().map(name).collect()
    }

    pub fn segments(&self, limit: u32) -> Vec<v1::list_segments_reply::Item> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let op = Op::ListSegments(v1::ListSegmentsOp { after, limit });
            let Ok(Reply::ListSegments(reply)) = self.read(op) else { panic!("list segments") };
            all.extend(reply.items);
            if !reply.more {
                return all;
            }
            after = all.last().and_then(|item| item.segment.as_ref()).and_then(|s| s.id);
        }
    }

    /// Runs the full check and fails on any problem.
    pub fn check(&self) -> v1::CheckReply {
        match self.read(Op::Check(v1::CheckOp {})) {
            Ok(Reply::Check(report)) => {
                assert!(report.problems.is_empty(), "check found {:#?}", report.problems);
                report
            }
            other => panic!("check answered {other:?}"),
        }
    }

    /// A new segment of this session on the one group, with `m` = 1.
    pub fn segment(&self, seq: u64, length: u64) -> v1::SegmentInfo {
        v1::SegmentInfo {
            id: Some(v1::SegmentKey { session: self.session, seq }),
            profile: Some(v1::ProfileInfo { k: 2, m: 1 }),
            unit: 4096,
            length,
            pg: GROUP,
            seats: vec![0, 1, 2].into(),
        }
    }
}
