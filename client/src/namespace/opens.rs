//! What is open on this mount, and what the metadata leader knows of it: an inode that is open
//! outlives its last name.
//!
//! The leader is told of an open, unless this mount has a lease on the inode: it is then asked, by
//! a recall, before the inode is removed.
//!
//! Invariants: an inode is in the table from before its lease is looked at, or anybody is asked,
//! until its last close, so that no answer to a recall and no declaration misses it; what the
//! leader may have been told to be open, it is told to be closed; a close takes effect only if no
//! newer open was declared.

use super::open_table::{Open, Table};
use super::requests::Requests;
use crate::meta::Sessions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::{debug, warn};
use weft_net::sync::Mutex;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Closes are gathered for this long: nobody waits for them, and one burst wakes everyone on its
/// way once.
const GATHER_INTERVAL: Duration = Duration::from_millis(20);
/// Most of them in one request, which may be so long only.
const MAX_CLOSES: usize = 1 << 10;
/// Most inodes that are open: the group refuses a session with over 2^20 altogether. What is opened
/// at the same time as the last may be more.
const MAX_OPEN: usize = (1 << 20) - (1 << 14);
/// Pause before a close that did not get through is told again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Opens {
    requests: Arc<Requests>,
    sessions: Arc<Sessions>,
    pub(super) table: Mutex<Table>,
    /// Numbers of opens; they grow over all sessions of the mount.
    pub(super) last: AtomicU64,
    /// Closes that the leader was not told yet.
    closes: Arc<Mutex<Vec<v1::close_op::Item>>>,
    /// Shared with whoever tells it.
    pub(super) telling: Arc<()>,
    declarations: watch::Sender<u64>,
    /// How often the rights to map were lost, with the session. Changes under the lock of the
    /// table.
    losses: AtomicU64,
    /// Wakes who waits for the end of a mapping.
    unmapped: watch::Sender<()>,
    /// A new leader waits for the declaration.
    pub declare_now: Notify,
    /// The newest that was heard of.
    leader_term: AtomicU64,
    /// The session of now was not told what is open: it was of an earlier one.
    undeclared: AtomicBool,
}

impl Opens {
    pub fn new(requests: Arc<Requests>, sessions: Arc<Sessions>) -> Self {
        Self {
            requests,
            sessions,
            table: Mutex::default(),
            last: AtomicU64::new(0),
            closes: Arc::default(),
            telling: Arc::default(),
            declarations: watch::Sender::new(0),
            losses: AtomicU64::new(0),
            unmapped: watch::Sender::default(),
            declare_now: Notify::new(),
            leader_term: AtomicU64::new(0),
            undeclared: AtomicBool::new(false),
        }
    }

    /// Whether the inode is open, or about to be.
    pub fn is_open(&self, ino: InodeId) -> bool {
        self.table.lock().0.contains_key(&ino)
    }

    /// A number for an open.
    pub fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether one more inode may be open. Error: `TooManyOpen`.
    pub fn have_room(&self) -> Result<()> {
        if self.table.lock().0.len() < MAX_OPEN {
            return Ok(());
        }
        let what = format!("{MAX_OPEN} inodes are open on this mount, and no more may be");
        Err(Error::new(ErrorKind::TooManyOpen, what))
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

    /// The leader is about to be told whether the inode is open. Answers the number of the newest
    /// open, or 0 if it is not.
    pub fn tell(&self, ino: InodeId) -> u64 {
        self.table.lock().tell(ino)
    }

    /// The caller may map the inode, which is open, to write through one more handle: the right to
    /// that is about to be asked for, and needed meanwhile. Answers what [`Self::map`] has to be
    /// given.
    pub fn begin_to_map(&self, ino: InodeId) -> u64 {
        let mut table = self.table.lock();
        if let Some(open) = table.0.get_mut(&ino) {
            open.asking += 1;
        }
        self.losses.load(Ordering::Relaxed)
    }

    /// The right was granted or not. Answers whether this mount has it, for all its handles of the
    /// inode, until [`Self::unmap`] of the last.
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

    /// Tells the leader that the inode is open, and asks for a lease. Errors: `Stale` if it is
    /// gone.
    pub async fn declare(&self, ino: InodeId, write: bool) -> Result<v1::OpenReply> {
        let op = v1::OpenOp { ino: ino.0, open_seq: self.tell(ino), write };
        match self.requests.ask(Op::Open(op)).await? {
            Reply::Open(reply) => Ok(reply),
            _ => {
                let what = "the reply to an open is of another kind";
                Err(Error::new(ErrorKind::Protocol, what))
            }
        }
    }

    /// One open less. After the last, the leader is told behind the caller's back, as often as it
    /// takes to reach it.
    pub fn end(&self, ino: InodeId) {
        let Some(close) = self.table.lock().end(ino) else { return };
        let mut closes = self.closes.lock();
        closes.push(close);
        if closes.len() > 1 {
            return;
        }
        let (requests, sessions) = (self.requests.clone(), self.sessions.clone());
        let (closes, telling) = (self.closes.clone(), self.telling.clone());
        tokio::spawn(async move {
            sleep(GATHER_INTERVAL).await;
            let _until_told = telling;
            let items = std::mem::take(&mut *closes.lock());
            for items in items.chunks(MAX_CLOSES) {
                let op = Op::Close(v1::CloseOp { items: items.to_vec() });
                while let Err(error) = requests.ask(op.clone()).await {
                    let passes = matches!(
                        error.kind,
                        ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::SessionExpired
                    );
                    if !passes || sessions.have_ended() {
                        let what = "the leader was not told of closes";
                        warn!(%error, "{what}; the session's end tells it");
                        return;
                    }
                    debug!(%error, "closes did not get through; trying on");
                    sleep(RETRY_INTERVAL).await;
                }
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

    /// A leader of this term has answered.
    pub fn hear_leader(&self, term: u64) {
        self.leader_term.fetch_max(term, Ordering::AcqRel);
    }

    /// The term of the newest leader that has answered; 0: none that says so.
    pub fn leader_term(&self) -> u64 {
        self.leader_term.load(Ordering::Acquire)
    }

    /// The session is another one, which was told nothing yet.
    pub fn owe_declaration(&self) {
        self.undeclared.store(true, Ordering::Release);
    }

    /// Everything was declared in the session of now.
    pub fn declared(&self) {
        self.undeclared.store(false, Ordering::Release);
    }

    pub fn owes_declaration(&self) -> bool {
        self.undeclared.load(Ordering::Acquire)
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

    /// What a new leader is to be told: up to `limit` inodes behind `after`, in order. What is
    /// opened while the declaration goes on is told by itself: no lease to read is held then.
    pub fn declare_some(&self, after: Option<InodeId>, limit: usize) -> Vec<v1::OpenOp> {
        self.table.lock().tell_some(after, limit)
    }
}
