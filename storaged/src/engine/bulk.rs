//! How much data is on its way to a drive at once.
//!
//! A drive that has been given megabytes to write answers a small read, a journal record or a flush
//! late, whatever goes first here. Yet no more than the drive works on at a time makes it write
//! faster: the rest only waits there. So data is held back here as TCP Vegas (Brakmo and Peterson,
//! 1995) holds back packets: the window grows while entries take about as long as they do when
//! few are on their way, and shrinks once they wait at the drive for longer than they may. What
//! they take then is looked at anew now and then, as in BBR (Cardwell and others, 2016).
//!
//! Only what was begun under the window as it is says something of it: the rest is passed over.
//!
//! Invariant: no less than [`LEAST`] may be on its way, and no more than [`MOST`].

use std::time::Duration;
use tokio::time::Instant;

/// Most bytes of one entry. A large request is cut, so that others get between its parts, and so
/// that entries can be compared.
pub(super) const PART: usize = 128 << 10;
/// Shorter entries take less, and say nothing of the others.
const COMPARED: usize = PART / 2;
/// Keeps a drive at work while a thread wakes up to make the next entry.
const LEAST: usize = 4 * PART;
/// As much as a fast drive behind a slow network works on.
const MOST: usize = 16 << 20;
/// How long an entry may wait at the drive while somebody reads, in seconds.
const WAIT_OF_READS: f64 = 500e-6;
/// The same while nobody does.
const WAIT: f64 = 1e-3;
/// Nobody reads if the last read was so long ago.
const QUIET_AFTER: Duration = Duration::from_millis(100);
/// Entries of one round: after each the window is set anew.
const EACH: usize = 16;
/// How long it is believed what an entry takes that waits for few others.
const BELIEVED: Duration = Duration::from_secs(10);
/// Where less data does not help, an entry takes so many times what it was thought to.
const MORE: f64 = 1.05;

pub(super) struct BulkWindow {
    limit: usize,
    /// When that was set.
    since: Option<Instant>,
    /// What an entry takes while few others are on their way, in seconds, and when that was found.
    alone: f64,
    found: Option<Instant>,
    /// The limit that was before: that is being found, with few on their way.
    before: Option<usize>,
    /// What the entries of this round took.
    took: Vec<f64>,
    last_read: Option<Instant>,
}

impl Default for BulkWindow {
    fn default() -> Self {
        let took = Vec::with_capacity(EACH);
        let (since, found, before, last_read) = (None, None, None, None);
        Self { limit: LEAST, since, alone: f64::INFINITY, found, before, took, last_read }
    }
}

impl BulkWindow {
    /// Most bytes that may be on their way now.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Something else lets no more than this be on its way.
    pub fn cap(&mut self, bytes: usize) {
        self.limit = self.limit.min(bytes.max(LEAST));
    }

    /// A read was answered.
    pub fn note_read(&mut self, now: Instant) {
        self.last_read = Some(now);
    }

    /// An entry of so many bytes was answered that was begun at `since`, while others waited for
    /// room.
    pub fn note_write(&mut self, len: usize, since: Instant, now: Instant) {
        if len < COMPARED || self.since.is_some_and(|set| since < set) {
            return;
        }
        self.took.push((now - since).as_secs_f64());
        if self.took.len() == EACH {
            // What holds up a thread here, or is answered from a cache, is the exception.
            self.took.sort_by(f64::total_cmp);
            let median = self.took[EACH / 2];
            self.took.clear();
            self.round(median, now);
        }
    }

    /// An entry of the last round took so long.
    fn round(&mut self, took: f64, now: Instant) {
        let found = *self.found.get_or_insert(now);
        if let Some(before) = self.before.take() {
            (self.alone, self.found) = (took, Some(now));
            return self.set(before, now);
        }
        if now - found > BELIEVED {
            self.before = Some(self.limit);
            return self.set(LEAST, now);
        }
        self.alone = self.alone.min(took);
        let reads = self.last_read.is_some_and(|last| now - last < QUIET_AFTER);
        let (wait, may_wait) = (took - self.alone, if reads { WAIT_OF_READS } else { WAIT });
        if wait < may_wait / 2.0 {
            self.set(self.limit + self.limit / 8, now);
        } else if wait > may_wait && self.limit > LEAST {
            self.set(self.limit - self.limit / 8, now);
        } else if wait > may_wait {
            self.alone *= MORE;
        }
    }

    fn set(&mut self, limit: usize, now: Instant) {
        self.limit = limit.clamp(LEAST, MOST);
        self.since = Some(now);
    }
}

#[cfg(test)]
mod tests;
