//! Asks targets for the chunks of a file.

use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use weft_client::{ChunkLook, FileTrace, Filesystem};
use weft_proto::{SegmentId, TargetId, v1};
use weft_segments::Map;

/// Chunks that are asked for at a time; fewer where all of each is read, which takes its memory.
const AT_ONCE: usize = 64;
const READ_AT_ONCE: usize = 8;
/// Chunks of a file that are asked for, without being told to ask for all.
pub const USUAL: usize = 4096;

/// What was found of shards, by segment and shard, and where: the target in its seat, or the one
/// that the seat is being given to.
#[derive(Default)]
pub struct Looks {
    pub found: BTreeMap<(SegmentId, u8), Found>,
    /// All of each chunk was read.
    pub whole: bool,
    /// There are chunks that were not asked for.
    pub left_out: usize,
}

pub struct Found {
    pub at: TargetId,
    pub look: ChunkLook,
}

/// Looks for the chunks, the first ones of the file or all of them.
pub async fn look(fs: &Filesystem, traced: &FileTrace, all: bool, whole: bool) -> Looks {
    let map = Map::new((*fs.cluster_map()).clone());
    let mut looks = Looks { whole, ..Looks::default() };
    let places = Arc::new(Semaphore::new(if whole { READ_AT_ONCE } else { AT_ONCE }));
    let mut asking = JoinSet::new();
    let mut asked = 0;
    for id in in_order(traced) {
        let Some(segment) = traced.segments.get(&id) else { continue };
        for shard in 0..segment.geometry.profile.width() {
            if segment.geometry.shard_len(shard) == 0 {
                continue;
            }
            let seat = segment.seats.get(usize::from(shard)).copied().unwrap_or(u8::MAX);
            let holder = map.seat(segment.pg, seat).filter(|t| t.up).map(|t| t.id);
            let heir = map.heir(segment.pg, seat).filter(|t| t.up).map(|t| t.id);
            let at: Vec<TargetId> = holder.into_iter().chain(heir).collect();
            if at.is_empty() {
                continue;
            }
            if asked >= USUAL && !all {
                looks.left_out += 1;
                continue;
            }
            asked += 1;
            // Nobody closes it.
            let Ok(place) = places.clone().acquire_owned().await else { continue };
            let (fs, segment) = (fs.clone(), segment.clone());
            asking.spawn(async move {
                let mut found = Vec::new();
                for target in at {
                    let look = fs.look_at_chunk(&segment, shard, target, whole).await;
                    let good = look == ChunkLook::Good;
                    found.push(Found { at: target, look });
                    if good {
                        break;
                    }
                }
                drop(place);
                // The good one, else what the target says that has the seat.
                let good = found.iter().position(|f| f.look == ChunkLook::Good).unwrap_or(0);
                ((segment.id, shard), found.swap_remove(good))
            });
        }
        while let Some(Ok((of, found))) = asking.try_join_next() {
            looks.found.insert(of, found);
        }
    }
    while let Some(joined) = asking.join_next().await {
        if let Ok((of, found)) = joined {
            looks.found.insert(of, found);
        }
    }
    looks
}

/// The segments in the order in which the file first shows them.
pub fn in_order(traced: &FileTrace) -> Vec<SegmentId> {
    let mut seen = std::collections::HashSet::new();
    let named = traced.extents.iter().filter_map(segment_of);
    named.filter(|id| seen.insert(*id)).collect()
}

/// The segment that an extent shows a part of.
pub fn segment_of(extent: &v1::Extent) -> Option<SegmentId> {
    match &extent.source {
        Some(v1::extent::Source::Segment(part)) => part.id.map(SegmentId::from),
        _ => None,
    }
}
