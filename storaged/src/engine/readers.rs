//! Keeps the space of a deleted chunk from being reused while somebody still reads it.

use super::entry::Extent;
use parking_lot::Mutex;
use std::collections::HashMap;
use weft_proto::ChunkId;

#[derive(Default)]
pub(super) struct Readers(Mutex<HashMap<ChunkId, Reading>>);

#[derive(Default)]
struct Reading {
    count: usize,
    /// To be freed by the last reader.
    deleted: Vec<Extent>,
}

impl Readers {
    /// Before the chunk is looked up.
    pub fn enter(&self, id: ChunkId) {
        self.0.lock().entry(id).or_default().count += 1;
    }

    /// After the last byte was read. Answers what is now to be freed.
    pub fn leave(&self, id: ChunkId) -> Vec<Extent> {
        let mut reading = self.0.lock();
        let Some(it) = reading.get_mut(&id) else { return Vec::new() };
        it.count -= 1;
        if it.count > 0 {
            return Vec::new();
        }
        reading.remove(&id).map(|it| it.deleted).unwrap_or_default()
    }

    /// After the index forgot the chunk. Answers what is to be freed now; the rest is freed by the
    /// last reader.
    pub fn deleted(&self, id: ChunkId, extents: Vec<Extent>) -> Vec<Extent> {
        match self.0.lock().get_mut(&id) {
            None => extents,
            Some(it) => {
                it.deleted.extend(extents);
                Vec::new()
            }
        }
    }
}
