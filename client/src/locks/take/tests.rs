//! Without a cluster: what the table decides, and who is gone in the middle.

use super::super::table::MAX_UNTOLD;
use super::*;
use crate::Options;
use crate::meta::Group;
use crate::namespace::{ChangeLog, Requests};
use futures_util::FutureExt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_net::{Identity, Peers, tcp};
use weft_proto::locks::MAX_LOCKS;
use weft_segments::{MapWatch, Rng};

const INO: InodeId = InodeId(7);

/// Of a mount without a cluster, which may lock one file without asking.
fn alone() -> Arc<Locks> {
    let options = Options::new(Vec::new(), tcp());
    let peers = Peers::new(tcp(), Identity { name: String::new(), cluster: None });
    let group = Group::new(&options, peers, MapWatch::new(), Arc::new(Rng::new(Some(1))));
    group.sessions.begin(SessionId(1));
    let (ino, layout) = (INO.0, || Some(v1::LayoutInfo::default()));
    let (seq, write, locks) = (1, true, true);
    let grants = vec![v1::Grant { ino, seq, write, locks, layout: layout(), ..Default::default() }];
    let kind = v1::FileKind::Regular.into();
    let attr = Some(v1::Attr { ino, kind, ..Default::default() });
    let opened = v1::OpenReply { attr, layout: layout(), ..Default::default() };
    let result = Some(Reply::Open(opened));
    let op = Op::Lease(v1::LeaseOp { ino, write, ..Default::default() });
    let leases = &group.leases;
    leases.renewed(Instant::now(), Duration::from_secs(600));
    leases.learn(leases.start(), &op, &v1::MetaReply { result, grants, ..Default::default() });
    assert!(leases.may_lock(INO));
    let group = Arc::new(group);
    let log = Arc::new(ChangeLog::new(group.clone(), options.publish_age));
    let requests = Arc::new(Requests::new(group.clone(), log));
    Locks::new(group, requests, FOR_EVER)
}

fn lock(owner: u64) -> Lock {
    Lock { flock: true, owner, kind: LockKind::Write, start: 0, end: LAST, pid: 1 }
}

/// It waits for what another has closed when it is killed, and has its own closed then.
#[tokio::test]
async fn who_is_gone_before_it_could_lock_locks_nothing() {
    let locks = alone();
    let always: StillAsked = Arc::new(|| Ok(()));
    locks.set(INO, HandleId(1), lock(1), &always).await.unwrap();
    let gate = locks.table.find(INO, (true, 1), |e| e.gate.clone()).unwrap();
    let waits = Arc::new(AtomicBool::new(true));
    let asked: StillAsked = Arc::new({
        let waits = waits.clone();
        move || match waits.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err(ErrorKind::Interrupted.into()),
        }
    });
    let releasing = gate.write().await;
    let mut set = pin!(locks.set(INO, HandleId(2), lock(2), &asked));
    assert!(set.as_mut().now_or_never().is_none(), "the other still holds it");
    waits.store(false, Ordering::SeqCst);
    locks.unlock_handle(INO, HandleId(2)).await;
    locks.table.edit(INO, &gate, |_| false);
    drop(releasing);
    assert_eq!(set.await.map_err(|error| error.kind), Err(ErrorKind::Interrupted));
    assert!(locks.table.is_empty(), "nobody is there to release it");
    // Who waits has it then.
    locks.set(INO, HandleId(3), lock(3), &always).await.unwrap();
    locks.unlock_handle(INO, HandleId(3)).await;
    assert!(locks.table.is_empty());
}

/// Who takes one range after another, which nobody needs to hear of.
fn lock_ranges(locks: &Locks, owner: u64, ranges: usize) -> Option<Result<()>> {
    let gate = locks.table.begin(INO, (false, owner), HandleId(1));
    let mut locked = Some(Ok(()));
    for n in 0..ranges as u64 {
        let at = (owner << 32) + 2 * n;
        let lock = Lock { flock: false, start: at, end: at, ..lock(owner) };
        locked = locks.table.lock_here(INO, &gate, &lock);
    }
    locks.table.end(INO, &gate, |_| ());
    locked
}

#[tokio::test]
async fn a_recall_has_few_locks_to_tell() {
    let locks = alone();
    for owner in 1..=2 {
        assert!(matches!(lock_ranges(&locks, owner, MAX_UNTOLD / 2), Some(Ok(()))));
    }
    assert!(lock_ranges(&locks, 3, 1).is_none(), "the leader hears of all now");
    assert_eq!(locks.table.unpublished(INO).len(), 2);
}

#[tokio::test]
async fn no_more_are_locked_than_a_session_may_hold() {
    let locks = alone();
    for owner in 0..MAX_LOCKS as u64 {
        locks.table.begin(InodeId(1000 + owner), (false, 0), HandleId(1));
    }
    assert!(lock_ranges(&locks, 1, 1).is_none(), "the leader refuses it, and those stay");
}
