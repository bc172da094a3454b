//! Which chunks have no business at a target: those of dead sessions that no segment needs, and
//! those whose seats are others' now.

use super::StateMachine;
use crate::schema;
use crate::store::{Read, StoreResult};
use weft_proto::planted::{self, Bug};
use weft_proto::{ChunkId, Result, SegmentId, TargetId, v1};

impl StateMachine {
    /// Which of these chunks, in order of their ids, have no business at a target.
    pub fn unwanted(&self, target: TargetId, chunks: Vec<ChunkId>) -> Result<Unwanted> {
        let mut unwanted = Unwanted::default();
        // Neighbours share their segment.
        let mut last: Option<(SegmentId, Business)> = None;
        let judged = self.store.view(|s| -> StoreResult<()> {
            for chunk in chunks {
                let id = chunk.segment;
                let business = match last.take() {
                    Some((same, business)) if same == id => business,
                    _ => business(s, id)?,
                };
                match &business {
                    Business::Dead => unwanted.dead.push(chunk),
                    Business::Seats(holders) => {
                        let holders = holders.get(usize::from(chunk.shard));
                        if !holders.is_some_and(|holders| holders.contains(&target.0)) {
                            let holders = holders.cloned().unwrap_or_default();
                            unwanted.misplaced.push((chunk, holders));
                        }
                    }
                    Business::Unknown => {}
                }
                last = Some((id, business));
            }
            Ok(())
        });
        self.read_by(judged)?;
        Ok(unwanted)
    }
}

/// Chunks that have no business at a target.
#[derive(Default, Debug)]
pub struct Unwanted {
    /// Their session is dead, and no segment needs them: that stays so.
    pub dead: Vec<ChunkId>,
    /// Their seats are those of other targets now: these.
    pub misplaced: Vec<(ChunkId, Vec<u32>)>,
}

/// Whose the chunks of a segment are.
enum Business {
    /// Nobody's, for ever.
    Dead,
    /// Of each shard, the targets that hold it or are to hold it.
    Seats(Vec<Vec<u32>>),
    /// A live session may yet commit it; or its record makes no sense.
    Unknown,
}

fn business(s: &dyn Read, id: SegmentId) -> StoreResult<Business> {
    if planted::is(Bug::LiveSegmentCollected) && !s.has_session(id.session)? {
        return Ok(Business::Dead);
    }
    let info = match s.load::<schema::Segment>(&schema::segment(id))? {
        Some(segment) => Some(segment.info),
        None => s.load::<v1::SegmentInfo>(&schema::garbage(id))?,
    };
    let Some(info) = info else {
        return Ok(if s.has_session(id.session)? { Business::Unknown } else { Business::Dead });
    };
    // Of the record of another nothing follows.
    if !schema::is_named(&info, id) {
        return Ok(Business::Unknown);
    }
    let Some(group) = s.load::<schema::Group>(&schema::group(info.pg))? else {
        return Ok(Business::Unknown);
    };
    let holders = info.seats.iter().map(|&seat| group.info.holders(seat).collect());
    Ok(Business::Seats(holders.collect()))
}
