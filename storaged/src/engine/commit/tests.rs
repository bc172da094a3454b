//! Tests of `commit`.

use super::super::{Content, Engine, TargetOptions};
use weft_net::AlignedBuf;
use weft_proto::{ChunkId, ErrorKind, SegmentId, SessionId};

/// Whatever it has died of, nothing would be written any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_whose_commit_thread_dies_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let options = TargetOptions::new(dir.path().join("target"), Some(16 << 20));
    let open = || {
        Engine::format(&options, &Content::Blank).unwrap();
        Engine::open(&options).unwrap()
    };
    let engine = std::thread::scope(|scope| scope.spawn(open).join().unwrap());
    let id = ChunkId { segment: SegmentId { session: SessionId(1), seq: 1 }, shard: 0 };
    let mut data = AlignedBuf::take(4096);
    data.as_mut_slice().fill(7);
    let sums = weft_erasure::block_checksums(data.as_ref());
    engine.put(id, data.into(), sums).await.unwrap();
    let entry = engine.core.newest(id).await.unwrap().unwrap();
    // When its space is freed once more that thread panics.
    engine.core.allocator.lock().give(&entry.place.extents);
    let failed = engine.delete(vec![id]).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Io, "{failed}");
    assert!(engine.failure().is_some());
    assert_eq!(engine.fence(vec![1..=1]).await.unwrap_err().kind, ErrorKind::Io);
    engine.close().await.unwrap();
}
