//! Puts, replacements and deletes from a few tasks at once, each with chunks of its own, written
//! down in a trace.

use super::drive::Recorder;
use super::model::{Content, Known, Model};
use crate::support::id;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use weft_proto::{ErrorKind, Result};
use weft_storaged::engine::Engine;

const TASKS: u64 = 6;
/// Chunks of each task.
const CHUNKS: u64 = 7;

/// Runs `turns` puts and deletes on a target that holds what `model` knows for sure.
pub async fn run(engine: &Engine, recorder: &Arc<Recorder>, model: &Model, turns: u64, seed: u64) {
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let mut own = Own {
                engine: engine.clone(),
                recorder: recorder.clone(),
                model: model
                    .iter()
                    .filter(|(id, _)| id.segment.session.0 == task)
                    .map(|(k, v)| (*k, v.clone()))
                    .collect(),
                random: StdRng::seed_from_u64(seed ^ task.rotate_left(40)),
                task,
            };
            tokio::spawn(async move {
                for _ in 0..turns / TASKS {
                    // A drive that fails ends the work: what was acknowledged must hold all the
                    // same.
                    if own.turn().await.is_err() {
                        break;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task of the workload");
    }
}

struct Own {
    engine: Engine,
    recorder: Arc<Recorder>,
    model: Model,
    random: StdRng,
    task: u64,
}

impl Own {
    /// One put, one replacement, or one delete of a few.
    async fn turn(&mut self) -> Result<()> {
        let chunk = id(self.task, self.random.random_range(0..CHUNKS), 0);
        let known = self.model.get(&chunk).cloned().unwrap_or(Known::GONE);
        if known.may_be.is_none() {
            return self.put(chunk).await;
        }
        if !known.may_be_missing && self.random.random_bool(0.4) {
            return self.replace(chunk, known).await;
        }
        let mut chunks = vec![chunk];
        if self.random.random_bool(0.2) {
            let there = self.model.iter().filter(|(id, k)| **id > chunk && k.may_be.is_some());
            chunks.extend(there.map(|(id, _)| *id).take(2));
        }
        for &chunk in &chunks {
            let known = self.model.get(&chunk).cloned().unwrap_or(Known::GONE);
            self.learn(chunk, Known { may_be_missing: true, ..known });
        }
        self.engine.delete(chunks.clone()).await?;
        chunks.into_iter().for_each(|chunk| self.learn(chunk, Known::GONE));
        Ok(())
    }

    /// Puts a chunk that is there somewhere else, or another in its place: it is one of both,
    /// whenever the power goes.
    async fn replace(&mut self, chunk: weft_proto::ChunkId, known: Known) -> Result<()> {
        let Some(old) = known.may_be.clone() else { return Ok(()) };
        let new = if self.random.random_bool(0.5) { old.clone() } else { self.content(chunk) };
        self.learn(chunk, Known { or: Some(new.clone()), ..known.clone() });
        let Content { bytes, sums } = new.clone();
        let is = match self.engine.supersede(chunk, bytes, sums).await {
            Ok(()) => Known::is(new),
            Err(e) if e.kind == ErrorKind::NoSpace => known,
            Err(e) => return Err(e),
        };
        self.learn(chunk, is);
        Ok(())
    }

    fn content(&mut self, chunk: weft_proto::ChunkId) -> Content {
        let blocks = match self.random.random_range(0..10) {
            0 => self.random.random_range(30..60),
            _ => self.random.random_range(1..12),
        };
        Content::new(chunk, blocks, self.random.random())
    }

    /// As a client does, or as who makes it anew.
    async fn put(&mut self, chunk: weft_proto::ChunkId) -> Result<()> {
        let content = self.content(chunk);
        self.learn(chunk, Known { may_be: Some(content.clone()), ..Known::GONE });
        let Content { bytes, sums } = content.clone();
        let done = match self.random.random_bool(0.3) {
            true => self.engine.restore(chunk, bytes, sums).await,
            false => self.engine.put(chunk, bytes, sums).await,
        };
        match done {
            Ok(()) => self.learn(chunk, Known::is(content)),
            Err(e) if e.kind == ErrorKind::NoSpace => self.learn(chunk, Known::GONE),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn learn(&mut self, chunk: weft_proto::ChunkId, known: Known) {
        self.model.insert(chunk, known.clone());
        self.recorder.note(chunk, known);
    }
}
