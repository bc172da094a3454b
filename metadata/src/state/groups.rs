//! The segments that name a placement group, some at a time.
//!
//! Who goes through them has all of them in hand, not one: a segment whose record makes no sense is
//! told of and passed over, so that it keeps nobody from the others.

use super::StateMachine;
use crate::schema;
use crate::store::{Read, StoreResult};
use prost::Message;
use weft_proto::{PgId, Result, SegmentId, v1};

/// Some of the segments of a group.
#[derive(Default, Debug)]
pub struct GroupPage {
    /// In order of their ids. Each record is of the segment and the group that it is listed for,
    /// and is well formed.
    pub segments: Vec<v1::SegmentInfo>,
    /// Those of which nothing is known: their records are not so.
    pub damaged: Vec<Damaged>,
    /// The last one that was looked at, if there may be more.
    pub next: Option<SegmentId>,
}

/// A segment whose record makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged {
    pub id: SegmentId,
    /// It does not even read: that happened to this server alone, and others have it whole.
    pub is_unread: bool,
}

/// What lies under a key.
pub(super) enum Found<R> {
    Nothing,
    Record(R),
    /// What does not read. It is noted ([`StateMachine::failure`]).
    Unread,
}

impl StateMachine {
    /// Committed segments that name a placement group, and with `garbage` those that are to be
    /// deleted, after `after`.
    pub fn group_segments(
        &self,
        pg: PgId,
        garbage: bool,
        after: Option<SegmentId>,
        limit: usize,
    ) -> Result<GroupPage> {
        let (mut page, mut looked, mut last) = (GroupPage::default(), 0, None);
        let listed = self.store.view(|s| {
            let (from, to) = schema::members(pg.0, after);
            s.scan(&from, &to, &mut |key, _| {
                let id = schema::member_of(key)?;
                (looked, last) = (looked + 1, Some(id));
                let info = match self.look_up::<schema::Segment>(s, &schema::segment(id))? {
                    Found::Record(segment) => Found::Record(segment.info),
                    Found::Unread => Found::Unread,
                    // Garbage is listed, too.
                    Found::Nothing if garbage => self.look_up(s, &schema::garbage(id))?,
                    Found::Nothing => Found::Nothing,
                };
                match info {
                    Found::Record(info) if schema::is_of(&info, id) && info.pg == pg.0 => {
                        page.segments.push(info);
                    }
                    Found::Record(_) => page.damaged.push(Damaged { id, is_unread: false }),
                    Found::Unread => page.damaged.push(Damaged { id, is_unread: true }),
                    Found::Nothing => {}
                }
                Ok(looked < limit)
            })
        });
        self.read_by(listed)?;
        page.next = last.filter(|_| looked == limit);
        Ok(page)
    }

    /// A record, for who looks at very many and goes on without one that does not read.
    pub(super) fn look_up<R: Message + Default>(
        &self,
        s: &dyn Read,
        key: &[u8],
    ) -> StoreResult<Found<R>> {
        let Some(value) = s.get(key)? else { return Ok(Found::Nothing) };
        Ok(self.read_record(key, value))
    }

    /// As [`Self::look_up`], of what was read under a key.
    pub(super) fn read_record<R: Message + Default>(
        &self,
        key: &[u8],
        value: impl bytes::Buf,
    ) -> Found<R> {
        match self.read_by(schema::decode(key, value)) {
            Ok(record) => Found::Record(record),
            Err(_) => Found::Unread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Segment;
    use weft_proto::{ChunkId, SessionId, TargetId};

    const PG: PgId = PgId(7);

    fn id(seq: u64) -> SegmentId {
        SegmentId { session: SessionId(1), seq }
    }

    fn info(seq: u64) -> v1::SegmentInfo {
        let (profile, seats) = (Some(v1::ProfileInfo { k: 1, m: 1 }), vec![0, 1].into());
        let id = Some(id(seq).into());
        v1::SegmentInfo { id, profile, unit: 4096, length: 100, pg: PG.0, seats }
    }

    fn put(machine: &StateMachine, key: Vec<u8>, record: &impl Message) {
        machine.damage(key, Some(record.encode_to_vec().into()));
    }

    /// Segments 1 to 9 of a group, of which 3, 5, 6 and 8 are damaged, and as many of garbage.
    fn damaged() -> StateMachine {
        let machine = StateMachine::open_in_memory();
        let group = v1::PgInfo { id: PG.0, targets: vec![1, 2], ..Default::default() };
        let group = schema::Group { info: group, ..Default::default() };
        put(&machine, schema::group(PG.0), &group);
        for seq in 1..10 {
            let info = match seq {
                // Of another group, of another segment, and of none.
                3 => v1::SegmentInfo { pg: 8, ..info(3) },
                5 => info(4),
                6 => v1::SegmentInfo { length: 0, ..info(6) },
                seq => info(seq),
            };
            let (segment, garbage) = (id(seq), id(100 + seq));
            machine.damage(schema::member(PG.0, segment), Some(bytes::Bytes::new()));
            machine.damage(schema::member(PG.0, garbage), Some(bytes::Bytes::new()));
            put(
                &machine,
                schema::garbage(garbage),
                &v1::SegmentInfo {
                    id: info.id.map(|key| v1::SegmentKey { seq: 100 + key.seq, ..key }),
                    ..info.clone()
                },
            );
            put(
                &machine,
                schema::segment(segment),
                &Segment { info, live_bytes: 1, confined: false },
            );
        }
        for key in [schema::segment(id(8)), schema::garbage(id(108))] {
            machine.damage(key, Some(bytes::Bytes::from_static(b"\xff")));
        }
        machine
    }

    #[test]
    fn a_damaged_record_keeps_no_other_segment_of_its_group() {
        let machine = damaged();
        for (limit, garbage) in [(2, false), (100, false), (3, true)] {
            let (mut found, mut bad, mut unread, mut after) = (vec![], vec![], vec![], None);
            loop {
                let page = machine.group_segments(PG, garbage, after, limit).unwrap();
                found.extend(page.segments.iter().map(|info| info.id.unwrap().seq));
                bad.extend(page.damaged.iter().map(|d| d.id.seq));
                unread.extend(page.damaged.iter().filter(|d| d.is_unread).map(|d| d.id.seq));
                if page.next.is_none() {
                    break;
                }
                after = page.next;
            }
            let both = |seqs: &[u64]| {
                let garbage = seqs.iter().map(|seq| 100 + seq).filter(|_| garbage);
                seqs.iter().copied().chain(garbage).collect::<Vec<_>>()
            };
            assert_eq!(found, both(&[1, 2, 4, 7, 9]));
            assert_eq!(bad, both(&[3, 5, 6, 8]));
            assert_eq!(unread, both(&[8]), "that happened here alone");
        }
        assert!(machine.failure().is_some(), "others may have it whole");
    }

    #[test]
    fn a_damaged_record_keeps_no_other_from_being_collected_and_loses_no_chunk() {
        let machine = damaged();
        let garbage = machine.garbage(None, 100).unwrap();
        let garbage: Vec<u64> = garbage.iter().map(|info| info.id.unwrap().seq).collect();
        // What is of another group, or of none, is looked at by who deletes it.
        assert_eq!(garbage, [101, 102, 103, 104, 106, 107, 109]);
        let chunks = |seq| [0, 1].map(|shard| ChunkId { segment: id(seq), shard });
        let listed: Vec<ChunkId> = (1..12).flat_map(chunks).collect();
        let unwanted = machine.unwanted(TargetId(1), listed).unwrap();
        // Those of the seat that it has not, and those of the session that is no more.
        let misplaced: Vec<u64> = unwanted.misplaced.iter().map(|(c, _)| c.segment.seq).collect();
        assert_eq!(misplaced, [1, 2, 4, 7, 9]);
        assert_eq!(unwanted.dead, [chunks(10), chunks(11)].concat());
    }
}
