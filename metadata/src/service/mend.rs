//! Mends what the namespace has against itself, for fsck.

use super::changes::propose;
use super::context::{RequestContext, reply};
use super::reads::beside;
use crate::check::Mend;
use crate::conflicts::{self, Claim};
use crate::events;
use crate::node::{Effect, Known, Node};
use crate::ops::LOST_FOUND;
use prost::Message;
use std::collections::BTreeSet;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout_at;
use v1::log_entry::Body;
use v1::mend_entry::Fix;
use v1::meta_reply::Result as Reply;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Most bytes of fixes in one entry, and most fixes.
const MAX_BYTES: usize = 256 << 10;
const MAX_FIXES: usize = 512;
/// Most mends that are told in words.
const MAX_TOLD: usize = 1000;
/// Longest text of one, in bytes.
const MAX_TEXT: usize = 1024;

/// One look, and what it planned carried out. One at a time: counts are mended by differences.
pub(super) async fn mend(cx: &RequestContext<'_>) -> Result<v1::MetaReply> {
    let node = cx.node;
    let term = cx.lead().await?;
    may_mend(node)?;
    conflicts::all_declared(node, cx.session, cx.deadline).await?;
    let alone = timeout_at(cx.deadline, node.mending.clone().lock_owned()).await;
    let busy = |_| Error::new(ErrorKind::TimedOut, "another mend is under way");
    // Held by what is proposed, too: it may land when nobody waits for it any more.
    let mut alone = alone.map_err(busy)?;
    let (_, mends) = beside(cx, |state| state.check()).await?;
    let mut told = v1::MendReply::default();
    let mut batches = batches(mends).into_iter();
    while let Some(batch) = batches.next() {
        let left = batch.len() + batches.as_slice().iter().map(Vec::len).sum::<usize>();
        match carry_out(cx, term, batch, alone, &mut told).await {
            Ok(still) => alone = still,
            Err(error) if told.mended.is_empty() => return Err(error),
            // What was mended is told. The next look sees what is left.
            Err(error) => {
                tracing::warn!("not all that was planned is mended: {error}");
                told.passed_over += left as u64;
                break;
            }
        }
    }
    Ok(reply(Reply::Mend(told)))
}

/// Who mends alone, as long as this is held.
type Alone = OwnedMutexGuard<()>;

async fn carry_out(
    cx: &RequestContext<'_>,
    term: u64,
    batch: Vec<Mend>,
    alone: Alone,
    told: &mut v1::MendReply,
) -> Result<Alone> {
    // One that knows none of this may have come since.
    may_mend(cx.node)?;
    let claim = claim(cx, term, &batch).await?;
    let (fixes, whats): (Vec<Fix>, Vec<String>) =
        batch.into_iter().map(|mend| (mend.fix, mend.what)).unzip();
    let what = format!(
        "fsck mends the namespace: up to {} contradictions, such as {:?}",
        fixes.len(),
        whats.first().map_or("", String::as_str)
    );
    let events = vec![events::warning("mended", what)];
    let body = Body::Mend(v1::MendEntry { fixes });
    let (answer, (claim, alone)) =
        propose(cx.node, body, events, Effect::Nothing, (claim, alone)).await?;
    drop(claim);
    let Some(Reply::Mended(v1::MendedReply { done })) = answer.result else {
        return Err(Error::new(ErrorKind::Internal, "mends that answer nothing"));
    };
    for (what, done) in whats.into_iter().zip(done) {
        if !done {
            tracing::info!("not mended, since it has changed, or cannot be: {what}");
            told.passed_over += 1;
            continue;
        }
        tracing::warn!("mended: {what}");
        match told.mended.len() < MAX_TOLD {
            true => told.mended.push(events::cut(&what, MAX_TEXT)),
            false => told.others += 1,
        }
    }
    Ok(alone)
}

fn may_mend(node: &Node) -> Result<()> {
    if node.all_know(Known::Mends) {
        return Ok(());
    }
    let what = "there are metadata servers of a version that mends nothing, or that have not \
                answered yet: upgrade or start them, or try again";
    Err(Error::new(ErrorKind::NotSupported, what))
}

/// Takes what is mended from those who cache it.
async fn claim(cx: &RequestContext<'_>, term: u64, batch: &[Mend]) -> Result<Claim> {
    let node = cx.node;
    let mut inos: BTreeSet<InodeId> = batch.iter().flat_map(|mend| &mend.inos).copied().collect();
    if let Some(ino) = batch.iter().find_map(|mend| mend.fix.found) {
        let root = InodeId::root_of(InodeId(ino).shard());
        inos.insert(root);
        for name in LOST_FOUND {
            inos.extend(node.state.child(root, name.as_bytes())?);
        }
    }
    conflicts::claim_own(node, term, inos.into_iter().collect(), cx.deadline).await
}

/// As many in one entry as it may hold.
fn batches(mends: Vec<Mend>) -> Vec<Vec<Mend>> {
    let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for mend in mends {
        let len = mend.fix.encoded_len();
        if !batch.is_empty() && (bytes + len > MAX_BYTES || batch.len() >= MAX_FIXES) {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += len;
        batch.push(mend);
    }
    batches.extend((!batch.is_empty()).then_some(batch));
    batches
}
