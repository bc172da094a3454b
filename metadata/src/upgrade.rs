//! Takes over a state of the format before: format 3 counts the segments that name each placement
//! group, and the ids of groups that were given out.
//!
//! Both follow from the other records. So it does not matter when a replica is upgraded: one that
//! is later than the others counts what they have counted by then, and lacks nothing but that
//! groups were dropped, which it does at the next change of the targets.

use crate::schema::{self, Group, Segment, Tag};
use crate::store::{Store, StoreResult, Txn};
use std::collections::BTreeMap;
use weft_proto::v1;

/// The format that is taken over.
pub(crate) const FROM: u64 = 2;

/// Brings the store up to date, if it is of the format before. All at once: a crash leaves it as it
/// was.
pub(crate) fn run(store: &Store) -> StoreResult<()> {
    let changes = store.newest(|base| {
        if base.number(schema::FORMAT_NAME)? != Some(FROM) {
            return Ok(None);
        }
        tracing::info!("the metadata state is of format {FROM}: counting segments");
        let mut tx = Txn::new(base);
        count(&mut tx)?;
        tx.put_number(schema::FORMAT_NAME, schema::FORMAT);
        StoreResult::Ok(Some(tx.into_changes()))
    })?;
    changes.map_or(Ok(()), |changes| store.write(changes))
}

fn count(tx: &mut Txn<'_>) -> StoreResult<()> {
    let mut named: BTreeMap<u32, u64> = BTreeMap::new();
    let state = tx.state();
    state.records(schema::all(Tag::Segment), |_, segment: Segment| {
        *named.entry(segment.info.pg).or_default() += 1;
        Ok(true)
    })?;
    state.records(schema::all(Tag::Garbage), |_, info: v1::SegmentInfo| {
        *named.entry(info.pg).or_default() += 1;
        Ok(true)
    })?;
    let mut groups = Vec::new();
    state.records(schema::all(Tag::Group), |key, group: Group| {
        groups.push((key.to_vec(), group));
        Ok(true)
    })?;
    let mut next_pg = 1;
    for (key, mut group) in groups {
        next_pg = next_pg.max(group.info.id.saturating_add(1));
        group.segments = named.get(&group.info.id).copied().unwrap_or(0);
        tx.put(key, &group);
    }
    // There are no counters before the cluster is made.
    if tx.state().cluster()?.is_some() {
        tx.edit_counters(|counters| counters.next_pg = next_pg)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Counters;
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
            let pg = |id| v1::PgInfo { id, targets: vec![1, 2], retired: false };
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
        let open = v1::OpenSessionOp { client: "c".into(), nonce: vec![1; 16].into() };
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
        let entry = |(i, body)| (i as u64 + 1, v1::LogEntry { time_ns: 1, body: Some(body) });
        bodies.into_iter().enumerate().map(entry).collect()
    }

    fn filled(machine: StateMachine) -> StateMachine {
        let replies = machine.apply(&log()).unwrap();
        assert!(replies.iter().all(|reply| reply.error == 0), "{replies:?}");
        machine
    }

    /// Makes it what the older version has written.
    fn age(machine: &StateMachine) {
        for (key, value) in machine.dump().unwrap() {
            let counters = key == schema::meta("counters");
            let aged = if key[2] == Tag::Group as u8 {
                Group { segments: 0, ..Group::decode(&value[..]).unwrap() }.encode_to_vec()
            } else if counters {
                Counters { next_pg: 0, ..Counters::decode(&value[..]).unwrap() }.encode_to_vec()
            } else if key == schema::meta(schema::FORMAT_NAME) {
                schema::Number { value: FROM }.encode_to_vec()
            } else {
                continue;
            };
            machine.damage(key, Some(aged.into()));
        }
    }

    fn counts(machine: &StateMachine) -> Vec<(u32, u64)> {
        let dump = machine.dump().unwrap().into_iter();
        let groups = dump.filter(|(key, _)| key[2] == Tag::Group as u8);
        let count = |(_, value): (Vec<u8>, Vec<u8>)| Group::decode(&value[..]).unwrap();
        groups.map(count).map(|group| (group.info.id, group.segments)).collect()
    }

    #[test]
    fn an_older_state_becomes_what_this_version_would_have_written() {
        let dir = tempfile::tempdir().unwrap();
        let machine = filled(StateMachine::open(dir.path()).unwrap());
        let whole = machine.dump().unwrap();
        let counted = [(1, 2), (2, 0), (3, 1), (4, 0), (5, 1)];
        assert_eq!(counts(&machine), counted);
        age(&machine);
        assert!(machine.dump().unwrap() != whole && counts(&machine) != counted);
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
        machine.set_applied(3, None).unwrap();
        let whole = machine.dump().unwrap();
        age(&machine);
        drop(machine);
        let machine = StateMachine::open(dir.path()).unwrap();
        assert!(machine.dump().unwrap() == whole);
    }
}
