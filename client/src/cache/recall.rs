//! Leases that are given back: those that the leader recalls, and those that are too many.

use super::leases::Leases;
use super::table::{Held, Mode, Start, Table};
use weft_proto::planted::{self, Bug};
use weft_proto::{InodeId, SessionId};

/// Inodes that are kept, and names in all directories; above it, half of them are given back.
pub(super) const MAX_INODES: usize = 200_000;
pub(super) const MAX_NAMES: usize = 800_000;

/// An answer to a recall, under way until this is dropped.
pub(crate) struct Answering<'a> {
    leases: &'a Leases,
    ino: InodeId,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.leases.returning.send_modify(|returning| {
            if let Some(answers) = returning.get_mut(&self.ino) {
                *answers -= 1;
                if *answers == 0 {
                    returning.remove(&self.ino);
                }
            }
        });
    }
}

/// The lease of an inode is given up, by one at a time of each session until this is dropped.
pub(crate) struct Releasing<'a> {
    leases: &'a Leases,
    of: (SessionId, InodeId),
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        self.leases.releasing.send_modify(|releasing| {
            releasing.remove(&self.of);
        });
    }
}

impl Leases {
    /// Waits until nobody else gives this lease up. A recall of the right to write may be followed
    /// by one of the right to read while it is carried out: what the second waits for may need the
    /// right that the first takes away. Not for a session before: it may be waiting for ever for
    /// servers that are away, and nothing of the lease of this one.
    pub async fn begin_release(&self, session: SessionId, ino: InodeId) -> Releasing<'_> {
        let of = (session, ino);
        while !self.releasing.send_if_modified(|releasing| releasing.insert(of)) {
            let mut releasing = self.releasing.subscribe();
            // The sender lives as long as `self`.
            let _ = releasing.wait_for(|r| !r.contains(&of)).await;
        }
        Releasing { leases: self, of }
    }

    /// Whether a lease of this session is being given up.
    pub fn is_releasing(&self, session: SessionId, ino: InodeId) -> bool {
        self.releasing.borrow().contains(&(session, ino))
    }

    /// Returns when some lease begins to be given up, or has been.
    pub async fn releases_change(&self) {
        // The sender lives as long as `self`.
        let _ = self.releasing.subscribe().changed().await;
    }

    /// Whether nothing of an inode was recalled since `start`.
    pub fn keeps_since(&self, start: Start, ino: InodeId) -> bool {
        self.table.lock().keeps_since(start, ino)
    }

    /// First step of a recall: from now on nothing more is buffered, nor locked without asking;
    /// also not by a grant that is on its way still; nor are names and attributes cached above,
    /// unless `keep_read`. Answers whether something may be buffered;
    /// `None`, with nothing done, if there is the right to write and something has to be done under
    /// it before (not `ready`).
    pub fn stop_buffering(&self, ino: InodeId, ready: bool, keep_read: bool) -> Option<bool> {
        let mut table = self.table.lock();
        if !planted::is(Bug::GrantOutlivesRecall) {
            table.mark(ino);
        }
        let mut flushing = false;
        if let Some(held) = table.inodes.get_mut(&ino) {
            if held.mode == Mode::Write && !ready {
                return None;
            }
            held.flushing |= held.mode == Mode::Write;
            (held.mode, held.locks, held.maps) = (Mode::Read, false, false);
            held.leaving |= !keep_read;
            flushing = held.flushing;
        }
        if let Some(ranges) = table.ranges.get_mut(&ino) {
            (ranges.flushing, flushing) = (true, true);
        }
        Some(flushing)
    }

    /// Second step of a recall: what was buffered is committed, and nothing is used any more,
    /// unless `keep_read`. Answers whether that is so: a new session may have the right to write
    /// again.
    pub fn flushed(&self, ino: InodeId, keep_read: bool) -> bool {
        let table = &mut *self.table.lock();
        if table.ranges.get(&ino).is_some_and(|ranges| !ranges.flushing) {
            return false;
        }
        if let Some(held) = table.inodes.get_mut(&ino) {
            if held.mode == Mode::Write {
                return false;
            }
            (held.flushing, held.leaving) = (false, false);
        }
        table.ranges.remove(&ino);
        if !keep_read && !planted::is(Bug::CacheOutlivesRecall) {
            if !planted::is(Bug::GrantOutlivesRecall) {
                table.mark(ino);
            }
            table.drop_lease(ino);
        }
        true
    }

    /// An answer to a recall is under way; while it is, who wants a new lease waits.
    pub fn answering(&self, ino: InodeId) -> Answering<'_> {
        self.returning.send_modify(|returning| *returning.entry(ino).or_default() += 1);
        Answering { leases: self, ino }
    }

    /// Waits until no answer to a recall of this inode is under way.
    pub async fn settled(&self, ino: InodeId) {
        if self.returning.borrow().contains_key(&ino) {
            let mut returning = self.returning.subscribe();
            // The sender lives as long as `self`.
            let _ = returning.wait_for(|r| !r.contains_key(&ino)).await;
        }
    }

    /// Leases that are to be given up without a recall since the last call.
    pub fn take_surplus(&self) -> Vec<(InodeId, u64)> {
        let taken = std::mem::take(&mut *self.surplus.lock());
        self.giving.lock().extend(taken.iter().copied());
        taken
    }

    /// The leader was told of these, or their session has ended.
    pub fn given(&self, inos: impl IntoIterator<Item = InodeId>) {
        let mut giving = self.giving.lock();
        for ino in inos {
            giving.remove(&ino);
        }
    }

    fn release(&self, table: &mut Table, ino: InodeId) {
        if let Some(held) = table.drop_lease(ino) {
            table.mark(ino);
            self.release_later(ino, held.seq);
        }
    }

    pub(super) fn release_later(&self, ino: InodeId, seq: u64) {
        self.surplus.lock().push((ino, seq));
        self.surplus_grew.notify_one();
    }

    pub(super) fn shrink(&self, table: &mut Table) {
        let (inodes, names) = (table.inodes.len() > MAX_INODES, table.names > MAX_NAMES);
        if table.shrinking || !(inodes || names) {
            return;
        }
        // Few directories lead to many inodes: they stay if it is not their names that are too
        // many. What is on its way to the group stays too.
        let surplus = |(_, held): &(&InodeId, &Held)| {
            let dir = held.complete || !held.names.is_empty();
            held.seq > 0 && !held.flushing && (if dir { names } else { inodes })
        };
        let half = table.inodes.iter().filter(surplus).step_by(2);
        let half: Vec<_> = half.map(|(ino, held)| (*ino, held.mode, held.seq)).collect();
        for (ino, mode, seq) in half {
            match mode {
                Mode::Read => self.release(table, ino),
                // It may have been written to: it is held until that was looked after.
                Mode::Write => {
                    table.shrinking = true;
                    self.release_later(ino, seq);
                }
            }
        }
    }

    /// What was to be given back is.
    pub fn shrunk(&self) {
        self.table.lock().shrinking = false;
    }
}
