//! Publishes access times: a little after they were noted, many at a time.

use crate::cache::{AccessTimes, Leases};
use crate::file::Files;
use crate::namespace::Requests;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, v1};

/// Access times are published this long after the first of them was noted.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(2);

/// Tells the group of access times, and who shows them that it knows.
pub(crate) struct AtimePublisher {
    pub atimes: Arc<AccessTimes>,
    pub requests: Arc<Requests>,
    pub leases: Arc<Leases>,
    pub files: Weak<Files>,
}

impl AtimePublisher {
    /// Runs for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.atimes.grew().await;
            sleep(PUBLISH_INTERVAL).await;
            self.publish().await;
        }
    }

    /// Publishes all. What the group does not take is lost: an access time is no promise.
    pub async fn publish(&self) {
        loop {
            let batch = self.atimes.batch();
            if batch.is_empty() {
                return;
            }
            let access = |&(ino, atime_ns): &(InodeId, i64)| v1::Access { ino: ino.0, atime_ns };
            let op = v1::AccessedOp { accesses: batch.iter().map(access).collect() };
            match self.requests.change(Op::Accessed(op)).await {
                Ok(_) => {
                    let files = self.files.upgrade();
                    for &(ino, at) in &batch {
                        self.leases.published_atime(ino, at);
                        if let Some(file) = files.as_ref().and_then(|files| files.get(ino)) {
                            file.published_atime(at);
                        }
                    }
                }
                Err(error) => debug!(%error, "access times are lost"),
            }
            self.atimes.published(&batch);
        }
    }
}
