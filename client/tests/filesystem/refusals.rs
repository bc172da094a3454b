//! Servers that refuse to be asked, and requests that are given up before they are answered.

use crate::create;
use crate::fixture::stranger::Stranger;
use crate::fixture::{Cluster, alone, small_layout};
use std::sync::atomic::Ordering;
use std::time::Duration;
use weft_client::{Filesystem, Lock, LockKind, Options};
use weft_proto::locks::LAST;
use weft_proto::v1::lock::Kind;
use weft_proto::{ErrorKind, InodeId};

/// An address of the group may be another cluster's by now. That it refuses is no answer: what was
/// done here before is told to whoever leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_cluster_is_passed_over() {
    let stranger = Stranger::new().await;
    let address = stranger.address.clone();
    let (cluster, fs) = alone::client(|options| options.metadata.push(address)).await;
    let metadata = &cluster.metadata;
    // So that it is not told before there is no leader.
    *metadata.refuse_makes.lock() = Some(ErrorKind::Unavailable);
    let (handle, ino) = alone::create(&fs, "f").await;
    metadata.hints.store(false, Ordering::SeqCst);
    metadata.leader.store(99, Ordering::SeqCst);
    assert!(!metadata.state.lock().names.contains_key(&b"f"[..]), "it waits");
    stranger.begin();
    let sync = tokio::spawn({
        let fs = fs.clone();
        async move { fs.sync().await }
    });
    while stranger.accepted() < 3 && !sync.is_finished() {
        tokio::task::yield_now().await;
    }
    *metadata.refuse_makes.lock() = None;
    metadata.leader.store(1, Ordering::SeqCst);
    sync.await.unwrap().unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!(cluster.client().await.lookup(InodeId::ROOT, b"f").await.unwrap().ino, ino);
    cluster.assert_no_violations();
}

/// There is no leader to wait for, and whoever asks is told why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster_at_every_address_is_told() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    cluster.stop();
    let mut strangers = Vec::new();
    for address in &cluster.servers {
        let stranger = Stranger::at(address).await;
        stranger.begin();
        strangers.push(stranger);
    }
    let found = fs.lookup(InodeId::ROOT, b"f").await;
    assert_eq!(found.err().map(|e| e.kind), Some(ErrorKind::WrongCluster));
}

/// A request to lock may be carried out after its caller was told that it took too long. Whoever
/// closes the file then has the lock no more all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_given_up_is_released_after_it_was_set() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let mut options: Options = cluster.options();
    options.op_deadline = Duration::from_secs(1);
    let fs = Filesystem::connect(options).await.unwrap();
    // Who is alone locks without asking.
    let _other = cluster.client().await;
    let metadata = &cluster.metadata;
    let (handle, _) = create(&fs, "f").await;
    metadata.hold_locks.send_replace(true);
    let lock = Lock { flock: true, owner: 7, kind: LockKind::Write, start: 0, end: LAST, pid: 1 };
    // On a busy machine it is given up before it was sent, and asked for again.
    while metadata.held_locks.load(Ordering::SeqCst) == 0 {
        fs.set_lock(handle, lock).await.unwrap_err();
    }
    // Not before it is known what the lock led to; nor does the close wait for that for ever.
    let _ = fs.release(handle).await;
    metadata.hold_locks.send_replace(false);
    while metadata.locks.lock().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*metadata.locks.lock(), [Kind::Write, Kind::None]);
    cluster.assert_no_violations();
}

/// A lock that was taken without asking is told when others want the file, for as long as it takes:
/// what was given up could still be carried out, after the release of a lock that counts as lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_told_late_is_not_lost() {
    let (cluster, fs) = alone::client(|options| options.op_deadline = Duration::from_secs(1)).await;
    let metadata = &cluster.metadata;
    let (handle, ino) = alone::create(&fs, "f").await;
    fs.fsync(handle, false).await.unwrap();
    let lock = Lock { flock: true, owner: 7, kind: LockKind::Write, start: 0, end: LAST, pid: 1 };
    fs.set_lock(handle, lock).await.unwrap();
    assert!(metadata.locks.lock().is_empty(), "nobody was asked");
    metadata.hold_locks.send_replace(true);
    metadata.recall(ino.0);
    // Who does not answer is asked once more, after the deadline of any call.
    let returned = || metadata.returns.lock().iter().any(|item| item.ino == ino.0);
    while metadata.held_locks.load(Ordering::SeqCst) < 2 && !returned() {
        tokio::task::yield_now().await;
    }
    assert!(!returned(), "the leader does not know of the lock");
    metadata.hold_locks.send_replace(false);
    while !returned() {
        tokio::task::yield_now().await;
    }
    assert_eq!(*metadata.locks.lock(), [Kind::Write]);
    fs.write(handle, 0, b"it is held").await.unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!(*metadata.locks.lock(), [Kind::Write, Kind::None]);
    cluster.assert_no_violations();
}
