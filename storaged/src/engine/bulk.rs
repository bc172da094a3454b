//! How much data is on its way to a drive at once.
//!
//! A drive that has been given megabytes to write answers a small read, a journal record or a flush
//! late, whatever goes first here. Yet no more than the drive works on at a time makes it write
//! faster: the rest only waits there. So data is held back here as TCP Vegas (Brakmo and Peterson,
//! 1995) holds back packets: the window grows while entries take about as long as they do when
//! few are on their way, and shrinks once they wait at the drive for longer than they may.
//!
//! Invariant: no less than [`LEAST`] may be on its way, and no more than [`MOST`].

use std::time::Duration;
use tokio::time::Instant;

/// Most bytes of one entry. A large request is cut, so that others get between its parts, and so
/// that entries can be compared.
pub(super) const PART: usize = 128 << 10;
/// Keeps a drive at work while an entry is made.
const LEAST: usize = 4 * PART;
/// As much as a fast drive behind a slow network works on.
const MOST: usize = 16 << 20;
/// How long an entry may wait at the drive while somebody reads.
const WAIT_OF_READS: f64 = 500e-6;
/// The same while nobody does.
const WAIT: f64 = 1e-3;
/// Nobody reads if the last read was so long ago.
const QUIET_AFTER: Duration = Duration::from_millis(100);
/// The window is set anew each so many entries.
const EACH: u32 = 16;
/// Rounds of so many entries after which it is looked anew what an entry takes that waits for few
/// others: drives change. As in BBR (Cardwell and others, 2016), the window is small meanwhile.
const PROBE_AFTER: u32 = 1000;
/// Rounds with a small window; the first ends what was on its way before.
const PROBE: u32 = 2;

pub(super) struct BulkWindow {
    limit: usize,
    /// What an entry takes while few others are on their way, in seconds.
    alone: f64,
    /// Rounds until that is looked at anew, and then until it is known.
    rounds: u32,
    /// The limit that was before; while that is looked at.
    before: Option<usize>,
    /// Entries since the limit was set, and what one took at least: what holds up a thread here
    /// only adds to it.
    count: u32,
    least: f64,
    last_read: Option<Instant>,
}

impl Default for BulkWindow {
    fn default() -> Self {
        let (alone, least) = (f64::INFINITY, f64::INFINITY);
        let rounds = PROBE_AFTER;
        Self { limit: LEAST, alone, rounds, before: None, count: 0, least, last_read: None }
    }
}

impl BulkWindow {
    /// Most bytes that may be on their way now.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A read was answered.
    pub fn note_read(&mut self, now: Instant) {
        self.last_read = Some(now);
    }

    /// An entry of so many bytes was answered; `full`: others waited for room.
    pub fn note_write(&mut self, len: usize, took: Duration, full: bool, now: Instant) {
        // Shorter ones take less, and say nothing of the others.
        if len < PART || !full {
            return;
        }
        (self.count, self.least) = (self.count + 1, self.least.min(took.as_secs_f64()));
        if self.count < EACH {
            return;
        }
        let least = std::mem::replace(&mut self.least, f64::INFINITY);
        self.count = 0;
        self.rounds = self.rounds.saturating_sub(1);
        match self.before.take() {
            Some(before) if self.rounds > 0 => return self.before = Some(before),
            Some(before) => {
                (self.limit, self.alone, self.rounds) = (before, least, PROBE_AFTER);
                return;
            }
            None if self.rounds == 0 => {
                (self.before, self.rounds) = (Some(self.limit), PROBE);
                return self.limit = LEAST;
            }
            None => self.alone = self.alone.min(least),
        }
        self.follow(least - self.alone, now);
    }

    /// Entries wait so long at the drive, in seconds.
    fn follow(&mut self, wait: f64, now: Instant) {
        let reads = self.last_read.is_some_and(|last| now - last < QUIET_AFTER);
        let may_wait = if reads { WAIT_OF_READS } else { WAIT };
        let limit = match wait {
            short if short < may_wait / 2.0 => self.limit + self.limit / 8,
            long if long > may_wait => self.limit - self.limit / 8,
            _ => self.limit,
        };
        self.limit = limit.clamp(LEAST, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes to a drive with this latency that moves so many bytes a second, while somebody reads
    /// or not. Answers the limit at the end, and what was written in a second.
    fn write(window: &mut BulkWindow, latency: u64, rate: f64, reads: bool) -> (usize, f64) {
        let (mut now, begun) = (Instant::now(), Instant::now());
        for _ in 0..80_000 {
            let limit = window.limit() as f64;
            // What is on its way takes that long at the drive's rate, and at least its latency.
            let alone = latency as f64 / 1e6 + PART as f64 / rate;
            let took = (limit / rate).max(alone);
            now += Duration::from_secs_f64(took * PART as f64 / limit);
            if reads {
                window.note_read(now);
            }
            window.note_write(PART, Duration::from_secs_f64(took), true, now);
        }
        (window.limit(), 80_000.0 * PART as f64 / (now - begun).as_secs_f64())
    }

    const DRIVES: [(u64, f64); 5] = [(60, 1.5e9), (60, 7e9), (60, 14e9), (1000, 7e9), (4000, 2e8)];

    #[test]
    fn a_drive_is_given_what_it_works_on_and_little_more() {
        for (latency, rate) in DRIVES {
            for (reads, wait) in [(false, WAIT), (true, WAIT_OF_READS)] {
                let (limit, written) = write(&mut BulkWindow::default(), latency, rate, reads);
                assert!(written > 0.9 * rate, "{latency} us, {rate}: {written}");
                let work = latency as f64 / 1e6 * rate + PART as f64;
                let most = (1.25 * (work + wait * rate)).max(LEAST as f64);
                assert!(limit as f64 <= most, "{latency} us, {rate}, {reads}: {limit}");
            }
        }
    }

    #[test]
    fn a_drive_that_has_become_slow_or_fast_is_known_anew() {
        let window = &mut BulkWindow::default();
        write(window, 60, 7e9, true);
        write(window, 1000, 7e9, true);
        let (_, written) = write(window, 1000, 7e9, true);
        assert!(written > 0.9 * 7e9, "{written}");
        write(window, 60, 1e9, true);
        assert!(window.limit() <= 2 * LEAST, "{}", window.limit());
    }

    #[test]
    fn what_is_short_or_alone_says_nothing() {
        let mut window = BulkWindow::default();
        let (second, now) = (Duration::from_secs(1), Instant::now());
        (0..100).for_each(|_| window.note_write(4096, second, true, now));
        (0..100).for_each(|_| window.note_write(PART, second, false, now));
        assert_eq!((window.limit(), window.alone), (LEAST, f64::INFINITY));
    }
}
