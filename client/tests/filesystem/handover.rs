//! One process that serves a mount gives it to another.

use crate::fixture::alone::{client, create, quiet};
use crate::fixture::{CLUSTER, Cluster, PATIENCE, pattern, small_layout};
use bytes::Bytes;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_client::{
    ContentCache, Creator, Filesystem, Forgotten, HandleId, NameCache, OpenFlags, Options,
    Successor,
};
use weft_net::sync::Mutex;
use weft_proto::{Error, ErrorKind, InodeId, v1};

/// Notes what is forgotten.
#[derive(Default)]
struct Cache(Mutex<Vec<InodeId>>);

impl ContentCache for Cache {
    fn forget(&self, ino: InodeId, _: Range<u64>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.lock().push(ino);
        Box::pin(std::future::ready(()))
    }

    fn page(&self) -> u64 {
        4096
    }
}

impl NameCache for Cache {
    fn forget(&self, ino: InodeId) -> Forgotten {
        self.0.lock().push(ino);
        Box::pin(std::future::ready(()))
    }

    fn forget_attrs(&self, _: &[InodeId], _: &[(InodeId, Bytes)]) -> Forgotten {
        Box::pin(std::future::ready(()))
    }

    fn forget_all(&self) -> Forgotten {
        Box::pin(std::future::ready(()))
    }
}

async fn successor(cluster: &Cluster) -> Successor {
    let options = Options { seed: Some(2), ..cluster.options() };
    Filesystem::succeed(options, Some(CLUSTER)).await.unwrap()
}

/// The mount goes on in another client.
async fn hand_over(cluster: &Cluster, fs: Filesystem) -> (Filesystem, Arc<Cache>) {
    let (next, cache) = (successor(cluster).await, Arc::new(Cache::default()));
    let state = fs.hand_over(Instant::now() + PATIENCE).await.unwrap();
    next.adopt(state, cache.clone(), cache.clone()).await.unwrap();
    fs.leave();
    drop(fs);
    (next.begin(), cache)
}

async fn read(fs: &Filesystem, handle: HandleId) -> Vec<u8> {
    fs.read(handle, 0, 1 << 20).await.unwrap().into_bytes().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_goes_along_and_is_closed_there() {
    let (cluster, fs) = client(|_| ()).await;
    let session = fs.session();
    let (handle, ino) = create(&fs, "f").await;
    let appends = OpenFlags { append: true, write: true, ..OpenFlags::default() };
    let append = fs.open(ino, appends).await.unwrap().handle;
    let dir = fs.open_dir(InodeId::ROOT).await.unwrap();
    let mut data = pattern(100_000, 3);
    // Nobody has synced it.
    fs.write(handle, 0, &data).await.unwrap();

    let (mut fs, mut before) = (fs, 0);
    for round in 0..3 {
        (fs, _) = hand_over(&cluster, fs).await;
        assert_eq!(fs.session(), session);
        assert!(read(&fs, handle).await == data, "round {round}");
        fs.write(append, 0, b"more").await.unwrap();
        data.extend_from_slice(b"more");
        fs.flush(append).await.unwrap();
        assert!(read(&fs, handle).await == data, "round {round}");
        let (other, _) = create(&fs, &format!("other{round}")).await;
        assert!(other.0 > before && other > dir, "a handle has the number of another");
        before = other.0;
    }
    // The leader is told that it is open, by a number that no earlier close has.
    cluster.metadata.recall(ino.0);
    let told = |item: &v1::return_leases_op::Item| item.ino == ino.0 && item.open_seq >= append.0;
    while !cluster.metadata.returns.lock().iter().any(told) {
        tokio::task::yield_now().await;
    }
    let closes = cluster.metadata.count("close");
    for handle in [handle, append, dir] {
        fs.release(handle).await.unwrap();
    }
    while cluster.metadata.count("close") == closes {
        tokio::task::yield_now().await;
    }
    // Not before it was told.
    let (fs, _) = hand_over(&cluster, fs).await;
    assert_eq!(fs.release(handle).await.unwrap_err().kind, ErrorKind::Invalid);
    cluster.assert_no_violations();
}

/// The leader was told of the newest, and takes no close of an older one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_close_of_an_older_open_is_that_of_the_newest() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let by = Creator::default();
    let made = fs.create(InodeId::ROOT, b"f", 0o644, by, OpenFlags::default()).await.unwrap();
    // Without a lease the next open is told.
    let ino = made.attr.ino;
    cluster.metadata.recall(ino.0);
    while !cluster.metadata.returns.lock().iter().any(|item| item.ino == ino.0) {
        tokio::task::yield_now().await;
    }
    let newest = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    fs.release(newest).await.unwrap();
    assert!(cluster.metadata.opens().contains(&ino.0));
    let (fs, _) = hand_over(&cluster, fs).await;
    fs.release(made.handle).await.unwrap();
    // At rest, all closes are told.
    hand_over(&cluster, fs).await;
    assert!(!cluster.metadata.opens().contains(&ino.0));
}

/// I8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_told_once_to_each_handle_by_whichever_process() {
    let (cluster, fs) = client(|_| ()).await;
    let (told, ino) = create(&fs, "f").await;
    fs.flush(told).await.unwrap();
    let writes = OpenFlags { write: true, ..OpenFlags::default() };
    let untold = fs.open(ino, writes).await.unwrap().handle;
    fs.write(told, 0, &[1; 10_000]).await.unwrap();
    *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::NoSpace);
    assert_eq!(fs.flush(told).await.unwrap_err().kind, ErrorKind::NoSpace);
    *cluster.metadata.refuse_commits.lock() = None;

    let (fs, _) = hand_over(&cluster, fs).await;
    fs.flush(told).await.unwrap();
    assert_eq!(fs.flush(untold).await.unwrap_err().kind, ErrorKind::NoSpace);
    fs.flush(untold).await.unwrap();
    let later = fs.open(ino, writes).await.unwrap().handle;
    fs.flush(later).await.unwrap();
}

/// I8: what no writer was told, and what nobody can be told any more but who syncs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_is_told_to_who_syncs_by_whichever_process() {
    let kind = |told: weft_proto::Result<()>| told.map_err(|error| error.kind);
    let full = Err(ErrorKind::NoSpace);
    for closes in [true, false] {
        let (cluster, fs) = client(quiet).await;
        let (handle, ino) = create(&fs, "f").await;
        let reads = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
        *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::NoSpace);
        fs.write(handle, 0, b"abc").await.unwrap();
        if closes {
            assert_eq!(fs.close(handle, 0).await, Ok(()));
        }
        let (fs, _) = hand_over(&cluster, fs).await;
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), if closes { full } else { Ok(()) });
        let _ = fs.release(handle).await;
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), if closes { Ok(()) } else { full });
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), Ok(()), "once");
        assert_eq!(kind(fs.sync().await), full);
        assert_eq!(kind(fs.sync().await), Ok(()), "once");
        let again = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
        assert_eq!(kind(fs.fsync(again, false).await), full);
        assert_eq!(kind(fs.fsync(again, false).await), Ok(()), "once");
        fs.release(again).await.unwrap();
        let _ = fs.release(reads).await;
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await.and(fs.sync().await)), Ok(()));
    }
}

/// One of an older version keeps it until nobody has the file open, and says not who heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_older_process_kept_for_who_syncs_is_told() {
    let kind = |told: weft_proto::Result<()>| told.map_err(|error| error.kind);
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.fsync(handle, false).await.unwrap();
    let reads = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    fs.release(handle).await.unwrap();
    let next = successor(&cluster).await;
    let mut state = fs.hand_over(Instant::now() + PATIENCE).await.unwrap();
    let of = state.files.iter_mut().find(|of| of.attr.unwrap().ino == ino.0).unwrap();
    of.failure = Some(Error::new(ErrorKind::NoSpace, "full").into());
    of.handles[0].told = false;
    (of.heard, of.made_in) = (false, InodeId::ROOT.0);
    let cache = Arc::new(Cache::default());
    next.adopt(state, cache.clone(), cache).await.unwrap();
    fs.leave();
    drop(fs);
    let fs = next.begin();
    assert_eq!(kind(fs.fsync(reads, false).await), Err(ErrorKind::NoSpace));
    for told in [Err(ErrorKind::NoSpace), Ok(())] {
        assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await), told, "the directory");
        assert_eq!(kind(fs.sync().await), told, "everything");
    }
    fs.release(reads).await.unwrap();
    assert_eq!(kind(fs.sync_dir(InodeId::ROOT).await.and(fs.sync().await)), Ok(()));
}

/// It gives nothing back, and uses no number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_and_does_not_begin_changes_nothing() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, b"before").await.unwrap();
    let next = successor(&cluster).await;
    let state = fs.hand_over(Instant::now() + PATIENCE).await.unwrap();
    let cache = Arc::<Cache>::default();
    next.adopt(state.clone(), cache.clone(), cache).await.unwrap();
    drop(next);
    // Nothing changes anything here until it is resumed.
    let waits = {
        let fs = fs.clone();
        tokio::spawn(async move { fs.mk_dir(InodeId::ROOT, b"d", 0o755, Default::default()).await })
    };
    let twice = fs.hand_over(Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(twice.last_request, state.last_request);
    fs.resume();
    waits.await.unwrap().unwrap();
    fs.write(handle, 6, b" and after").await.unwrap();
    fs.flush(handle).await.unwrap();
    let seen = cluster.client().await;
    let opened = seen.open(ino, OpenFlags::default()).await.unwrap();
    assert_eq!(read(&seen, opened.handle).await, b"before and after");
    cluster.assert_no_violations();
}

/// Programs would wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_rest_the_mount_goes_on_where_it_was() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, _) = create(&fs, "f").await;
    fs.flush(handle).await.unwrap();
    fs.write(handle, 0, &pattern(50_000, 1)).await.unwrap();
    cluster.metadata.hold_commits.send_replace(true);
    let soon = Instant::now() + Duration::from_millis(300);
    let refused = fs.hand_over(soon).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
    cluster.metadata.hold_commits.send_replace(false);
    fs.flush(handle).await.unwrap();
    assert!(read(&fs, handle).await == pattern(50_000, 1));
    let (fs, _) = hand_over(&cluster, fs).await;
    assert!(read(&fs, handle).await == pattern(50_000, 1));
}

/// I6: what the kernel has of a file was read under a lease of the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cached_above_is_taken_back_by_the_next_process() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, b"cached").await.unwrap();
    fs.flush(handle).await.unwrap();
    let (fs, cache) = hand_over(&cluster, fs).await;
    cluster.metadata.recall(ino.0);
    while !cache.0.lock().contains(&ino) {
        tokio::task::yield_now().await;
    }
    // The next open does not rely on what is cached either.
    assert!(!fs.open(ino, OpenFlags::default()).await.unwrap().keep_cache);
}
