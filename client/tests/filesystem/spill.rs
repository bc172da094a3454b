//! Small synced writes of a larger file: inline until they fill a segment, and nobody's bytes lost.

use crate::fixture::alone::{client, create};
use crate::fixture::{Cluster, pattern};
use std::collections::HashSet;
use weft_client::{Allocate, Filesystem, HandleId, OpenFlags};
use weft_proto::InodeId;
use weft_proto::v1::extent::Source;

pub const SIZE: usize = 300_000;
pub const SMALL: usize = 500;

/// A file of segments, and what is in it.
pub async fn large(fs: &Filesystem) -> (HandleId, InodeId, Vec<u8>) {
    let (handle, ino) = create(fs, "f").await;
    let data = pattern(SIZE, 1);
    assert_eq!(fs.write(handle, 0, &data).await, Ok(SIZE));
    fs.fsync(handle, false).await.unwrap();
    (handle, ino, data)
}

async fn write(fs: &Filesystem, handle: HandleId, model: &mut [u8], at: usize, salt: u64) {
    let data = pattern(SMALL, salt);
    assert_eq!(fs.write(handle, at as u64, &data).await, Ok(SMALL));
    fs.fsync(handle, false).await.unwrap();
    model[at..at + SMALL].copy_from_slice(&data);
}

/// How many segments there are in a file, and how many bytes inline.
pub fn kept(cluster: &Cluster, ino: InodeId) -> (usize, u64) {
    let state = cluster.metadata.state.lock();
    let inode = &state.inodes[&ino.0];
    let segments = inode.extents.iter().filter_map(|e| match &e.source {
        Some(Source::Segment(part)) => part.id,
        _ => None,
    });
    (segments.map(|id| (id.session, id.seq)).collect::<HashSet<_>>().len(), inode.attr.inline_bytes)
}

pub async fn assert_content(cluster: &Cluster, ino: InodeId, model: &[u8]) {
    let fs = cluster.client().await;
    let handle = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    assert!(fs.read(handle, 0, 2 * SIZE).await.unwrap().into_bytes() == model);
    fs.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_synced_writes_share_segments() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino, mut model) = large(&fs).await;
    let (before, _) = kept(&cluster, ino);
    // Over the edges of segments, too; the second round writes in the middle of what is inline.
    for i in 0..78 {
        let at = if i < 40 { i * 7_300 } else { (i - 40) * 7_300 + 250 };
        write(&fs, handle, &mut model, at, 2 + i as u64).await;
        assert!(kept(&cluster, ino).1 <= 2048);
    }
    let (after, inline) = kept(&cluster, ino);
    assert!(after - before <= 78 / 4, "{} segments for 78 writes", after - before);
    assert!(inline > 0, "the last ones");
    assert!(fs.read(handle, 0, SIZE).await.unwrap().into_bytes() == model);
    assert_content(&cluster, ino, &model).await;
    cluster.assert_no_violations();
}

/// Whoever overwrites what is inline needs no more room than there was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_inline_is_overwritten_inline() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino, mut model) = large(&fs).await;
    let (before, _) = kept(&cluster, ino);
    for i in 0..40 {
        write(&fs, handle, &mut model, i % 4 * 10_000, 2 + i as u64).await;
    }
    assert_eq!(kept(&cluster, ino), (before, 4 * SMALL as u64));
    assert_content(&cluster, ino, &model).await;
    cluster.assert_no_violations();
}

/// As many small writes as fit inline.
async fn fill_inline(cluster: &Cluster, fs: &Filesystem, large: &mut (HandleId, InodeId, Vec<u8>)) {
    for i in 0..4 {
        write(fs, large.0, &mut large.2, i * 10_000, 2 + i as u64).await;
    }
    assert_eq!(kept(cluster, large.1).1, 4 * SMALL as u64);
}

/// Others use the file from now on, and have written to it.
pub async fn given_back_and_overwritten(cluster: &Cluster, ino: InodeId, model: &mut [u8]) {
    let returned = cluster.metadata.count("return_leases");
    *cluster.metadata.on_return.lock() = Some(Box::new(|_| ()));
    cluster.metadata.recall(ino.0);
    while cluster.metadata.count("return_leases") == returned {
        tokio::task::yield_now().await;
    }
    cluster.metadata.overwrite(ino.0, b"theirs");
    model[..6].copy_from_slice(b"theirs");
}

/// What others have written meanwhile is not written over with what was there before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_bytes_are_not_moved_without_the_right_to_write() {
    let (cluster, fs) = client(|_| ()).await;
    let mut file = large(&fs).await;
    fill_inline(&cluster, &fs, &mut file).await;
    let (handle, ino, mut model) = file;
    // This mount hears nothing of what they write.
    given_back_and_overwritten(&cluster, ino, &mut model).await;
    write(&fs, handle, &mut model, 100_000, 7).await;
    assert_content(&cluster, ino, &model).await;
    cluster.assert_no_violations();
}

/// The right to write came with those to other files, and the file that is open was not told of
/// what it was granted on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_bytes_from_before_the_right_to_write_are_not_moved() {
    let (cluster, fs) = client(|_| ()).await;
    let (other, _) = create(&fs, "other").await;
    fs.release(other).await.unwrap();
    let mut file = large(&fs).await;
    fill_inline(&cluster, &fs, &mut file).await;
    let (handle, ino, mut model) = file;
    given_back_and_overwritten(&cluster, ino, &mut model).await;
    fs.sync().await.unwrap();
    fs.read_dir(InodeId::ROOT, 0, 1000, false).await.unwrap();
    fs.unlink(InodeId::ROOT, b"other").await.unwrap();
    while cluster.metadata.count("lease_many") == 0 {
        tokio::task::yield_now().await;
    }
    write(&fs, handle, &mut model, 100_000, 7).await;
    assert_content(&cluster, ino, &model).await;
}

/// A close finds the inline bytes as they were before a hole that is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hole_on_its_way_is_not_filled_with_what_was_there() {
    let (cluster, fs) = client(|_| ()).await;
    let mut file = large(&fs).await;
    fill_inline(&cluster, &fs, &mut file).await;
    let (handle, ino, mut model) = file;
    cluster.metadata.hold_answers();
    let (puncher, len) = (fs.clone(), SMALL as u64);
    let punch =
        tokio::spawn(
            async move { puncher.fallocate(handle, 10_000, len, Allocate::Hole, true).await },
        );
    while cluster.metadata.count("fallocate") == 0 {
        tokio::task::yield_now().await;
    }
    let data = pattern(SMALL, 7);
    assert_eq!(fs.write(handle, 100_000, &data).await, Ok(SMALL));
    model[100_000..100_000 + SMALL].copy_from_slice(&data);
    model[10_000..10_000 + SMALL].fill(0);
    let closer = fs.clone();
    let close = tokio::spawn(async move { closer.close(handle, 7).await });
    // Closes do not wait for the group; if this one did, it would wait for what is held.
    while !close.is_finished() {
        tokio::task::yield_now().await;
    }
    cluster.metadata.answer(u64::MAX);
    punch.await.unwrap().unwrap();
    assert!(fs.read(handle, 0, SIZE).await.unwrap().into_bytes() == model);
    fs.fsync(handle, false).await.unwrap();
    assert_content(&cluster, ino, &model).await;
    cluster.assert_no_violations();
}
