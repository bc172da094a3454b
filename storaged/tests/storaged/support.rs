//! Makes targets in temporary folders and chunks with contents that follow from their id.

use bytes::Bytes;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use weft_net::AlignedBuf;
use weft_proto::{ChunkId, Result, SegmentId, SessionId};
use weft_storaged::engine::{Content, Engine, KeySource, TargetOptions};

pub fn options(dir: &Path, size: u64) -> TargetOptions {
    TargetOptions::new(dir.join("target"), Some(size))
}

/// With a key in that folder, which is made if there is none.
pub fn encrypted(dir: &Path, size: u64) -> TargetOptions {
    TargetOptions { encryption: Some(key(&dir.join("key"), 7)), ..options(dir, size) }
}

/// A key in a file, made if there is none; another for each `number`.
pub fn key(path: &Path, number: u8) -> KeySource {
    if !path.exists() {
        let bytes: Vec<u8> = (0..64).map(|n| n ^ number).collect();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        file.as_mut().unwrap().write_all(&bytes).unwrap();
    }
    KeySource { key_file: Some(path.into()), key_command: None }
}

/// Opens the target of a folder, made first if there is none.
pub fn open(dir: &Path, size: u64) -> Engine {
    open_made(&options(dir, size))
}

/// Opens a target, made first if there is none.
pub fn open_made(options: &TargetOptions) -> Engine {
    if !options.path.exists() {
        make(options);
    }
    open_with(options).unwrap()
}

/// Makes a target of a blank drive or of nothing.
pub fn make(options: &TargetOptions) {
    Engine::format(options, &Content::Blank).unwrap();
}

/// Opens on a plain thread: opening blocks, which async code may not.
pub fn open_with(options: &TargetOptions) -> Result<Engine> {
    std::thread::scope(|s| s.spawn(|| Engine::open(options)).join().unwrap())
}

pub fn id(session: u64, seq: u64, shard: u8) -> ChunkId {
    ChunkId { segment: SegmentId { session: SessionId(session), seq }, shard }
}

/// Bytes that follow from the chunk and `version`.
pub fn data(id: ChunkId, blocks: usize, version: u64) -> (Bytes, Vec<u32>) {
    let mut buffer = AlignedBuf::take(blocks * 4096);
    let mut state = id.segment.seq.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (u64::from(id.shard) << 56)
        ^ id.segment.session.0.rotate_left(32)
        ^ version;
    for word in buffer.as_mut_slice().as_chunks_mut::<8>().0 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *word = state.to_le_bytes();
    }
    let checksums = weft_erasure::block_checksums(buffer.as_ref());
    (buffer.into(), checksums)
}
