//! How much data is on its way to a drive at once, while others read from it.
//!
//! A drive that has been given megabytes to write answers a small read late, whatever goes first
//! here. So while there are small reads, data is held back: the window shrinks as long as reads
//! take much longer than they do alone, and grows again as long as they do not. When nobody reads,
//! it is whole.
//!
//! Invariant: no less than [`LEAST`] is on its way, however long reads take.

use std::time::Duration;
use tokio::time::Instant;

/// Most bytes of data on their way to the drive: enough to keep it busy, and few enough that a
/// journal record or a flush does not wait behind much. Requests end one after the other, not all
/// at once, which lets a commit of some run beside the data of the next.
const WHOLE: usize = 8 << 20;
const LEAST: usize = 512 << 10;
/// Most bytes of one entry. A large request is cut, so that others get between its parts.
pub(super) const PART: usize = 1 << 20;
/// Entries are of so many bytes, or of several times as many.
const ROUND: usize = 64 << 10;
/// Small reads, of two sizes.
const SIZES: [usize; 2] = [16 << 10, 256 << 10];
/// Reads may take so many times what they take alone, and so much longer.
const FACTOR: f64 = 1.5;
const TOLERANCE: f64 = 50e-6;
/// The window is set anew each so many reads.
const EACH: u32 = 8;
/// One read counts with one part in so many of what reads take alone.
const WEIGHT: f64 = 16.0;
/// Where less data does not help, what reads take alone has become more.
const DRIFT: f64 = 1.05;
/// Nobody reads if the last one was so long ago.
const QUIET_AFTER: Duration = Duration::from_millis(100);

pub(super) struct BulkWindow {
    limit: usize,
    sizes: [Reads; SIZES.len()],
    last: Option<Instant>,
}

/// Reads of one size.
#[derive(Default, Clone, Copy)]
struct Reads {
    /// What one takes alone, in seconds, on average.
    alone: Option<f64>,
    /// Of those since the limit was set, which went beside data: how many, and their time in all.
    count: u32,
    took: f64,
}

impl Default for BulkWindow {
    fn default() -> Self {
        Self { limit: WHOLE, sizes: Default::default(), last: None }
    }
}

impl BulkWindow {
    /// Most bytes that may be on their way now.
    pub fn limit(&mut self, now: Instant) -> usize {
        if self.limit < WHOLE && self.last.is_none_or(|last| now - last > QUIET_AFTER) {
            self.limit = WHOLE;
        }
        self.limit
    }

    /// Most bytes of one entry.
    pub fn part(&self) -> usize {
        PART.min(self.limit / 2 / ROUND * ROUND)
    }

    /// A read was answered; `beside`: data was on its way when it was begun.
    pub fn note_read(&mut self, len: usize, took: Duration, beside: bool, now: Instant) {
        let Some(size) = SIZES.iter().position(|size| len <= *size) else { return };
        self.last = Some(now);
        let (reads, took) = (&mut self.sizes[size], took.as_secs_f64());
        if !beside {
            let alone = reads.alone.get_or_insert(took);
            *alone += (took - *alone) / WEIGHT;
            return;
        }
        (reads.count, reads.took) = (reads.count + 1, reads.took + took);
        if reads.count < EACH {
            return;
        }
        let mean = reads.took / f64::from(reads.count);
        (reads.count, reads.took) = (0, 0.0);
        // Beside data they take no less than alone.
        let alone = reads.alone.get_or_insert(mean);
        *alone = alone.min(mean);
        match mean > *alone * FACTOR + TOLERANCE {
            true if self.limit == LEAST => *alone *= DRIFT,
            true => self.limit = (self.limit / 4 * 3).max(LEAST),
            false => self.limit = (self.limit + self.limit / 8).min(WHOLE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Reads that each take `alone`, and longer by what is on its way to a drive that writes so
    /// many bytes a second. Answers the limits that this led to.
    fn read(window: &mut BulkWindow, count: u32, alone: Duration, rate: f64) -> Vec<usize> {
        let mut now = Instant::now();
        let limits = (0..count).map(|_| {
            let limit = window.limit(now);
            let took = alone + Duration::from_secs_f64(limit as f64 / rate);
            now += took;
            window.note_read(4096, took, true, now);
            limit
        });
        limits.collect()
    }

    #[test]
    fn data_is_held_back_until_reads_are_about_as_fast_as_alone() {
        let mut window = BulkWindow::default();
        let now = Instant::now();
        (0..100).for_each(|_| window.note_read(4096, MS, false, now));
        let limits = read(&mut window, 2000, MS, 2e9);
        let mean = limits[500..].iter().sum::<usize>() / 1500;
        // Half a millisecond of it.
        assert!((500_000..1_600_000).contains(&mean), "{mean}");
        assert!(window.part() <= PART && window.part().is_multiple_of(4096));
        let fast = read(&mut window, 4000, MS, 1e12);
        assert_eq!(fast.last(), Some(&WHOLE), "reads do not suffer");
        assert_eq!(window.part(), PART);
        read(&mut window, 2000, MS, 1e8);
        assert_eq!(window.limit, LEAST);
        let last = window.last.expect("a read");
        assert_eq!(window.limit(last + QUIET_AFTER), LEAST);
        assert_eq!(window.limit(last + QUIET_AFTER + MS), WHOLE, "nobody reads");
    }

    #[test]
    fn a_drive_that_has_become_slow_is_not_the_fault_of_who_writes() {
        let mut window = BulkWindow::default();
        let now = Instant::now();
        (0..100).for_each(|_| window.note_read(4096, MS / 10, false, now));
        let limits = read(&mut window, 4000, MS, f64::INFINITY);
        assert_eq!((limits[120], limits.last()), (LEAST, Some(&WHOLE)));
        let large = |window: &mut BulkWindow| window.note_read(1 << 20, 100 * MS, true, now);
        (0..100).for_each(|_| large(&mut window));
        assert_eq!(window.limit, WHOLE, "large reads are as large writes");
    }
}
