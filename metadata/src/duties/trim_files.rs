//! Deletes extents that are cut out of files.

mod rests;

use super::by_halves;
use super::propose::{LOOK_INTERVAL, propose};
use crate::node::Node;
use rests::{Batch, Rests};
use std::collections::HashSet;
use tokio::time::sleep;
use v1::log_entry::Body;
use weft_proto::{InodeId, Result, v1};

/// Deletes what files do not show any more, step by step: goes through the list of them, again and
/// again.
pub async fn trim_files(node: &Node) {
    let (mut done, mut rests, mut passed) = (None, Rests::default(), 0);
    // What was put on the list before this was met in this round.
    let mut put = node.state.cut();
    loop {
        if done == Some(node.state.cut()) {
            sleep(LOOK_INTERVAL).await;
            continue;
        }
        let batch = match next(node, &mut rests) {
            Ok(Some(batch)) => batch,
            Ok(None) => {
                done = (passed == 0).then_some(put);
                (put, passed) = (node.state.cut(), 0);
                rests.begin();
                if done != Some(put) {
                    sleep(LOOK_INTERVAL).await;
                }
                continue;
            }
            Err(error) => {
                tracing::error!("cannot read the list of files to trim: {error}");
                sleep(LOOK_INTERVAL).await;
                continue;
            }
        };
        if let Err(error) = trim(node, &mut rests, batch, &mut passed).await {
            tracing::debug!("files are trimmed later: {error}");
            sleep(LOOK_INTERVAL).await;
        }
    }
}

/// What the next entry is to trim.
fn next(node: &Node, rests: &mut Rests) -> Result<Option<Batch>> {
    let (after, limit) = rests.wanted();
    let listed = node.state.to_trim(after, limit)?;
    Ok(rests.next(listed))
}

/// Has an entry trim some files, and notes what it left. Those that cannot be are counted as
/// passed over.
async fn trim(node: &Node, rests: &mut Rests, batch: Batch, passed: &mut usize) -> Result<()> {
    let trim = |some: Vec<InodeId>| {
        let entry = v1::TrimFilesEntry { inos: some.iter().map(|ino| ino.0).collect() };
        async move { propose(node, "trim files", Body::TrimFiles(entry)).await.map(drop) }
    };
    let outcome = by_halves::change(batch.files.clone(), trim).await;
    let bad: HashSet<InodeId> = outcome.refused.iter().map(|(ino, _)| *ino).collect();
    for (ino, error) in outcome.refused {
        tracing::error!(%ino, "a file cannot be trimmed, and is passed over: {error}");
        *passed += 1;
    }
    if let Some(error) = outcome.failed {
        rests.put_off(batch);
        return Err(error);
    }
    // Who cannot tell takes it for left: an entry passes over one that is not on the list.
    let is_left = |ino: &&InodeId| !bad.contains(ino) && is_listed(node, **ino).unwrap_or(true);
    let left = batch.files.iter().filter(is_left).copied().collect();
    rests.trimmed(&batch, left);
    Ok(())
}

fn is_listed(node: &Node, ino: InodeId) -> Result<bool> {
    let next = node.state.to_trim(InodeId(ino.0.saturating_sub(1)), 1)?;
    Ok(next.first() == Some(&ino))
}
