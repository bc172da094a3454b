//! What quotas leave to this mount: how much it may do on its own between two answers of the group
//! (decision 054).
//!
//! Invariant: no more bytes are buffered under limits, in all files together, than the credit of
//! any of them allows; what is not known to have a credit has none. Where no quota was ever set,
//! nobody looks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use v1::quota_key::Kind;
use weft_net::sync::Mutex;
use weft_proto::v1;
use weft_proto::v1::meta_request::Op;

/// A directory whose quota is not known.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// Credits: bytes and inodes. None is as large as this one.
const NO_LIMIT: [u64; 2] = [u64::MAX; 2];

pub(crate) struct Quotas {
    /// There are some.
    on: AtomicBool,
    /// Of users and groups, too.
    owners: AtomicBool,
    credits: Mutex<Credits>,
    /// Those that are taken are for bytes that are buffered under limits.
    spent: Arc<Semaphore>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            on: AtomicBool::new(false),
            owners: AtomicBool::new(false),
            credits: Mutex::default(),
            spent: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        }
    }
}

/// Those that were told, under this version of all limits.
#[derive(Default)]
struct Credits {
    version: u64,
    of: HashMap<v1::QuotaKey, [u64; 2]>,
}

/// Whether bytes may stay in a buffer.
pub(crate) enum Spent {
    /// No limit is near.
    Nothing,
    /// Within the credit, for as long as this is held.
    Credit(OwnedSemaphorePermit),
    /// They are to be committed before anything else is written.
    TooMuch,
}

impl Quotas {
    /// Whether there are any.
    pub fn are_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether users or groups have some: who owns what is not changed unasked.
    pub fn have_owners(&self) -> bool {
        self.are_on() && self.owners.load(Ordering::Relaxed)
    }

    /// Takes in what came with an answer.
    pub fn learn(&self, op: Option<&Op>, reply: &v1::MetaReply) {
        let Some(news) = &reply.quota else {
            let tells = matches!(op, Some(Op::Batch(_) | Op::Renew(_) | Op::CommitExtents(_)));
            if tells && self.are_on() {
                self.on.store(false, Ordering::Relaxed);
                *self.credits.lock() = Credits::default();
            }
            return;
        };
        let mut credits = self.credits.lock();
        if news.more {
            credits.of.clear();
        }
        if news.version < credits.version {
            // It was overtaken.
            return;
        }
        if news.version > credits.version {
            *credits = Credits { version: news.version, ..Credits::default() };
        }
        for credit in &news.credits {
            if let Some(key) = credit.key {
                credits.of.insert(key, [credit.bytes, credit.inodes]);
            }
        }
        self.owners.store(news.owners, Ordering::Relaxed);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Something was refused: what was told before is used up.
    pub fn refused(&self) {
        self.credits.lock().of.clear();
    }

    /// The credit for what counts for the quota of a directory, and belongs to a user and a group.
    pub(super) fn credit(&self, zone: u64, (uid, gid): (u32, u32)) -> [u64; 2] {
        if !self.are_on() {
            return NO_LIMIT;
        }
        let tree = (zone != 0).then_some((Kind::Tree, zone));
        let owners = [(Kind::User, uid.into()), (Kind::Group, gid.into())];
        let owners = owners.into_iter().filter(|_| self.have_owners());
        let credits = self.credits.lock();
        let of = |(kind, id): (Kind, u64)| {
            let key = v1::QuotaKey { kind: kind.into(), id };
            credits.of.get(&key).copied().unwrap_or_default()
        };
        let all = tree.into_iter().chain(owners).map(of);
        all.fold(NO_LIMIT, |a, b| [a[0].min(b[0]), a[1].min(b[1])])
    }

    /// Whether one more inode may be made unasked, beside `pending` changes that wait to be told.
    pub(super) fn may_make(&self, zone: u64, owner: (u32, u32), pending: usize) -> bool {
        !self.are_on() || (pending as u64) < self.credit(zone, owner)[1]
    }

    /// Whether so many bytes more may stay in a buffer.
    pub(super) fn spend(&self, zone: u64, owner: (u32, u32), len: usize) -> Spent {
        let credit = self.credit(zone, owner)[0];
        if credit == u64::MAX {
            return Spent::Nothing;
        }
        let taken = u32::try_from(len).ok();
        let taken = taken.and_then(|len| self.spent.clone().try_acquire_many_owned(len).ok());
        let spent = (Semaphore::MAX_PERMITS - self.spent.available_permits()) as u64;
        match taken {
            Some(taken) if spent <= credit => Spent::Credit(taken),
            _ => Spent::TooMuch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(credits: &[(Kind, u64, u64, u64)], owners: bool) -> v1::MetaReply {
        let credits = credits.iter().map(|&(kind, id, bytes, inodes)| {
            let key = Some(v1::QuotaKey { kind: kind.into(), id });
            v1::quota_news::Credit { key, bytes, inodes }
        });
        let quota =
            Some(v1::QuotaNews { credits: credits.collect(), owners, ..Default::default() });
        v1::MetaReply { quota, ..Default::default() }
    }

    #[test]
    fn no_more_is_buffered_than_the_smallest_credit() {
        let quotas = Quotas::default();
        assert!(matches!(quotas.spend(0, (1, 1), 1 << 20), Spent::Nothing));
        let told = [(Kind::Tree, 7, 300, 5), (Kind::User, 1, 200, 9), (Kind::Group, 1, 900, 9)];
        quotas.learn(None, &news(&told, true));
        let Spent::Credit(first) = quotas.spend(7, (1, 1), 150) else { panic!("no credit") };
        assert!(matches!(quotas.spend(7, (1, 1), 100), Spent::TooMuch));
        // What was committed counts no more.
        drop(first);
        assert!(matches!(quotas.spend(7, (1, 1), 200), Spent::Credit(_)));
        assert!(quotas.may_make(7, (1, 1), 4) && !quotas.may_make(7, (1, 1), 5));
        // Under other limits, and of others, nothing is known yet.
        let mut other = news(&[(Kind::Tree, 9, 5, 5)], true);
        other.quota.as_mut().unwrap().version = 1;
        quotas.learn(None, &other);
        quotas.learn(None, &news(&told, true));
        assert!(!quotas.may_make(7, (1, 1), 0));
        assert!(matches!(quotas.spend(7, (2, 1), 1), Spent::TooMuch));
        assert!(!quotas.may_make(8, (1, 1), 0));
        quotas.learn(Some(&Op::Batch(Default::default())), &v1::MetaReply::default());
        assert!(matches!(quotas.spend(8, (2, 2), 1 << 20), Spent::Nothing));
    }

    #[test]
    fn users_do_not_count_where_only_directories_have_limits() {
        let quotas = Quotas::default();
        quotas.learn(None, &news(&[(Kind::Tree, 7, u64::MAX, u64::MAX)], false));
        assert!(matches!(quotas.spend(7, (1, 1), 1), Spent::Nothing));
        assert!(quotas.may_make(7, (1, 1), 1 << 20) && quotas.may_make(0, (1, 1), 1 << 20));
    }
}
