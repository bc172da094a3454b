//! When files were read, as far as the metadata group was not told: noted by the rule that Linux
//! calls relatime.
//!
//! This mount shows them at once. Another sees them when it next asks: nothing that it has cached
//! is recalled for an access time, which would make every reader of a file a writer. Those of the
//! last seconds are lost with a client that dies. Reads that the kernel answers from its own cache
//! are not heard of.

use crate::types::Attr;
use std::collections::HashMap;
use tokio::sync::Notify;
use weft_net::sync::Mutex;
use weft_proto::InodeId;

/// An access time is renewed at least this often while there are accesses, nanoseconds.
const RENEWAL_INTERVAL_NS: i64 = 86_400 * 1_000_000_000;
/// Most that are told at a time, and most that are kept to be told.
const MAX_BATCH: usize = 1024;
const MAX_NOTED: usize = 1 << 16;

/// Access times that the metadata group was not told of yet.
#[derive(Default)]
pub(crate) struct AccessTimes {
    noted: Mutex<HashMap<InodeId, i64>>,
    grew: Notify,
}

/// Whether an access now is to be noted: it is the first since a change, or the first in a day.
fn is_due(attr: &Attr, now: i64) -> bool {
    attr.atime_ns <= attr.mtime_ns.max(attr.ctime_ns) || now - attr.atime_ns >= RENEWAL_INTERVAL_NS
}

/// When it was, as the group will have it: not before a change that it came after, whatever the
/// clocks.
fn time(attr: &Attr, now: i64) -> i64 {
    now.max(attr.ctime_ns.max(attr.mtime_ns))
}

impl AccessTimes {
    /// An inode with these attributes is read `now`.
    pub fn note(&self, attr: &Attr, now: i64) {
        if !is_due(attr, now) {
            return;
        }
        let mut noted = self.noted.lock();
        let at = time(attr, now);
        if noted.get(&attr.ino).is_some_and(|&before| before >= attr.ctime_ns)
            || noted.len() >= MAX_NOTED
        {
            return;
        }
        noted.insert(attr.ino, at);
        drop(noted);
        self.grew.notify_one();
    }

    /// Returns when something was noted since the last call. Only one may wait.
    pub async fn grew(&self) {
        self.grew.notified().await;
    }

    /// Attributes with what is noted. A change of the inode after an access counts more than it.
    pub fn view(&self, mut attr: Attr) -> Attr {
        if let Some(&at) = self.noted.lock().get(&attr.ino)
            && at >= attr.ctime_ns
        {
            attr.atime_ns = attr.atime_ns.max(at);
        }
        attr
    }

    /// The time of an inode is set on purpose: what was noted before counts no more, whatever the
    /// clocks.
    pub fn forget(&self, ino: InodeId) {
        self.noted.lock().remove(&ino);
    }

    /// Some that are to be published.
    pub fn batch(&self) -> Vec<(InodeId, i64)> {
        self.noted.lock().iter().take(MAX_BATCH).map(|(ino, at)| (*ino, *at)).collect()
    }

    /// What was published is kept no more.
    pub fn published(&self, batch: &[(InodeId, i64)]) {
        let mut noted = self.noted.lock();
        for (ino, at) in batch {
            if noted.get(ino) == Some(at) {
                noted.remove(ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::v1;

    #[test]
    fn a_time_that_is_set_counts_more_than_what_was_noted() {
        let attr = v1::Attr {
            ino: 7,
            kind: v1::FileKind::Regular.into(),
            atime_ns: 50,
            mtime_ns: 100,
            ctime_ns: 100,
            ..Default::default()
        };
        let attr = Attr::try_from(attr).unwrap();
        let times = AccessTimes::default();
        // By a clock that is ahead.
        times.note(&attr, 5000);
        let set = Attr { atime_ns: 7, ctime_ns: 200, ..attr };
        assert_eq!([times.view(attr), times.view(set)].map(|attr| attr.atime_ns), [5000; 2]);
        times.forget(attr.ino);
        assert_eq!(times.view(set).atime_ns, 7);
        assert!(times.batch().is_empty());
    }
}
