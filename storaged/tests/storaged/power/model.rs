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
    /// What it may be in place of that.
    pub or: Option<Content>,
    /// Something else was to take its place, and did not: its header may be there, and is newer.
    pub overtaken: bool,
}

impl Known {
    pub const GONE: Self = Self { may_be_missing: true, may_be: None, or: None, overtaken: false };

    pub fn is(content: Content) -> Self {
        Self { may_be_missing: false, may_be: Some(content), ..Self::GONE }
    }

    /// It was found to be this.
    fn found(&self, content: Content) -> Self {
        let is_old = self.may_be.as_ref().is_some_and(|old| old.sums == content.sums);
        Self { overtaken: is_old && self.is_contested(), ..Self::is(content) }
    }

    /// Something else was to take its place, or is about to: with a lost index, neither may count.
    fn is_contested(&self) -> bool {
        let differs = |(old, or): (&Content, &Content)| old.sums != or.sums;
        self.overtaken || self.may_be.as_ref().zip(self.or.as_ref()).is_some_and(differs)
    }
}

pub type Model = BTreeMap<ChunkId, Known>;

/// Session of the chunks that [`grow`] puts.
const NEW: u64 = 99;

/// Compares the target with what is known, and learns what was in doubt. When the index was made
/// anew from the target (`rebuilt`), what was deleted may be there again, if it is whole: so few
/// puts are done here while a target is open that all are looked at which do not count for sure.
pub async fn check(engine: &Engine, model: &mut Model, rebuilt: bool) -> Result<(), String> {
    for (&chunk, known) in model.iter_mut() {
        match holds(engine, chunk, known).await? {
            Held::Nothing if known.may_be_missing => *known = Known::GONE,
            Held::Nothing if rebuilt && known.is_contested() => *known = Known::GONE,
            Held::Nothing => return Err(format!("chunk {chunk} was acknowledged and is lost")),
            Held::Right(content) => *known = known.found(content),
            // Nobody knows any more that it was not put in the other's place.
            Held::Whole if rebuilt && (known.may_be_missing || known.overtaken) => {}
            Held::Torn if rebuilt && (known.may_be_missing || known.overtaken) => {
                return Err(format!("chunk {chunk} is not whole, and counts"));
            }
            Held::Whole | Held::Torn if known.may_be.is_none() => {
                return Err(format!("chunk {chunk} was deleted and is back"));
            }
            Held::Whole => return Err(format!("chunk {chunk} is another")),
            Held::Torn => return Err(format!("chunk {chunk} is damaged")),
        }
    }
    space(engine, model, rebuilt).await
}

enum Held {
    Nothing,
    Right(Content),
    /// Other bytes that match their checksums.
    Whole,
    Torn,
}

async fn holds(engine: &Engine, chunk: ChunkId, known: &Known) -> Result<Held, String> {
    let failed = |e| format!("reading chunk {chunk}: {e}");
    let Some(length) = engine.length(chunk).await.map_err(failed)? else {
        return Ok(Held::Nothing);
    };
    let range = engine.get(chunk, 0, length).await.map_err(failed)?;
    let bytes = range.data.concat();
    let is = |content: &&Content| range.checksums == content.sums && bytes == content.bytes;
    if let Some(right) = [&known.may_be, &known.or].into_iter().flatten().find(is) {
        return Ok(Held::Right(right.clone()));
    }
    let whole = weft_erasure::verify_blocks(&bytes, &range.checksums).is_ok();
    Ok(if whole { Held::Whole } else { Held::Torn })
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
        model.insert(chunk, Known::is(content));
    }
    check(engine, model, false).await
}
