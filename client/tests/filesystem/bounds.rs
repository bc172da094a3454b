//! What waits to be committed stays within its bounds, and what an outage or a refusal leaves of it
//! is neither lost nor written for nothing.

use crate::creates::content;
use crate::fixture::alone::{client, create};
use crate::fixture::storage::Fault;
use crate::fixture::{Cluster, NEVER, PATIENCE, SHORT, in_time, pattern, small_layout, until};
use futures_util::FutureExt;
use std::pin::pin;
use std::sync::atomic::Ordering;
use v1::quota_key::Kind;
use weft_client::{Allocate, Filesystem, Options, SetAttr, Via};
use weft_proto::{ErrorKind, InodeId, v1};

fn chunks(cluster: &Cluster) -> usize {
    cluster.targets.iter().map(|target| target.chunks.lock().len()).sum()
}

/// What is overwritten while it is on its way takes up memory until it has arrived.
#[tokio::test]
async fn who_overwrites_what_cannot_be_stored_waits() {
    const LIMIT: usize = 4 << 20;
    let (cluster, fs) = client(|options| {
        (options.write_buffer_bytes, options.flush_age) = (LIMIT, NEVER);
        options.target_deadline = SHORT;
    })
    .await;
    let segment = cluster.metadata.state.lock().layout.segment_len as usize;
    let (handle, _) = create(&fs, "f").await;
    fs.flush(handle).await.unwrap();
    cluster.targets.iter().for_each(|target| target.set(Fault::Hang));
    let mut written = 0;
    while let Some(taken) = fs.write_now(handle, 0, &vec![1; segment], Via::Cache) {
        written += taken.unwrap();
        assert!(written <= LIMIT, "{written} bytes wait, of {LIMIT} at most");
        // The flight takes its bytes along.
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
    }
    assert!(written > LIMIT / 2, "{written}");
    let bytes = vec![2; segment];
    let mut waits = pin!(fs.write(handle, 0, &bytes));
    assert!(waits.as_mut().now_or_never().is_none());
    cluster.targets.iter().for_each(|target| target.set(Fault::None));
    tokio::time::timeout(PATIENCE, waits).await.expect("there is room again").unwrap();
    fs.fsync(handle, false).await.unwrap();
    assert!(content(&cluster, "f").await == bytes);
    cluster.assert_no_violations();
}

/// Until they are committed, whether or not their files are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_one_write_count_for_the_credit_of_a_quota() {
    const FILE: usize = 512 << 10;
    let (cluster, fs) = client(|options| options.flush_age = NEVER).await;
    let credit = |kind: Kind| v1::quota_news::Credit {
        key: Some(v1::QuotaKey { kind: kind.into(), id: 0 }),
        bytes: 2 * FILE as u64,
        inodes: u64::MAX,
    };
    let credits = vec![credit(Kind::User), credit(Kind::Group)];
    *cluster.metadata.quota.lock() =
        Some(v1::QuotaNews { credits, owners: true, ..Default::default() });
    let mut inos = Vec::new();
    for n in 0..4 {
        let (handle, ino) = create(&fs, &format!("f{n}")).await;
        // The answer tells of the quota.
        fs.fsync(handle, false).await.unwrap();
        fs.write(handle, 0, &pattern(FILE, n)).await.unwrap();
        inos.push(ino.0);
    }
    let state = cluster.metadata.state.lock();
    let sizes: Vec<u64> = inos.iter().map(|ino| state.inodes[ino].attr.size).collect();
    assert_eq!(sizes, [0, 0, FILE as u64, FILE as u64]);
}

/// Each try of an outage would leave as much on the targets, until the session is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_leader_was_told_of_is_stored_once() {
    const TRIES: usize = 3;
    const SHARDS: usize = 3;
    let (cluster, fs) = client(|options| {
        (options.op_deadline, options.flush_age) = (SHORT, NEVER);
    })
    .await;
    let (handle, _) = create(&fs, "f").await;
    in_time(async || fs.flush(handle).await).await.unwrap();
    let data = pattern(20_000, 7);
    cluster.metadata.leader.store(99, Ordering::SeqCst);
    let stored = async || {
        let failed = fs.flush(handle).await.unwrap_err().kind;
        match failed {
            ErrorKind::TimedOut => Some(chunks(&cluster)),
            // On a busy machine it may not get there in time: then it is lost.
            ErrorKind::Io => None,
            other => panic!("{other:?}"),
        }
    };
    let (first, last) = 'written: loop {
        fs.write_now(handle, 0, &data, Via::Cache).unwrap().unwrap();
        let mut tries = [0; TRIES];
        for found in &mut tries {
            *found = match stored().await {
                Some(found) => found,
                None => continue 'written,
            };
        }
        if tries[0] >= SHARDS {
            break (tries[0], tries[TRIES - 1]);
        }
    };
    // The deadline may come while a server is being asked.
    assert!(last < TRIES * first, "{last} chunks, and {first} at first");
    cluster.metadata.leader.store(0, Ordering::SeqCst);
    in_time(async || fs.flush(handle).await).await.unwrap();
    assert!(content(&cluster, "f").await == data);
    cluster.assert_no_violations();
}

/// As when it was set on the directory by who could not know of the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_whose_layout_asks_for_more_parity_is_written_with_it() {
    for closes in [true, false] {
        let (cluster, fs) = client(|_| ()).await;
        let data = pattern(100_000, 5);
        let (handle, _) = create(&fs, "f").await;
        fs.write(handle, 0, &data).await.unwrap();
        let stronger = small_layout("replica=3");
        cluster.metadata.raises_parity.store(true, Ordering::SeqCst);
        cluster.metadata.state.lock().layout = stronger;
        match closes {
            true => {
                fs.close(handle, 7).await.unwrap();
                fs.release(handle).await.unwrap();
                fs.sync().await.unwrap();
            }
            false => fs.fsync(handle, false).await.unwrap(),
        }
        assert!(content(&cluster, "f").await == data);
        let segments = cluster.metadata.state.lock().segments.clone();
        let parity = |info: &v1::SegmentInfo| info.geometry().unwrap().profile.m();
        assert!(segments.values().all(|info| parity(info) == stronger.profile.m()));
        // What was stored before is deleted.
        let known = |chunk: &weft_proto::ChunkId| segments.contains_key(&chunk.segment);
        until(|| cluster.targets.iter().all(|t| t.chunks.lock().keys().all(known))).await;
        cluster.assert_no_violations();
    }
}

/// As before, and there is no leader when the layout is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_for_a_layout_that_nobody_tells_is_not_lost() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let options = Options { op_deadline: SHORT, ..cluster.options() };
    let fs = in_time(async || Filesystem::connect(options.clone()).await).await.unwrap();
    let data = pattern(100_000, 5);
    let (handle, _) = crate::create(&fs, "f").await;
    in_time(async || fs.write(handle, 0, &data).await).await.unwrap();
    let metadata = &cluster.metadata;
    metadata.raises_parity.store(true, Ordering::SeqCst);
    metadata.state.lock().layout = small_layout("replica=3");
    metadata.hold_commits.send_replace(true);
    let syncer = fs.clone();
    let sync = tokio::spawn(async move { syncer.fsync(handle, false).await });
    // It may take too long before it gets there.
    until(|| metadata.held.load(Ordering::SeqCst) > 0 || sync.is_finished()).await;
    metadata.hints.store(false, Ordering::SeqCst);
    metadata.leader.store(99, Ordering::SeqCst);
    metadata.hold_commits.send_replace(false);
    assert_eq!(sync.await.unwrap().unwrap_err().kind, ErrorKind::TimedOut);
    metadata.leader.store(1, Ordering::SeqCst);
    in_time(async || fs.fsync(handle, false).await).await.unwrap();
    assert!(content(&cluster, "f").await == data);
    cluster.assert_no_violations();
}

/// Those of the write that was cut off are not told with what is set later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_of_what_was_cut_off_are_forgotten() {
    for is_durable in [false, true] {
        let (cluster, fs) = client(|options| options.flush_age = NEVER).await;
        let (handle, ino) = create(&fs, "f").await;
        fs.flush(handle).await.unwrap();
        let before = chunks(&cluster);
        match is_durable {
            false => drop(fs.write(handle, 0, b"abc").await.unwrap()),
            true => {
                let segment = cluster.metadata.state.lock().layout.segment_len as usize;
                fs.write(handle, 0, &pattern(segment, 1)).await.unwrap();
                until(|| chunks(&cluster) == before + 3).await;
                // The answers come.
                for _ in 0..5 {
                    fs.stat_fs().await.unwrap();
                }
            }
        }
        let cut = SetAttr { size: Some(0), ..Default::default() };
        fs.set_attr(ino, Some(handle), cut).await.unwrap();
        if !is_durable {
            fs.fallocate(handle, 0, 4096, Allocate::Hole, true).await.unwrap();
        }
        let changed = cluster.metadata.state.lock().inodes[&ino.0].attr.mtime_ns;
        let mode = SetAttr { mode: Some(0o600), ..Default::default() };
        fs.set_attr(ino, Some(handle), mode).await.unwrap();
        assert_eq!(fs.get_attr(ino).await.unwrap().mtime_ns, changed);
        // Nor is a write of nothing one.
        fs.write_now(handle, 0, b"", Via::Cache);
        fs.flush(handle).await.unwrap();
        let attr = cluster.metadata.state.lock().inodes[&ino.0].attr;
        assert_eq!((attr.mtime_ns, attr.mode & 0o777), (changed, 0o600));
        cluster.assert_no_violations();
    }
}

/// Also where this mount does not know what the old name leads to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_comes_after_what_was_written() {
    let (cluster, fs) = client(|options| options.flush_age = NEVER).await;
    let metadata = &cluster.metadata;
    let (handle, ino) = create(&fs, "f").await;
    fs.flush(handle).await.unwrap();
    metadata.let_make.store(false, Ordering::SeqCst);
    metadata.recall(InodeId::ROOT.0);
    until(|| metadata.count("return_leases") > 0).await;
    fs.write(handle, 0, b"abc").await.unwrap();
    assert_eq!(metadata.state.lock().inodes[&ino.0].attr.size, 0, "it is in the buffer");
    fs.rename(InodeId::ROOT, b"f", InodeId::ROOT, b"g", 0).await.unwrap();
    assert_eq!(metadata.state.lock().inodes[&ino.0].attr.size, 3, "the mount could die now");
    fs.release(handle).await.unwrap();
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_behind_the_longest_file_is_refused() {
    let (_cluster, fs) = client(|_| ()).await;
    let ((from, _), (to, _)) = (create(&fs, "from").await, create(&fs, "to").await);
    fs.write(from, 0, b"abc").await.unwrap();
    let copied = fs.copy_range(from, 0, to, u64::MAX - 1, 3).await;
    assert_eq!(copied.map_err(|error| error.kind), Err(ErrorKind::TooLarge));
}
