//! Answers recalls: leases that the leader wants back are revoked here.

use super::release::{MAX_BATCH, Releaser};
use super::supervisor::Supervisor;
use crate::file::Files;
use crate::meta::Group;
use futures_util::stream::{self, StreamExt};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::debug;
use v1::recalls_reply::Recall;
use v1::return_leases_op::Item;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

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
        seen = recalls.recalls.iter().map(|recall| recall.seq).fold(seen, u64::max);
        let Some(files) = files.upgrade() else { return };
        let releaser = releaser.clone();
        let (session, recalls) = (session.id, recalls.recalls);
        supervisor.run(async move { revoke(&releaser, session, &files, recalls).await });
    }
}

/// Carries recalls out, each as soon as it can be. What is ready at the same time is told in one
/// request, as when the group is rid of a tree of which this mount knew each name.
async fn revoke(releaser: &Releaser, session: SessionId, files: &Files, recalls: Vec<Recall>) {
    let at_once = recalls.len().max(1);
    let told_at_once = at_once.min(MAX_BATCH);
    let revoked = recalls.into_iter().map(|recall| async move {
        if recall.of_map {
            may_map(releaser, session, files, recall).await;
            return None;
        }
        releaser.release(session, files, recall).await
    });
    let revoked = stream::iter(revoked).buffer_unordered(at_once).ready_chunks(told_at_once);
    // None waits for an answer that is under way.
    revoked
        .for_each_concurrent(None, |answers| async {
            let answers: Vec<_> = answers.into_iter().flatten().collect();
            if !answers.is_empty() {
                releaser.return_items(session, answers).await;
            }
        })
        .await;
}

/// Answers whether the right to map a file is needed.
async fn may_map(releaser: &Releaser, session: SessionId, files: &Files, recall: Recall) {
    let (maps, of_map) = (files.needs_map(InodeId(recall.ino)).await, true);
    let Recall { ino, seq, .. } = recall;
    let items = vec![Item { ino, seq, maps, of_map, keep_read: true, open_seq: 0 }];
    releaser.tell(session, items, || ()).await;
}
