//! How far the repair has come, as this leader knows it.

use super::rate::Rate;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::{PgId, SegmentId, v1};

/// The rate is that of the last so many seconds.
const RATE_WINDOW_S: u64 = 10;
/// A seat that could not be moved for balance is left where it is for so long.
const LEFT_ALONE_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// Most problems that are told.
const MAX_PROBLEMS: usize = 8;
/// A segment whose record makes no sense is told of for so long after it was met. It is met when
/// chunks of it are to be made or moved, and not by looks at what targets hold.
pub const DAMAGED_INTERVAL: Duration = Duration::from_secs(25 * 3600);
/// Most of them that are remembered.
const MAX_DAMAGED: usize = 4096;

/// A seat of a placement group.
pub type Seat = (PgId, u8);

/// A seat that another target is to have, since that holds less than its share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shift {
    pub pg: u32,
    pub seat: u32,
    pub to: u32,
    /// What lies in it.
    pub lot: Lot,
}

/// Chunks, and how many bytes they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Lot {
    pub bytes: u64,
    pub chunks: u64,
}

/// What is left to be made for a seat, in chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    pub chunks: u64,
    /// The target that has the seat does not serve it.
    pub missing: bool,
    /// There is no target that it can be made at now.
    pub stuck: bool,
}

/// Has one owner for a moment; nobody holds it while waiting for anything.
#[derive(Default)]
pub struct Progress(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    left: BTreeMap<Seat, Left>,
    /// Of the map that `left` is of.
    epoch: u64,
    /// Chunks of targets that are down and not given up.
    down: u64,
    made: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// How many were made of late.
    recent: Rate<RATE_WINDOW_S>,
    problems: BTreeMap<Seat, String>,
    /// What is still to be moved for balance, behind everything else.
    shifts: Vec<Shift>,
    /// Seats that could not be moved for balance, and until when they are left where they are.
    left_alone: BTreeMap<Seat, Instant>,
    /// Segments that are passed over, since their records make no sense, and when they were met.
    damaged: BTreeMap<SegmentId, Instant>,
}

impl Progress {
    /// A term begins: what was known is of another.
    pub fn forget(&self) {
        *self.0.lock() = Inner::default();
    }

    /// Everything that is left to be made, and the chunks of targets that are merely down.
    /// As of the map of `epoch`.
    pub fn set_left(&self, epoch: u64, left: BTreeMap<Seat, Left>, down: u64) {
        let inner = &mut *self.0.lock();
        inner.problems.retain(|seat, _| left.contains_key(seat));
        (inner.epoch, inner.left, inner.down) = (epoch, left, down);
    }

    /// What is left, as it was set last and has been made since.
    pub fn left(&self) -> BTreeMap<Seat, Left> {
        self.0.lock().left.clone()
    }

    /// An order of then was carried out, and so many chunks of its seat are left.
    pub fn note(&self, begun: Instant, seat: Seat, chunks: u64, reply: &v1::RebuildReply) {
        let inner = &mut *self.0.lock();
        if let Some(left) = inner.left.get_mut(&seat) {
            left.chunks = chunks;
        }
        inner.made += reply.made;
        inner.read_bytes += reply.read_bytes;
        inner.written_bytes += reply.written_bytes;
        inner.recent.note(begun, Instant::now(), reply.made);
    }

    /// What keeps a seat from being made whole; `None`: nothing any more.
    pub fn set_problem(&self, seat: Seat, problem: Option<String>) {
        let problems = &mut self.0.lock().problems;
        match problem {
            Some(problem) => problems.insert(seat, problem),
            None => problems.remove(&seat),
        };
    }

    /// Whether something keeps this seat from being made whole.
    pub fn has_problem(&self, seat: Seat) -> bool {
        self.0.lock().problems.contains_key(&seat)
    }

    /// The records of these segments make no sense: their chunks are left as they are.
    pub fn note_damaged(&self, now: Instant, segments: impl IntoIterator<Item = SegmentId>) {
        let damaged = &mut self.0.lock().damaged;
        for id in segments {
            if damaged.len() < MAX_DAMAGED || damaged.contains_key(&id) {
                let is_new = damaged.insert(id, now).is_none();
                if is_new {
                    tracing::error!(%id, "a segment is passed over: its record makes no sense");
                }
            }
        }
    }

    /// How many segments are passed over, since their records make no sense.
    pub fn count_damaged(&self, now: Instant) -> usize {
        let damaged = &mut self.0.lock().damaged;
        damaged.retain(|_, met| now.saturating_duration_since(*met) < DAMAGED_INTERVAL);
        damaged.len()
    }

    /// What is to be moved for balance from now on.
    pub fn set_shifts(&self, shifts: Vec<Shift>) {
        self.0.lock().shifts = shifts;
    }

    /// What is still to be moved for balance.
    pub fn shifts(&self) -> Vec<Shift> {
        self.0.lock().shifts.clone()
    }

    /// Whether anything is still to be moved for balance.
    pub fn has_shifts(&self) -> bool {
        !self.0.lock().shifts.is_empty()
    }

    /// A seat could not be moved for balance.
    pub fn leave(&self, now: Instant, seat: Seat) {
        let left_alone = &mut self.0.lock().left_alone;
        left_alone.retain(|_, until| *until > now);
        left_alone.insert(seat, now + LEFT_ALONE_INTERVAL);
    }

    /// Whether a seat is left where it is, since it could not be moved for balance.
    pub fn is_left(&self, now: Instant, seat: Seat) -> bool {
        self.0.lock().left_alone.get(&seat).is_some_and(|until| *until > now)
    }

    /// These are moved now, or cannot be any more.
    pub fn forget_shifts(&self, gone: &HashSet<(u32, u32)>) {
        self.0.lock().shifts.retain(|shift| !gone.contains(&(shift.pg, shift.seat)));
    }

    /// Chunks that are missing, and that are to move, of targets that were given up, are drained or
    /// hold more than their share; and how many were made in all.
    pub fn under_way(&self) -> (u64, u64, u64) {
        let inner = self.0.lock();
        let (mut missing, mut moving) =
            (0, inner.shifts.iter().map(|shift| shift.lot.chunks).sum());
        for left in inner.left.values() {
            *(if left.missing { &mut missing } else { &mut moving }) += left.chunks;
        }
        (missing, moving, inner.made)
    }

    /// For people. As long as it was not counted what is left by the map of `epoch`, by which
    /// something may be missing (`may_miss`), something is.
    pub fn stat(&self, now: Instant, epoch: u64, may_miss: bool) -> v1::RepairStat {
        let damaged = self.count_damaged(now);
        let inner = &mut *self.0.lock();
        let uncounted = u64::from(may_miss && inner.epoch < epoch);
        let sum = |of: fn(&&Left) -> bool| {
            inner.left.values().filter(of).map(|left| left.chunks).sum::<u64>()
        };
        let waiting: u64 = inner.shifts.iter().map(|shift| shift.lot.chunks).sum();
        let mut problems: Vec<_> = inner.problems.values().cloned().collect();
        problems.sort_unstable();
        problems.dedup();
        // Behind what keeps seats: of that, people are shown the first.
        problems.truncate(MAX_PROBLEMS - usize::from(damaged > 0));
        if let Some(first) = inner.damaged.keys().next() {
            let what = format!(
                "the records of {damaged} segments make no sense ({first} is one): they are passed \
                 over, and neither repaired nor moved; run `weft fsck`"
            );
            problems.push(what);
        }
        v1::RepairStat {
            missing_chunks: (inner.down + sum(|left| left.missing)).max(uncounted),
            moving_chunks: sum(|left| !left.missing) + waiting,
            stuck_chunks: sum(|left| left.stuck),
            made_chunks: inner.made,
            read_bytes: inner.read_bytes,
            written_bytes: inner.written_bytes,
            chunks_per_s: inner.recent.per(Duration::from_secs(1), now),
            problems,
            damaged_records: damaged as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::SessionId;

    /// Why chunks are stuck is the first.
    #[test]
    fn of_damaged_records_is_told_behind_what_keeps_seats() {
        let (progress, now) = (Progress::default(), Instant::now());
        let told = || progress.stat(now, 1, false).problems;
        let damaged = |what: &String| what.contains("make no sense");
        progress.note_damaged(now, [SegmentId { session: SessionId(7), seq: 9 }]);
        assert_eq!(told().iter().map(damaged).collect::<Vec<_>>(), [true]);
        for n in 0..20 {
            progress.set_problem((PgId(n), 0), Some(format!("zone {n} has no room")));
        }
        let all = told();
        assert_eq!(all.len(), MAX_PROBLEMS);
        assert_eq!(all.iter().position(damaged), Some(MAX_PROBLEMS - 1));
    }
}
