//! When files were read: noted by the rule that Linux calls relatime, and told to the metadata group
//! a little later, many at a time.
//!
//! This mount shows them at once. Another sees them when it next asks: nothing that it has cached is
//! recalled for an access time, which would make every reader of a file a writer. Those of the last
//! seconds are lost with a client that dies. Reads that the kernel answers from its own cache are not
//! heard of.

use crate::files::Files;
use crate::mount::Mount;
use crate::types::Attr;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::debug;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, v1};

/// An access time is renewed at least this often while there are accesses, nanoseconds.
const DAY: i64 = 86_400 * 1_000_000_000;
/// Accesses are told this long after the first of them.
const PAUSE: Duration = Duration::from_secs(2);
/// Most that are told at a time, and most that are kept to be told.
const AT_ONCE: usize = 1024;
const MOST: usize = 1 << 16;

/// Accesses that the metadata group was not told of yet.
#[derive(Default)]
pub(crate) struct Accesses {
    noted: Mutex<HashMap<InodeId, i64>>,
    grew: Notify,
}

/// Whether an access now is to be noted: it is the first since a change, or the first in a day.
fn is_due(attr: &Attr, now: i64) -> bool {
    attr.atime_ns <= attr.mtime_ns.max(attr.ctime_ns) || now - attr.atime_ns >= DAY
}

/// When it was, as the group will have it: not before a change that it came after, whatever the clocks.
fn time(attr: &Attr, now: i64) -> i64 {
    now.max(attr.ctime_ns.max(attr.mtime_ns))
}

impl Accesses {
    /// An inode with these attributes is read `now`.
    pub fn note(&self, attr: &Attr, now: i64) {
        if !is_due(attr, now) {
            return;
        }
        let mut noted = self.noted.lock();
        let at = time(attr, now);
        if noted.get(&attr.ino).is_some_and(|&before| before >= attr.ctime_ns)
            || noted.len() >= MOST
        {
            return;
        }
        noted.insert(attr.ino, at);
        drop(noted);
        self.grew.notify_one();
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

    fn some(&self) -> Vec<(InodeId, i64)> {
        self.noted.lock().iter().take(AT_ONCE).map(|(ino, at)| (*ino, *at)).collect()
    }

    /// What was told is kept no more.
    fn told(&self, accesses: &[(InodeId, i64)]) {
        let mut noted = self.noted.lock();
        for (ino, at) in accesses {
            if noted.get(ino) == Some(at) {
                noted.remove(ino);
            }
        }
    }

    /// Tells all. What the group does not take is lost: an access time is no promise.
    pub async fn tell(&self, mount: &Mount, files: &Files) {
        loop {
            let accesses = self.some();
            if accesses.is_empty() {
                return;
            }
            let access = |&(ino, atime_ns): &(InodeId, i64)| v1::Access { ino: ino.0, atime_ns };
            let op = v1::AccessedOp { accesses: accesses.iter().map(access).collect() };
            match mount.meta.change(Op::Accessed(op)).await {
                Ok(_) => {
                    for &(ino, at) in &accesses {
                        mount.meta.leases.accessed(ino, at);
                        if let Some(file) = files.get(ino) {
                            file.accessed(at);
                        }
                    }
                }
                Err(error) => debug!(%error, "access times are lost"),
            }
            self.told(&accesses);
        }
    }
}

/// Runs until the mount is gone.
pub(crate) async fn run(mount: Arc<Mount>, files: Weak<Files>) {
    loop {
        mount.accesses.grew.notified().await;
        sleep(PAUSE).await;
        let Some(files) = files.upgrade() else { return };
        mount.accesses.tell(&mount, &files).await;
    }
}

impl Attr {
    /// With an access that the group was told of.
    pub(crate) fn accessed(&mut self, at: i64) {
        if at >= self.ctime_ns {
            self.atime_ns = self.atime_ns.max(at);
        }
    }
}
