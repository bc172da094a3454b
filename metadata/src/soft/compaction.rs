//! How far the compaction of files has come, since this server started.

use super::rate::Rate;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The rates are those of the last so many seconds: large files take long.
const RATE_WINDOW_S: u64 = 600;

/// Has one owner for a moment; nobody holds it while waiting for anything.
#[derive(Default)]
pub struct Compaction(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    bytes: u64,
    recent_bytes: Rate<RATE_WINDOW_S>,
    recent_files: Rate<RATE_WINDOW_S>,
}

/// What was done since this server started, and how fast it went of late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compacted {
    /// Bytes of files that were written again.
    pub bytes: u64,
    /// Of them, in a second.
    pub bytes_per_s: u64,
    /// Files that were taken off the list, in an hour.
    pub files_per_hour: u64,
}

impl Compaction {
    /// So many bytes of a file were written again since then.
    pub fn note_bytes(&self, begun: Instant, bytes: u64) {
        let inner = &mut *self.0.lock();
        inner.bytes += bytes;
        inner.recent_bytes.note(begun, Instant::now(), bytes);
    }

    /// So many files were taken off the list, of which the first was begun then.
    pub fn note_files(&self, begun: Instant, files: u64) {
        self.0.lock().recent_files.note(begun, Instant::now(), files);
    }

    /// For people.
    pub fn stat(&self, now: Instant) -> Compacted {
        let inner = &mut *self.0.lock();
        Compacted {
            bytes: inner.bytes,
            bytes_per_s: inner.recent_bytes.per(Duration::from_secs(1), now),
            files_per_hour: inner.recent_files.per(Duration::from_secs(3600), now),
        }
    }
}
