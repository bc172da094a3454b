//! Sessions that begin where there is no room for more, and that end.

use crate::create;
use crate::fixture::{Cluster, NEVER, SHORT, in_time, small_layout, until};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use weft_client::{Filesystem, Options};
use weft_net::sync::Mutex;
use weft_proto::{ErrorKind, Uuid};

/// Its own session, which nobody keeps alive, takes the last place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_again_at_the_bound_ends_its_dead_session_first() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let metadata = &cluster.metadata;
    metadata.max_sessions.store(1, SeqCst);
    let key = Arc::new(Mutex::new(None));
    let kept = key.clone();
    let keep = Arc::new(move |key: Uuid| *kept.lock() = Some(key));
    let first = Options { keep_session: Some(keep), ..cluster.options() };
    drop(Filesystem::connect(first).await.unwrap());
    let dead_sessions = Vec::from_iter(*key.lock());
    assert_eq!(dead_sessions.len(), 1);
    let again = Options { dead_sessions, seed: Some(2), ..cluster.options() };
    Filesystem::connect(again).await.unwrap().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_no_room_for_its_session_tries_on() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let metadata = &cluster.metadata;
    metadata.max_sessions.store(1, SeqCst);
    let first = cluster.client().await;
    let short = Options { connect_timeout: SHORT, ..cluster.options() };
    let refused = in_time(async || Filesystem::connect(short.clone()).await).await.err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
    let tried = metadata.count("open_session");
    let (op_deadline, connect_timeout) = (NEVER, NEVER);
    let second = Options { op_deadline, connect_timeout, ..cluster.options() };
    let second = tokio::spawn(Filesystem::connect(second));
    until(|| metadata.count("open_session") > tried + 1).await;
    first.shutdown().await.unwrap();
    second.await.unwrap().unwrap().shutdown().await.unwrap();
}

/// In the next session nobody would close what was open then: it would stay open for as long as
/// that lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_late_is_not_given_back_in_the_next_session() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (metadata, fs) = (&cluster.metadata, cluster.client().await);
    let (handle, ino) = create(&fs, "f").await;
    metadata.refuse_returns.store(true, SeqCst);
    metadata.recall(ino.0);
    until(|| metadata.refused_returns.load(SeqCst) > 0).await;
    let old = fs.session();
    metadata.expire_sessions();
    until(|| fs.session() != old).await;
    fs.release(handle).await.unwrap();
    metadata.refuse_returns.store(false, SeqCst);
    until(|| metadata.count("return_leases") > 0).await;
    // It would be told at once now.
    for _ in 0..10 {
        cluster.client().await.shutdown().await.unwrap();
    }
    // A recall that it hears of in the next session it answers then: nothing is open by now.
    assert!(metadata.returns.lock().iter().all(|item| item.open_seq == 0));
    until(|| !metadata.opens().contains(&ino.0)).await;
    fs.shutdown().await.unwrap();
}

/// A longer request would be refused, and what is not told to be closed stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_closes_are_told_in_pieces() {
    const MANY: usize = 3000;
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (metadata, fs) = (&cluster.metadata, cluster.client().await);
    let mut handles = Vec::new();
    for i in 0..MANY {
        handles.push(create(&fs, &format!("f{i}")).await.0);
    }
    assert_eq!(metadata.opens().len(), MANY);
    for handle in handles {
        fs.release(handle).await.unwrap();
    }
    until(|| metadata.opens().is_empty()).await;
    let most = metadata.closes.lock().iter().copied().max();
    assert!(most.is_some_and(|most| most <= 1024), "{most:?}");
    fs.shutdown().await.unwrap();
}
