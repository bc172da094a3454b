//! What the service answers on a leader that tests drive by hand.

use super::*;
use weft_proto::SessionId;

/// The leader of a cluster, and what answers there.
pub(super) async fn serving() -> (Rig, MetadataService) {
    let mut rig = Rig::leading().await;
    let init = v1::InitClusterEntry {
        cluster: vec![7; 16].into(),
        profile: Some(v1::ProfileInfo { k: 2, m: 1 }),
        members: vec![],
        shard: 0,
    };
    rig.propose(v1::log_entry::Body::InitCluster(init));
    rig.settle().await;
    rig.acknowledge(&[2]).await;
    let service = MetadataService::new(
        rig.driver.node.clone(),
        Arc::default(),
        rig.driver.wiring.snapshots.clone(),
        mpsc::channel(1).0,
        rig.driver.wiring.shutdown.clone(),
    );
    (rig, service)
}

/// What begins the first session.
fn open() -> v1::meta_request::Op {
    v1::meta_request::Op::OpenSession(v1::OpenSessionOp {
        client: "c".into(),
        nonce: vec![1; 16].into(),
        ..Default::default()
    })
}

pub(super) fn incoming(request: &v1::MetaRequest) -> weft_net::Incoming {
    let peer = weft_net::PeerInfo {
        name: "c".into(),
        address: "c".into(),
        cluster: None,
        features: weft_net::Features::default(),
        subject: None,
    };
    weft_net::Incoming {
        op: op::META,
        head: request.encode_to_vec().into(),
        payload: Default::default(),
        peer: Arc::new(peer),
        deadline: None,
    }
}

/// Whoever is told so gives up locks and what it has not written: soft state that has gone with a
/// term, or is of an earlier one, is no proof.
#[tokio::test(start_paused = true)]
async fn a_session_is_over_only_if_the_state_says_so() {
    use v1::meta_request::Op;
    let (mut rig, service) = serving().await;
    let request = v1::MetaRequest { op: Some(open()), ..Default::default() };
    let mut call = service.call(incoming(&request));
    assert!(timeout(Duration::ZERO, &mut call).await.is_err(), "it waits for the log");
    assert_eq!(rig.pump().await, 1);
    call.await.unwrap();
    let node = rig.driver.node.clone();
    node.soft.with(|s| s.start(Instant::now(), 0, Vec::new()));
    for (session, kind) in [(1, ErrorKind::Unavailable), (2, ErrorKind::SessionExpired)] {
        for op in [
            Op::Recalls(v1::RecallsOp::default()),
            Op::Renew(v1::RenewOp::default()),
            Op::Close(v1::CloseOp { items: vec![Default::default()] }),
        ] {
            node.lease.extend(Instant::now());
            let request = v1::MetaRequest { session, op: Some(op), ..Default::default() };
            let refused = service.call(incoming(&request)).await.map(drop);
            assert_eq!(refused.unwrap_err().kind, kind, "{:?}", request.op);
        }
    }
}

/// What comes along with an answer cannot be read any more when the change has taken effect.
#[tokio::test(start_paused = true)]
async fn what_was_done_is_told_without_what_comes_along() {
    use v1::meta_reply::Result as Reply;
    use v1::meta_request::Op;
    let (mut rig, service) = serving().await;
    let create = |name: &'static str| {
        Op::Create(v1::CreateOp { parent: 1, name: name.into(), ..Default::default() })
    };
    // The lease to make files in the root comes with the layout that they get.
    for (number, op, damaged, grants) in
        [(0, open(), false, 0), (1, create("f"), false, 2), (2, create("g"), true, 0)]
    {
        let request =
            v1::MetaRequest { session: number.min(1), number, acked_below: 0, op: Some(op) };
        let mut call = service.call(incoming(&request));
        assert!(timeout(Duration::ZERO, &mut call).await.is_err(), "it waits for the log");
        assert_eq!(rig.pump().await, 1);
        if damaged {
            let root = crate::schema::inode(weft_proto::InodeId::ROOT);
            rig.driver.node.state.damage(root, Some("\u{7f}".into()));
        }
        let reply = v1::MetaReply::decode(call.await.unwrap().head).unwrap();
        assert!(matches!(reply.result, Some(Reply::Open(_) | Reply::OpenSession(_))), "{reply:?}");
        assert_eq!(reply.grants.len(), grants, "{reply:?}");
    }
    // A create of what is there is answered with its content, which is weighed before.
    let weigh = |name, exclusive| {
        let create = v1::CreateOp { parent: 1, name, exclusive, ..Default::default() };
        let request = v1::MetaRequest { op: Some(Op::Create(create)), ..Default::default() };
        service.weigh(op::META, &request.encode_to_vec().into())
    };
    assert_eq!(weigh("f".into(), true), 0);
    assert!(weigh("f".into(), false) > 64 << 10);
}

/// The group has the lock, and its client would not know.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_set_is_not_refused_at_a_retry() {
    use crate::soft::lock_counts::MAX_WITH_HELD;
    use v1::meta_request::Op;
    let (mut rig, service) = serving().await;
    let node = rig.driver.node.clone();
    let lock = |owner| {
        let kind = v1::lock::Kind::Read.into();
        let lock = v1::Lock { ino: 1, owner, kind, end: 9, ..Default::default() };
        Op::SetLock(v1::SetLockOp { lock: Some(lock), ..Default::default() })
    };
    let request = |session, number, op| {
        incoming(&v1::MetaRequest { session, number, acked_below: 0, op: Some(op) })
    };
    for request in [request(0, 0, open()), request(1, 1, lock(1))] {
        let mut call = service.call(request);
        assert!(timeout(Duration::ZERO, &mut call).await.is_err(), "it waits for the log");
        assert_eq!(rig.pump().await, 1);
        call.await.unwrap();
    }
    assert_eq!(node.state.count_locks(SessionId(1), 9).unwrap(), 1);
    node.soft.with(|s| s.lock_counts.counted(SessionId(1), MAX_WITH_HELD));
    node.lease.extend(Instant::now());
    let refused = service.call(request(1, 2, lock(2))).await.map(drop);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::NoLocks);
    let mut again = service.call(request(1, 1, lock(1)));
    assert!(timeout(Duration::ZERO, &mut again).await.is_err(), "it waits for the log");
    rig.pump().await;
    again.await.unwrap();
}

/// Each mount tells what it saw, by its own clock.
#[tokio::test(start_paused = true)]
async fn an_access_that_others_have_told_is_not_noted_again() {
    use v1::meta_request::Op;
    let (mut rig, service) = serving().await;
    let node = rig.driver.node.clone();
    let ahead = node.env.clock.now_ns() + 30 * 86_400_000_000_000;
    let root = |atime_ns| vec![v1::Access { ino: 1, atime_ns }];
    let accessed = |accesses| Op::Accessed(v1::AccessedOp { accesses });
    let tells = [(0, open()), (1, accessed(root(ahead)))];
    for (number, op) in tells {
        let request =
            v1::MetaRequest { session: number.min(1), number, acked_below: 0, op: Some(op) };
        let mut call = service.call(incoming(&request));
        assert!(timeout(Duration::ZERO, &mut call).await.is_err(), "it waits for the log");
        assert_eq!(rig.pump().await, 1);
        call.await.unwrap();
    }
    let noted = node.state.attr(weft_proto::InodeId::ROOT).unwrap().unwrap();
    let now = node.env.clock.now_ns();
    assert!((noted.ctime_ns.max(1)..=now).contains(&noted.atime_ns), "{} {now}", noted.atime_ns);
    for (number, again) in [(2, root(ahead + 1)), (3, Vec::new())] {
        let op = Some(accessed(again));
        let request = v1::MetaRequest { session: 1, number, acked_below: 0, op };
        let answered = timeout(Duration::ZERO, service.call(incoming(&request))).await;
        answered.expect("there is nothing to log").unwrap();
    }
}

/// The client asks again, and another answers. With nobody to take the lead, only who asks for what
/// is damaged is told so; and nobody can ask in a way that looks like damage.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_read_its_state_leaves_the_lead_to_who_can() {
    use v1::meta_request::Op;
    let (mut rig, service) = serving().await;
    let node = rig.driver.node.clone();
    let ask = async |op| {
        node.lease.extend(Instant::now());
        let request = v1::MetaRequest { op: Some(op), ..Default::default() };
        service.call(incoming(&request)).await.map(drop).map_err(|e| e.kind)
    };
    let root = || Op::GetAttr(v1::GetAttrOp { ino: 1 });
    rig.acknowledge(&[2, 3]).await;
    assert_eq!(ask(root()).await, Ok(()));
    for (op, refusal) in [
        (Op::GetAttr(v1::GetAttrOp { ino: u64::MAX }), ErrorKind::Stale),
        (Op::ReadLink(v1::ReadLinkOp { ino: 1 }), ErrorKind::Invalid),
        (Op::Lookup(v1::LookupOp { parent: 1, name: vec![0; 3999].into() }), ErrorKind::NotFound),
        (
            Op::GetXattr(v1::GetXattrOp { ino: 1, name: vec![7; 3999].into() }),
            ErrorKind::NoAttribute,
        ),
    ] {
        let refused = ask(op.clone()).await.unwrap_err();
        assert!(refused == refusal || refused == ErrorKind::NameTooLong, "{op:?}: {refused:?}");
    }
    assert_eq!(node.state.failure(), None);
    rig.driver.on_tick().unwrap();

    advance(node.config.election_timeout()).await;
    rig.acknowledge(&[2]).await;
    node.state.damage(crate::schema::inode(weft_proto::InodeId::ROOT), Some("\u{7f}".into()));
    rig.driver.on_tick().unwrap();
    assert_eq!(ask(root()).await, Err(ErrorKind::Io), "server 3 is silent");
    rig.driver.on_tick().unwrap();
    rig.acknowledge(&[2, 3]).await;
    let ended = rig.driver.on_tick().unwrap_err();
    assert!(ended.message.contains("move the whole data folder away"), "{ended}");
    assert_eq!(ask(root()).await, Err(ErrorKind::Unavailable));
}

/// Memory is taken for long answers before they are made, and for none that waits for something.
#[tokio::test(start_paused = true)]
async fn a_question_tells_how_long_its_answer_may_get() {
    use v1::meta_request::Op;
    let rig = Rig::leading().await;
    let service = MetadataService::new(
        rig.driver.node.clone(),
        Arc::default(),
        rig.driver.wiring.snapshots.clone(),
        mpsc::channel(1).0,
        rig.driver.wiring.shutdown.clone(),
    );
    let weigh = |op| {
        let request = v1::MetaRequest { session: 7, number: 9, op: Some(op), ..Default::default() };
        service.weigh(op::META, &request.encode_to_vec().into())
    };
    let read_dir = |limit, attrs| {
        weigh(Op::ReadDir(v1::ReadDirOp { ino: 1, limit, attrs, ..Default::default() }))
    };
    assert!(weigh(Op::GetExtents(v1::GetExtentsOp { ino: 2, off: 0, len: u64::MAX })) > 1 << 20);
    assert!(read_dir(0, false) > 1 << 20);
    assert!(read_dir(256, true) > 256 * (255 + 100) && read_dir(256, true) < 1 << 19);
    assert!(read_dir(1, false) < 8 << 10);
    assert!(weigh(Op::Open(v1::OpenOp { ino: 2, ..Default::default() })) > 64 << 10);
    let lookup = weigh(Op::Lookup(v1::LookupOp { parent: 1, name: vec![b'x'; 255].into() }));
    assert!((16 << 10..64 << 10).contains(&lookup));
    assert_eq!(weigh(Op::Recalls(v1::RecallsOp::default())), 0);
    assert_eq!(weigh(Op::WaitLock(v1::WaitLockOp::default())), 0);
    assert_eq!(weigh(Op::MkDir(v1::MkDirOp::default())), 0);
    assert_eq!(service.weigh(op::META, &vec![0xff; 100].into()), 0);
    assert_eq!(service.weigh(op::SNAPSHOT_PIECE, &Default::default()), 1 << 20);
}

/// All places of the leader are of those that wait for a lock: who holds it still gives it back,
/// and neither that nor what it does before is kept back for its rate.
#[tokio::test(start_paused = true)]
async fn those_that_wait_for_a_lock_do_not_keep_who_holds_it_from_giving_it_back() {
    use v1::lock::Kind;
    use v1::meta_request::Op;
    let (mut rig, service) = serving().await;
    let (node, service) = (rig.driver.node.clone(), Arc::new(service));
    let ask = |session, number, op| {
        let request = v1::MetaRequest { session, number, acked_below: 0, op: Some(op) };
        let service = service.clone();
        async move { service.call(incoming(&request)).await }
    };
    let lock = |kind: Kind, owner| {
        Some(v1::Lock { ino: 1, kind: kind.into(), owner, end: 9, ..Default::default() })
    };
    let set = |kind| Op::SetLock(v1::SetLockOp { lock: lock(kind, 1), ..Default::default() });
    let open = |nonce| {
        let nonce = vec![nonce; 16].into();
        Op::OpenSession(v1::OpenSessionOp { nonce, ..Default::default() })
    };
    let make = |name: u64| {
        let name = name.to_string().into();
        Op::MkDir(v1::MkDirOp { parent: 1, name, ..Default::default() })
    };
    // What is asked for is in the log at once.
    let change = async |rig: &mut Rig, session, number, op| {
        let mut call = Box::pin(ask(session, number, op));
        assert!(timeout(Duration::ZERO, &mut call).await.is_err(), "it waits for the log");
        assert_eq!(rig.pump().await, 1);
        call.await.unwrap();
    };
    change(&mut rig, 0, 0, open(1)).await;
    change(&mut rig, 0, 0, open(2)).await;
    node.lease.extend(Instant::now());
    change(&mut rig, 1, 1, set(Kind::Write)).await;

    // More than there are places.
    let mut waiting = tokio::task::JoinSet::new();
    for ticket in 1..1000 {
        let lock = lock(Kind::Write, 100 + ticket);
        waiting.spawn(ask(2, 0, Op::WaitLock(v1::WaitLockOp { lock, ticket })));
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(waiting.len(), 999);
    let mut held = |ino, flock| node.state.locks_of(ino, flock);
    node.soft.with(|s| s.locks.settle(Instant::now(), &mut held)).unwrap();
    assert!(node.soft.with(|s| s.awaited(SessionId(1)).unwrap()));
    let limits = Some(v1::QosLimits { metadata: Some(1), ..Default::default() });
    let rule = Some(v1::QosRule { tenant: String::new(), limits });
    rig.propose(v1::log_entry::Body::SetQos(v1::SetQosEntry { rule }));
    rig.settle().await;
    rig.acknowledge(&[2]).await;
    for number in 2..9 {
        change(&mut rig, 1, number, make(number)).await;
    }
    change(&mut rig, 1, 9, set(Kind::None)).await;
    node.soft.with(|s| s.locks.settle(Instant::now(), &mut held)).unwrap();
    let told = waiting.join_next().await.unwrap().unwrap();
    let reply = v1::MetaReply::decode(told.unwrap().head).unwrap();
    let turn = v1::LockReply { conflict: None, turn: true };
    assert_eq!(reply.result, Some(v1::meta_reply::Result::Lock(turn)));
    // Nobody waits for this one.
    let mut call = Box::pin(ask(1, 10, make(10)));
    assert!(timeout(Duration::ZERO, &mut call).await.is_err());
    assert_eq!(rig.pump().await, 0, "its rate is kept");
}
