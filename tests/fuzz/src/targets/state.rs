//! The state machine, asked for whatever clients may ask for. No request may stop a replica, which
//! would stop them all, and the namespace must stay consistent with itself.

use crate::asker::Asker;
use crate::draw::{Source, drawn};
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_metadata::StateMachine;
use weft_proto::v1;

/// Requests of one input.
const MOST: u64 = 40;
const TARGETS: u32 = 4;
const SESSIONS: u64 = 2;

/// One request after the other of sessions that there are, and what the namespace says of itself
/// then.
pub fn read(bytes: &[u8]) -> bool {
    let mut source = Source::new(bytes);
    let mut cluster = Cluster::new();
    let mut done = 0;
    for _ in 0..MOST {
        if source.is_empty() {
            break;
        }
        // How it is meant: mostly as a client would, sometimes not.
        let how = source.byte();
        if how >= 252 {
            cluster.end_session(usize::from(how & 1));
        } else if how >= 230 {
            let request: v1::MetaRequest = drawn(&mut source);
            let _ = cluster.machine.read(&request);
        } else {
            done += u64::from(cluster.ask(how, &mut source));
        }
    }
    let check =
        v1::MetaRequest { op: Some(Op::Check(v1::CheckOp::default())), ..Default::default() };
    match cluster.machine.read(&check).expect("a check").result {
        Some(Reply::Check(report)) => {
            assert!(report.problems.is_empty(), "{:#?}\n{:#?}", report.problems, cluster.log);
        }
        other => panic!("a check answered {other:?}"),
    }
    done > 0
}

/// Bytes of which many requests are drawn.
pub fn seeds() -> Vec<Vec<u8>> {
    let entropy =
        |seed: u32| (0..500u32).map(move |i| (i * (29 + 2 * seed) + i * i / 7 + seed) as u8);
    (0..8).map(|seed| entropy(seed).collect()).collect()
}

/// A state with four targets, a placement group on them, and sessions.
struct Cluster {
    machine: StateMachine,
    askers: Vec<Asker>,
    log: Vec<Body>,
}

impl Cluster {
    fn new() -> Self {
        let machine = StateMachine::open_in_memory();
        let mut cluster = Self { machine, askers: Vec::new(), log: Vec::new() };
        let profile = Some(v1::ProfileInfo { k: 2, m: 1 });
        let id = vec![7; 16].into();
        cluster.apply(Body::InitCluster(v1::InitClusterEntry {
            cluster: id,
            profile,
            ..Default::default()
        }));
        for number in 1..=TARGETS {
            let uuid = vec![number as u8; 16].into();
            let target = Some(v1::TargetInfo { uuid, ..Default::default() });
            cluster.apply(Body::RegisterTarget(v1::RegisterTargetEntry { target }));
        }
        let group = v1::PgInfo { id: 1, targets: (1..=TARGETS).collect(), ..Default::default() };
        let based_on_epoch = cluster.machine.cluster_map().expect("a map").epoch;
        cluster.apply(Body::SetPgs(v1::SetPgsEntry {
            pool: 1,
            pgs: vec![group],
            based_on_epoch,
            ..Default::default()
        }));
        cluster.askers = (0..SESSIONS).map(|_| cluster.opened()).collect();
        cluster.log.clear();
        cluster
    }

    /// Whether it is done.
    fn ask(&mut self, how: u8, source: &mut Source<'_>) -> bool {
        let which = usize::from(how & 1);
        let mut request = self.askers[which].ask(how, source);
        if let Some(Op::ReserveInodes(op)) = &mut request.op {
            // A leader says what all servers know; a newer version ends this one.
            op.known = 0;
        }
        let reply = self.apply(Body::Client(request));
        // Each knows what others have made.
        let told = reply.reply.and_then(|reply| reply.result);
        told.iter().for_each(|told| match told {
            Reply::ReserveInodes(_) => self.askers[which].note(told),
            _ => self.askers.iter_mut().for_each(|asker| asker.note(told)),
        });
        reply.error == 0
    }

    fn apply(&mut self, body: Body) -> v1::StoredReply {
        self.log.push(body.clone());
        let index = self.machine.applied() + 1;
        let entry = v1::LogEntry {
            time_ns: 1000 + index as i64,
            body: Some(body),
            complete: true,
            ..Default::default()
        };
        match self.machine.apply(&[(index, entry)]) {
            Ok(mut replies) => replies.remove(0),
            Err(error) => panic!("a request stops the replica: {error}\n{:#?}", self.log),
        }
    }

    /// A new session.
    fn opened(&mut self) -> Asker {
        let nonce = self.machine.applied().to_le_bytes().repeat(2).into();
        let op = v1::OpenSessionOp { client: "client".into(), nonce, ..Default::default() };
        let request = v1::MetaRequest { op: Some(Op::OpenSession(op)), ..Default::default() };
        match self.apply(Body::Client(request)).reply.and_then(|reply| reply.result) {
            Some(Reply::OpenSession(reply)) => Asker::of(reply.session),
            other => panic!("a session answered {other:?}"),
        }
    }

    /// A session is over, and its client has another one.
    fn end_session(&mut self, which: usize) {
        let session = self.askers[which].session;
        self.apply(Body::ExpireSession(v1::ExpireSessionEntry { session }));
        self.askers[which] = self.opened();
    }
}
