//! What happened at a drive and to its chunks, in order, and what a power cut may leave of it.
//!
//! The rules that a drive with a volatile cache may apply: a write that was handed over may have
//! reached the medium, sector by sector, in any order and in part, until a flush that began after
//! it ended has ended; from then on all of it is there.

use super::model::{Known, Model};
use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use std::path::PathBuf;
use weft_proto::ChunkId;

/// What a drive writes atomically, in bytes.
const SECTOR: usize = 512;

pub struct Write {
    pub off: usize,
    pub bytes: Bytes,
}

pub enum Event {
    /// The write with this number was handed over.
    Began(usize),
    /// It was answered.
    Ended(usize),
    /// A flush ended: the first `ended` writes that ended are durable, and `own`.
    Flushed { ended: usize, own: Option<usize> },
    /// The index has reached its next durable state.
    Index(PathBuf),
    /// What is known of a chunk from now on.
    Chunk(ChunkId, Known),
}

/// One run of an engine, from the moment it was open.
#[derive(Default)]
pub struct Trace {
    /// The drive before.
    pub image: Vec<u8>,
    pub writes: Vec<Write>,
    pub events: Vec<Event>,
    /// What no engine may do, whatever comes of it.
    pub mistakes: Vec<String>,
}

/// What becomes of the writes that no flush has covered.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    Lost,
    Kept,
    /// Each write is there or not.
    Some,
    /// Each sector is there or not, with this chance in ten.
    Sectors(u8),
    /// Each write up to some sector.
    Torn,
    /// Only the last one handed over.
    Last,
    /// Only those below this offset, or only those above it.
    Side(usize, bool),
}

impl Fate {
    /// All that is worth a look at a moment with `volatile` writes in doubt: both ends always, and
    /// `samples` of what lies between.
    pub fn all(random: &mut StdRng, volatile: usize, samples: usize, middle: usize) -> Vec<Self> {
        let mut fates = vec![Self::Lost];
        if volatile > 0 {
            fates.push(Self::Kept);
            let ways = [
                Self::Some,
                Self::Sectors(1),
                Self::Sectors(5),
                Self::Sectors(9),
                Self::Torn,
                Self::Last,
                Self::Side(middle, false),
                Self::Side(middle, true),
            ];
            fates.extend(ways.choose_multiple(random, samples));
        }
        fates
    }
}

/// A moment of a trace.
pub struct Moment<'a> {
    trace: &'a Trace,
    next: usize,
    durable: Vec<u8>,
    /// Numbers of the writes that ended, in that order.
    ended: Vec<usize>,
    /// Of `ended`, how many are durable.
    flushed: usize,
    /// Writes that are not durable, in the order in which they began.
    volatile: Vec<usize>,
    pub index: Option<&'a PathBuf>,
    pub model: Model,
}

impl<'a> Moment<'a> {
    /// Before the first event.
    pub fn start(trace: &'a Trace) -> Self {
        Self {
            trace,
            next: 0,
            durable: trace.image.clone(),
            ended: Vec::new(),
            flushed: 0,
            volatile: Vec::new(),
            index: None,
            model: Model::new(),
        }
    }

    /// Number of the next event.
    pub fn at(&self) -> usize {
        self.next
    }

    /// Writes in doubt.
    pub fn volatile(&self) -> usize {
        self.volatile.len()
    }

    /// Takes the next event. Answers whether a cut after it is another one than before it, or
    /// `None` at the end.
    pub fn step(&mut self) -> Option<bool> {
        let event = self.trace.events.get(self.next)?;
        self.next += 1;
        Some(match event {
            Event::Began(write) => {
                self.volatile.push(*write);
                true
            }
            Event::Ended(write) => {
                self.ended.push(*write);
                false
            }
            Event::Flushed { ended, own } => {
                let covered: Vec<_> = self.ended[self.flushed.min(*ended)..*ended].to_vec();
                self.flushed = self.flushed.max(*ended);
                let (durable, left) = std::mem::take(&mut self.volatile)
                    .into_iter()
                    .partition::<Vec<_>, _>(|w| covered.contains(w) || Some(*w) == *own);
                durable.into_iter().for_each(|w| put(&mut self.durable, &self.trace.writes[w]));
                self.volatile = left;
                true
            }
            Event::Index(path) => {
                self.index = Some(path);
                true
            }
            Event::Chunk(id, known) => {
                let firm = !known.may_be_missing || known.may_be.is_none();
                self.model.insert(*id, known.clone());
                firm
            }
        })
    }

    /// The drive after a cut now.
    pub fn image(&self, fate: Fate, random: &mut StdRng) -> Vec<u8> {
        let mut image = self.durable.clone();
        let last = self.volatile.len().wrapping_sub(1);
        for (i, &number) in self.volatile.iter().enumerate() {
            let write = &self.trace.writes[number];
            let sectors = write.bytes.len() / SECTOR;
            let upto = random.random_range(0..=sectors);
            let whole = match fate {
                Fate::Lost | Fate::Sectors(_) | Fate::Torn => false,
                Fate::Kept => true,
                Fate::Some => random.random_bool(0.5),
                Fate::Last => i == last,
                Fate::Side(middle, above) => (write.off >= middle) == above,
            };
            for (sector, bytes) in write.bytes.chunks(SECTOR).enumerate() {
                let there = match fate {
                    Fate::Sectors(tenths) => random.random_range(0..10) < tenths,
                    Fate::Torn => sector < upto,
                    _ => whole,
                };
                if there {
                    let at = write.off + sector * SECTOR;
                    image[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        image
    }
}

fn put(image: &mut [u8], write: &Write) {
    image[write.off..write.off + write.bytes.len()].copy_from_slice(&write.bytes);
}
