//! What waits for written data: that it ends, with what was waited for or an error.

use crate::fixture::alone::{client, create, quiet};
use crate::fixture::storage::Fault;
use crate::fixture::{Cluster, PATIENCE, SHORT, in_time, pattern, small_layout, until};
use futures_util::FutureExt;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use weft_client::{Allocate, Creator, Filesystem, HandleId, OpenFlags, SetAttr, Via};
use weft_proto::{ErrorKind, InodeId, v1};

async fn content(cluster: &Cluster, ino: InodeId) -> Vec<u8> {
    let fs = cluster.client().await;
    let opened = fs.open(ino, OpenFlags::default()).await.unwrap();
    let data = fs.read(opened.handle, 0, 1 << 20).await.unwrap().into_bytes();
    fs.release(opened.handle).await.unwrap();
    fs.shutdown().await.unwrap();
    data.to_vec()
}

/// What was to be flushed is overwritten before it gets to storage.
#[tokio::test]
async fn a_flush_ends_when_what_it_waits_for_is_overwritten() {
    let (cluster, fs) = client(|_| ()).await;
    let segment = cluster.metadata.state.lock().layout.segment_len as usize;
    let (handle, ino) = create(&fs, "f").await;
    let write = |off: usize, byte| {
        let written = fs.write_now(handle, off as u64, &vec![byte; segment / 2], Via::Cache);
        assert_eq!(written.unwrap().unwrap(), segment / 2);
    };
    // The first whole segment is on its way when the flush begins.
    write(0, 1);
    write(segment / 2, 1);
    let mut flush = pin!(fs.flush(handle));
    assert!(flush.as_mut().now_or_never().is_none());
    // Nobody has run meanwhile, and nothing of it is wanted any more.
    write(segment / 2, 2);
    write(0, 2);
    tokio::time::timeout(PATIENCE, flush).await.expect("a flush ends").unwrap();
    fs.flush(handle).await.unwrap();
    let read = fs.read(handle, 0, segment).await.unwrap().into_bytes();
    assert!(read == vec![2; segment] && fs.get_attr(ino).await.unwrap().size == read.len() as u64);
    cluster.assert_no_violations();
}

/// Who reads a file has nothing to wait for when it closes it.
#[tokio::test]
async fn a_reader_does_not_wait_for_what_others_write() {
    let (cluster, fs) = client(|_| ()).await;
    let (writer, ino) = create(&fs, "f").await;
    fs.write(writer, 0, b"abc").await.unwrap();
    fs.flush(writer).await.unwrap();
    let reader = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    cluster.targets.iter().for_each(|t| t.set(Fault::Hang));
    let segment = cluster.metadata.state.lock().layout.segment_len as usize;
    fs.write(writer, 0, &vec![1; segment]).await.unwrap();
    let mut flush = pin!(fs.flush(writer));
    assert!(flush.as_mut().now_or_never().is_none());
    assert_eq!(fs.close_now(reader, 7), Some(Ok(())));
    fs.close(reader, 7).now_or_never().expect("nothing to wait for").unwrap();
    fs.release(reader).now_or_never().expect("nothing to wait for").unwrap();
    assert!(flush.as_mut().now_or_never().is_none());
    cluster.targets.iter().for_each(|t| t.set(Fault::None));
}

/// Sessions die again and again, each time that something is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_that_succeeds_has_committed_however_often_it_had_to_begin_anew() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let by = Creator::default();
    let opened = fs.create(InodeId::ROOT, b"f", 0o644, by, OpenFlags::default()).await.unwrap();
    let data = pattern(100_000, 3);
    fs.write(opened.handle, 0, &data).await.unwrap();
    cluster.metadata.expire_at_commit.store(12, Ordering::SeqCst);
    fs.flush(opened.handle).await.unwrap();
    assert!(content(&cluster, opened.attr.ino).await == data);
    cluster.assert_no_violations();
}

/// Somebody else writes the file anew whenever it was found out where its bytes are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_overwritten_all_the_time_can_be_read() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let by = Creator::default();
    let opened = fs.create(InodeId::ROOT, b"f", 0o644, by, OpenFlags::default()).await.unwrap();
    let data = pattern(30_000, 3);
    fs.write(opened.handle, 0, &data).await.unwrap();
    fs.flush(opened.handle).await.unwrap();
    let left = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(20));
    for target in &cluster.targets {
        let (metadata, left, ino) = (cluster.metadata.clone(), left.clone(), opened.attr.ino.0);
        *target.on_get.lock() = Some(Box::new(move || {
            let more = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if more.is_ok() {
                metadata.rewrite(ino);
            }
        }));
    }
    let read = fs.read(opened.handle, 0, data.len()).await.unwrap().into_bytes();
    assert!(read == data);
    assert_eq!(left.load(Ordering::SeqCst), 0);
    cluster.targets.iter().for_each(|target| *target.on_get.lock() = None);
    // What is lost is not taken for that.
    cluster.targets.iter().for_each(|target| target.set(Fault::Empty));
    let lost = fs.read(opened.handle, 20_000, 100).await;
    assert_eq!(lost.map(|_| ()).map_err(|e| e.kind), Err(ErrorKind::Io));
}

/// A client that gives up soon, with a file under a lease to write that holds `abc`, buffered.
async fn hasty() -> (Cluster, Filesystem, HandleId, InodeId) {
    let (cluster, fs) = client(|options| options.op_deadline = SHORT).await;
    let (handle, ino) = create(&fs, "f").await;
    in_time(async || fs.flush(handle).await).await.unwrap();
    in_time(async || fs.write(handle, 0, b"abc").await).await.unwrap();
    (cluster, fs, handle, ino)
}

/// Nothing can be committed from now on, and the lease is wanted. Returns when a flush has failed.
async fn put_off(cluster: &Cluster, fs: &Filesystem, handle: HandleId, ino: InodeId) {
    *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::Unavailable);
    cluster.metadata.recall(ino.0);
    // It is told of a flush that failed.
    until(|| fs.write_now(handle, 0, b"abc", Via::Cache).is_some_and(|written| written.is_err()))
        .await;
}

/// A failure is told once, by whichever flush found out.
async fn flush_twice(fs: &Filesystem, handle: HandleId) {
    let _ = in_time(async || fs.flush(handle).await).await;
    in_time(async || fs.flush(handle).await).await.unwrap();
}

/// The session ends, and a new one begins.
async fn until_next_session(cluster: &Cluster, fs: &Filesystem) {
    let before = fs.session();
    cluster.metadata.expire_sessions();
    until(|| fs.session() != before).await;
}

/// Nothing can be committed for longer than an operation takes, while the lease is wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_not_given_back_before_what_was_written_under_it_is_committed() {
    let (cluster, fs, handle, ino) = hasty().await;
    put_off(&cluster, &fs, handle, ino).await;
    let commits = cluster.metadata.count("commit");
    until(|| cluster.metadata.count("commit") > commits + 3).await;
    assert_eq!(
        cluster.metadata.count("return_leases"),
        0,
        "others may write the file from then on"
    );
    *cluster.metadata.refuse_commits.lock() = None;
    until(|| cluster.metadata.count("return_leases") > 0).await;
    assert_eq!(content(&cluster, ino).await, b"abc");
    cluster.assert_no_violations();
}

/// Who writes while the right to is being given back waits for that, and not for what stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_go_on_to_read_may_write_again_once_the_right_to_is_back() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, b"abc").await.unwrap();
    let metadata = &cluster.metadata;
    metadata.hold_commits.send_replace(true);
    metadata.recall_write(ino.0);
    until(|| metadata.held.load(Ordering::SeqCst) > 0).await;
    let (writer, asked, begun) = (fs.clone(), metadata.count("lease"), Instant::now());
    let writes = tokio::spawn(async move { writer.write(handle, 0, b"xyz").await });
    until(|| metadata.count("lease") > asked).await;
    metadata.hold_commits.send_replace(false);
    assert_eq!(writes.await.unwrap(), Ok(3));
    // Who has waited for long is not kept waiting.
    if begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(metadata.count("commit"), 1, "the second was committed by itself");
    }
    cluster.assert_no_violations();
}

/// The leader does not ask for it twice, and others wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_given_back_until_the_leader_has_heard_of_it() {
    let (cluster, _fs, _handle, ino) = hasty().await;
    let metadata = &cluster.metadata;
    metadata.refuse_returns.store(true, Ordering::SeqCst);
    metadata.recall(ino.0);
    let refused = || metadata.refused_returns.load(Ordering::SeqCst);
    until(|| refused() > 0).await;
    // A request that comes later than its deadline is another.
    let late = Instant::now() + 2 * SHORT;
    until(|| Instant::now() >= late).await;
    let before = refused();
    until(|| refused() > before).await;
    metadata.refuse_returns.store(false, Ordering::SeqCst);
    until(|| metadata.count("return_leases") > 0).await;
    assert_eq!(content(&cluster, ino).await, b"abc");
    cluster.assert_no_violations();
}

/// A group that takes a tree apart wants each inode back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_are_recalled_together_are_given_back_together() {
    let (cluster, fs) = client(|_| ()).await;
    let metadata = &cluster.metadata;
    let mut inos = Vec::new();
    for i in 0..100 {
        let (handle, ino) = create(&fs, &format!("f{i}")).await;
        fs.release(handle).await.unwrap();
        inos.push(ino.0);
    }
    let (handle, busy) = create(&fs, "busy").await;
    fs.sync().await.unwrap();
    fs.write(handle, 0, b"abc").await.unwrap();
    metadata.hold_commits.send_replace(true);
    inos.insert(50, busy.0);
    let returned = || metadata.returns.lock().iter().map(|item| item.ino).collect::<Vec<_>>();
    let (before, given) = (metadata.count("return_leases"), returned().len());
    metadata.recall_at_once(&inos, false);
    // What can be given back does not wait for what cannot.
    until(|| returned().len() >= 100 + given).await;
    assert!(!returned().contains(&busy.0));
    metadata.hold_commits.send_replace(false);
    until(|| returned().contains(&busy.0)).await;
    let asked = metadata.count("return_leases") - before;
    assert!(asked <= 30, "{asked} requests");
    assert_eq!(content(&cluster, busy).await, b"abc");
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_not_given_back_before_what_was_made_in_it_is_told() {
    let (cluster, fs) = client(|options| options.op_deadline = SHORT).await;
    let (handle, _) = create(&fs, "f").await;
    *cluster.metadata.refuse_makes.lock() = Some(ErrorKind::Unavailable);
    cluster.metadata.recall(InodeId::ROOT.0);
    until(|| cluster.metadata.count("batch") > 8).await;
    assert_eq!(cluster.metadata.count("return_leases"), 0, "others may look for it from then on");
    *cluster.metadata.refuse_makes.lock() = None;
    until(|| cluster.metadata.count("return_leases") > 0).await;
    assert!(cluster.metadata.state.lock().names.contains_key(&b"f"[..]));
    fs.release(handle).await.unwrap();
}

/// The lease goes with the session, and nobody waits for what was written under it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_under_a_lease_that_is_gone_overwrites_nothing() {
    let (cluster, fs, handle, ino) = hasty().await;
    put_off(&cluster, &fs, handle, ino).await;
    let before = fs.session();
    cluster.metadata.expire_sessions();
    *cluster.metadata.refuse_commits.lock() = None;
    let other = cluster.client().await;
    let theirs = other.open(ino, OpenFlags::default()).await.unwrap().handle;
    other.write(theirs, 0, b"xyz").await.unwrap();
    other.flush(theirs).await.unwrap();
    until(|| fs.session() != before).await;
    flush_twice(&fs, handle).await;
    assert_eq!(content(&cluster, ino).await, b"xyz");
}

/// A change of the size is made on what the group has by then, and is answered with its version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_overwrites_nothing_after_a_truncation_either() {
    let (cluster, fs, handle, ino) = hasty().await;
    put_off(&cluster, &fs, handle, ino).await;
    until_next_session(&cluster, &fs).await;
    // As if another client had committed it.
    cluster.metadata.overwrite(ino.0, b"xyz");
    let longer = SetAttr { size: Some(5), ..Default::default() };
    in_time(async || fs.set_attr(ino, Some(handle), longer).await).await.unwrap();
    *cluster.metadata.refuse_commits.lock() = None;
    flush_twice(&fs, handle).await;
    assert_eq!(content(&cluster, ino).await, b"xyz\0\0");
}

/// What this mount truncates itself does not stand in its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_committed_after_a_truncation_of_this_mount() {
    let (cluster, fs, handle, ino) = hasty().await;
    put_off(&cluster, &fs, handle, ino).await;
    until_next_session(&cluster, &fs).await;
    let shorter = SetAttr { size: Some(2), ..Default::default() };
    in_time(async || fs.set_attr(ino, Some(handle), shorter).await).await.unwrap();
    *cluster.metadata.refuse_commits.lock() = None;
    flush_twice(&fs, handle).await;
    assert_eq!(content(&cluster, ino).await, b"ab");
}

/// A mode that was answered is not lost with data that is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_outlive_the_data_that_they_waited_for() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.flush(handle).await.unwrap();
    fs.write(handle, 0, b"abc").await.unwrap();
    let private = SetAttr { mode: Some(0o600), ..Default::default() };
    assert_eq!(fs.set_attr(ino, Some(handle), private).await.unwrap().mode, 0o600);
    *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::NoSpace);
    let refused = fs.fsync(handle, false).await;
    assert_eq!(refused.map_err(|e| e.kind), Err(ErrorKind::NoSpace));
    *cluster.metadata.refuse_commits.lock() = None;
    fs.fsync(handle, false).await.unwrap();
    assert_eq!(cluster.client().await.get_attr(ino).await.unwrap().mode, 0o600);
    assert_eq!(content(&cluster, ino).await, b"");
}

/// Begins `work`, and drops it when the group has carried `op` out and not answered yet.
async fn drop_midway<T>(cluster: &Cluster, op: &str, work: impl Future<Output = T>) {
    let before = cluster.metadata.count(op);
    tokio::select! {
        _ = work => panic!("{op} was answered"),
        () = until(|| cluster.metadata.count(op) > before) => {}
    }
}

/// The caller is gone when the answer comes: what was committed stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_ends_though_its_caller_is_gone() {
    for (made_alone, op) in [(false, "commit"), (true, "batch")] {
        let (cluster, fs) = client(quiet).await;
        cluster.metadata.let_make.store(made_alone, Ordering::Relaxed);
        let fs = if made_alone { fs } else { cluster.client().await };
        let (handle, ino) = create(&fs, "f").await;
        let data = pattern(50_000, 8);
        let before = cluster.metadata.count(op);
        cluster.metadata.hold_answers();
        let saves = async {
            fs.write(handle, 0, &data).await.unwrap();
            fs.fsync(handle, false).await
        };
        drop_midway(&cluster, op, saves).await;
        let mut again = pin!(fs.fsync(handle, false));
        assert!(again.as_mut().now_or_never().is_none());
        cluster.metadata.answer(u64::MAX);
        again.await.unwrap();
        assert_eq!(cluster.metadata.count(op) - before, 1, "once");
        assert!(content(&cluster, ino).await == data);
        cluster.assert_no_violations();
    }
}

/// Others wait for what one tells the group for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_does_not_fail_when_who_told_the_group_for_it_is_gone() {
    let (cluster, fs) = client(|options| {
        quiet(options);
        options.close_sync = true;
    })
    .await;
    let ((first, _), (file, ino)) = (create(&fs, "first").await, create(&fs, "file").await);
    fs.write(first, 0, b"first").await.unwrap();
    fs.write(file, 0, b"abc").await.unwrap();
    let before = cluster.metadata.count("batch");
    cluster.metadata.hold_answers();
    let mut closes_first = Box::pin(fs.close(first, 0));
    assert!(closes_first.as_mut().now_or_never().is_none());
    let mut closes = pin!(fs.close(file, 0));
    assert!(closes.as_mut().now_or_never().is_none());
    until(|| cluster.metadata.count("batch") > before).await;
    assert!(closes_first.as_mut().now_or_never().is_none());
    drop(closes_first);
    cluster.metadata.answer(u64::MAX);
    closes.await.unwrap();
    assert_eq!(content(&cluster, ino).await, b"abc");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_opened_for_nobody_is_closed() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    cluster.metadata.hold_answers();
    drop_midway(&cluster, "create", create(&fs, "f")).await;
    cluster.metadata.answer(u64::MAX);
    let ino = cluster.metadata.state.lock().names[&b"f"[..]];
    until(|| !cluster.metadata.opens().contains(&ino)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_was_removed_for_nobody_is_known_to_be_gone() {
    // Each name waits for the group.
    let (cluster, _) = client(|_| ()).await;
    let options = weft_client::Options { dir_sync: true, ..cluster.options() };
    let fs = weft_client::Filesystem::connect(options).await.unwrap();
    let (handle, _) = create(&fs, "f").await;
    fs.release(handle).await.unwrap();
    let found = || async { fs.lookup(InodeId::ROOT, b"f").await.map_err(|e| e.kind) };
    assert!(found().await.is_ok());
    cluster.metadata.hold_answers();
    drop_midway(&cluster, "unlink", fs.unlink(InodeId::ROOT, b"f")).await;
    cluster.metadata.answer(u64::MAX);
    assert_eq!(found().await.err(), Some(ErrorKind::NotFound));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_that_was_released_for_nobody_is_gone() {
    let (cluster, fs) = client(|options| options.close_sync = true).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, b"abc").await.unwrap();
    cluster.metadata.hold_answers();
    drop_midway(&cluster, "batch", fs.release(handle)).await;
    cluster.metadata.answer(u64::MAX);
    until(|| fs.write_now(handle, 0, b"", Via::Cache).is_none()).await;
    assert_eq!(content(&cluster, ino).await, b"abc");
}

/// Two changes of the targets while data was on its way, and the mount hears of them late.
#[tokio::test]
async fn what_lies_in_a_group_that_is_no_more_is_written_again() {
    for is_new in [true, false] {
        let (cluster, fs) = client(|_| ()).await;
        let (handle, ino) = create(&fs, "f").await;
        if !is_new {
            fs.fsync(handle, false).await.unwrap();
        }
        let data = pattern(100_000, 5);
        fs.write(handle, 0, &data).await.unwrap();
        let metadata = &cluster.metadata;
        metadata.dropped_pgs.lock().insert(1);
        let sync = fs.fsync(handle, false);
        let told = async {
            until(|| metadata.in_dropped.load(Ordering::SeqCst) > 0).await;
            metadata.place(2);
        };
        let (synced, ()) = futures_util::future::join(sync, told).await;
        synced.unwrap();
        assert!(content(&cluster, ino).await == data);
        let segments = || metadata.state.lock().segments.clone();
        assert!(segments().values().all(|segment| segment.pg == 2), "new: {is_new}");
        // What was written first is deleted.
        let all_known = |target: &std::sync::Arc<crate::fixture::storage::Target>| {
            target.chunks.lock().keys().all(|chunk| segments().contains_key(&chunk.segment))
        };
        until(|| cluster.targets.iter().all(all_known)).await;
        cluster.assert_no_violations();
    }
}

/// It answers all the same, so that the watch of the map does not end. It has no map for who knows
/// none.
#[tokio::test]
async fn a_mount_whose_map_is_of_a_server_that_is_behind_asks_another() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    let data = pattern(100_000, 5);
    fs.write(handle, 0, &data).await.unwrap();
    let metadata = &cluster.metadata;
    // The first is the one that is watched.
    metadata.behind.store(0, Ordering::SeqCst);
    metadata.dropped_pgs.lock().insert(1);
    metadata.place(2);
    tokio::time::timeout(PATIENCE, fs.fsync(handle, false)).await.unwrap().unwrap();
    assert_eq!(fs.cluster_map().epoch, metadata.map.borrow().epoch);
    // Another mount begins at that server.
    assert!(content(&cluster, ino).await == data);
    cluster.assert_no_violations();
}

/// Nothing of what it does meets the change: what it cannot find yet would be waited for for ever.
#[tokio::test]
async fn a_mount_hears_from_the_leader_that_its_map_is_old() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    // The first is the one that is watched.
    cluster.metadata.behind.store(0, Ordering::SeqCst);
    cluster.metadata.place(2);
    let newest = cluster.metadata.map.borrow().epoch;
    until(|| fs.cluster_map().epoch == newest).await;
}

/// Of a segment that was deleted, the group may have gone, too: where the bytes are now is asked
/// for.
#[tokio::test]
async fn a_read_of_what_lay_in_a_group_that_is_no_more_asks_where_it_is_now() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let (handle, ino) = create(&fs, "f").await;
    let data = pattern(30_000, 3);
    fs.write(handle, 0, &data).await.unwrap();
    fs.flush(handle).await.unwrap();
    cluster.metadata.rewrite(ino.0);
    cluster.metadata.state.lock().segments.values_mut().for_each(|segment| segment.pg = 2);
    let epoch = fs.cluster_map().epoch;
    cluster.metadata.place(2);
    until(|| fs.cluster_map().epoch > epoch).await;
    let read = tokio::time::timeout(PATIENCE, fs.read(handle, 0, data.len())).await;
    assert!(read.unwrap().unwrap().into_bytes() == data);
}

/// Another mount that looks later would see less: what waits for its commit, not under the right to
/// write, is shown to nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_committed_yet_is_not_shown_without_the_right_to_write() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, b"abc").await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    // From now on others use the file, and it may only be read.
    *cluster.metadata.on_return.lock() = Some(Box::new(|_| ()));
    cluster.metadata.recall(ino.0);
    until(|| cluster.metadata.count("return_leases") > 0).await;
    cluster.metadata.hold_commits.send_replace(true);
    let writer = fs.clone();
    let writes = tokio::spawn(async move { writer.write(handle, 0, b"xyz").await });
    until(|| cluster.metadata.held.load(Ordering::SeqCst) > 0).await;
    let read = || async { fs.read(handle, 0, 3).await.unwrap().into_bytes() };
    assert_eq!(read().await, b"abc"[..]);
    assert!(!writes.is_finished());
    cluster.metadata.hold_commits.send_replace(false);
    assert_eq!(writes.await.unwrap(), Ok(3));
    assert_eq!(read().await, b"xyz"[..]);
}

/// Appends that wait while others append follow each other wherever they land.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_that_wait_leave_no_hole_between_them() {
    const LEN: usize = 1000;
    let (cluster, fs) = client(|_| ()).await;
    cluster.metadata.state.lock().layout.inline_limit = 1 << 16;
    let append = OpenFlags { append: true, ..Default::default() };
    let opened = fs.create(InodeId::ROOT, b"log", 0o644, Creator::default(), append).await.unwrap();
    let (handle, ino) = (opened.handle, opened.attr.ino);
    fs.write(handle, 0, &[1; LEN]).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    *cluster.metadata.on_return.lock() = Some(Box::new(|_| ()));
    cluster.metadata.recall(ino.0);
    until(|| cluster.metadata.count("return_leases") > 0).await;
    cluster.metadata.hold_commits.send_replace(true);
    let mut writes = Vec::new();
    for byte in 2..5 {
        if byte == 4 {
            // Others append more than waits here, and this mount hears of it.
            let state = &mut *cluster.metadata.state.lock();
            let source = Some(v1::extent::Source::Inline(vec![9; 4 * LEN].into()));
            let inode = state.inodes.get_mut(&ino.0).unwrap();
            inode.insert(v1::Extent { file_off: LEN as u64, len: 4 * LEN as u64, source });
            inode.attr.data_version += 1;
        }
        let told = fs.open(ino, OpenFlags::default()).await.unwrap().attr;
        let writer = fs.clone();
        writes.push(tokio::spawn(async move { writer.write(handle, 0, &[byte; LEN]).await }));
        let waits = async || {
            let attr = fs.open(ino, OpenFlags::default()).await.unwrap().attr;
            attr.blocks > told.blocks
        };
        let waiting = async {
            while !waits().await {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    }
    cluster.metadata.hold_commits.send_replace(false);
    for write in writes {
        assert_eq!(write.await.unwrap(), Ok(LEN));
    }
    let bytes: Vec<_> = [1, 9, 9, 9, 9, 2, 3, 4].into_iter().flat_map(|byte| [byte; LEN]).collect();
    assert!(content(&cluster, ino).await == bytes);
    cluster.assert_no_violations();
}

/// Whoever changes a file as a whole commits first what was written, and then waits until others
/// have given up theirs: they may be waiting for this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recall_does_not_wait_for_a_change_that_wrote_back_what_it_waits_for() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (fs, metadata) = (cluster.client().await, &cluster.metadata);
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, b"before").await.unwrap();
    metadata.hold_answers();
    let changer = fs.clone();
    let changes =
        tokio::spawn(
            async move { changer.fallocate(handle, 0, 1 << 20, Allocate::Room, false).await },
        );
    until(|| metadata.count("commit") == 1).await;
    metadata.recall(ino.0);
    // It comes in this time.
    for _ in 0..100 {
        fs.stat_fs().await.unwrap();
    }
    assert_eq!(metadata.count("return_leases"), 0, "given back before what was written is there");
    metadata.answer(1);
    until(|| metadata.count("return_leases") == 1).await;
    assert!(!changes.is_finished());
    metadata.answer(u64::MAX);
    changes.await.unwrap().unwrap();
    cluster.assert_no_violations();
}
