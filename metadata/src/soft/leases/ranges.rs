//! Byte ranges of a file that several sessions write.
//!
//! Each session has the right to buffer what it writes to its own ranges, and knows nothing of the
//! file by that, since others write to other bytes of it. They are recalled together, as one lease:
//! by whoever wants to write one of these bytes, and by whoever reads or changes the file. So
//! nobody reads what is not committed, and what two sessions write to the same bytes is ordered by
//! who held them.
//!
//! Ranges are granted ahead: records that a session is going to write, as far as nobody has them.

use super::{Holder, Lease, Leases, MAX_LEASES, Mode, Writing};
use std::ops::Range;
use tokio::time::Instant;
use weft_proto::{ByteRanges, InodeId, SessionId, v1};

/// Ranges of one session and file, with those that are asked for. Who would hold more gives all
/// back first.
const MAX_RANGES: usize = 1 << 15;

impl Lease {
    /// Whether nobody else may write these bytes, or is committing some: a commit may take effect
    /// after its session gave them up.
    fn is_free_to(&self, to: SessionId, range: &Range<u64>) -> bool {
        let held = self.holders.iter().map(|h| (h.session, &h.ranges));
        let written = self.writing.iter().map(|writing| (writing.by, &writing.ranges));
        held.chain(written).all(|(session, ranges)| session == to || !ranges.overlaps(range))
    }
}

impl Leases {
    /// Grants the first of these records, and as many more as nobody holds; recalls what stands
    /// against the first one when it is its turn. Answers are those of [`Leases::serve`].
    pub fn serve_ranges(
        &mut self,
        now: Instant,
        to: SessionId,
        ino: InodeId,
        records: &[Range<u64>],
    ) -> Option<Option<v1::Grant>> {
        let Some(first) = records.first() else { return Some(None) };
        let holders = self.inodes.get(&ino).map_or(&[][..], |lease| &lease.holders);
        let held = holders.iter().find(|h| h.session == to).map_or(0, |h| h.ranges.len());
        if held + records.len() > MAX_RANGES {
            self.recall_from(now, SessionId(0), ino, false, |h| h.session == to);
        }
        if held == 0 && self.parties.get(&to).is_some_and(|p| p.inos.len() >= MAX_LEASES) {
            return Some(None);
        }
        if self.owes(to, ino) {
            return Some(None);
        }
        let stands = |h: &Holder| h.mode != Mode::Ranges || h.ranges.overlaps(first);
        if self.has_earlier(to, ino, Mode::Ranges)
            || !self.recall_from(now, to, ino, false, stands)
            || self
                .inodes
                .get(&ino)
                .is_some_and(|l| l.claims.iter().any(|c| *c != to) || !l.is_free_to(to, first))
        {
            return None;
        }
        self.grant_ranges(to, ino, records).map(Some)
    }

    fn grant_ranges(
        &mut self,
        to: SessionId,
        ino: InodeId,
        records: &[Range<u64>],
    ) -> Option<v1::Grant> {
        let (seq, mode) = self.insert(to, ino, Mode::Ranges)?;
        let lease = self.inodes.get_mut(&ino)?;
        let granted = records.iter().take_while(|record| lease.is_free_to(to, record)).count();
        let write = mode == Mode::Write;
        if !write {
            let holder = lease.holders.iter_mut().find(|h| h.session == to)?;
            records[..granted].iter().for_each(|record| holder.ranges.insert(record.clone()));
        }
        let (ino, records) = (ino.0, granted as u32);
        Some(v1::Grant { ino, seq, write, records, ..Default::default() })
    }

    /// A session is about to commit these bytes of a file of which it or others hold ranges; else
    /// `None`. Nobody else is granted a lease to read, or these bytes, until [`Leases::written`]
    /// with the number that this answers, with whether they are its own: it holds them, or is just
    /// giving them back. What others hold of those that are not, [`Leases::recall_ranges`] recalls.
    /// `only_own`: nothing is begun if they are not.
    pub fn begin_write(
        &mut self,
        by: SessionId,
        ino: InodeId,
        ranges: &ByteRanges,
        only_own: bool,
    ) -> Option<(u64, bool)> {
        let number = self.number();
        let lease = self.inodes.get_mut(&ino)?;
        let covers = |h: &Holder| ranges.iter().all(|range| h.ranges.covers(&range));
        let is_own = lease.holders.iter().any(|h| h.session == by && covers(h));
        let is_shared = || lease.holders.iter().any(|h| !h.ranges.is_empty());
        if ranges.is_empty() || !(is_own || !only_own && is_shared()) {
            return None;
        }
        lease.writing.push(Writing { number, by, ranges: ranges.clone() });
        Some((number, is_own))
    }

    /// Recalls what others hold of a file that stands against `by` writing these bytes: they know
    /// nothing of the rest by holding ranges of it. Answers whether nothing does.
    pub fn recall_ranges(
        &mut self,
        now: Instant,
        by: SessionId,
        ino: InodeId,
        ranges: &ByteRanges,
    ) -> bool {
        let overlaps = |h: &Holder| ranges.iter().any(|range| h.ranges.overlaps(&range));
        self.recall_from(now, by, ino, false, |h| h.mode != Mode::Ranges || overlaps(h))
    }

    /// Ends what [`Leases::begin_write`] began.
    pub fn written(&mut self, ino: InodeId, number: u64) {
        let Some(lease) = self.inodes.get_mut(&ino) else { return };
        lease.writing.retain(|writing| writing.number != number);
        self.forget_idle(Instant::now(), ino);
        self.note_change();
    }

    /// How many of these ranges a session does not hold already.
    pub fn count_new(&self, id: SessionId, ranges: &[(InodeId, Range<u64>)]) -> usize {
        let new = |of_file: &[(InodeId, Range<u64>)]| {
            let lease = of_file.first().and_then(|(ino, _)| self.inodes.get(ino));
            match lease.and_then(|lease| lease.holders.iter().find(|h| h.session == id)) {
                Some(held) if held.mode == Mode::Write => 0,
                Some(held) => of_file.iter().filter(|(_, r)| !held.ranges.covers(r)).count(),
                None => of_file.len(),
            }
        };
        ranges.chunk_by(|(a, _), (b, _)| a == b).map(new).sum()
    }

    /// A session declared to a new leader that it keeps these, of which so many are `new`. Nobody
    /// else can have been granted any of them.
    pub fn declared_ranges(&mut self, id: SessionId, ranges: &[(InodeId, Range<u64>)], new: usize) {
        if let Some(party) = self.parties.get_mut(&id) {
            party.ranges += new;
        }
        for of_file in ranges.chunk_by(|(a, _), (b, _)| a == b) {
            let Some((ino, _)) = of_file.first() else { continue };
            if self.insert(id, *ino, Mode::Ranges).is_none_or(|(_, mode)| mode == Mode::Write) {
                continue;
            }
            let holders = self.inodes.get_mut(ino).map(|lease| &mut lease.holders);
            let holder = holders.and_then(|h| h.iter_mut().find(|h| h.session == id));
            if let Some(holder) = holder {
                of_file.iter().for_each(|(_, range)| holder.ranges.insert(range.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
