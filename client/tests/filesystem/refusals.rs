//! Servers that refuse to be asked, and requests that are given up before they are answered.

use crate::create;
use crate::fixture::storage::Fault;
use crate::fixture::stranger::Stranger;
use crate::fixture::{Cluster, SHORT, alone, in_time, small_layout};
use crate::spill::assert_content;
use futures_util::future::poll_immediate;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_client::{Filesystem, Lock, LockKind, OpenFlags, Options, SetAttr, Via};
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
    let options = Options { op_deadline: SHORT, ..cluster.options() };
    let fs = in_time(async || Filesystem::connect(options.clone()).await).await.unwrap();
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
    let (cluster, fs) = alone::client(|options| options.op_deadline = SHORT).await;
    let metadata = &cluster.metadata;
    let (handle, ino) = alone::create(&fs, "f").await;
    in_time(async || fs.fsync(handle, false).await).await.unwrap();
    let lock = Lock { flock: true, owner: 7, kind: LockKind::Write, start: 0, end: LAST, pid: 1 };
    in_time(async || fs.set_lock(handle, lock).await).await.unwrap();
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
    in_time(async || fs.write(handle, 0, b"it is held").await).await.unwrap();
    // What takes too long is told on.
    let _ = fs.release(handle).await;
    while metadata.locks.lock().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*metadata.locks.lock(), [Kind::Write, Kind::None]);
    cluster.assert_no_violations();
}

/// Who wrote is gone, and with it the locks under which it did: others have written since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_waits_for_is_not_written() {
    const FULL: usize = 4 << 20;
    for closed in [true, false] {
        let cluster = Cluster::start(3, small_layout("2+1")).await;
        let (op_deadline, write_buffer_bytes) = (Duration::from_secs(600), FULL);
        let options = Options { op_deadline, write_buffer_bytes, ..cluster.options() };
        let fs = Filesystem::connect(options).await.unwrap();
        let ((handle, ino), (full, _)) = (create(&fs, "f").await, create(&fs, "full").await);
        let set = |fault| cluster.targets.iter().for_each(|target| target.set(fault));
        set(Fault::RefusePut(ErrorKind::Unavailable));
        assert_eq!(fs.write(full, 0, &vec![1; FULL]).await, Ok(FULL));
        let waits = AtomicBool::new(true);
        let still = || waits.load(Ordering::SeqCst);
        let mut write = pin!(fs.write_while(handle, 0, &[1; 1000], Via::Direct, still));
        assert_eq!(poll_immediate(&mut write).await, None, "there is no room");
        match closed {
            true => fs.release(handle).await.unwrap(),
            false => waits.store(false, Ordering::SeqCst),
        }
        let other = cluster.client().await;
        let theirs = other.open(ino, OpenFlags { write: true, ..Default::default() }).await;
        let theirs = theirs.unwrap().handle;
        other.write(theirs, 0, &[2; 1000]).await.unwrap();
        other.fsync(theirs, false).await.unwrap();
        set(Fault::None);
        assert_eq!(write.await.unwrap_err().kind, ErrorKind::Interrupted);
        fs.sync().await.unwrap();
        assert_content(&cluster, ino, &[2; 1000]).await;
        cluster.assert_no_violations();
    }
}

/// The caller was killed while what comes before the change was told, and its locks are gone.
#[tokio::test]
async fn a_size_that_nobody_waits_for_is_not_set() {
    let (cluster, fs) = alone::client(|_| {}).await;
    let refuse = |kind| *cluster.metadata.refuse_makes.lock() = kind;
    let (handle, ino) = alone::create(&fs, "f").await;
    fs.write(handle, 0, &[1; 1000]).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    refuse(Some(ErrorKind::Unavailable));
    alone::create(&fs, "before").await;
    let waits = Arc::new(AtomicBool::new(true));
    let still = waits.clone();
    let cut = SetAttr { size: Some(0), ..Default::default() };
    let still = move || still.load(Ordering::SeqCst);
    let mut cut = pin!(fs.set_attr_while(ino, Some(handle), cut, still));
    assert_eq!(poll_immediate(&mut cut).await, None, "what was made before is not told");
    waits.store(false, Ordering::SeqCst);
    refuse(None);
    assert_eq!(cut.await.unwrap_err().kind, ErrorKind::Interrupted);
    fs.sync().await.unwrap();
    assert_content(&cluster, ino, &[1; 1000]).await;
    cluster.assert_no_violations();
}
