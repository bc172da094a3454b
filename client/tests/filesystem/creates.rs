//! Files that a client makes on its own, told to a metadata group that loses replies, refuses, is
//! away, and declares sessions dead.

use crate::fixture::alone::{client, create, makes_alone, makes_one_alone, quiet};
use crate::fixture::{Cluster, SHORT, in_time, pattern, small_layout};
use std::sync::atomic::Ordering;
use weft_client::{Creator, Filesystem, OpenFlags, SetAttr, Via};
use weft_proto::rename::EXCHANGE;
use weft_proto::{ErrorKind, InodeId};

fn kind(told: weft_proto::Result<()>) -> Result<(), ErrorKind> {
    told.map_err(|error| error.kind)
}

pub(crate) async fn content(cluster: &Cluster, name: &str) -> Vec<u8> {
    let fs = Filesystem::connect(cluster.options()).await.unwrap();
    let ino = fs.lookup(InodeId::ROOT, name.as_bytes()).await.unwrap().ino;
    let opened = fs.open(ino, OpenFlags::default()).await.unwrap();
    let data = fs.read(opened.handle, 0, 1 << 20).await.unwrap().into_bytes();
    fs.release(opened.handle).await.unwrap();
    fs.shutdown().await.unwrap();
    data.to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_whose_making_is_answered_late_is_made_once() {
    for len in [0, 10, 20_000] {
        let (cluster, fs) = client(quiet).await;
        let before = cluster.metadata.count("batch");
        let (handle, _) = create(&fs, "f").await;
        let data = pattern(len, 1);
        fs.write(handle, 0, &data).await.unwrap();
        cluster.metadata.lose_replies.store(2, Ordering::SeqCst);
        fs.fsync(handle, false).await.unwrap();
        fs.release(handle).await.unwrap();
        assert!(content(&cluster, "f").await == data);
        // Two tries were lost.
        assert_eq!(cluster.metadata.count("batch") - before, 3);
        cluster.assert_no_violations();
    }
}

/// A mount that began while a server was of an older version, or had said nothing yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_made_here_once_the_whole_group_knows_how() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    cluster.metadata.let_make.store(true, Ordering::SeqCst);
    cluster.metadata.is_older.store(true, Ordering::SeqCst);
    let fs = Filesystem::connect(cluster.options()).await.unwrap();
    let mut made = 0;
    while cluster.metadata.count("reserve") == 0 {
        assert!(!makes_one_alone(&cluster, &fs, &format!("f{made}")).await);
        made += 1;
    }
    assert!(!makes_one_alone(&cluster, &fs, "g").await);
    cluster.metadata.is_older.store(false, Ordering::SeqCst);
    makes_alone(&cluster, &fs).await;
    let asked = cluster.metadata.count("reserve");
    for i in 0..100 {
        assert!(makes_one_alone(&cluster, &fs, &format!("h{i}")).await);
    }
    assert_eq!(cluster.metadata.count("reserve"), asked, "it is asked what it has said");
    fs.shutdown().await.unwrap();
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_content_reaches_the_writer_and_the_file_is_made() {
    let (cluster, fs) = client(|options| options.close_sync = true).await;
    let (handle, _) = create(&fs, "f").await;
    fs.write(handle, 0, b"abc").await.unwrap();
    *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::NoSpace);
    // Who closes a copy of the descriptor takes nothing from others.
    for _ in 0..2 {
        assert_eq!(kind(fs.close(handle, 0).await), Err(ErrorKind::NoSpace));
    }
    assert_eq!(kind(fs.fsync(handle, false).await), Err(ErrorKind::NoSpace));
    assert_eq!(fs.fsync(handle, false).await, Ok(()), "once");
    assert_eq!(fs.close(handle, 0).await, Ok(()));
    fs.release(handle).await.unwrap();
    fs.sync().await.unwrap();
    assert_eq!(content(&cluster, "f").await, b"");
    cluster.assert_no_violations();
}

/// A close does not wait for the group; who syncs the file, its directory or everything next is
/// told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_after_the_close_is_told_to_who_syncs() {
    let (cluster, fs) = client_of_a_full_cluster().await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, b"abc").await.unwrap();
    assert_eq!(fs.close(handle, 0).await, Ok(()));
    // It may have been refused by now.
    let _ = fs.release(handle).await;
    // `weft sync`: by anybody, who takes it from nobody, and by root.
    let sync_by = async |name: &[u8]| kind(fs.get_xattr(ino, name).await.map(drop));
    for _ in 0..2 {
        assert_eq!(sync_by(b"user.weft.sync").await, Err(ErrorKind::NoSpace));
    }
    assert_eq!(sync_by(b"trusted.weft.sync").await, Err(ErrorKind::NoSpace));
    assert_eq!(sync_by(b"trusted.weft.sync").await, Ok(()), "once");
    assert_eq!(kind(fs.sync().await), Ok(()), "once");
    *cluster.metadata.refuse_commits.lock() = None;
    let again = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    assert_eq!(kind(fs.fsync(again, false).await), Err(ErrorKind::NoSpace));
    assert_eq!(kind(fs.fsync(again, false).await), Ok(()), "once");
    assert_eq!(content(&cluster, "f").await, b"");
    cluster.assert_no_violations();
}

/// The cluster refuses content.
async fn client_of_a_full_cluster() -> (Cluster, Filesystem) {
    let (cluster, fs) = client(quiet).await;
    *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::NoSpace);
    (cluster, fs)
}

/// Who syncs the file, its directory and everything is told once that there is no room.
async fn is_told_once_to_who_syncs(fs: &Filesystem, ino: InodeId) {
    let again = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    for told in [Err(ErrorKind::NoSpace), Ok(())] {
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), told, "the directory");
        assert_eq!(kind(fs.sync().await), told, "everything");
        assert_eq!(kind(fs.fsync(again, false).await), told, "the file");
    }
    fs.release(again).await.unwrap();
}

/// Whether it may write or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_it_open_hides_no_failure_from_who_syncs() {
    for write in [false, true] {
        let (cluster, fs) = client_of_a_full_cluster().await;
        let (handle, ino) = create(&fs, "f").await;
        let flags = OpenFlags { write, ..Default::default() };
        let other = fs.open(ino, flags).await.unwrap().handle;
        fs.write(handle, 0, b"abc").await.unwrap();
        assert_eq!(fs.close(handle, 0).await, Ok(()));
        let _ = fs.release(handle).await;
        is_told_once_to_who_syncs(&fs, ino).await;
        // Each handle hears of it, and nobody because of that.
        assert_eq!(kind(fs.fsync(other, false).await), Err(ErrorKind::NoSpace), "write: {write}");
        fs.release(other).await.unwrap();
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await.and(fs.sync().await)), Ok(()));
        cluster.assert_no_violations();
    }
}

/// It may have stored what came back from the cache through another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_maps_a_file_has_closed_what_others_wrote_back() {
    let (cluster, fs) = client_of_a_full_cluster().await;
    cluster.metadata.grant_maps.store(true, Ordering::Relaxed);
    let (other, ino) = create(&fs, "f").await;
    let flags = OpenFlags { write: true, both: true, ..Default::default() };
    let maps = fs.open(ino, flags).await.unwrap().handle;
    assert_eq!(fs.write_via(other, 0, &[1; 4096], Via::WriteBack).await, Ok(4096));
    assert_eq!(fs.close(maps, 0).await, Ok(()));
    let _ = fs.release(maps).await;
    is_told_once_to_who_syncs(&fs, ino).await;
    assert_eq!(kind(fs.fsync(other, false).await), Err(ErrorKind::NoSpace));
    fs.release(other).await.unwrap();
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_writes_on_hides_no_failure_of_another() {
    let (cluster, fs) = client_of_a_full_cluster().await;
    let (first, ino) = create(&fs, "f").await;
    fs.write(first, 0, b"abc").await.unwrap();
    cluster.metadata.hold_batches.send_replace(true);
    assert_eq!(fs.close(first, 0).await, Ok(()));
    let _ = fs.release(first).await;
    let writes = OpenFlags { write: true, ..Default::default() };
    let second = fs.open(ino, writes).await.unwrap().handle;
    fs.write(second, 10, b"def").await.unwrap();
    cluster.metadata.hold_batches.send_replace(false);
    assert_eq!(kind(fs.fsync(second, false).await), Err(ErrorKind::NoSpace));
    assert_eq!(fs.fsync(second, false).await, Ok(()), "it has synced the file");
    for told in [Err(ErrorKind::NoSpace), Ok(())] {
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), told, "the directory");
        assert_eq!(kind(fs.sync().await), told, "everything");
    }
    fs.release(second).await.unwrap();
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await.and(fs.sync().await)), Ok(()));
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_who_wrote_was_told_is_not_told_to_who_syncs() {
    // By the close.
    let (cluster, fs) = client(|options| options.close_sync = true).await;
    let (handle, _) = create(&fs, "f").await;
    *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::NoSpace);
    fs.write(handle, 0, b"abc").await.unwrap();
    assert_eq!(kind(fs.close(handle, 0).await), Err(ErrorKind::NoSpace));
    let _ = fs.release(handle).await;
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await.and(fs.sync().await)), Ok(()));
    // One of two, who hears of it for both.
    let (_cluster, fs) = client_of_a_full_cluster().await;
    let (first, ino) = create(&fs, "f").await;
    let writes = OpenFlags { write: true, ..Default::default() };
    let second = fs.open(ino, writes).await.unwrap().handle;
    fs.write(first, 0, b"abc").await.unwrap();
    assert_eq!(kind(fs.fsync(first, false).await), Err(ErrorKind::NoSpace));
    for handle in [first, second] {
        let _ = fs.release(handle).await;
    }
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await.and(fs.sync().await)), Ok(()));
}

/// As of one that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_writer_hears_of_is_told_when_the_last_has_left() {
    let (_cluster, fs) = client_of_a_full_cluster().await;
    let (first, ino) = create(&fs, "f").await;
    let writes = OpenFlags { write: true, ..Default::default() };
    let second = fs.open(ino, writes).await.unwrap().handle;
    let reads = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    fs.write(first, 0, b"abc").await.unwrap();
    // It fails, and who wrote it has it open.
    assert_eq!(kind(fs.sync().await), Err(ErrorKind::NoSpace));
    assert_eq!(kind(fs.fsync(reads, false).await), Err(ErrorKind::NoSpace), "who reads");
    let _ = fs.release(first).await;
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), Ok(()), "the other may hear of it");
    let _ = fs.release(second).await;
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), Err(ErrorKind::NoSpace));
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), Ok(()), "once");
    fs.release(reads).await.unwrap();
}

/// I2: a name never outlives what was written before it, whichever of two files it is of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_comes_after_what_was_written_to_both() {
    for closes in [false, true] {
        let (cluster, fs) = client(quiet).await;
        let [a, b] = [create(&fs, "a").await, create(&fs, "b").await];
        fs.sync().await.unwrap();
        for (handle, ino) in [a, b] {
            fs.write(handle, 0, b"abc").await.unwrap();
            if closes {
                assert_eq!(fs.close(handle, 0).await, Ok(()));
            }
            assert!(fs.get_attr(ino).await.unwrap().size == 3);
        }
        let before = cluster.metadata.requests.lock().len();
        fs.rename(InodeId::ROOT, b"a", InodeId::ROOT, b"b", EXCHANGE).await.unwrap();
        let asked = cluster.metadata.requests.lock()[before..].to_vec();
        let told = asked.iter().filter(|op| matches!(**op, "commit" | "rename"));
        let expected: &[_] = if closes { &["rename"] } else { &["commit", "commit", "rename"] };
        let told: Vec<_> = told.copied().collect();
        assert!(told.ends_with(expected), "{asked:?}");
        for (_, ino) in [a, b] {
            assert_eq!(cluster.metadata.state.lock().inodes[&ino.0].attr.size, 3);
        }
        assert_eq!(fs.lookup(InodeId::ROOT, b"a").await.unwrap().ino, b.1);
        cluster.assert_no_violations();
    }
}

/// Nothing is told of a file that was removed before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_came_and_went_costs_nothing() {
    let (cluster, fs) = client(quiet).await;
    let before = cluster.metadata.requests.lock().len();
    for len in [0, 10, 100_000] {
        let (handle, ino) = create(&fs, "f").await;
        fs.write(handle, 0, &pattern(len, 1)).await.unwrap();
        fs.release(handle).await.unwrap();
        fs.unlink(InodeId::ROOT, b"f").await.unwrap();
        assert_eq!(fs.get_attr(ino).await.map_err(|e| e.kind), Err(ErrorKind::NotFound));
    }
    let asked = cluster.metadata.requests.lock()[before..].to_vec();
    let told = |op: &&&str| matches!(**op, "batch" | "unlink" | "create" | "commit");
    assert_eq!(asked.iter().filter(told).count(), 0, "{asked:?}");
    fs.sync().await.unwrap();
    // What was sent to storage is deleted.
    while cluster.targets.iter().any(|t| !t.chunks.lock().is_empty()) {
        tokio::task::yield_now().await;
    }
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_made_is_told_to_its_handles() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    // As if the lease had not held: somebody else's.
    cluster.metadata.state.lock().names.insert(b"f".to_vec(), 7_000_000);
    assert_eq!(fs.fsync(handle, false).await.map_err(|e| e.kind), Err(ErrorKind::Exists));
    assert_eq!(fs.fsync(handle, false).await, Ok(()), "once");
    assert_eq!(fs.get_attr(ino).await.map_err(|e| e.kind), Err(ErrorKind::NotFound));
    fs.release(handle).await.unwrap();
    // Another, which was closed before anybody knew.
    let (cluster, fs) = client(|_| ()).await;
    let (handle, _) = create(&fs, "g").await;
    cluster.metadata.state.lock().names.insert(b"g".to_vec(), 7_000_001);
    fs.release(handle).await.unwrap();
    // Whoever syncs is told once, each in its own way.
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), Err(ErrorKind::Exists));
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), Ok(()));
    assert_eq!(kind(fs.sync().await), Err(ErrorKind::Exists));
    assert_eq!(kind(fs.sync().await), Ok(()));
    fs.shutdown().await.unwrap();
    cluster.assert_no_violations();
}

/// Whoever has it open, and what was written to it is part of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_made_is_told_once_to_who_syncs() {
    let (cluster, fs) = client(quiet).await;
    let (handle, ino) = create(&fs, "f").await;
    let other = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    fs.write(handle, 0, b"abc").await.unwrap();
    cluster.metadata.state.lock().names.insert(b"f".to_vec(), 7_000_000);
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), Err(ErrorKind::Exists));
    assert_eq!(kind(fs.sync().await), Err(ErrorKind::Exists));
    assert_eq!(kind(fs.fsync(other, false).await), Err(ErrorKind::Exists), "not what follows");
    for handle in [handle, other] {
        let _ = fs.release(handle).await;
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await.and(fs.sync().await)), Ok(()), "once");
    }
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_wait_for_a_group_that_is_away() {
    let (cluster, fs) = client(|options| options.op_deadline = SHORT).await;
    let (open, _) = create(&fs, "open").await;
    let (closed, _) = create(&fs, "closed").await;
    in_time(async || fs.write(open, 0, b"abc").await).await.unwrap();
    cluster.metadata.leader.store(99, Ordering::SeqCst);
    fs.release(closed).await.unwrap();
    assert_eq!(fs.fsync(open, false).await.map_err(|e| e.kind), Err(ErrorKind::TimedOut));
    cluster.metadata.leader.store(1, Ordering::SeqCst);
    in_time(async || fs.fsync(open, false).await).await.unwrap();
    fs.release(open).await.unwrap();
    in_time(async || fs.sync().await).await.unwrap();
    assert_eq!(content(&cluster, "open").await, b"abc");
    assert_eq!(content(&cluster, "closed").await, b"");
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_made_in_the_session_after_their_own() {
    let (cluster, fs) = client(|_| ()).await;
    let data = pattern(20_000, 1);
    let (empty, ino) = create(&fs, "empty").await;
    let (small, _) = create(&fs, "small").await;
    let (large, _) = create(&fs, "large").await;
    fs.write(small, 0, b"abc").await.unwrap();
    fs.write(large, 0, &data).await.unwrap();
    let before = fs.session();
    cluster.metadata.expire_sessions();
    for handle in [empty, small, large] {
        fs.fsync(handle, false).await.unwrap();
        fs.release(handle).await.unwrap();
    }
    assert_ne!(fs.session(), before);
    assert_eq!(fs.lookup(InodeId::ROOT, b"empty").await.unwrap().ino, ino);
    assert_eq!(content(&cluster, "small").await, b"abc");
    assert!(content(&cluster, "large").await == data);
    cluster.assert_no_violations();
}

/// A file is made, and the answer comes late; meanwhile another leads, who was not told that it is
/// open, and others remove it. A kernel that was told `Stale` would make it once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_that_others_remove_before_it_is_open_is_not_made_again() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (fs, metadata) = (cluster.client().await, &cluster.metadata);
    let count = |name| metadata.count(name);
    metadata.hold_answers();
    let maker = fs.clone();
    let making = tokio::spawn(async move {
        let flags = OpenFlags { exclusive: true, ..Default::default() };
        maker.create(InodeId::ROOT, b"f", 0o640, Creator::default(), flags).await
    });
    while count("create") == 0 {
        tokio::task::yield_now().await;
    }
    metadata.forgets.store(true, Ordering::Relaxed);
    while count("declare") == 0 {
        tokio::task::yield_now().await;
    }
    metadata.forgets.store(false, Ordering::Relaxed);
    let gone = metadata.state.lock().names.remove(&b"f"[..]).unwrap();
    metadata.state.lock().inodes.remove(&gone);
    metadata.answer(u64::MAX);
    let opened = making.await.unwrap().unwrap();
    assert_eq!((count("create"), count("tmp_file")), (1, 1));
    assert_eq!((opened.attr.mode & 0o777, opened.attr.size), (0o640, 0));
    fs.write(opened.handle, 0, b"abc").await.unwrap();
    fs.fsync(opened.handle, false).await.unwrap();
    assert_eq!(fs.read(opened.handle, 0, 9).await.unwrap().into_bytes(), b"abc"[..]);
    assert!(metadata.state.lock().names.is_empty());
    fs.release(opened.handle).await.unwrap();
    cluster.assert_no_violations();
}

/// A mode that is set while the content of a closed file is being committed is that of the file,
/// for all who look and whoever opens it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mode_that_waits_for_a_closed_file_stays() {
    let (cluster, fs) = client(|_| ()).await;
    let metadata = &cluster.metadata;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, &pattern(20_000, 1)).await.unwrap();
    metadata.hold_commits.send_replace(true);
    fs.release(handle).await.unwrap();
    let sync = tokio::spawn({
        let fs = fs.clone();
        async move { fs.sync().await }
    });
    while metadata.held.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let mode = SetAttr { mode: Some(0o600), ..Default::default() };
    let mut set = Box::pin(fs.set_attr(ino, None, mode));
    let waits = futures_util::FutureExt::now_or_never(&mut set);
    metadata.hold_commits.send_replace(false);
    sync.await.unwrap().unwrap();
    if waits.is_none() {
        set.await.unwrap();
    }
    assert_eq!(fs.get_attr(ino).await.unwrap().mode & 0o777, 0o600);
    let again = fs.open(ino, OpenFlags::default()).await.unwrap();
    assert_eq!(again.attr.mode & 0o777, 0o600);
    fs.release(again.handle).await.unwrap();
    fs.sync().await.unwrap();
    assert_eq!(metadata.state.lock().inodes[&ino.0].attr.mode & 0o777, 0o600);
    cluster.assert_no_violations();
}

/// The kernel releases a file behind the back of the program that closed it, and does next.
#[tokio::test]
async fn a_mode_is_that_of_a_file_which_is_released_meanwhile() {
    let (cluster, fs) = client(|_| ()).await;
    let metadata = &cluster.metadata;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, &pattern(20_000, 1)).await.unwrap();
    fs.close(handle, 7).await.unwrap();
    metadata.hold_commits.send_replace(true);
    let sync = tokio::spawn({
        let fs = fs.clone();
        async move { fs.sync().await }
    });
    while metadata.held.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let mode = SetAttr { mode: Some(0o600), ..Default::default() };
    let mut set = Box::pin(fs.set_attr(ino, None, mode));
    // It waits for the commit.
    assert!(futures_util::FutureExt::now_or_never(&mut set).is_none());
    metadata.hold_commits.send_replace(false);
    sync.await.unwrap().unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!(set.await.unwrap().mode & 0o777, 0o600);
    assert_eq!(fs.get_attr(ino).await.unwrap().mode & 0o777, 0o600);
    fs.sync().await.unwrap();
    assert_eq!(metadata.state.lock().inodes[&ino.0].attr.mode & 0o777, 0o600);
    cluster.assert_no_violations();
}
