//! What was given to the kernel is taken back from it.

use super::{Dcache, Inner};
use crate::notifier::Notifier;
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::HashSet;
use std::sync::Arc;
use std::thread::park_timeout;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_client::{Forgotten, NameCache};
use weft_proto::InodeId;

/// How often is looked whether the kernel is through with an answer.
const LATE_INTERVAL: Duration = Duration::from_millis(1);
/// The same of one with attributes.
const TOLD_INTERVAL: Duration = Duration::from_micros(200);
/// A notice about an inode waits no longer for who asks for its attributes: less than a lane does
/// that seems to be stuck.
const TOLD_TIMEOUT: Duration = Duration::from_millis(8);

/// The range of a notice about attributes alone.
const ATTRS: (i64, i64) = (-1, 0);

impl Inner {
    /// Begins to take back what was given: attributes, and names in directories. None of it is
    /// used any more without asking when the attributes are gone.
    fn take(self: &Arc<Self>, mut attrs: Vec<u64>, dirs: Vec<(u64, Vec<Bytes>)>) {
        let Some(kernel) = self.kernel.get() else { return };
        let closed: HashSet<_> = dirs.iter().map(|(dir, _)| *dir).collect();
        attrs.retain(|ino| !closed.contains(ino));
        if attrs.is_empty() && dirs.is_empty() {
            return;
        }
        let behind = attrs.iter().map(|ino| self.send(&kernel.notifier, *ino, ATTRS));
        let mut taken: Vec<_> = behind.collect();
        taken.extend(closed.iter().map(|dir| {
            // Who asks for those of a closed directory waits until it is open.
            let sent = kernel.notifier.inval_inode(*dir, ATTRS.0, ATTRS.1);
            Box::pin(async move { drop(sent.await) }) as Forgotten
        }));
        attrs.extend(closed);
        self.closed.leave(&attrs);
        let inner = self.clone();
        tokio::spawn(async move {
            join_all(taken).await;
            inner.closed.left(&attrs);
        });
        for (dir, names) in dirs {
            self.closed.close(dir);
            tokio::spawn(self.clone().end_names(dir, names));
        }
    }

    /// Sends a notice about an inode, of a range of its content or of its attributes alone, behind
    /// what threads may be about to take in.
    pub(super) fn send(
        self: &Arc<Self>,
        notifier: &Notifier,
        ino: u64,
        (offset, len): (i64, i64),
    ) -> Forgotten {
        let inner = self.clone();
        let sent = notifier.inval_inode_after(ino, offset, len, move || inner.taken_in(ino));
        // What the kernel does not take is a mount that is no more.
        Box::pin(async move { drop(sent.await) })
    }

    /// Returns when all threads have taken in what they were told of an inode, or after a while.
    fn taken_in(&self, ino: u64) {
        let begun = Instant::now();
        while self.told.lock().has(ino) && begun.elapsed() < TOLD_TIMEOUT {
            park_timeout(TOLD_INTERVAL);
        }
    }

    /// Ends the time to live of names in a closed directory, and opens it.
    async fn end_names(self: Arc<Self>, dir: u64, names: Vec<Bytes>) {
        // What comes later is of a lease that came later.
        let late = self.table.lock().late_in(dir);
        while late.iter().any(|late| self.table.lock().is_still(late)) {
            sleep(LATE_INTERVAL).await;
        }
        if let Some(kernel) = self.kernel.get() {
            kernel.notifier.expire(dir, names).await;
        }
        self.closed.open(dir);
    }
}

impl NameCache for Dcache {
    fn forget(&self, ino: InodeId) -> Forgotten {
        let mut table = self.0.table.lock();
        let attrs = table.take_attr(ino.0).then_some(ino.0);
        let names = table.take_names(ino.0).map(|names| (ino.0, names));
        // Under the lock: who finds nothing more to take back waits for this.
        self.0.take(attrs.into_iter().collect(), names.into_iter().collect());
        drop(table);
        let inner = self.0.clone();
        Box::pin(async move { inner.closed.gone(vec![ino.0]).await })
    }

    fn forget_attrs(&self, inos: &[InodeId], names: &[(InodeId, Bytes)]) -> Forgotten {
        let mut table = self.0.table.lock();
        let led_to = names.iter().filter_map(|(dir, name)| table.leads_to(dir.0, name));
        let inos: Vec<_> = led_to.chain(inos.iter().map(|ino| ino.0)).collect();
        let attrs = inos.iter().copied().filter(|ino| table.take_attr(*ino)).collect();
        self.0.take(attrs, Vec::new());
        drop(table);
        let inner = self.0.clone();
        Box::pin(async move { inner.closed.gone(inos).await })
    }

    fn may_know(&self, ino: InodeId) -> bool {
        self.0.table.lock().may_know(ino.0)
    }

    fn forget_all(&self) -> Forgotten {
        let mut table = self.0.table.lock();
        let (attrs, names) = (table.take_all_attrs(), table.take_all_names());
        self.0.take(attrs, names);
        drop(table);
        let inner = self.0.clone();
        Box::pin(async move { inner.closed.gone(inner.closed.leaving()).await })
    }
}
