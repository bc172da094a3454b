//! Content that was closed in a session that is over, before the group heard of it.

use crate::creates::content;
use crate::fixture::alone::{client, create};
use crate::fixture::pattern;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weft_client::SetAttr;
use weft_proto::{ErrorKind, InodeId};

/// What was closed has no place in the log any more when its session ends, and waits to go again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_after_a_close_in_an_earlier_session_does_not_outlive_it() {
    for round in 0..30 {
        let (cluster, fs) = client(|_| ()).await;
        let data = pattern(20_000, round);
        let (other, _) = create(&fs, "other").await;
        for (name, data) in [("small", &b"abc"[..]), ("large", &data)] {
            let (handle, _) = create(&fs, name).await;
            fs.write(handle, 0, data).await.unwrap();
            fs.close(handle, 7).await.unwrap();
            fs.release(handle).await.unwrap();
        }
        let before = fs.session();
        cluster.metadata.expire_sessions();
        while round % 2 == 0 && fs.session() == before {
            tokio::task::yield_now().await;
        }
        match round % 3 {
            0 => fs.sync_dir(InodeId::ROOT).await.unwrap(),
            1 => fs.fsync(other, false).await.unwrap(),
            // The group does it, after all that was done before.
            _ => fs.set_xattr(InodeId::ROOT, b"user.x", b"x", 0, false).await.unwrap(),
        }
        {
            let state = cluster.metadata.state.lock();
            let size = |name: &[u8]| Some(state.inodes.get(state.names.get(name)?)?.attr.size);
            let sizes = [size(b"small"), size(b"large")];
            assert_eq!(sizes, [Some(3), Some(20_000)], "round {round}: the mount could die now");
        }
        assert_eq!(content(&cluster, "small").await, b"abc", "round {round}");
        assert!(content(&cluster, "large").await == data, "round {round}");
        fs.release(other).await.unwrap();
        cluster.assert_no_violations();
    }
}

/// Nor does it seem to be lost meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_closed_in_an_earlier_session_has_its_size_all_the_while() {
    for round in 0..10 {
        let (cluster, fs) = client(|_| ()).await;
        let data = pattern(20_000, round);
        let (handle, ino) = create(&fs, "f").await;
        fs.write(handle, 0, &data).await.unwrap();
        fs.close(handle, 7).await.unwrap();
        fs.release(handle).await.unwrap();
        let committed = || {
            let state = cluster.metadata.state.lock();
            state.inodes.get(&ino.0).is_some_and(|inode| inode.attr.size > 0)
        };
        cluster.metadata.expire_sessions();
        let mut looks = 0;
        while !committed() || looks == 0 {
            let found = match round % 2 {
                0 => fs.get_attr(ino).await,
                _ => fs.lookup(InodeId::ROOT, b"f").await,
            };
            assert_eq!(found.unwrap().size, 20_000, "round {round}, look {looks}");
            looks += 1;
        }
        assert!(content(&cluster, "f").await == data, "round {round}");
        cluster.assert_no_violations();
    }
}

/// Nor do attributes of what is not open, for who looks by name, and then for who has looked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_set_in_an_earlier_session_is_seen_all_the_while() {
    let (cluster, fs) = client(|_| ()).await;
    let metadata = &cluster.metadata;
    let ((handle, ino), (other, first)) = (create(&fs, "f").await, create(&fs, "other").await);
    fs.release(handle).await.unwrap();
    fs.release(other).await.unwrap();
    fs.sync().await.unwrap();
    metadata.hold_batches.send_replace(true);
    let private = SetAttr { mode: Some(0o600), ..Default::default() };
    // More than one batch takes.
    for _ in 0..600 {
        fs.set_attr(first, None, private).await.unwrap();
    }
    fs.set_attr(ino, None, private).await.unwrap();
    assert_eq!(metadata.count("set_attr"), 0, "unasked");
    let before = fs.session();
    metadata.expire_sessions();
    while fs.session() == before {
        tokio::task::yield_now().await;
    }
    metadata.grant_lookups.store(true, Ordering::SeqCst);
    let asked = metadata.count("lookup");
    let looks = tokio::spawn({
        let fs = fs.clone();
        async move { fs.lookup(InodeId::ROOT, b"f").await.unwrap().mode }
    });
    while metadata.count("lookup") == asked {
        tokio::task::yield_now().await;
    }
    metadata.hold_batches.send_replace(false);
    assert_eq!(looks.await.unwrap() & 0o777, 0o600);
    assert_eq!(fs.get_attr(ino).await.unwrap().mode & 0o777, 0o600);
    cluster.assert_no_violations();
}

/// What was closed can never be committed then: nobody is to wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_syncs_is_told_that_the_cluster_was_restored() {
    let (cluster, fs) = client(|options| options.op_deadline = Duration::MAX).await;
    let (other, _) = create(&fs, "other").await;
    fs.fsync(other, false).await.unwrap();
    *cluster.metadata.refuse_makes.lock() = Some(ErrorKind::Unavailable);
    let (handle, _) = create(&fs, "f").await;
    fs.write(handle, 0, b"abc").await.unwrap();
    fs.close(handle, 7).await.unwrap();
    fs.release(handle).await.unwrap();
    cluster.metadata.confinement.lock().incarnation = 1;
    cluster.metadata.expire_sessions();
    fs.ended().await;
    let told = async {
        let synced = [fs.fsync(other, false).await, fs.sync_dir(InodeId::ROOT).await];
        synced.map(|told| told.map_err(|error| error.kind))
    };
    let told = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert_eq!(told, Ok([Err(ErrorKind::Stale); 2]));
}

/// Who makes many files need not sync each: the directory is enough to hear what became of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_syncs_a_directory_is_told_what_is_lost_of_its_files() {
    for asked in [false, true] {
        let (cluster, fs) = client(|_| ()).await;
        // Made by the group, or here.
        cluster.metadata.let_make.store(!asked, Ordering::Relaxed);
        if asked {
            cluster.metadata.recall(InodeId::ROOT.0);
            while cluster.metadata.count("return_leases") == 0 {
                tokio::task::yield_now().await;
            }
        }
        let (handle, _) = create(&fs, "f").await;
        fs.write(handle, 0, b"abc").await.unwrap();
        *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::NoSpace);
        // Mostly answered before.
        let closed = fs.close(handle, 7).await;
        fs.release(handle).await.unwrap_or_default();
        let synced = fs.sync_dir(InodeId::ROOT).await;
        let told = [closed, synced].map(|told| told.map_err(|e| e.kind));
        assert!(told.contains(&Err(ErrorKind::NoSpace)), "{told:?}");
        *cluster.metadata.refuse_commits.lock() = None;
        fs.sync_dir(InodeId::ROOT).await.unwrap();
        if !asked {
            assert_eq!(told, [Ok(()), Err(ErrorKind::NoSpace)]);
        }
    }
}
