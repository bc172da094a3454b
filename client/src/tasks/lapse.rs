//! What is cached is not used any more when the time of the leases is over.

use crate::cache::Leases;
use crate::file::Files;
use futures_util::future::join;
use std::sync::{Arc, Weak};
use tracing::warn;

/// Takes back what is cached above when the time of the leases under which it was cached is over,
/// for ever: the leader cannot be asked then, and others may change it.
pub(crate) async fn run(leases: Arc<Leases>, files: Weak<Files>) {
    loop {
        leases.lapsed().await;
        let Some(open) = files.upgrade() else { return };
        warn!("no metadata leader has answered in time: what is cached is not used any more");
        join(open.lapse(), leases.forget_all_above()).await;
        drop(open);
        leases.revived().await;
        let Some(open) = files.upgrade() else { return };
        open.revive();
    }
}
