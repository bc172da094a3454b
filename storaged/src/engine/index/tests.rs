//! Tests of `index`.

use super::super::{Content, Engine, TargetOptions};
use super::*;
use weft_net::AlignedBuf;

/// A lookup that was under way meanwhile has put it into the cache, and not taken it out yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_was_just_deleted_is_stored_again() {
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
    let data = bytes::Bytes::from(data);
    let sums = weft_erasure::block_checksums(&data);
    engine.put(id, data.clone(), sums.clone()).await.unwrap();
    for restores in [false, true] {
        let old = engine.core.newest(id).await.unwrap().unwrap();
        assert_eq!(engine.delete(vec![id]).await.unwrap(), 1);
        engine.core.index.cache.insert(id, old);
        match restores {
            false => engine.put(id, data.clone(), sums.clone()).await.unwrap(),
            true => engine.restore(id, data.clone(), sums.clone()).await.unwrap(),
        }
        assert!(engine.core.newest(id).await.unwrap().is_some(), "it was acknowledged");
    }
    engine.close().await.unwrap();
}
