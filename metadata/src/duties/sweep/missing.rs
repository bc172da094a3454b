//! What a target that was opened anew lacks: it may have lost chunks that it could not read then,
//! and of some it does not even know which they were. Nobody else would notice before they are
//! read.

use crate::node::Node;
use crate::soft::targets::Targets;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::{ChunkId, ErrorKind, PgId, Result, TargetId};
use weft_segments::TargetClient;

/// How long a storage daemon may take to read a chunk that was not there a moment ago.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(10);

/// The seats that a target has, each with its placement group.
pub(super) fn seats(node: &Node, target: TargetId) -> Vec<(PgId, u8)> {
    let map = node.map();
    let mut seats = Vec::new();
    for group in map.groups() {
        let here = (0u8..).zip(&group.targets).filter(|(_, id)| **id == target.0);
        seats.extend(here.map(|(seat, _)| (PgId(group.id), seat)));
    }
    seats
}

/// Has those of these chunks made anew that are not at their target: some may have come since it
/// was listed, and some been deleted. Answers whether all of them are noted, or need not be: there
/// is room for so many.
pub(super) async fn note(
    node: &Node,
    targets: &Targets,
    target: &TargetClient,
    chunks: Vec<ChunkId>,
) -> Result<bool> {
    for chunk in chunks {
        match target.verify(chunk, Instant::now() + VERIFY_TIMEOUT).await {
            Err(e) if e.kind == ErrorKind::NotFound => {
                if node.state.is_committed(chunk.segment)? {
                    if !targets.note_missing(target.id(), chunk) {
                        return Ok(false);
                    }
                    tracing::error!(%chunk, %target, "a chunk is missing, and made anew");
                }
            }
            // It is there, and damaged: its daemon tells of that.
            Ok(_) => {}
            Err(e) if e.kind == ErrorKind::Io => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}
