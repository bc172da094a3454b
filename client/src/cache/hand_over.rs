//! Leases, from one process that serves a mount to the next. What was known under them is asked
//! again; but all of them go along, or the leader would keep for ever what nobody gives back.

use super::leases::Leases;
use super::quotas::UNKNOWN;
use super::table::{Held, Mode};
use weft_proto::{InodeId, v1};

impl Leases {
    /// What the leader was not given back, and what of that is to be.
    pub fn at_rest(&self) -> (Vec<v1::HeldLease>, Vec<v1::HeldLease>) {
        let table = self.table.lock();
        let held = table.inodes.iter().map(|(ino, held)| {
            let write = held.mode == Mode::Write || held.flushing;
            v1::HeldLease { ino: ino.0, seq: held.seq, write }
        });
        let surplus = self.all_surplus();
        // Nothing waits that was written under ranges: whoever needs some asks anew.
        let surplus = surplus.into_iter().chain(table.all_ranges());
        let given = |(ino, seq): (InodeId, u64)| v1::HeldLease { ino: ino.0, seq, write: false };
        (held.collect(), surplus.map(given).collect())
    }

    /// Takes [`Self::at_rest`] over.
    pub fn adopt(&self, leases: &[v1::HeldLease], surplus: &[v1::HeldLease]) {
        let table = &mut *self.table.lock();
        for lease in leases {
            let mode = if lease.write { Mode::Write } else { Mode::Read };
            let (since, seq, quota) = (table.epoch, lease.seq, UNKNOWN);
            let held = Held { since, seq, quota, ..Held::new(mode) };
            table.inodes.insert(InodeId(lease.ino), held);
        }
        surplus.iter().for_each(|lease| self.release_later(InodeId(lease.ino), lease.seq));
    }

    /// Whoever was giving leases back has ended in the midst of it: that begins anew. What was not
    /// given back is held as before, with all that has to be done before it is.
    pub fn resume(&self) {
        self.shrunk();
        let again = self.all_surplus();
        self.giving.lock().clear();
        *self.surplus.lock() = again;
        let table = &mut *self.table.lock();
        table.inodes.values_mut().for_each(|held| held.leaving = false);
        for (ino, held) in table.inodes.iter_mut().filter(|(_, held)| held.flushing) {
            (held.mode, held.flushing) = (Mode::Write, false);
            self.release_later(*ino, held.seq);
        }
        for (ino, ranges) in table.ranges.iter_mut().filter(|(_, ranges)| ranges.flushing) {
            ranges.flushing = false;
            self.release_later(*ino, ranges.seq);
        }
        self.surplus_grew.notify_one();
    }

    fn all_surplus(&self) -> Vec<(InodeId, u64)> {
        let giving: Vec<_> = self.giving.lock().iter().map(|(ino, seq)| (*ino, *seq)).collect();
        giving.into_iter().chain(self.surplus.lock().iter().copied()).collect()
    }
}
