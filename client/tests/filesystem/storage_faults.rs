//! Targets that fail: what readers and writers notice, and what they must not.

use crate::create;
use crate::fixture::storage::Fault;
use crate::fixture::{Cluster, NEVER, PATIENCE, SHORT, alone, pattern, small_layout};
use bytes::Bytes;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weft_client::{Filesystem, OpenFlags, Options};
use weft_proto::{ChunkId, ErrorKind, InodeId, SegmentId, SessionId, v1};

/// Options of a client that hedges soon.
fn hasty(cluster: &Cluster) -> Options {
    Options { hedge_floor: Duration::from_millis(10), ..cluster.options() }
}

/// A file of one whole segment, written and closed; and a fresh client.
async fn written(cluster: &Cluster, options: Options) -> (Filesystem, InodeId, Vec<u8>) {
    let writer = cluster.client().await;
    let len = cluster.metadata.state.lock().layout.segment_len as usize;
    let data = pattern(len, 77);
    let (handle, ino) = create(&writer, "f").await;
    writer.write(handle, 0, &data).await.unwrap();
    writer.fsync(handle, false).await.unwrap();
    writer.release(handle).await.unwrap();
    assert_eq!(cluster.metadata.state.lock().segments.len(), 1);
    (Filesystem::connect(options).await.unwrap(), ino, data)
}

/// Reads through a handle of its own, which has nothing read ahead.
async fn read(fs: &Filesystem, ino: InodeId, off: usize, len: usize) -> weft_proto::Result<Bytes> {
    let handle = fs.open(ino, OpenFlags::default()).await?.handle;
    let data = fs.read(handle, off as u64, len).await;
    fs.release(handle).await?;
    Ok(data?.into_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_of_six_may_fail_in_any_way() {
    let faults = [
        Fault::Corrupt,
        Fault::Empty,
        Fault::Refuse(ErrorKind::Io),
        Fault::Refuse(ErrorKind::Unavailable),
        Fault::Hang,
    ];
    for (i, fault) in faults.into_iter().enumerate() {
        let cluster = Cluster::start(6, small_layout("4+2")).await;
        let (fs, ino, data) = written(&cluster, hasty(&cluster)).await;
        for (a, b) in [(0, 1), (1, 3), (2, 5), (4, 5), (0, 3)] {
            cluster.targets.iter().for_each(|t| t.set(Fault::None));
            cluster.targets[a].set(fault);
            cluster.targets[b].set(faults[(i + a) % faults.len()]);
            for (off, len) in [(0, data.len()), (5000, 3), (4000, 20_000), (data.len() - 1, 1)] {
                let got = read(&fs, ino, off, len).await.unwrap();
                assert!(got == data[off..off + len], "{fault:?} on {a}, {b}: {off}+{len}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_last_stripe_is_rebuilt() {
    // Data shards that the last stripe does not reach count as good: they are zeros.
    let cluster = Cluster::start(6, small_layout("4+2")).await;
    let fs = cluster.client().await;
    let mut files = Vec::new();
    for tail in [100, 4096, 5000, 3 * 4096 + 1] {
        let data = pattern(2 * 16_384 + tail, tail as u64);
        let (handle, ino) = create(&fs, &format!("f{tail}")).await;
        fs.write(handle, 0, &data).await.unwrap();
        fs.release(handle).await.unwrap();
        files.push((ino, data, tail));
    }
    for (a, b) in (0..6).flat_map(|a| (0..a).map(move |b| (a, b))) {
        cluster.targets.iter().for_each(|t| t.set(Fault::None));
        cluster.targets[a].set(Fault::Refuse(ErrorKind::Io));
        cluster.targets[b].set(Fault::Refuse(ErrorKind::Io));
        for (ino, data, tail) in &files {
            for from in [data.len() - tail, data.len() - 1, 0] {
                let got = read(&fs, *ino, from, data.len()).await.unwrap();
                assert!(got == data[from..], "{a} and {b} lost, tail {tail}, from {from}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupt_bytes_are_reported_and_never_answered() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (fs, ino, data) = written(&cluster, cluster.options()).await;
    for target in &cluster.targets {
        target.set(Fault::Corrupt);
        assert!(read(&fs, ino, 0, data.len()).await.unwrap() == data);
        target.set(Fault::None);
    }
    let counters = fs.counters();
    assert_eq!((counters.corrupt_chunks, counters.rebuilt_reads), (2, 2), "two of three hold data");
    while cluster.targets.iter().map(|t| t.reports.load(Ordering::Relaxed)).sum::<u64>() < 2 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_good_shards_are_an_error_and_never_zeros() {
    for fault in [
        Fault::Corrupt,
        Fault::Empty,
        Fault::Refuse(ErrorKind::Io),
        Fault::Refuse(ErrorKind::Unavailable),
    ] {
        let cluster = Cluster::start(3, small_layout("2+1")).await;
        let mut options = cluster.options();
        // Those who are away are waited for.
        if fault == Fault::Refuse(ErrorKind::Unavailable) {
            options.op_deadline = SHORT;
        }
        let (fs, ino, data) = written(&cluster, options).await;
        cluster.targets[0].set(fault);
        cluster.targets[2].set(fault);
        let error = read(&fs, ino, 0, data.len()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Io, "{fault:?}: {error}");
        cluster.targets[0].set(Fault::None);
        let patient = match fault {
            Fault::Refuse(ErrorKind::Unavailable) => cluster.client().await,
            _ => fs,
        };
        assert!(read(&patient, ino, 0, data.len()).await.unwrap() == data, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_shard_is_raced() {
    let cluster = Cluster::start(6, small_layout("4+2")).await;
    let patient = || Options { target_deadline: NEVER, ..hasty(&cluster) };
    let (_, ino, data) = written(&cluster, patient()).await;
    let mut rebuilt = 0;
    for slow in 0..6 {
        cluster.targets.iter().for_each(|t| t.set(Fault::None));
        // Who waited for it would fail: the whole read has less time than a target.
        cluster.targets[slow].set(Fault::Slow(NEVER));
        let fs = Filesystem::connect(patient()).await.unwrap();
        assert!(read(&fs, ino, 0, data.len()).await.unwrap() == data);
        rebuilt += usize::from(fs.counters().rebuilt_reads > 0);
    }
    // On a busy machine others are slow, too.
    assert!(rebuilt >= 4, "four of six hold data");
}

/// One read waits for a target that hangs; those after it do not ask it, until it answers again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_target_is_waited_for_once() {
    let cluster = Cluster::start(6, small_layout("4+2")).await;
    let options = || Options { hedge_floor: SHORT, target_deadline: NEVER, ..cluster.options() };
    let (_, ino, data) = written(&cluster, options()).await;
    let mut asked = Vec::new();
    for target in &cluster.targets {
        let fs = Filesystem::connect(options()).await.unwrap();
        let read = async |off, len| {
            assert!(read(&fs, ino, off, len).await.unwrap() == data[off..off + len]);
        };
        // Enough to know how long reads take.
        for _ in 0..20 {
            read(0, data.len()).await;
        }
        target.set(Fault::Hang);
        read(0, data.len()).await;
        // Ranges that want different parts of their shards, and lie in one stripe or two.
        for off in (0..data.len() - 20_000).step_by(2048) {
            for len in [1, 4096, 12_288, 20_000] {
                read(off, len).await;
            }
        }
        target.set(Fault::None);
        asked.push(target.hung.load(Ordering::Relaxed));
    }
    // One read that waits, and its probe; and a few more where the others are as slow.
    let held = asked.iter().filter(|asked| **asked > 0).count();
    assert!(held >= 4, "four of six hold data: {asked:?}");
    assert!(asked.iter().all(|asked| *asked <= 10), "{asked:?} of hundreds of reads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_for_targets_that_come_back() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (fs, ino, data) = written(&cluster, cluster.options()).await;
    cluster.targets[0].set(Fault::Refuse(ErrorKind::Unavailable));
    cluster.targets[1].set(Fault::Refuse(ErrorKind::Unavailable));
    let reading = tokio::spawn({
        let fs = fs.clone();
        async move { read(&fs, ino, 0, 1 << 20).await }
    });
    while !cluster.targets.iter().any(|t| t.refused.load(Ordering::Relaxed) > 1) {
        tokio::task::yield_now().await;
    }
    assert!(!reading.is_finished());
    cluster.targets[0].set(Fault::None);
    assert!(reading.await.unwrap().unwrap() == data);
}

/// The bytes may be elsewhere by now, under the same version: whoever waited for targets that are
/// away would wait for chunks that were deleted where they are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_elsewhere_by_now_is_found_there_though_a_target_is_away() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let data = pattern(cluster.metadata.state.lock().layout.segment_len as usize, 77);
    // Who wrote it knows where it is.
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, &data).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    let source = Some(v1::extent::Source::Inline(data.clone().into()));
    let moved = vec![v1::Extent { file_off: 0, len: data.len() as u64, source }];
    cluster.metadata.state.lock().inodes.get_mut(&ino.0).unwrap().extents = moved;
    cluster.targets[0].set(Fault::Empty);
    cluster.targets[1].set(Fault::Refuse(ErrorKind::Unavailable));
    cluster.targets[2].set(Fault::Refuse(ErrorKind::Unavailable));
    let read = fs.read(handle, 0, data.len());
    let found = tokio::time::timeout(PATIENCE, read).await;
    assert!(found.expect("it waits for targets").unwrap().into_bytes() == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_go_round_what_fails() {
    for fault in [
        Fault::RefusePut(ErrorKind::Io),
        Fault::RefusePut(ErrorKind::NoSpace),
        Fault::Refuse(ErrorKind::Unavailable),
        Fault::Hang,
    ] {
        let cluster = Cluster::start(6, small_layout("4+2")).await;
        let mut options = cluster.options();
        if fault == Fault::Hang {
            options.target_deadline = SHORT;
        }
        let fs = Filesystem::connect(options).await.unwrap();
        cluster.targets[2].set(fault);
        let data = pattern(500_000, 5);
        let (handle, ino) = create(&fs, "f").await;
        fs.write(handle, 0, &data).await.unwrap();
        fs.flush(handle).await.unwrap();
        assert!(fs.counters().rewritten_segments > 0, "{fault:?}");
        // k shrinks, m stays; what went out of failed attempts is deleted.
        let segments: Vec<v1::SegmentInfo> =
            cluster.metadata.state.lock().segments.values().cloned().collect();
        assert!(segments.iter().all(|s| s.profile.unwrap().m == 2));
        assert!(segments.iter().any(|s| s.profile.unwrap().k == 3), "{fault:?}");
        cluster.targets[2].set(Fault::None);
        let known = |chunk: &weft_proto::ChunkId| {
            cluster.metadata.state.lock().segments.contains_key(&chunk.segment)
        };
        if fault != Fault::Hang {
            while !cluster.targets.iter().all(|t| t.chunks.lock().keys().all(known)) {
                tokio::task::yield_now().await;
            }
        }
        let reader = cluster.client().await;
        let handle = reader.open(ino, OpenFlags::default()).await.unwrap().handle;
        assert!(reader.read(handle, 0, data.len()).await.unwrap().into_bytes() == data);
        cluster.assert_no_violations();
    }
}

/// What a buffer on its way is cut into by small writes is committed at once, and only so many
/// pieces fit: during an outage, however long, who writes more of them waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_overwritten_in_pieces_during_an_outage_is_committed() {
    let patient = |options: &mut Options| options.op_deadline = NEVER;
    let (cluster, fs) = alone::client(patient).await;
    let refuse = |fault| cluster.targets.iter().for_each(|target| target.set(fault));
    refuse(Fault::RefusePut(ErrorKind::Unavailable));
    let mut data = pattern(64 << 10, 7);
    let (handle, _) = alone::create(&fs, "f").await;
    fs.write(handle, 0, &data).await.unwrap();
    let mut places = (0..24_000).step_by(2);
    let waits = loop {
        let at = places.next().expect("as many are written as no commit takes");
        let mut write = Box::pin(fs.write(handle, at, b"!"));
        if futures_util::FutureExt::now_or_never(&mut write).is_none() {
            break write;
        }
    };
    refuse(Fault::None);
    waits.await.unwrap();
    for at in places {
        fs.write(handle, at, b"!").await.unwrap();
    }
    fs.fsync(handle, false).await.unwrap();
    data.iter_mut().take(24_000).step_by(2).for_each(|byte| *byte = b'!');
    assert!(fs.read(handle, 0, data.len()).await.unwrap().into_bytes() == data);
    fs.release(handle).await.unwrap();
    cluster.assert_no_violations();
}

/// That a target answers reads says nothing of writes that it takes no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_go_round_what_is_read_all_the_while() {
    for fault in [ErrorKind::Io, ErrorKind::NoTicket] {
        let cluster = Cluster::start(6, small_layout("4+2")).await;
        let fs = cluster.client().await;
        let data = pattern(500_000, 5);
        let (read, _) = create(&fs, "read").await;
        fs.write(read, 0, &data).await.unwrap();
        fs.fsync(read, false).await.unwrap();
        cluster.targets[2].set(Fault::RefusePut(fault));
        let reading = tokio::spawn({
            let fs = fs.clone();
            async move {
                loop {
                    fs.read(read, 0, 500_000).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let (handle, _) = create(&fs, "f").await;
        fs.write(handle, 0, &data).await.unwrap();
        fs.fsync(handle, false).await.unwrap();
        reading.abort();
        cluster.assert_no_violations();
    }
}

/// I7: what an attempt that failed has left on a target goes when the target can be reached, while
/// the session lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_failed_attempt_leaves_behind_is_deleted_when_that_can_be() {
    let cluster = Cluster::start(4, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let target = &cluster.targets[1];
    target.set(Fault::LosePut);
    let (handle, _) = create(&fs, "f").await;
    let unknown = || {
        let state = cluster.metadata.state.lock();
        let chunks = target.chunks.lock();
        chunks.keys().filter(|chunk| !state.segments.contains_key(&chunk.segment)).count()
    };
    // As often as it takes until it is chosen.
    for i in 0u64.. {
        fs.write(handle, i * 60_000, &pattern(60_000, 5)).await.unwrap();
        fs.flush(handle).await.unwrap();
        if target.refused.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    assert!(unknown() > 0);
    target.set(Fault::None);
    while unknown() > 0 {
        tokio::task::yield_now().await;
    }
    cluster.assert_no_violations();
}

/// A chunk with other content is somebody else's: of a cluster that was made in place of the one
/// that was mounted, where sessions and segments are counted from the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stood_against_a_put_is_not_deleted_with_what_it_left() {
    let cluster = Cluster::start(4, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let target = &cluster.targets[1];
    target.set(Fault::RefusePut(ErrorKind::Exists));
    let (handle, _) = create(&fs, "f").await;
    // The first of the fixture.
    let session = SessionId(100);
    let theirs = |seq, shard| ChunkId { segment: SegmentId { session, seq }, shard };
    let all: Vec<_> = (1..50).flat_map(|seq| (0..3).map(move |shard| (seq, shard))).collect();
    for &(seq, shard) in &all {
        target.chunks.lock().insert(theirs(seq, shard), (Bytes::from_static(&[1]), Vec::new()));
    }
    let mut i = 0;
    while fs.counters().rewritten_segments == 0 {
        fs.write(handle, i * 60_000, &pattern(60_000, 5)).await.unwrap();
        fs.flush(handle).await.unwrap();
        i += 1;
    }
    let unknown = || {
        let state = cluster.metadata.state.lock();
        let others = cluster.targets.iter().filter(|other| other.id != target.id);
        others
            .flat_map(|t| t.chunks.lock().keys().copied().collect::<Vec<_>>())
            .filter(|chunk| !state.segments.contains_key(&chunk.segment))
            .count()
    };
    while unknown() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(target.chunks.lock().len(), all.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_cluster_is_told_once_to_each_handle() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let (first, ino) = create(&fs, "f").await;
    let second = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    cluster.targets.iter().for_each(|t| t.set(Fault::RefusePut(ErrorKind::NoSpace)));
    fs.write(first, 0, &[1; 100_000]).await.unwrap();
    assert_eq!(fs.fsync(first, false).await.unwrap_err().kind, ErrorKind::NoSpace);
    fs.fsync(first, false).await.unwrap();
    assert_eq!(fs.write(second, 0, &[1]).await.unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(fs.write(second, 0, &[1]).await.unwrap(), 1);
    // A third, opened after the failure, is not told.
    let third = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    fs.flush(third).await.unwrap();
    assert_eq!(fs.get_attr(ino).await.unwrap().size, 1, "what was lost does not count");
    fs.shutdown().await.unwrap();
}

/// Where nowhere is room for chunks as long as the layout wants them, segments are shorter. Nothing
/// of what was refused stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fits_into_holes_is_written_in_shorter_segments() {
    for (longest, told) in [(16_384, true), (16_384, false), (8192, true), (8192, false)] {
        let cluster = Cluster::start(6, small_layout("4+2")).await;
        let fs = cluster.client().await;
        let holes = Fault::Holes { chunks: usize::MAX, longest, told };
        cluster.targets.iter().for_each(|t| t.set(holes));
        let mut data = pattern(1_000_003, 9);
        let (handle, ino) = create(&fs, "f").await;
        fs.write(handle, 0, &data).await.unwrap();
        let (head, tail) = data.split_at_mut(400_000);
        fs.write(handle, 400_000, &head[..50_000]).await.unwrap();
        tail[..50_000].copy_from_slice(&head[..50_000]);
        fs.fsync(handle, false).await.unwrap();
        let segments: Vec<v1::SegmentInfo> =
            cluster.metadata.state.lock().segments.values().cloned().collect();
        assert!(segments.len() >= data.len() / (4 * longest));
        let is_wide = |s: &v1::SegmentInfo| s.profile.unwrap().k == 4 || s.length < 16_384;
        assert!(segments.iter().all(is_wide), "shorter, and with no more parity: {segments:?}");
        let known = |chunk: &weft_proto::ChunkId| {
            cluster.metadata.state.lock().segments.contains_key(&chunk.segment)
        };
        while !cluster.targets.iter().all(|t| t.chunks.lock().keys().all(known)) {
            tokio::task::yield_now().await;
        }
        let reader = cluster.client().await;
        assert!(read(&reader, ino, 0, data.len()).await.unwrap() == data);
        cluster.assert_no_violations();
    }
}

/// A cluster that is really full says so after a bounded number of attempts, and what fitted of a
/// segment that does not is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_into_holes_leaves_nothing() {
    for told in [true, false] {
        let cluster = Cluster::start(3, small_layout("2+1")).await;
        let fs = cluster.client().await;
        let holes = Fault::Holes { chunks: 1, longest: 16_384, told };
        cluster.targets.iter().for_each(|t| t.set(holes));
        let (handle, ino) = create(&fs, "f").await;
        fs.write(handle, 0, &pattern(60_000, 1)).await.unwrap();
        assert_eq!(fs.fsync(handle, false).await.unwrap_err().kind, ErrorKind::NoSpace);
        let puts: u64 = cluster.targets.iter().map(|t| t.puts.load(Ordering::Relaxed)).sum();
        assert!(puts > 0, "the first half had room");
        let refused: u64 = cluster.targets.iter().map(|t| t.refused.load(Ordering::Relaxed)).sum();
        assert!(
            refused <= 3 * 4 * 3,
            "{refused} refusals: three lengths, four attempts, three targets"
        );
        while cluster.targets.iter().any(|t| !t.chunks.lock().is_empty()) {
            tokio::task::yield_now().await;
        }
        fs.write(handle, 0, &pattern(8000, 1)).await.unwrap();
        fs.fsync(handle, false).await.unwrap();
        assert!(read(&fs, ino, 0, 8000).await.unwrap() == pattern(8000, 1));
        cluster.assert_no_violations();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_wait_for_m_plus_one_targets() {
    let cluster = Cluster::start(4, small_layout("2+2")).await;
    let fs = cluster.client().await;
    let epoch = fs.cluster_map().epoch;
    for id in [1, 2] {
        cluster.metadata.set_target(id, v1::TargetState::Down);
    }
    while fs.cluster_map().epoch < epoch + 2 {
        tokio::task::yield_now().await;
    }
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, &[3; 50_000]).await.unwrap();
    let flush = tokio::spawn({
        let fs = fs.clone();
        async move { fs.flush(handle).await }
    });
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!flush.is_finished() && cluster.metadata.count("commit") == 0);
    cluster.metadata.set_target(1, v1::TargetState::Up);
    flush.await.unwrap().unwrap();
    let segments: Vec<v1::SegmentInfo> =
        cluster.metadata.state.lock().segments.values().cloned().collect();
    assert!(segments.iter().all(|s| s.profile.unwrap().m == 2 && !s.seats.contains(&1)));
    let handle = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    assert_eq!(fs.read(handle, 0, 50_000).await.unwrap().into_bytes(), vec![3; 50_000]);
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fsck_finds_what_is_wrong() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (fs, _, _) = written(&cluster, cluster.options()).await;
    let (open, _) = create(&fs, "g").await;
    fs.write(open, 0, &pattern(80_000, 1)).await.unwrap();
    let clean = fs.fsck(|_| ()).await.unwrap();
    assert!(clean.is_clean(), "{:?}", clean.findings);
    assert!(clean.segments > 0 && clean.chunks >= 3 * clean.segments);

    let (chunk, stored) = cluster.targets[0].chunks.lock().pop_first().unwrap();
    let expected = stored.0.len() as u64;
    let stray = weft_proto::ChunkId {
        segment: weft_proto::SegmentId { session: weft_proto::SessionId(3), seq: 1 },
        shard: 0,
    };
    cluster.targets[1].chunks.lock().insert(stray, stored.clone());
    let report = fs.fsck(|_| ()).await.unwrap();
    let (one, two) = (weft_proto::TargetId(1), weft_proto::TargetId(2));
    use weft_client::Finding::*;
    assert_eq!(
        report.findings,
        [Missing { chunk, target: one, expected }, Leaked { chunk: stray, target: two }]
    );

    cluster.targets[1].chunks.lock().remove(&stray);
    cluster.targets[1].chunks.lock().insert(chunk, stored);
    cluster.targets[2].set(Fault::Refuse(ErrorKind::Io));
    let report = fs.fsck(|_| ()).await.unwrap();
    assert!(report.findings.contains(&Misplaced { chunk, target: two }), "{:?}", report.findings);
    let unseen = |report: &weft_client::FsckReport| -> Vec<weft_proto::TargetId> {
        let unseen = report.findings.iter().filter(|f| matches!(f, Unreachable { .. }));
        unseen.filter_map(weft_client::Finding::target).collect()
    };
    assert_eq!(unseen(&report), [weft_proto::TargetId(3)]);

    // One that lacks a chunk, and answers the first look alone, or the second.
    cluster.targets[2].set(Fault::None);
    for (before, then) in [
        (Fault::None, Fault::Refuse(ErrorKind::Unavailable)),
        (Fault::Refuse(ErrorKind::Unavailable), Fault::None),
    ] {
        cluster.targets[0].set(before);
        let between = |at| {
            if matches!(at, weft_client::FsckProgress::Again(_)) {
                cluster.targets[0].set(then);
            }
        };
        assert_eq!(unseen(&fs.fsck(between).await.unwrap()), [one], "{before:?}");
    }
}
