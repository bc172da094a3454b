//! Metadata servers that fail, lead in turn, lose replies, and declare sessions dead.

use crate::create;
use crate::fixture::{Cluster, PATIENCE, SHORT, alone, in_time, pattern, small_layout};
use std::sync::atomic::Ordering;
use std::time::Duration;
use weft_client::{Creator, Filesystem, Finding, OpenFlags, Options, SetAttr};
use weft_proto::{ErrorKind, InodeId};

async fn content(fs: &Filesystem, ino: InodeId, len: usize) -> Vec<u8> {
    let opened = fs.open(ino, OpenFlags::default()).await.unwrap();
    assert_eq!(opened.attr.size, len as u64);
    let data = fs.read(opened.handle, 0, len).await.unwrap().into_bytes();
    fs.release(opened.handle).await.unwrap();
    data.to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_found_with_and_without_hints() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    for turn in 0..10 {
        cluster.metadata.hints.store(turn % 3 != 0, Ordering::SeqCst);
        cluster.metadata.leader.store(turn % 2, Ordering::SeqCst);
        let (handle, ino) = create(&fs, &format!("f{turn}")).await;
        fs.write(handle, 0, &[turn as u8; 100]).await.unwrap();
        fs.release(handle).await.unwrap();
        assert_eq!(content(&fs, ino, 100).await, [turn as u8; 100]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_passed_over() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let mut options: Options = cluster.options();
    options.metadata.insert(0, "127.0.0.1:1".into());
    let fs = Filesystem::connect(options).await.unwrap();
    create(&fs, "f").await;
    fs.shutdown().await.unwrap();
    let nobody = Options {
        op_deadline: Duration::from_millis(300),
        ..Options::new(vec!["127.0.0.1:1".into()], weft_net::tcp())
    };
    assert_eq!(Filesystem::connect(nobody).await.err().unwrap().kind, ErrorKind::TimedOut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_reply_is_lost_takes_effect_once() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let flags = OpenFlags { exclusive: true, append: true, ..Default::default() };
    cluster.metadata.lose_replies.store(2, Ordering::SeqCst);
    let opened = fs.create(InodeId::ROOT, b"f", 0o644, Creator::default(), flags).await.unwrap();
    for i in 0..5u8 {
        fs.write(opened.handle, 0, &[i; 10]).await.unwrap();
        cluster.metadata.lose_replies.store(u32::from(i), Ordering::SeqCst);
        fs.fsync(opened.handle, false).await.unwrap();
    }
    let want: Vec<u8> = (0..5u8).flat_map(|i| [i; 10]).collect();
    assert_eq!(content(&fs, opened.attr.ino, 50).await, want);
    cluster.metadata.lose_replies.store(1, Ordering::SeqCst);
    fs.unlink(InodeId::ROOT, b"f").await.unwrap();
    assert_eq!(fs.unlink(InodeId::ROOT, b"f").await.unwrap_err().kind, ErrorKind::NotFound);
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_session_costs_no_data_that_is_in_memory() {
    for noticed in [false, true] {
        session_dies(noticed).await;
    }
}

/// The writer flushes before or after the mount has `noticed` that its session died.
async fn session_dies(noticed: bool) {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let old = fs.session();
    let (handle, ino) = create(&fs, "f").await;
    let data = pattern(200_000, 9);
    // Some segments are durable and not committed when the session dies, some bytes are buffered.
    fs.write(handle, 0, &data).await.unwrap();
    let stored = || cluster.targets[0].chunks.lock().len();
    while stored() < 3 {
        tokio::task::yield_now().await;
    }
    cluster.metadata.expire_sessions();
    while noticed && fs.session() == old {
        tokio::task::yield_now().await;
    }
    fs.flush(handle).await.unwrap();
    assert_ne!(fs.session(), old);
    let segments: Vec<_> = cluster.metadata.state.lock().segments.keys().copied().collect();
    assert!(!segments.is_empty() && segments.iter().all(|id| id.session == fs.session()));
    // The file is declared open in the new session.
    while !cluster.metadata.opens().contains(&ino.0) {
        tokio::task::yield_now().await;
    }
    assert!(content(&cluster.client().await, ino, data.len()).await == data);
    // What the dead session left behind is for the cluster to collect; nothing else is wrong.
    let findings = fs.fsck(|_| ()).await.unwrap().findings;
    let left =
        |f: &Finding| matches!(f, Finding::Leaked { chunk, .. } if chunk.segment.session == old);
    assert!(findings.iter().all(left), "{findings:?}");
    cluster.assert_no_violations();
}

/// What was set beside buffered data goes with that, but undoes nothing that others have set since
/// the session was declared dead; and that it does not is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_a_dead_session_undo_nothing() {
    // What this mount tells of the file besides is not taken for what others did.
    for (others, new) in [(false, false), (true, false), (false, true)] {
        // The group is known to take batches, without which nothing waits for one.
        let (cluster, fs) = alone::client(|_| ()).await;
        let old = fs.session();
        let (handle, ino) = alone::create(&fs, "f").await;
        let data = pattern(10_000, 9);
        fs.write(handle, 0, &data).await.unwrap();
        if !new {
            fs.flush(handle).await.unwrap();
        }
        cluster.metadata.hold_commits.send_replace(true);
        fs.write(handle, 0, &data).await.unwrap();
        let mode = SetAttr { mode: Some(0o640), ..Default::default() };
        assert_eq!(fs.set_attr(ino, Some(handle), mode).await.unwrap().mode, 0o640);
        let theirs = || {
            let state = &mut *cluster.metadata.state.lock();
            let attr = &mut state.inodes.get_mut(&ino.0).unwrap().attr;
            assert_ne!(attr.mode, 0o640, "it waits");
            (attr.mode, attr.ctime_ns) = (0o400, attr.ctime_ns + 1);
        };
        others.then(theirs);
        cluster.metadata.expire_sessions();
        while !new && fs.session() == old {
            tokio::task::yield_now().await;
        }
        cluster.metadata.hold_commits.send_replace(false);
        let told = fs.flush(handle).await.map_err(|e| e.kind);
        assert_eq!(told, if others { Err(ErrorKind::Stale) } else { Ok(()) });
        let (mode, other) = (fs.get_attr(ino).await.unwrap().mode, cluster.client().await);
        assert_eq!(mode, if others { 0o400 } else { 0o640 });
        assert_eq!(other.get_attr(ino).await.unwrap().mode, mode);
        assert!(content(&other, ino, data.len()).await == data, "the data is there");
        fs.flush(handle).await.unwrap();
        cluster.assert_no_violations();
    }
}

/// What the mount knows is of a future that is lost: nothing of it is told to the new group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_does_not_go_on_in_a_cluster_that_was_restored() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, &[1; 100_000]).await.unwrap();
    cluster.metadata.confinement.lock().incarnation = 7;
    cluster.metadata.expire_sessions();
    // Nobody waits for what does not come, nor is told that anything is durable.
    assert_eq!(fs.flush(handle).await.unwrap_err().kind, ErrorKind::Stale);
    assert_eq!(fs.sync_dir(InodeId::ROOT).await.unwrap_err().kind, ErrorKind::Stale);
    // Whoever mounts anew does.
    let new = cluster.client().await;
    assert_eq!(new.get_attr(ino).await.unwrap().size, 0, "nothing was committed");
    create(&new, "g").await;
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_may_have_happened_is_not_repeated() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let append = OpenFlags { append: true, ..Default::default() };
    let opened = fs.create(InodeId::ROOT, b"log", 0o644, Creator::default(), append).await.unwrap();
    fs.write(opened.handle, 0, &[1; 10]).await.unwrap();
    fs.fsync(opened.handle, false).await.unwrap();
    fs.write(opened.handle, 0, &[2; 10]).await.unwrap();
    // The commit takes effect, its reply is lost, and the session dies before the retry.
    cluster.metadata.lose_replies.store(1, Ordering::SeqCst);
    let flush = tokio::spawn({
        let fs = fs.clone();
        async move { fs.fsync(opened.handle, false).await }
    });
    while cluster.metadata.lose_replies.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
    cluster.metadata.expire_sessions();
    if flush.await.unwrap().is_err() {
        // It could not be known: the writer was told.
        fs.fsync(opened.handle, false).await.unwrap();
    }
    assert_eq!(content(&fs, opened.attr.ino, 20).await[10..], [2; 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_commits_reach_the_writer() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    for kind in [ErrorKind::NoSpace, ErrorKind::Quota, ErrorKind::Stale] {
        let (handle, _) = create(&fs, "f").await;
        fs.write(handle, 0, &[1; 10_000]).await.unwrap();
        *cluster.metadata.refuse_commits.lock() = Some(kind);
        assert_eq!(fs.flush(handle).await.unwrap_err().kind, kind);
        *cluster.metadata.refuse_commits.lock() = None;
        fs.flush(handle).await.unwrap();
        fs.release(handle).await.unwrap();
    }
    // What was refused for good is deleted.
    while cluster.targets.iter().any(|t| !t.chunks.lock().is_empty()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_cannot_be_committed_now_is_committed_later() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let options = Options { op_deadline: SHORT, ..cluster.options() };
    let fs = in_time(async || Filesystem::connect(options.clone()).await).await.unwrap();
    let (handle, ino) = create(&fs, "f").await;
    let data = pattern(100_000, 4);
    in_time(async || fs.write(handle, 0, &data).await).await.unwrap();
    // Nobody leads.
    cluster.metadata.leader.store(99, Ordering::SeqCst);
    cluster.metadata.hints.store(false, Ordering::SeqCst);
    assert_eq!(fs.flush(handle).await.unwrap_err().kind, ErrorKind::TimedOut);
    cluster.metadata.leader.store(1, Ordering::SeqCst);
    in_time(async || fs.flush(handle).await).await.unwrap();
    assert!(content(&cluster.client().await, ino, data.len()).await == data);
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_wait_do_not_shut_out_the_sessions_renewal() {
    // Room for seven commits of a small file.
    let cluster = Cluster::start_with(3, small_layout("2+1"), 16 << 10).await;
    let fs = cluster.client().await;
    cluster.metadata.hold_commits.send_replace(true);
    let mut syncs = tokio::task::JoinSet::new();
    for file in 0..20 {
        let (handle, _) = create(&fs, &format!("f{file}")).await;
        fs.write(handle, 0, &[7; 2000]).await.unwrap();
        let fs = fs.clone();
        syncs.spawn(async move { fs.fsync(handle, false).await });
    }
    while cluster.metadata.held.load(Ordering::SeqCst) < 7 {
        tokio::task::yield_now().await;
    }
    let before = cluster.metadata.count("renew");
    let renewed = async {
        while cluster.metadata.count("renew") < before + 3 {
            tokio::task::yield_now().await;
        }
    };
    // Only renewals that wait behind the commits take so long.
    let renewed = tokio::time::timeout(PATIENCE, renewed).await;
    cluster.metadata.hold_commits.send_replace(false);
    assert!(renewed.is_ok(), "no renewal came through");
    while let Some(synced) = syncs.join_next().await {
        synced.unwrap().unwrap();
    }
    cluster.assert_no_violations();
}
