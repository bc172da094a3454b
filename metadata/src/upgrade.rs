//! Takes over a state of the format before: format 4 lists the segments that name each placement
//! group.
//!
//! The list follows from the other records. So it does not matter when a replica is upgraded: one
//! that is later than the others lists what they have listed by then.

use crate::schema::{self, Segment, Tag};
use crate::store::{Changes, Store, StoreResult};
use weft_proto::{SegmentId, v1};

/// The format that is taken over.
pub(crate) const FROM: u64 = 3;

/// Segments that are listed at once.
const STEP: usize = 65_536;

/// Brings the store up to date, if it is of the format before. A crash in the middle leaves a part
/// of the list, which the next start writes once more: until it is whole, the store is of the
/// format before.
pub(crate) fn run(store: &Store) -> StoreResult<()> {
    if store.newest(|base| base.number(schema::FORMAT_NAME))? != Some(FROM) {
        return Ok(());
    }
    tracing::info!("the metadata state is of format {FROM}: listing the segments of groups");
    // What a start that was cut off has listed may have gone since, by the version before.
    loop {
        let mut stale = Changes::new();
        let (from, to) = schema::all(Tag::Member);
        store.newest(|base| {
            base.scan(&from, &to, &mut |key, _| {
                stale.insert(key.to_vec(), None);
                Ok(stale.len() < STEP)
            })
        })?;
        if stale.is_empty() {
            break;
        }
        store.write(stale)?;
    }
    for tag in [Tag::Segment, Tag::Garbage] {
        let (mut from, to) = schema::all(tag);
        loop {
            let mut last = None;
            let mut members = Changes::new();
            store.newest(|base| {
                base.scan(&from, &to, &mut |key, value| {
                    let info = match tag {
                        Tag::Segment => schema::decode::<Segment>(key, value)?.info,
                        _ => schema::decode::<v1::SegmentInfo>(key, value)?,
                    };
                    let id: SegmentId = schema::segment_of(key)?;
                    members.insert(schema::member(info.pg, id), Some(Default::default()));
                    last = Some(key.to_vec());
                    Ok(members.len() < STEP)
                })
            })?;
            let Some(mut key) = last else { break };
            store.write(members)?;
            key.push(0);
            from = key;
        }
    }
    let number = schema::Number { value: schema::FORMAT };
    let done = prost::Message::encode_to_vec(&number);
    store.write([(schema::meta(schema::FORMAT_NAME), Some(done.into()))].into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateMachine;
    use prost::Message;
    use v1::extent::Source;
    use v1::log_entry::Body;
    use v1::meta_request::Op;

    /// Two generations of groups, with segments that live and one that is garbage.
    fn log() -> Vec<(u64, v1::LogEntry)> {
        let target = |n: u8| {
            let target = Some(v1::TargetInfo { uuid: vec![n; 16].into(), ..Default::default() });
            Body::RegisterTarget(v1::RegisterTargetEntry { target })
        };
        let place = |ids: std::ops::Range<u32>, based_on_epoch| {
            let pg =
                |id| v1::PgInfo { id, targets: vec![1, 2], retired: false, ..Default::default() };
            let pgs = ids.map(pg).collect();
            Body::SetPgs(v1::SetPgsEntry { pool: 1, pgs, based_on_epoch, ..Default::default() })
        };
        let request = |number, op| {
            let session = u64::from(number > 0);
            Body::Client(v1::MetaRequest { session, number, acked_below: 0, op: Some(op) })
        };
        let commit = |seq, pg, file_off| {
            let id = Some(v1::SegmentKey { session: 1, seq });
            let profile = Some(v1::ProfileInfo { k: 1, m: 1 });
            let seats = vec![0, 1].into();
            let source = Some(Source::Segment(v1::SegmentPart { id, off: 0 }));
            let op = v1::CommitExtentsOp {
                ino: 2,
                extents: vec![v1::Extent { file_off, len: 10, source }],
                segments: vec![v1::SegmentInfo { id, profile, unit: 4096, length: 10, pg, seats }],
                ..Default::default()
            };
            request(seq + 10, Op::CommitExtents(op))
        };
        let profile = Some(v1::ProfileInfo { k: 1, m: 1 });
        let init = v1::InitClusterEntry {
            cluster: vec![7; 16].into(),
            profile,
            members: vec![],
            shard: 0,
        };
        let open = v1::OpenSessionOp {
            client: "c".into(),
            nonce: vec![1; 16].into(),
            ..Default::default()
        };
        let create = v1::CreateOp { parent: 1, name: "f".into(), ..Default::default() };
        let bodies = [
            Body::InitCluster(init),
            target(1),
            target(2),
            place(1..4, 3),
            request(0, Op::OpenSession(open)),
            request(1, Op::Create(create)),
            commit(1, 1, 0),
            commit(2, 1, 10),
            commit(3, 3, 0),
            place(4..6, 4),
            commit(4, 5, 20),
        ];
        let entry = |(i, body)| {
            (i as u64 + 1, v1::LogEntry { time_ns: 1, body: Some(body), ..Default::default() })
        };
        bodies.into_iter().enumerate().map(entry).collect()
    }

    fn filled(machine: StateMachine) -> StateMachine {
        let replies = machine.apply(&log()).unwrap();
        assert!(replies.iter().all(|reply| reply.error == 0), "{replies:?}");
        machine
    }

    /// Makes it what the older version has written.
    fn age(machine: &StateMachine) {
        for (key, _) in machine.dump().unwrap() {
            if key[2] == Tag::Member as u8 {
                machine.damage(key, None);
            } else if key == schema::meta(schema::FORMAT_NAME) {
                let aged = schema::Number { value: FROM }.encode_to_vec();
                machine.damage(key, Some(aged.into()));
            }
        }
    }

    fn members(machine: &StateMachine) -> Vec<(u32, u64)> {
        let dump = machine.dump().unwrap().into_iter();
        let members = dump.filter(|(key, _)| key[2] == Tag::Member as u8);
        let group = |key: &[u8]| u32::from_be_bytes(key[3..7].try_into().unwrap());
        members.map(|(key, _)| (group(&key), schema::member_of(&key).unwrap().seq)).collect()
    }

    #[test]
    fn an_older_state_becomes_what_this_version_would_have_written() {
        let dir = tempfile::tempdir().unwrap();
        let machine = filled(StateMachine::open(dir.path()).unwrap());
        let whole = machine.dump().unwrap();
        assert_eq!(members(&machine), [(1, 1), (1, 2), (3, 3), (5, 4)]);
        age(&machine);
        assert_eq!(members(&machine), []);
        let stale = weft_proto::SegmentId { session: weft_proto::SessionId(1), seq: 9 };
        machine.damage(schema::member(1, stale), Some(Default::default()));
        let copy = dir.path().join("copy");
        machine.checkpoint(&copy).unwrap();
        drop(machine);
        let machine = StateMachine::open(dir.path()).unwrap();
        assert!(machine.dump().unwrap() == whole);
        // From a server that is older yet.
        let other = tempfile::tempdir().unwrap();
        let behind = StateMachine::open(other.path()).unwrap();
        std::fs::rename(&copy, other.path().join("copy")).unwrap();
        behind.replace(&other.path().join("copy")).unwrap();
        assert!(behind.dump().unwrap() == whole && behind.applied() == machine.applied());
    }

    #[test]
    fn an_older_state_in_which_nothing_was_made_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let machine = StateMachine::open(dir.path()).unwrap();
        machine.set_applied(3).unwrap();
        let whole = machine.dump().unwrap();
        age(&machine);
        drop(machine);
        let machine = StateMachine::open(dir.path()).unwrap();
        assert!(machine.dump().unwrap() == whole);
    }
}
