//! What tests of parts of the engine need: a whole one, and something to store.

use super::{Content, Engine, TargetOptions};
use bytes::Bytes;
use std::path::Path;
use weft_net::AlignedBuf;
use weft_proto::{ChunkId, SegmentId, SessionId};

/// A new target in a folder.
pub(super) fn engine(dir: &Path) -> Engine {
    let options = TargetOptions::new(dir.join("target"), Some(16 << 20));
    let open = || {
        Engine::format(&options, &Content::Blank).unwrap();
        Engine::open(&options).unwrap()
    };
    // It waits for its drive, as no thread of a runtime may.
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

/// A chunk of one block, and its checksums.
pub(super) fn chunk() -> (ChunkId, Bytes, Vec<u32>) {
    let id = ChunkId { segment: SegmentId { session: SessionId(1), seq: 1 }, shard: 0 };
    let mut data = AlignedBuf::take(4096);
    data.as_mut_slice().fill(7);
    let sums = weft_erasure::block_checksums(data.as_ref());
    (id, data.into(), sums)
}
