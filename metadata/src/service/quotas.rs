//! What quotas leave to a session that does things on its own, told with each answer.
//!
//! What was done unasked is told when it cannot be refused any more. So a session is given credits:
//! so much it may have done that the group has not heard of. They are a part of what is left,
//! divided among all mounts, and none where little is: then the session asks each time, and is
//! refused where the limit is (decision 054). Nothing is kept of what was given: a session has
//! spent no more than one credit between two answers.

use crate::node::{Known, Node};
use crate::state::Counting;
use std::collections::BTreeSet;
use v1::batch_op::step::Op as Do;
use v1::meta_request::Op;
use v1::quota_key::Kind;
use v1::quota_news::{Credit, Zone};
use weft_proto::rename::WHITEOUT;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// The largest credit, bytes and inodes.
const MOST: [u64; 2] = [64 << 20, 1024];
/// A smaller one is of no use.
const LEAST: [u64; 2] = [1 << 20, 16];
/// Of what is left, this part is given to all sessions together.
const PART: u64 = 4;
/// Requests that add as much at the same time: none of them is decided by the others.
const AT_ONCE: u64 = 16;
/// More than this, bytes and inodes, they add hardly ever.
const MOST_AT_ONCE: [u64; 2] = [64 << 20, 16];
/// What an inode comes to that is not looked at for it: few are larger than what is left then.
const WHOLE_INODE: [u64; 2] = [MOST_AT_ONCE[0], 1];
/// Inodes, and quotas, of one request that are looked at.
const MAX_TOLD: usize = 64;

/// What a request is about, as to quotas.
#[derive(Default)]
pub(super) struct About {
    inos: BTreeSet<u64>,
    owners: BTreeSet<(u32, u32)>,
    /// And about others, too many to be looked at.
    more: bool,
    /// Bytes and inodes that it adds, at most.
    adds: [u64; 2],
}

impl Counting {
    /// All that it counts for.
    fn keys(&self) -> impl Iterator<Item = (Kind, u64)> {
        let tree = (self.zone != 0).then_some((Kind::Tree, self.zone));
        tree.into_iter().chain(owners((self.uid, self.gid)))
    }
}

fn owners((uid, gid): (u32, u32)) -> [(Kind, u64); 2] {
    [(Kind::User, uid.into()), (Kind::Group, gid.into())]
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
            Some(Op::Link(op)) => about.moves(node, op.ino, op.parent),
            Some(Op::Rename(op)) => {
                about.moves(node, op.parent, op.new_parent);
                about.adds[1] += u64::from(op.flags & WHITEOUT != 0);
            }
            Some(Op::CommitExtents(op)) => {
                about.writes(op.ino);
                about.adds[0] = op.extents.iter().fold(0, |sum, e| sum.saturating_add(e.len));
            }
            Some(Op::Fallocate(op)) => about.writes(op.ino),
            Some(Op::CopyRange(op)) => {
                about.writes(op.to);
                about.adds[0] = op.len;
            }
            Some(Op::SetAttr(op)) if (op.uid, op.gid) != (None, None) => {
                about.makes(op.ino, op.uid.unwrap_or_default(), op.gid.unwrap_or_default());
                about.adds = WHOLE_INODE;
            }
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

    /// What counts where the first inode does comes to count where the second one does.
    fn moves(&mut self, node: &Node, from: u64, to: u64) {
        self.writes(from);
        self.writes(to);
        let zone = |ino| node.state.zone(InodeId(ino)).ok().flatten().map(|of| of.zone);
        if zone(from).is_none_or(|from| zone(to) != Some(from)) {
            self.adds = WHOLE_INODE;
        }
    }

    fn makes(&mut self, parent: u64, uid: u32, gid: u32) {
        self.adds[1] += 1;
        self.writes(parent);
        if self.owners.len() < MAX_TOLD {
            self.owners.insert((uid, gid));
        } else {
            self.more |= !self.owners.contains(&(uid, gid));
        }
    }

    fn writes(&mut self, ino: u64) {
        if self.inos.len() < MAX_TOLD {
            self.inos.insert(ino);
        } else {
            self.more |= !self.inos.contains(&ino);
        }
    }

    /// Whether it matters for the answer that what has lost its last name is purged: who adds to
    /// what little is left would be refused for what was removed just before.
    pub fn is_decided_by_a_purge(&self, node: &Node, op: &Op) -> bool {
        match op {
            Op::GetQuota(op) => op.purged,
            Op::ListQuotas(_) => true,
            // They add nothing, or what was done already, which is not refused.
            Op::Open(_) | Op::Lease(_) | Op::Batch(_) | Op::MakeFiles(_) => false,
            // Who cannot tell does not wait.
            _ => self.is_near_a_limit(node).unwrap_or(false),
        }
    }

    fn is_near_a_limit(&self, node: &Node) -> Result<bool> {
        if self.adds == [0, 0] {
            return Ok(false);
        }
        let needs = [0, 1].map(|what| needed(self.adds[what], MOST_AT_ONCE[what]));
        let mut keys = BTreeSet::new();
        for &ino in &self.inos {
            let Some(of) = node.state.zone(InodeId(ino))? else { continue };
            if of.is_orphan {
                // The purge may wait for this.
                return Ok(false);
            }
            keys.extend(of.keys());
        }
        keys.extend(self.owners.iter().flat_map(|owner| owners(*owner)));
        let now = node.env.clock.now_ns();
        for (kind, id) in keys {
            let left = node.state.left(v1::QuotaKey { kind: kind.into(), id }, now)?;
            if left.is_some_and(|left| left[0] < needs[0] || left[1] < needs[1]) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds to an answer what its session may do. Who fails leaves it with nothing.
    pub fn tell(self, node: &Node, reply: &mut v1::MetaReply) -> Result<()> {
        let limits = node.state.limits();
        // Without more, all is asked for.
        let (owners, version) = *limits.as_ref().unwrap_or(&(true, 0));
        let news = v1::QuotaNews { owners, version, more: true, ..Default::default() };
        let news = reply.quota.insert(news);
        let mut keys = BTreeSet::new();
        for grant in reply.grants.iter_mut().filter(|grant| grant.write || grant.records > 0) {
            if let Some(of) = node.state.zone(InodeId(grant.ino))? {
                grant.quota = of.zone;
                keys.extend(of.keys());
            }
        }
        for ino in self.inos {
            if let Some(of) = node.state.zone(InodeId(ino))? {
                news.zones.push(Zone { ino, quota: of.zone });
                keys.extend(of.keys());
            }
        }
        keys.extend(self.owners.into_iter().flat_map(self::owners));
        limits?;
        if !owners {
            keys.retain(|(kind, _)| *kind == Kind::Tree);
        }
        // Of those that are left out a session may have spent what it was told before.
        let more = self.more || keys.len() > MAX_TOLD;
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
        news.more = more;
        Ok(())
    }
}

/// What must be left, so that what is added by a request, and by others at the same time, is not
/// refused.
fn needed(added: u64, most_at_once: u64) -> u64 {
    added.saturating_mul(AT_ONCE).min(most_at_once.max(added))
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
    fn what_is_added_decides_how_much_must_be_left() {
        assert_eq!([0, 1, 4096, 20 << 20].map(|n| needed(n, 64 << 20)), [0, 16, 65536, 64 << 20]);
        assert_eq!(needed(1 << 30, 64 << 20), 1 << 30);
    }

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
