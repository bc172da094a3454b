//! What is open on this mount, and what the metadata leader knows of it: an inode that is open outlives
//! its last name.
//!
//! The leader is told of an open, unless this mount has a lease on the inode: it is then asked, by a
//! recall, before the inode is removed.
//!
//! Invariants: an inode is in the table from before its lease is looked at, or anybody is asked, until
//! its last close, so that no answer to a recall and no declaration misses it; what the leader may have
//! been told to be open, it is told to be closed; a close takes effect only if no newer open was
//! declared.

use crate::meta::Meta;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::{debug, warn};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Closes are gathered for this long: nobody waits for them, and one burst wakes everyone on its
/// way once.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before a close that did not get through is told again.
const AGAIN: Duration = Duration::from_secs(1);

/// Open inodes.
#[derive(Default)]
struct Table(BTreeMap<InodeId, Open>);

struct Open {
    /// Handles, and opens under way.
    count: u32,
    /// The number of the newest open.
    newest: u64,
    /// The leader may know of it.
    told: bool,
    /// Handles through which the caller may map it to write.
    both: u32,
    /// Those for which the right to that is being asked for.
    asking: u32,
    /// This mount has that right.
    entitled: bool,
}

impl Open {
    fn needs_right(&self) -> bool {
        self.asking > 0 || (self.entitled && self.both > 0)
    }
}

impl Table {
    fn begin(&mut self, ino: InodeId, number: u64) {
        let new = Open { count: 0, newest: 0, told: false, both: 0, asking: 0, entitled: false };
        let open = self.0.entry(ino).or_insert(new);
        open.count += 1;
        open.newest = open.newest.max(number);
    }

    /// The leader is about to be told of it: the number of the newest open, or 0 if it is not open.
    fn tell(&mut self, ino: InodeId) -> u64 {
        self.0.get_mut(&ino).map_or(0, |open| {
            open.told = true;
            open.newest
        })
    }

    /// The leader is about to be told of up to `limit` inodes behind `after`, in order.
    fn tell_some(&mut self, after: Option<InodeId>, limit: usize) -> Vec<v1::OpenOp> {
        let tell = |(ino, open): (&InodeId, &mut Open)| {
            open.told = true;
            v1::OpenOp { ino: ino.0, open_seq: open.newest, write: false }
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range_mut((from, Bound::Unbounded)).take(limit).map(tell).collect()
    }

    fn maps(&self) -> Vec<InodeId> {
        self.0.iter().filter(|(_, open)| open.needs_right()).map(|(ino, _)| *ino).collect()
    }

    /// Answers what the leader is to be told.
    fn end(&mut self, ino: InodeId) -> Option<v1::close_op::Item> {
        let open = self.0.get_mut(&ino)?;
        open.count -= 1;
        if open.count > 0 {
            return None;
        }
        let close = v1::close_op::Item { ino: ino.0, open_seq: open.newest };
        self.0.remove(&ino)?.told.then_some(close)
    }
}

pub(crate) struct Opens {
    meta: Arc<Meta>,
    table: Mutex<Table>,
    /// Numbers of opens; they grow over all sessions of the mount.
    last: AtomicU64,
    /// Closes that the leader was not told yet.
    closes: Arc<Mutex<Vec<v1::close_op::Item>>>,
    declarations: watch::Sender<u64>,
    /// How often the rights to map were lost, with the session. Changes under the lock of the table.
    losses: AtomicU64,
    /// Wakes who waits for the end of a mapping.
    unmapped: watch::Sender<()>,
    /// A new leader waits for the declaration.
    pub declare_now: Notify,
}

impl Opens {
    pub fn new(meta: Arc<Meta>) -> Self {
        Self {
            meta,
            table: Mutex::default(),
            last: AtomicU64::new(0),
            closes: Arc::default(),
            declarations: watch::Sender::new(0),
            losses: AtomicU64::new(0),
            unmapped: watch::Sender::default(),
            declare_now: Notify::new(),
        }
    }

    /// A number for an open.
    pub fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The inode is open, or about to be, until [`Self::end`]. Answers the number of this open.
    pub fn begin(&self, ino: InodeId) -> u64 {
        let number = self.number();
        self.table.lock().begin(ino, number);
        number
    }

    /// The inode was opened under this number by what made it, and the leader knows.
    pub fn made(&self, ino: InodeId, number: u64) {
        let mut table = self.table.lock();
        table.begin(ino, number);
        table.tell(ino);
    }

    /// The leader is about to be told whether the inode is open. Answers the number of the newest open,
    /// or 0 if it is not.
    pub fn tell(&self, ino: InodeId) -> u64 {
        self.table.lock().tell(ino)
    }

    /// The caller may map the inode, which is open, to write through one more handle: the right to that
    /// is about to be asked for, and needed meanwhile. Answers what [`Self::map`] has to be given.
    pub fn begin_to_map(&self, ino: InodeId) -> u64 {
        let mut table = self.table.lock();
        if let Some(open) = table.0.get_mut(&ino) {
            open.asking += 1;
        }
        self.losses.load(Ordering::Relaxed)
    }

    /// The right was granted or not. Answers whether this mount has it, for all its handles of the inode,
    /// until [`Self::unmap`] of the last.
    pub fn map(&self, ino: InodeId, begun: u64, granted: bool) -> bool {
        let mut table = self.table.lock();
        let granted = granted && self.losses.load(Ordering::Relaxed) == begun;
        let entitled = table.0.get_mut(&ino).is_some_and(|open| {
            open.asking -= 1;
            open.both += 1;
            open.entitled |= granted;
            open.entitled
        });
        drop(table);
        self.unmapped.send_replace(());
        entitled
    }

    /// The caller maps the inode no more through one of its handles.
    pub fn unmap(&self, ino: InodeId) {
        if let Some(open) = self.table.lock().0.get_mut(&ino) {
            open.both -= 1;
            open.entitled &= open.both > 0;
        }
        self.unmapped.send_replace(());
    }

    /// The session that had the rights to map is over: others may have them now.
    pub fn lose_rights_to_map(&self) {
        let mut table = self.table.lock();
        self.losses.fetch_add(1, Ordering::Relaxed);
        table.0.values_mut().for_each(|open| open.entitled = false);
    }

    /// Whether the caller may map the inode to write.
    pub fn may_be_mapped(&self, ino: InodeId) -> bool {
        self.table.lock().0.get(&ino).is_some_and(|open| open.both > 0)
    }

    /// Whether it may although this mount has not the right to that.
    pub fn maps_without_right(&self, ino: InodeId) -> bool {
        let table = self.table.lock();
        table.0.get(&ino).is_some_and(|open| open.both > 0 && !open.entitled)
    }

    /// Whether this mount needs the right to map an inode to write.
    pub fn maps(&self, ino: InodeId) -> bool {
        self.table.lock().0.get(&ino).is_some_and(Open::needs_right)
    }

    /// Those that it needs the right to map.
    pub fn all_maps(&self) -> Vec<InodeId> {
        self.table.lock().maps()
    }

    /// News of the ends of mappings.
    pub fn unmapped(&self) -> watch::Receiver<()> {
        self.unmapped.subscribe()
    }

    /// Tells the leader that the inode is open, and asks for a lease. Errors: `Stale` if it is gone.
    pub async fn declare(&self, ino: InodeId, write: bool) -> Result<v1::OpenReply> {
        let op = v1::OpenOp { ino: ino.0, open_seq: self.tell(ino), write };
        match self.meta.ask(Op::Open(op)).await? {
            Reply::Open(reply) => Ok(reply),
            _ => {
                let what = "the reply to an open is of another kind";
                Err(Error::new(ErrorKind::Protocol, what))
            }
        }
    }

    /// One open less. After the last, the leader is told behind the caller's back, as often as it takes to
    /// reach it.
    pub fn end(&self, ino: InodeId) {
        let Some(close) = self.table.lock().end(ino) else { return };
        let mut closes = self.closes.lock();
        closes.push(close);
        if closes.len() > 1 {
            return;
        }
        let (meta, closes) = (self.meta.clone(), self.closes.clone());
        tokio::spawn(async move {
            sleep(GATHER).await;
            let items = std::mem::take(&mut *closes.lock());
            let op = Op::Close(v1::CloseOp { items });
            while let Err(error) = meta.ask(op.clone()).await {
                let passes = matches!(
                    error.kind,
                    ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::SessionExpired
                );
                if !passes || meta.sessions.have_ended() {
                    warn!(%error, "the leader was not told of closes; the session's end tells it");
                    return;
                }
                debug!(%error, "closes did not get through; trying on");
                sleep(AGAIN).await;
            }
        });
    }

    /// The end of the session closes what is open in it: nothing is left to tell.
    pub fn end_with_session(&self) {
        self.closes.lock().clear();
    }

    /// How often all opens were declared: if that happened while an inode was being made, a new
    /// leader may not know that it is open.
    pub fn declarations(&self) -> u64 {
        *self.declarations.borrow()
    }

    /// Has everything declared once more; returns when that has begun.
    pub async fn declare_again(&self) {
        let mut declarations = self.declarations.subscribe();
        self.declare_now.notify_one();
        // Fails only if the sender is gone, which is `self`.
        let _ = declarations.changed().await;
    }

    /// How many inodes are open.
    pub fn count(&self) -> u64 {
        self.table.lock().0.len() as u64
    }

    /// Begins to declare everything. Answers the number of the declaration.
    pub fn begin_declaration(&self) -> u64 {
        self.declarations.send_modify(|n| *n += 1);
        self.declarations()
    }

    /// What a new leader is to be told: up to `limit` inodes behind `after`, in order. What is opened while
    /// the declaration goes on is told by itself: no lease to read is held then.
    pub fn declare_some(&self, after: Option<InodeId>, limit: usize) -> Vec<v1::OpenOp> {
        self.table.lock().tell_some(after, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeId = InodeId(5);

    fn open(open_seq: u64) -> v1::OpenOp {
        v1::OpenOp { ino: INO.0, open_seq, write: false }
    }

    fn close(open_seq: u64) -> v1::close_op::Item {
        v1::close_op::Item { ino: INO.0, open_seq }
    }

    #[test]
    fn the_last_close_is_of_the_newest_open() {
        let mut table = Table::default();
        table.begin(INO, 2);
        table.begin(INO, 1);
        assert_eq!(table.tell(INO), 2);
        assert_eq!(table.end(INO), None, "it is open still");
        assert_eq!(table.end(INO), Some(close(2)));
        assert_eq!((table.end(INO), table.tell(INO)), (None, 0));
    }

    #[test]
    fn what_the_leader_never_heard_of_is_not_closed_there() {
        let mut table = Table::default();
        table.begin(INO, 1);
        assert_eq!(table.end(INO), None);
        assert!(table.tell_some(None, 9).is_empty());
    }

    /// It was under a lease, and nobody asked.
    #[test]
    fn what_was_declared_to_a_new_leader_is_closed_there() {
        let mut table = Table::default();
        table.begin(INO, 1);
        assert_eq!(table.tell_some(None, 9), [open(1)]);
        assert_eq!(table.end(INO), Some(close(1)));
    }

    #[test]
    fn very_many_are_declared_in_pieces() {
        let mut table = Table::default();
        (1..=5).for_each(|ino| table.begin(InodeId(ino), 10 + ino));
        let mut told = Vec::new();
        for expected in [2, 2, 1, 0] {
            let piece = table.tell_some(told.last().copied().map(InodeId), 2);
            assert_eq!(piece.len(), expected);
            told.extend(piece.iter().map(|open| open.ino));
        }
        assert_eq!(told, [1, 2, 3, 4, 5]);
    }

    /// A recall comes after the lease was looked at, and is answered before the open is.
    #[test]
    fn an_open_under_way_is_in_the_answer_to_a_recall() {
        let mut table = Table::default();
        table.begin(INO, 1);
        assert_eq!(table.tell(INO), 1);
        // It failed.
        assert_eq!(table.end(INO), Some(close(1)));
    }

    /// The leader may have heard of the one that failed: the close has to name it.
    #[test]
    fn an_open_that_fails_closes_nothing_that_is_open() {
        let mut table = Table::default();
        table.begin(INO, 1);
        table.begin(INO, 2);
        assert_eq!(table.tell(INO), 2);
        assert_eq!(table.end(INO), None);
        assert_eq!(table.tell_some(None, 9), [open(2)]);
        assert_eq!(table.end(INO), Some(close(2)));
    }
}
