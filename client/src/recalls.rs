//! Gives leases back: those that the leader recalls, and those that this mount has no use for.
//!
//! Invariant (I6): a recall is answered after everything that was buffered or made under the lease is
//! committed, or given up and its failure noted, also what was written back in doubt; and what was locked under it is told; and after nothing that
//! was cached under it is used any more, here or above ([`crate::ContentCache`]). What cannot be told keeps the
//! lease here, until the session ends with it.
//!
//! What may have been stored in memory above ([`crate::file::above`]) is written back first, while it may be
//! buffered: else each page would be a commit of its own. Of a file whose pages go with the right to write
//! nothing is there without that, and its recall waits for nobody who fills pages: who does waits for that right,
//! and so perhaps for whoever recalls.

use crate::file::File;
use crate::file::above::Taken;
use crate::files::Files;
use crate::leases::Answering;
use crate::locks;
use crate::mount::Mount;
use futures_util::stream::{self, StreamExt};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;
use v1::recalls_reply::Recall;
use v1::return_leases_op::Item;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ErrorKind, InodeId, v1};

/// A request for recalls waits this long at the leader.
const WAIT: Duration = Duration::from_secs(10);
/// Leases that are given up unasked are gathered for this long: nobody waits for them.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before what could not be told is told again.
const AGAIN: Duration = Duration::from_millis(500);
/// Leases in one request.
const TOGETHER: usize = 4096;
/// So long nothing more is given up while some of it cannot be flushed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers recalls for ever.
pub(crate) async fn answer(mount: Arc<Mount>, files: Weak<Files>) {
    let meta = mount.meta.clone();
    let mut seen = 0;
    loop {
        let session = meta.sessions.current();
        let op = Op::Recalls(v1::RecallsOp { seen });
        let request = v1::MetaRequest { session: session.id.0, op: Some(op), ..Default::default() };
        let reply = meta.send(&request, WAIT, Instant::now() + 2 * WAIT).await;
        let recalls = match reply.map(|answered| answered.reply.result) {
            Ok(Some(Reply::Recalls(recalls))) => recalls,
            Err(failed) if failed.error.kind == ErrorKind::SessionExpired => {
                // Numbers are of a leader's term, and grow from one to the next.
                if meta.sessions.replacement(session.id, meta.deadline()).await.is_err() {
                    sleep(GATHER).await;
                }
                continue;
            }
            Ok(_) => {
                sleep(GATHER).await;
                continue;
            }
            Err(failed) => {
                debug!(error = %failed.error, "cannot ask for recalls; trying on");
                sleep(GATHER).await;
                continue;
            }
        };
        if recalls.need_declare {
            mount.opens.declare_again().await;
            continue;
        }
        for recall in recalls.recalls {
            seen = seen.max(recall.seq);
            let (mount, files) = (mount.clone(), files.clone());
            tokio::spawn(async move { give_up(&mount, &files, recall).await });
        }
    }
}

/// Carries one recall out.
async fn give_up(mount: &Arc<Mount>, files: &Weak<Files>, recall: Recall) {
    let Some(files) = files.upgrade() else { return };
    if recall.of_map {
        let (maps, of_map) = (files.needs_map(InodeId(recall.ino)).await, true);
        let Recall { ino, seq, .. } = recall;
        let items = vec![Item { ino, seq, maps, of_map, keep_read: true, open_seq: 0 }];
        if let Err(error) = mount.meta.ask(Op::ReturnLeases(v1::ReturnLeasesOp { items })).await {
            debug!(%error, "it was not told who maps a file");
        }
        return;
    }
    if let Some(answer) = let_go(mount, &files, recall).await {
        return_items(mount, vec![answer]).await;
    }
}

/// Tells what was made in a directory, or what was buffered of a file. Answers whether all was told or given
/// up, which the handles will be told.
async fn tell_all(mount: &Mount, ino: InodeId, file: Option<&Arc<File>>) -> bool {
    // Whoever wants to see the directory sees what was made in it.
    if let Err(error) = mount.meta.settle(&[ino]).await {
        debug!(%ino, %error, "what was made here is not told yet");
    }
    if let Some(file) = file.filter(|file| file.is_dirty()) {
        // A failure is noted for the file's handles.
        let _ = file.flush().await;
    }
    !mount.meta.creates.untold(ino) && !file.is_some_and(|file| file.owes())
}

/// What the leader is told, and what waits until it was: who wants a new lease, and who would cache above.
type Return<'a> = (Item, Answering<'a>, Option<Taken>);

/// Does what has to be done before a lease is given back. Answers what the leader is to be told; `None` if the
/// session has ended, and the lease with it.
async fn let_go<'a>(mount: &'a Arc<Mount>, files: &Files, recall: Recall) -> Option<Return<'a>> {
    let (ino, leases) = (InodeId(recall.ino), &mount.meta.leases);
    let session = mount.meta.sessions.current().id;
    let mut taken: Option<Taken> = None;
    loop {
        let file = files.get(ino);
        let is_taken = |file: &&Arc<File>| taken.as_ref().is_some_and(|taken| taken.is_of(file));
        let left = file.as_ref().filter(|file| !is_taken(file));
        if let Some(file) = left.filter(|file| file.is_mapped_under_lease(recall.keep_read)) {
            taken = Some(file.take_mapped_back().await);
            continue;
        }
        // The right to write may come meanwhile.
        let ready = left.is_none_or(|file| !file.is_cached_alone());
        let Some(buffered) = leases.stop_buffering(ino, ready) else { continue };
        // What was written without a lease to write is on its way already, and must not be waited for:
        // its commit may be waiting for another mount that waits for this one.
        let owing = file.as_ref().filter(|_| buffered);
        while !tell_all(mount, ino, owing).await {
            sleep(AGAIN).await;
            if mount.meta.sessions.is_over(session) {
                return None;
            }
        }
        locks::tell(mount, ino).await;
        if leases.flushed(ino, recall.keep_read) {
            break;
        }
    }
    let is_left = |file: &Arc<File>| {
        let is_taken = taken.as_ref().is_some_and(|taken| taken.is_of(file));
        !is_taken && !file.is_cached_alone() && !recall.keep_read
    };
    if let Some(file) = files.get(ino).filter(is_left) {
        // It may have been opened meanwhile so that it may be mapped.
        taken = Some(match mount.opens.may_be_mapped(ino) {
            true => file.take_mapped_back().await,
            false => file.take_back().await,
        });
    }
    // What was stored under the lease when that may have been over is refused once others have changed the file. Only
    // who has the right to map it can have such: no two mounts wait for each other.
    while let Some(file) = files.get(ino).filter(|file| file.is_in_doubt_since(session)) {
        if !tell_all(mount, ino, Some(&file)).await {
            sleep(AGAIN).await;
        }
        if mount.meta.sessions.is_over(session) {
            return None;
        }
    }
    let answering = leases.answering(ino);
    let Recall { ino: number, seq, keep_read, .. } = recall;
    let (open_seq, maps) = (mount.opens.tell(ino), mount.opens.maps(ino));
    let item = Item { ino: number, seq, keep_read, open_seq, maps, of_map: false };
    Some((item, answering, taken))
}

/// Gives back what is not wanted any more, for ever.
pub(crate) async fn return_surplus(mount: Arc<Mount>, files: Weak<Files>) {
    loop {
        mount.meta.leases.surplus_grew.notified().await;
        sleep(GATHER).await;
        let Some(files) = files.upgrade() else { return };
        let mount = mount.clone();
        // What cannot be flushed now holds up no other.
        tokio::spawn(async move {
            let leases = &mount.meta.leases;
            let surplus = leases.take_surplus().into_iter().map(|(ino, seq)| {
                let_go(&mount, &files, Recall { ino: ino.0, seq, ..Default::default() })
            });
            let left = stream::iter(surplus).buffer_unordered(TOGETHER).ready_chunks(TOGETHER);
            let mut returned =
                pin!(left.for_each(|items| {
                    return_items(&mount, items.into_iter().flatten().collect())
                }));
            let _ = timeout(PATIENCE, &mut returned).await;
            leases.shrunk();
            returned.await;
        });
    }
}

/// If it does not get through, the leader asks again, or the session has ended and all with it.
async fn return_items(mount: &Mount, returns: Vec<Return<'_>>) {
    let items = returns.iter().map(|(item, ..)| *item).collect();
    let op = Op::ReturnLeases(v1::ReturnLeasesOp { items });
    if let Err(error) = mount.meta.ask(op).await {
        debug!(%error, "leases were not returned");
    }
    drop(returns);
}
