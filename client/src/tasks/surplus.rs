//! Gives back leases that this mount has no use for.

use super::release::{MAX_BATCH, Releaser};
use super::supervisor::Supervisor;
use crate::file::Files;
use futures_util::stream::{self, StreamExt};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use weft_proto::v1::recalls_reply::Recall;

/// Leases that are given up unasked are gathered for this long: nobody waits for them.
const GATHER_INTERVAL: Duration = Duration::from_millis(20);
/// So long nothing more is given up while some of it cannot be flushed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Gives back what is not wanted any more, for ever, in tasks of the mount.
pub(crate) async fn run(releaser: Arc<Releaser>, files: Weak<Files>, supervisor: Arc<Supervisor>) {
    loop {
        releaser.leases.surplus_grew.notified().await;
        sleep(GATHER_INTERVAL).await;
        let Some(files) = files.upgrade() else { return };
        let releaser = releaser.clone();
        // What cannot be flushed now holds up no other.
        supervisor.run(async move {
            let leases = &releaser.leases;
            let surplus = leases.take_surplus();
            // Those were held in this session, or in one that is over.
            let session = releaser.sessions.current().id;
            let surplus = surplus.into_iter().map(|(ino, seq)| {
                let (releaser, files) = (&releaser, &files);
                let recall = Recall { ino: ino.0, seq, ..Default::default() };
                async move { (ino, releaser.release(session, files, recall).await) }
            });
            let left = stream::iter(surplus).buffer_unordered(MAX_BATCH).ready_chunks(MAX_BATCH);
            let mut returned = pin!(left.for_each(|items| {
                let (inos, items): (Vec<_>, Vec<_>) = items.into_iter().unzip();
                async {
                    let items = items.into_iter().flatten().collect();
                    releaser.return_items(session, items).await;
                    leases.given(inos);
                }
            }));
            let _ = timeout(FLUSH_TIMEOUT, &mut returned).await;
            leases.shrunk();
            returned.await;
        });
    }
}
