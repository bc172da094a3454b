//! What is cached above of what a change is about is forgotten before others may see that, and
//! before this mount hears of it.

use crate::create;
use crate::fixture::{Cluster, small_layout, until};
use bytes::Bytes;
use std::future::{pending, ready};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Notify;
use weft_client::{ContentCache, Forgotten, NameCache, OpenFlags};
use weft_net::sync::Mutex;
use weft_proto::InodeId;

/// Takes its time to forget.
struct Slow {
    cluster: Arc<Cluster>,
    forgotten: Arc<Mutex<Vec<Forgot>>>,
}

struct Forgot {
    inos: Vec<InodeId>,
    names: Vec<(InodeId, Bytes)>,
    /// How many names were removed by then.
    removed: usize,
}

impl NameCache for Slow {
    fn forget(&self, _: InodeId) -> Forgotten {
        Box::pin(ready(()))
    }

    fn forget_attrs(&self, inos: &[InodeId], names: &[(InodeId, Bytes)]) -> Forgotten {
        let (cluster, forgotten) = (self.cluster.clone(), self.forgotten.clone());
        let (inos, names) = (inos.to_vec(), names.to_vec());
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let removed = cluster.metadata.count("unlink");
            forgotten.lock().push(Forgot { inos, names, removed });
        })
    }

    fn forget_all(&self) -> Forgotten {
        Box::pin(ready(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_what_a_change_is_about_are_forgotten_above_before_it_is_sent() {
    let cluster = Arc::new(Cluster::start(3, small_layout("2+1")).await);
    let fs = cluster.client().await;
    let (handle, _) = create(&fs, "f").await;
    fs.release(handle).await.unwrap();
    let forgotten = Arc::<Mutex<Vec<Forgot>>>::default();
    fs.set_name_cache(Arc::new(Slow { cluster: cluster.clone(), forgotten: forgotten.clone() }));
    fs.unlink(InodeId::ROOT, b"f").await.unwrap();
    let forgotten = forgotten.lock();
    // What the mount tells of the file besides is about no name.
    let of_name: Vec<_> = forgotten.iter().filter(|forgot| !forgot.names.is_empty()).collect();
    let [forgot] = of_name[..] else { panic!("one change of a name, and not {}", of_name.len()) };
    assert_eq!(forgot.removed, 0, "it was sent before");
    assert_eq!(forgot.names, [(InodeId::ROOT, Bytes::from_static(b"f"))]);
    assert!(forgot.inos.contains(&InodeId::ROOT));
    cluster.assert_no_violations();
}

/// Waits for what nobody answers before there is another session, whenever it is to forget all.
struct Stuck;

impl NameCache for Stuck {
    fn forget(&self, _: InodeId) -> Forgotten {
        Box::pin(ready(()))
    }

    fn forget_attrs(&self, _: &[InodeId], _: &[(InodeId, Bytes)]) -> Forgotten {
        Box::pin(ready(()))
    }

    fn forget_all(&self) -> Forgotten {
        Box::pin(pending())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_above_that_hangs_keeps_no_session_from_being_replaced() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    cluster.metadata.ttl_ms.store(1000, Ordering::SeqCst);
    let fs = cluster.client().await;
    fs.set_name_cache(Arc::new(Stuck));
    let over = fs.session();
    cluster.metadata.expire_sessions();
    until(|| fs.session() != over).await;
    let (handle, _) = create(&fs, "f").await;
    fs.release(handle).await.unwrap();
}

/// Forgets content when it may.
#[derive(Default)]
struct Waits {
    begins: Notify,
    ends: Notify,
}

struct Cache(Arc<Waits>);

impl ContentCache for Cache {
    fn forget(&self, _: InodeId, _: Range<u64>) -> Forgotten {
        let waits = self.0.clone();
        Box::pin(async move {
            waits.begins.notify_one();
            waits.ends.notified().await;
        })
    }

    fn page(&self) -> u64 {
        4096
    }
}

/// The cache takes in nothing that was asked for before it has forgotten. What comes after the
/// recall must not be told to who asks then: a file would have its old size for who reads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_is_told_what_a_lease_says_until_nothing_is_cached_under_it() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let first = cluster.client().await;
    let (handle, ino) = create(&first, "f").await;
    first.release(handle).await.unwrap();
    first.shutdown().await.unwrap();
    // What a mount has changed is not cached above for a while.
    let fs = cluster.client().await;
    let waits = Arc::<Waits>::default();
    fs.set_content_cache(Arc::new(Cache(waits.clone())));
    fs.open(ino, OpenFlags::default()).await.unwrap();
    let attr = fs.get_attr(ino).await.unwrap();
    assert!(fs.attr_to_cache(ino).is_some());
    let asked = cluster.metadata.count("getattr");
    let is_back = || cluster.metadata.returns.lock().iter().any(|item| item.ino == ino.0);
    cluster.metadata.recall(ino.0);
    waits.begins.notified().await;
    assert_eq!(fs.get_attr(ino).await.unwrap(), attr);
    assert_eq!((cluster.metadata.count("getattr"), is_back()), (asked, false));
    assert!(fs.attr_to_cache(ino).is_none(), "it would be used after the recall");
    waits.ends.notify_one();
    while !is_back() {
        tokio::task::yield_now().await;
    }
    cluster.assert_no_violations();
}
