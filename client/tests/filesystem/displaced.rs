//! Content that was closed in a session that is over, before the group heard of it.

use crate::creates::content;
use crate::fixture::alone::{client, create};
use crate::fixture::pattern;
use std::sync::atomic::Ordering;
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
