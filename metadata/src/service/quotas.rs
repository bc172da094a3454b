//! What quotas leave to a session that does things on its own, told with each answer.
//!
//! What was done unasked is told when it cannot be refused any more. So a session is given credits:
//! so much it may have done that the group has not heard of. They are a part of what is left,
//! divided among all mounts, and none where little is: then the session asks each time, and is
//! refused where the limit is (decision 054). Nothing is kept of what was given: a session has
//! spent no more than one credit between two answers.

use crate::node::{Known, Node};
use std::collections::BTreeSet;
use v1::batch_op::step::Op as Do;
use v1::meta_request::Op;
use v1::quota_key::Kind;
use v1::quota_news::{Credit, Zone};
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// The largest credit, bytes and inodes.
const MOST: [u64; 2] = [64 << 20, 1024];
/// A smaller one is of no use.
const LEAST: [u64; 2] = [1 << 20, 16];
/// Of what is left, this part is given to all sessions together.
const PART: u64 = 4;
/// Inodes, and quotas, of one request that are looked at.
const MAX_TOLD: usize = 64;

/// What a request is about, as to quotas.
#[derive(Default)]
pub(super) struct About {
    inos: BTreeSet<u64>,
    owners: BTreeSet<(u32, u32)>,
}

impl About {
    /// Of a request; `None` where no quotas are, and nobody needs to look.
    pub fn of(node: &Node, op: Option<&Op>) -> Option<Self> {
        if !node.state.has_quotas() {
            return None;
        }
        let mut about = Self::default();
        match op {
            Some(Op::Create(op)) => about.makes(op.parent, op.uid, op.gid),
            Some(Op::TmpFile(op)) => about.makes(op.parent, op.uid, op.gid),
            Some(Op::MkNod(op)) => about.makes(op.parent, op.uid, op.gid),
            Some(Op::MkDir(op)) => about.makes(op.parent, op.uid, op.gid),
            Some(Op::SymLink(op)) => about.makes(op.parent, op.uid, op.gid),
            Some(Op::CommitExtents(op)) => about.writes(op.ino),
            Some(Op::Open(op)) => about.writes(op.ino),
            Some(Op::Lease(op)) => about.writes(op.ino),
            Some(Op::Batch(op)) => {
                for step in &op.steps {
                    match &step.op {
                        Some(Do::Make(op)) => about.makes(op.parent, op.uid, op.gid),
                        Some(Do::Commit(op)) => about.writes(op.ino),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        Some(about)
    }

    fn makes(&mut self, parent: u64, uid: u32, gid: u32) {
        self.writes(parent);
        if self.owners.len() < MAX_TOLD {
            self.owners.insert((uid, gid));
        }
    }

    fn writes(&mut self, ino: u64) {
        if self.inos.len() < MAX_TOLD {
            self.inos.insert(ino);
        }
    }

    /// Adds to an answer what its session may do.
    pub fn tell(self, node: &Node, reply: &mut v1::MetaReply) -> Result<()> {
        let owners = node.state.counts_owners();
        // Without more, all is asked for.
        let owned = *owners.as_ref().unwrap_or(&true);
        let news = v1::QuotaNews { owners: owned, ..Default::default() };
        let news = reply.quota.insert(news);
        let Self { inos, owners: mut of } = self;
        let mut zones = BTreeSet::new();
        for grant in reply.grants.iter_mut().filter(|grant| grant.write) {
            if let Some((zone, uid, gid)) = node.state.zone(InodeId(grant.ino))? {
                grant.quota = zone;
                zones.insert(zone);
                of.insert((uid, gid));
            }
        }
        for ino in inos {
            if let Some((zone, uid, gid)) = node.state.zone(InodeId(ino))? {
                news.zones.push(Zone { ino, quota: zone });
                zones.insert(zone);
                of.insert((uid, gid));
            }
        }
        let mut keys = Vec::new();
        let trees = zones.into_iter().filter(|zone| *zone != 0);
        keys.extend(trees.map(|id| (Kind::Tree, id)));
        if owners? {
            let (uids, gids): (BTreeSet<_>, BTreeSet<_>) = of.into_iter().unzip();
            keys.extend(uids.into_iter().map(|uid| (Kind::User, uid.into())));
            keys.extend(gids.into_iter().map(|gid| (Kind::Group, gid.into())));
        }
        let sessions = node.soft.with(|s| s.count()).max(1) as u64;
        let now = node.env.clock.now_ns();
        for (kind, id) in keys.into_iter().take(MAX_TOLD) {
            let key = v1::QuotaKey { kind: kind.into(), id };
            let [bytes, inodes] = match node.state.left(key, now)? {
                Some(left) => credit(left, sessions),
                None => [u64::MAX; 2],
            };
            news.credits.push(Credit { key: Some(key), bytes, inodes });
        }
        Ok(())
    }
}

/// What each of so many sessions may do on its own where so much is left.
fn credit(left: [u64; 2], sessions: u64) -> [u64; 2] {
    let of = |left: u64, least: u64, most: u64| match left / sessions.saturating_mul(PART).max(1) {
        _ if left == u64::MAX => u64::MAX,
        credit if credit < least => 0,
        credit => credit.min(most),
    };
    [of(left[0], LEAST[0], MOST[0]), of(left[1], LEAST[1], MOST[1])]
}

/// Whether every server knows quotas: another would pass over them, and be another than the others
/// from then on.
pub(super) fn may_set(node: &Node) -> Result<()> {
    match node.all_know(Known::Quotas) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::NotSupported,
            "not all metadata servers are known to be of a version that knows quotas: upgrade all, \
             and try again",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_shrink_with_what_is_left_and_end_before_it_does() {
        assert_eq!(credit([u64::MAX; 2], 8), [u64::MAX; 2]);
        assert_eq!(credit([1 << 40, 1 << 30], 8), MOST);
        assert_eq!(credit([1 << 30, 10_000], 8), [32 << 20, 312]);
        assert_eq!(credit([31 << 20, 500], 8), [0, 0]);
        for sessions in [1, 3, 100] {
            for left in [0, 1, 5 << 20, 1 << 30] {
                let [bytes, inodes] = credit([left, left], sessions);
                assert!(bytes * sessions <= left / PART && inodes * sessions <= left / PART);
            }
        }
    }
}
