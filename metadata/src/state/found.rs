//! Makes a state, as a backup has it, that of a new group of one server.

use super::StateMachine;
use crate::schema::Cluster;
use crate::store::{Changes, Read, Rocks, StoreError, Txn};
use std::path::Path;
use weft_proto::{Error, ErrorKind, Result, Uuid, v1};

/// Sessions that are ended with one batch.
const BATCH: usize = 256;

/// A step of sessions and epochs for each second since 1970: far more than are given out in one.
const A_SECOND: u32 = 21;

/// Where numbers go on, above those of a backup, since the lost group has given out more: ids of
/// chunks begin with that of their session, and chunks of both may be on one target. A backup may
/// be restored a second time, after others were given out from here: what daemons take for newer
/// if it is higher (sessions, epochs) goes by the clock, the rest by random steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Skip {
    /// The first session, and the epoch of the first map.
    ascending: u64,
    inodes: u64,
    groups: u32,
    targets: u32,
    /// Terms of the log.
    pub terms: u64,
}

impl Skip {
    /// At a time in nanoseconds since 1970, and from random bits. Hundreds of restores fit into the
    /// numbers there are.
    pub fn new(now: i64, bits: u64) -> Self {
        let (low, mid, high) = (bits & 0xf_ffff, (bits >> 20) & 0x3fff, (bits >> 34) & 0xfff);
        Self {
            ascending: u64::try_from(now / 1_000_000_000).unwrap_or_default() << A_SECOND,
            inodes: (1 << 38) + (mid << 24),
            groups: (1 << 16) + ((high as u32) << 8),
            targets: (1 << 10) + ((high as u32) << 4),
            terms: (1 << 32) + (low << 12),
        }
    }
}

/// A group that is begun anew.
pub(crate) struct Founding {
    /// Its only server.
    pub server: v1::NodeInfo,
    /// The cluster that it must be of.
    pub cluster: Uuid,
    /// Nanoseconds since 1970.
    pub now: i64,
    /// Until when nothing may be deleted from targets, likewise.
    pub hold: i64,
    pub skip: Skip,
}

impl StateMachine {
    /// Looks at a copy of a state, and changes nothing of it: as of which entry it is, and of which
    /// cluster; nil: none was made. Errors: `NotSupported`, another version wrote it; `Io`.
    pub(crate) fn look_at(copy: &Path) -> Result<(u64, Uuid)> {
        let copy = Rocks::open_copy(copy.to_owned())?;
        let copy: &dyn Read = &copy;
        let (applied, cluster) = (super::accept(copy)?, copy.cluster()?);
        let id = cluster.and_then(|cluster| Uuid::from_slice(&cluster.id));
        Ok((applied, id.unwrap_or(Uuid::NIL)))
    }

    /// Has one server alone be the group, ends all sessions, skips numbers, and notes until when
    /// nothing may be deleted from targets. Not while a node runs on it. Answers the index of the
    /// last entry that counts as applied, and how many sessions were ended. Errors: `Exists` if the
    /// number of the server is one that the old group has had; `Corrupt` for another cluster.
    pub(crate) fn found_anew(&self, founding: &Founding) -> Result<(u64, usize)> {
        let sessions: Vec<_> = self.live_sessions()?.into_iter().collect();
        for batch in sessions.chunks(BATCH) {
            let first = self.applied() + 1;
            let entry = |session: &weft_proto::SessionId| {
                let body = v1::ExpireSessionEntry { session: session.0 };
                let body = Some(v1::log_entry::Body::ExpireSession(body));
                v1::LogEntry { time_ns: founding.now, body, ..Default::default() }
            };
            let entries: Vec<_> = (first..).zip(batch.iter().map(entry)).collect();
            self.apply(&entries)?;
        }
        let _writer = self.writer.lock();
        let changes = self.store.newest(|base| {
            let mut tx = Txn::new(base);
            found(&mut tx, founding)?;
            Ok::<Changes, StoreError>(tx.into_changes())
        })?;
        self.store.write(changes)?;
        drop(_writer);
        Ok((self.sync()?, sessions.len()))
    }

    /// The numbers of all servers that the group has had.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        let cluster = self.read_by(self.store.newest(|s| s.cluster()))?;
        Ok(cluster.as_ref().map(numbers).unwrap_or_default())
    }

    /// Until when nothing may be deleted from targets, in nanoseconds since 1970; 0: it may.
    pub fn held_until(&self) -> Result<i64> {
        Ok(self.read_by(self.store.newest(|s| s.cluster()))?.map_or(0, |c| c.held_until_ns))
    }

    /// Numbers of sessions that were never given out, as the first of them and the one behind the
    /// last: those that restores have skipped.
    pub(crate) fn session_gaps(&self) -> Result<Vec<(u64, u64)>> {
        let cluster = self.read_by(self.store.newest(|s| s.cluster()))?.unwrap_or_default();
        Ok(cluster.session_gaps.chunks_exact(2).map(|gap| (gap[0], gap[1])).collect())
    }

    /// Which restore from a backup the group was begun anew with; 0: none.
    pub fn incarnation(&self) -> Result<u64> {
        Ok(self.read_by(self.store.newest(|s| s.cluster()))?.map_or(0, |c| c.incarnation))
    }
}

/// Refuses the number of a server that the old group has had, as a backup names them.
pub(crate) fn check_number(had: &[u64], id: u64) -> Result<()> {
    if !had.contains(&id) {
        return Ok(());
    }
    let what = format!(
        "the old group has had a server {id}, which may come back and be taken for this one: give \
         it a number that none ever had, above {} and also those that were added after the backup",
        had.iter().max().copied().unwrap_or_default()
    );
    Err(Error::new(ErrorKind::Exists, what))
}

fn numbers(cluster: &Cluster) -> Vec<u64> {
    let had = cluster.members.iter().map(|m| m.id).chain(cluster.founders.iter().copied());
    let mut had: Vec<u64> = had.chain(cluster.removed.iter().copied()).collect();
    had.sort_unstable();
    had.dedup();
    had
}

fn found(tx: &mut Txn<'_>, founding: &Founding) -> Result<(), StoreError> {
    let Some(mut cluster) = tx.state().cluster()? else {
        let what = "the backup is of a group that had not made its cluster yet";
        return Err(StoreError(Error::new(ErrorKind::Invalid, what)));
    };
    if Uuid::from_slice(&cluster.id) != Some(founding.cluster) {
        let what = "the backup is of another cluster than its manifest says";
        return Err(StoreError(Error::new(ErrorKind::Corrupt, what)));
    }
    let had = numbers(&cluster);
    let skip = founding.skip;
    check_number(&had, founding.server.id).map_err(StoreError)?;
    let mut member = founding.server.clone();
    member.set_role(v1::MemberRole::Voter);
    cluster.founders = vec![member.id];
    (cluster.members, cluster.removed) = (vec![member], had);
    cluster.epoch = skip.ascending.max(cluster.epoch + 1);
    cluster.held_until_ns = founding.hold;
    let seconds = u64::try_from(founding.now / 1_000_000_000).unwrap_or_default();
    cluster.incarnation = seconds.max(cluster.incarnation + 1);
    let before = tx.state().counters()?.next_session;
    let next_session = skip.ascending.max(before + 1);
    cluster.session_gaps.extend([before, next_session]);
    tx.put_cluster(&cluster);
    tx.edit_counters(|counters| {
        counters.next_session = next_session;
        counters.next_inode += skip.inodes;
        counters.next_pg = counters.next_pg.saturating_add(skip.groups);
        counters.next_target = counters.next_target.saturating_add(skip.targets);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1::log_entry::Body;

    /// What one restore gives out, another of the same backup does not, and a later one is above.
    #[test]
    fn numbers_go_on_far_above_and_elsewhere_each_time() {
        let second = 1_000_000_000;
        let (least, most) = (Skip::new(second, 0), Skip::new(second, u64::MAX));
        assert!(least.inodes >= 1 << 38 && most.inodes < 1 << 39);
        assert!(least.groups >= 1 << 16 && most.groups < 1 << 21);
        assert!(least.targets >= 1 << 10 && most.targets < 1 << 17);
        let (one, other) = (1 | 1 << 20 | 1 << 34, 2 | 2 << 20 | 2 << 34);
        let (one, other) = (Skip::new(2 * second, one), Skip::new(second, other));
        assert!(one.ascending - other.ascending >= 1 << 20);
        assert!(other.inodes - one.inodes >= 1 << 24 && other.terms > one.terms);
        assert!(other.groups - one.groups >= 1 << 8 && other.targets > one.targets);
    }

    /// Of a cluster with a target and a session; what it had before and what it adds.
    #[test]
    fn a_group_that_begins_anew_gives_out_no_number_twice() {
        let machine = StateMachine::open_in_memory();
        let apply = |body: Body| {
            let entry = v1::LogEntry { time_ns: 1, body: Some(body), ..Default::default() };
            assert_eq!(machine.apply(&[(machine.applied() + 1, entry)]).unwrap()[0].error, 0);
        };
        let register = |uuid: u8, id| {
            let uuid = vec![uuid; 16].into();
            let target = Some(v1::TargetInfo { uuid, id, ..Default::default() });
            Body::RegisterTarget(v1::RegisterTargetEntry { target })
        };
        let open = || {
            let nonce = vec![1; 16].into();
            let open = v1::OpenSessionOp { client: "c".into(), nonce, ..Default::default() };
            let op = Some(v1::meta_request::Op::OpenSession(open));
            Body::Client(v1::MetaRequest { op, ..Default::default() })
        };
        apply(Body::InitCluster(v1::InitClusterEntry {
            cluster: vec![7; 16].into(),
            profile: Some(v1::ProfileInfo { k: 2, m: 1 }),
            members: vec![v1::NodeInfo { id: 3, ..Default::default() }],
            shard: 0,
        }));
        apply(register(1, 0));
        apply(open());
        let inodes = machine.next_inode().unwrap();
        let found = |id, cluster| {
            let server = v1::NodeInfo { id, ..Default::default() };
            let (cluster, now, hold) = (Uuid([cluster; 16]), 9_000_000_000, 5);
            machine.found_anew(&Founding { server, cluster, now, hold, skip: Skip::new(now, 0) })
        };
        assert_eq!(found(3, 7).unwrap_err().kind, ErrorKind::Exists);
        assert_eq!(found(4, 8).unwrap_err().kind, ErrorKind::Corrupt);
        found(4, 7).unwrap();
        assert!(machine.live_sessions().unwrap().is_empty());
        assert_eq!((machine.held_until().unwrap(), machine.incarnation().unwrap()), (5, 9));
        assert_eq!(machine.numbers().unwrap(), [3, 4]);
        // One that was added after the backup, and one that is new.
        apply(register(2, 6));
        apply(register(3, 0));
        apply(open());
        let ids: Vec<u32> = machine.cluster_map().unwrap().targets.iter().map(|t| t.id).collect();
        assert_eq!(ids, [1, 6, 1026]);
        assert_eq!(machine.next_session().unwrap(), (9 << A_SECOND) + 1);
        assert_eq!(machine.session_gaps().unwrap(), [(2, 9 << A_SECOND)]);
        assert_eq!(machine.next_inode().unwrap(), inodes + (1 << 38));
        found(5, 7).unwrap();
        assert_eq!(machine.incarnation().unwrap(), 10, "also in the same second");
        assert_eq!(machine.next_session().unwrap(), (9 << A_SECOND) + 2);
        // One that an attempt before this one gave out.
        apply(register(4, 90_000));
        assert_eq!(machine.cluster_map().unwrap().targets.last().unwrap().id, 90_000);
        apply(register(5, u32::MAX));
        assert!(machine.cluster_map().unwrap().targets.last().unwrap().id < 100_000);
        // Who looks for one in the map relies on the order.
        apply(register(6, 4));
        let targets = machine.cluster_map().unwrap().targets;
        assert_eq!(targets[1].id, 4);
        assert!(targets.is_sorted_by_key(|t| t.id));
        // The number of one that was forgotten is nobody's.
        let change = v1::set_target_state_entry::Change {
            target: 4,
            state: v1::TargetState::Out.into(),
            ..Default::default()
        };
        apply(Body::SetTargetState(v1::SetTargetStateEntry { changes: vec![change] }));
        apply(Body::ForgetTarget(v1::ForgetTargetEntry { target: 4 }));
        apply(register(7, 4));
        assert!(machine.cluster_map().unwrap().targets.iter().all(|t| t.id != 4));
    }
}
