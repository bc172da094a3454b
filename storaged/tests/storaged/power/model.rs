//! What is known of each chunk, and whether a target agrees with it.

use crate::support::{data, id};
use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use weft_proto::{ChunkId, ErrorKind};
use weft_storaged::engine::Engine;

/// Contents that a chunk may have.
#[derive(Clone)]
pub struct Content {
    pub bytes: Bytes,
    pub sums: Vec<u32>,
}

impl Content {
    pub fn new(chunk: ChunkId, blocks: usize, version: u64) -> Self {
        let (bytes, sums) = data(chunk, blocks, version);
        Self { bytes, sums }
    }
}

/// The states that a chunk may be in.
#[derive(Clone)]
pub struct Known {
    pub may_be_missing: bool,
    pub may_be: Option<Content>,
}

impl Known {
    pub const GONE: Self = Self { may_be_missing: true, may_be: None };
}

pub type Model = BTreeMap<ChunkId, Known>;

/// Session of the chunks that [`grow`] puts.
const NEW: u64 = 99;

/// Compares the target with what is known, and learns what was in doubt. `rebuilt`: the index was
/// made anew from the target; what was deleted may then be there again.
pub async fn check(engine: &Engine, model: &mut Model, rebuilt: bool) -> Result<(), String> {
    for (&chunk, known) in model.iter_mut() {
        match holds(engine, chunk, known.may_be.as_ref()).await? {
            Held::Nothing if known.may_be_missing => *known = Known::GONE,
            Held::Nothing => return Err(format!("chunk {chunk} was acknowledged and is lost")),
            Held::Right => known.may_be_missing = false,
            Held::Other if rebuilt && known.may_be_missing => {}
            Held::Other if known.may_be.is_none() => {
                return Err(format!("chunk {chunk} was deleted and is back"));
            }
            Held::Other => return Err(format!("chunk {chunk} is damaged")),
        }
    }
    space(engine, model, rebuilt).await
}

enum Held {
    Nothing,
    Right,
    /// Others' bytes, or such as do not match their checksums.
    Other,
}

async fn holds(engine: &Engine, chunk: ChunkId, expect: Option<&Content>) -> Result<Held, String> {
    let len = expect.map_or(4096, |c| c.bytes.len() as u64);
    match engine.get(chunk, 0, len).await {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(Held::Nothing),
        Err(e) if e.kind == ErrorKind::Invalid => Ok(Held::Other),
        Err(e) => Err(format!("reading chunk {chunk}: {e}")),
        Ok(range) => {
            let right = expect.is_some_and(|content| {
                range.checksums == content.sums && same(&range.data, &content.bytes)
            });
            Ok(if right { Held::Right } else { Held::Other })
        }
    }
}

fn same(pieces: &[Bytes], bytes: &[u8]) -> bool {
    let mut rest = bytes;
    pieces.iter().all(|piece| match rest.split_at_checked(piece.len()) {
        Some((head, tail)) => {
            rest = tail;
            head == &piece[..]
        }
        None => false,
    }) && rest.is_empty()
}

/// Every chunk is a known one, and the space in use is theirs.
async fn space(engine: &Engine, model: &Model, rebuilt: bool) -> Result<(), String> {
    let page = engine.list(None, None, usize::MAX).await.map_err(|e| format!("list: {e}"))?;
    let mut used = 0;
    for (chunk, length) in page.items {
        let known = model.get(&chunk).is_some_and(|k| rebuilt || k.may_be.is_some());
        if !known {
            return Err(format!("chunk {chunk} was never put, or deleted, and is listed"));
        }
        used += length + 4096; // one block of header: the chunks are short
    }
    let stat = engine.stat();
    if stat.used_bytes != used {
        return Err(format!("{} bytes are in use, the chunks take {used}", stat.used_bytes));
    }
    Ok(())
}

/// The target goes on: new chunks get space of their own, so that everything still reads.
pub async fn grow(engine: &Engine, model: &mut Model, random: &mut StdRng) -> Result<(), String> {
    for seq in 0..random.random_range(1..4) {
        let chunk = id(NEW, seq, 0);
        let content = Content::new(chunk, random.random_range(1..30), random.random());
        match engine.put(chunk, content.bytes.clone(), content.sums.clone()).await {
            Ok(()) => {}
            Err(e) if e.kind == ErrorKind::NoSpace => break,
            Err(e) => return Err(format!("a put after the cut: {e}")),
        }
        model.insert(chunk, Known { may_be_missing: false, may_be: Some(content) });
    }
    check(engine, model, false).await
}
