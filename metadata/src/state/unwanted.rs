//! Which chunks have no business at a target: those of dead sessions that no segment needs, and
//! those whose seats are others' now. And which it should hold and does not.

use super::StateMachine;
use super::groups::Found;
use crate::schema;
use crate::store::{Read, StoreResult};
use weft_proto::planted::{self, Bug};
use weft_proto::{ChunkId, PgId, Result, SegmentId, TargetId, v1};

/// Segments of a group that are read in one step: about as many as one has among those of a page of
/// a list of chunks.
const GROUP_PAGE: usize = 64;
/// Most chunks that are found missing at once.
const MAX_MISSING: usize = 4096;

impl StateMachine {
    /// Chunks that a target with these seats should hold, after `after` and up to `last` (or all of
    /// them), and does not: `listed` are those that it holds there, in order of their ids. Answers
    /// only so many at once, and whether these are all.
    pub fn missing(
        &self,
        seats: &[(PgId, u8)],
        after: Option<ChunkId>,
        last: Option<ChunkId>,
        listed: &[ChunkId],
    ) -> Result<(Vec<ChunkId>, bool)> {
        let mut missing = Vec::new();
        for &(pg, seat) in seats {
            let mut behind = after.map(|chunk| chunk.segment);
            loop {
                // Of a damaged record nothing follows.
                let page = self.group_segments(pg, false, behind, GROUP_PAGE)?;
                let should_be = page.segments.iter().filter_map(|info| chunk_in(info, seat));
                let lacks = should_be
                    .filter(|id| last.is_none_or(|last| *id <= last))
                    .filter(|id| listed.binary_search(id).is_err());
                missing.extend(lacks);
                if missing.len() > MAX_MISSING {
                    missing.truncate(MAX_MISSING);
                    return Ok((missing, false));
                }
                behind = page.next;
                let is_past = |id: SegmentId| last.is_some_and(|last| id > last.segment);
                if page.next.is_none_or(is_past) {
                    break;
                }
            }
        }
        Ok((missing, true))
    }

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
                    _ => self.business(s, id)?,
                };
                match &business {
                    Business::Dead => unwanted.dead.push(chunk),
                    Business::Seats(holders) => {
                        let holders = holders.get(usize::from(chunk.shard));
                        // A seat that its group does not have: of such a record nothing follows.
                        let is_unknown = holders.is_some_and(Vec::is_empty);
                        let is_here = |holders: &Vec<u32>| holders.contains(&target.0);
                        if !is_unknown && !holders.is_some_and(is_here) {
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

/// The chunk of a segment that lies in a seat, if there is one.
fn chunk_in(info: &v1::SegmentInfo, seat: u8) -> Option<ChunkId> {
    let shard = info.seats.iter().position(|at| *at == seat)?;
    let (segment, shard) = (info.segment_id().ok()?, u8::try_from(shard).ok()?);
    (info.geometry().ok()?.shard_len(shard) > 0).then_some(ChunkId { segment, shard })
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

impl StateMachine {
    fn business(&self, s: &dyn Read, id: SegmentId) -> StoreResult<Business> {
        if planted::is(Bug::LiveSegmentCollected) && !s.has_session(id.session)? {
            return Ok(Business::Dead);
        }
        let info = match self.look_up::<schema::Segment>(s, &schema::segment(id))? {
            Found::Record(segment) => Found::Record(segment.info),
            Found::Unread => Found::Unread,
            Found::Nothing => self.look_up::<v1::SegmentInfo>(s, &schema::garbage(id))?,
        };
        let info = match info {
            // Of one that is another's, or makes no sense, nothing follows.
            Found::Record(info) if schema::is_of(&info, id) => info,
            Found::Record(_) | Found::Unread => return Ok(Business::Unknown),
            Found::Nothing if s.has_session(id.session)? => return Ok(Business::Unknown),
            Found::Nothing => return Ok(Business::Dead),
        };
        let Found::Record(group) = self.look_up::<schema::Group>(s, &schema::group(info.pg))?
        else {
            return Ok(Business::Unknown);
        };
        let holders = info.seats.iter().map(|&seat| group.info.holders(seat).collect());
        Ok(Business::Seats(holders.collect()))
    }
}
