//! Answers recalls: leases that the leader wants back are revoked here.

use super::release::Releaser;
use super::supervisor::Supervisor;
use crate::file::Files;
use crate::meta::Group;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::debug;
use v1::recalls_reply::Recall;
use v1::return_leases_op::Item;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ErrorKind, InodeId, v1};

/// A request for recalls waits this long at the leader.
const RECALLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Answers recalls for ever, each in a task of the mount.
pub(crate) async fn run(
    group: Arc<Group>,
    releaser: Arc<Releaser>,
    files: Weak<Files>,
    supervisor: Arc<Supervisor>,
) {
    let mut seen = 0;
    loop {
        let session = group.sessions.current();
        let op = Op::Recalls(v1::RecallsOp { seen });
        let request = v1::MetaRequest { session: session.id.0, op: Some(op), ..Default::default() };
        let reply =
            group.send(&request, RECALLS_TIMEOUT, Instant::now() + 2 * RECALLS_TIMEOUT).await;
        let recalls = match reply.map(|answered| answered.reply.result) {
            Ok(Some(Reply::Recalls(recalls))) => recalls,
            Err(failed) if failed.error.kind == ErrorKind::SessionExpired => {
                // Numbers are of a leader's term, and grow from one to the next.
                if group.sessions.replacement(session.id, group.deadline()).await.is_err() {
                    if group.sessions.have_ended() {
                        return;
                    }
                    sleep(RETRY_INTERVAL).await;
                }
                continue;
            }
            Ok(_) => {
                sleep(RETRY_INTERVAL).await;
                continue;
            }
            Err(failed) => {
                debug!(error = %failed.error, "cannot ask for recalls; trying on");
                sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        if recalls.need_declare {
            releaser.opens.hear_leader(recalls.term);
            releaser.opens.declare_again().await;
            continue;
        }
        for recall in recalls.recalls {
            seen = seen.max(recall.seq);
            let (releaser, files) = (releaser.clone(), files.clone());
            supervisor.run(async move { revoke(&releaser, &files, recall).await });
        }
    }
}

/// Carries one recall out.
async fn revoke(releaser: &Releaser, files: &Weak<Files>, recall: Recall) {
    let Some(files) = files.upgrade() else { return };
    if recall.of_map {
        let (maps, of_map) = (files.needs_map(InodeId(recall.ino)).await, true);
        let Recall { ino, seq, .. } = recall;
        let items = vec![Item { ino, seq, maps, of_map, keep_read: true, open_seq: 0 }];
        return releaser.tell(items, || ()).await;
    }
    if let Some(answer) = releaser.release(&files, recall).await {
        releaser.return_items(vec![answer]).await;
    }
}
