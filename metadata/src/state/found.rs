//! Makes a state, as a backup has it, that of a new group of one server.

use super::StateMachine;
use crate::store::{Changes, StoreError, Txn};
use weft_proto::{Error, ErrorKind, Result, v1};

/// Numbers that may have been given out since the backup was made are not given again: ids of
/// segments begin with that of their session, and chunks of both may be on one target.
const SESSIONS: u64 = 1 << 20;
const INODES: u64 = 1 << 32;
const GROUPS: u32 = 1 << 16;
/// Whoever knows a map of the old group takes the new one for newer.
const EPOCHS: u64 = 1 << 32;
/// Sessions that are ended with one batch.
const BATCH: usize = 256;

impl StateMachine {
    /// Has this server alone be the group, ends all sessions, skips numbers that the old group may
    /// have given out since, and notes until when (nanoseconds since 1970) nothing may be
    /// deleted from targets. Not while a node runs on it. Answers the index of the last entry that
    /// counts as applied, and how many sessions were ended. Errors: `Exists` if the number of the
    /// server is one that the old group has had.
    pub fn found_anew(&self, server: &v1::NodeInfo, now: i64, hold: i64) -> Result<(u64, usize)> {
        let sessions: Vec<_> = self.live_sessions()?.into_iter().collect();
        for batch in sessions.chunks(BATCH) {
            let first = self.applied() + 1;
            let entry = |session: &weft_proto::SessionId| {
                let body = v1::ExpireSessionEntry { session: session.0 };
                let body = Some(v1::log_entry::Body::ExpireSession(body));
                v1::LogEntry { time_ns: now, body, ..Default::default() }
            };
            let entries: Vec<_> = (first..).zip(batch.iter().map(entry)).collect();
            self.apply(&entries)?;
        }
        let _writer = self.writer.lock();
        let changes = self.store.newest(|base| {
            let mut tx = Txn::new(base);
            found(&mut tx, server, hold)?;
            Ok::<Changes, StoreError>(tx.into_changes())
        })?;
        self.store.write(changes)?;
        drop(_writer);
        Ok((self.sync()?, sessions.len()))
    }

    /// Until when nothing may be deleted from targets, in nanoseconds since 1970; 0: it may.
    pub fn held_until(&self) -> Result<i64> {
        Ok(self.read_by(self.store.newest(|s| s.cluster()))?.map_or(0, |c| c.held_until_ns))
    }
}

fn found(tx: &mut Txn<'_>, server: &v1::NodeInfo, hold: i64) -> Result<(), StoreError> {
    let Some(mut cluster) = tx.state().cluster()? else {
        let what = "the backup is of a group that had not made its cluster yet";
        return Err(StoreError(Error::new(ErrorKind::Invalid, what)));
    };
    let had = cluster.members.iter().map(|m| m.id).chain(cluster.founders.iter().copied());
    let mut had: Vec<u64> = had.chain(cluster.removed.iter().copied()).collect();
    had.sort_unstable();
    had.dedup();
    if had.contains(&server.id) {
        let what = format!(
            "the old group has had a server {}, which may come back and be taken for this one: \
             give it a number above {}",
            server.id,
            had.last().copied().unwrap_or_default()
        );
        return Err(StoreError(Error::new(ErrorKind::Exists, what)));
    }
    let mut member = server.clone();
    member.set_role(v1::MemberRole::Voter);
    (cluster.members, cluster.founders, cluster.removed) = (vec![member], vec![server.id], had);
    cluster.epoch += EPOCHS;
    cluster.held_until_ns = hold;
    tx.put_cluster(&cluster);
    tx.edit_counters(|counters| {
        counters.next_session += SESSIONS;
        counters.next_inode += INODES;
        counters.next_pg += GROUPS;
    })
}
