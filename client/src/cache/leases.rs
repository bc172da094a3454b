//! What this mount may do without asking: with an inode that it has a lease on, while the session
//! lives for certain.
//!
//! Invariant (I6): nothing is used after the lease was given up, or after the session may have been
//! declared dead. When it is not known what became of a change, everything that could be concerned
//! is forgotten.

use super::name_cache::NameCache;
use super::quotas::{Quotas, Spent, UNKNOWN};
use super::table::{Mode, Right, Start, Table};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use weft_net::sync::Mutex;
use weft_proto::planted::{self, Bug};
use weft_proto::{InodeId, SessionId, v1};

pub(crate) struct Leases {
    origin: Instant,
    /// Nanoseconds after `origin` until which the session lives for certain.
    until: AtomicU64,
    renewals: Notify,
    pub(super) table: Mutex<Table>,
    /// What they leave to this mount.
    pub quotas: Quotas,
    /// What is given up without having been recalled, and the leader was not told yet.
    pub(super) surplus: Mutex<Vec<(InodeId, u64)>>,
    pub surplus_grew: Notify,
    /// What the leader is being told of that.
    pub(super) giving: Mutex<HashMap<InodeId, u64>>,
    /// Inodes whose recall was carried out, and how many answers to one are under way.
    pub(super) returning: watch::Sender<HashMap<InodeId, usize>>,
    /// Inodes whose leases are being given up, each with the session that was asked for them.
    pub(super) releasing: watch::Sender<HashSet<(SessionId, InodeId)>>,
    /// What caches names and attributes above.
    pub(super) above: OnceLock<Arc<dyn NameCache>>,
}

impl Default for Leases {
    fn default() -> Self {
        let origin = Instant::now();
        Self {
            origin,
            until: AtomicU64::new(0),
            renewals: Notify::new(),
            table: Mutex::new(Table::new(origin)),
            quotas: Quotas::default(),
            surplus: Mutex::default(),
            surplus_grew: Notify::new(),
            giving: Mutex::default(),
            returning: watch::Sender::default(),
            releasing: watch::Sender::default(),
            above: OnceLock::new(),
        }
    }
}

impl Leases {
    /// The leader heard of the session after `sent`, and declares it dead no earlier than `ttl`
    /// later; clocks may run at different speed.
    pub fn renewed(&self, sent: Instant, ttl: Duration) {
        let trusted = if planted::is(Bug::LeaseOutlivesSession) { 3.0 } else { 0.9 };
        let until = sent + ttl.mul_f64(trusted);
        let nanos = until.saturating_duration_since(self.origin).as_nanos() as u64;
        self.until.fetch_max(nanos, Ordering::Release);
        self.renewals.notify_one();
    }

    /// Returns when nothing is to be used any more because the session was not renewed in time.
    pub async fn lapsed(&self) {
        while self.live() {
            sleep_until(self.origin + Duration::from_nanos(self.until.load(Ordering::Acquire)))
                .await;
        }
    }

    /// Returns when the session lives for certain. Only one may wait.
    pub async fn revived(&self) {
        while !self.live() {
            self.renewals.notified().await;
        }
    }

    /// Whether the session lives for certain.
    pub fn live(&self) -> bool {
        !self.left().is_zero()
    }

    /// How long it lives for certain from now on.
    pub fn left(&self) -> Duration {
        let now = Instant::now().saturating_duration_since(self.origin).as_nanos() as u64;
        Duration::from_nanos(self.until.load(Ordering::Acquire).saturating_sub(now))
    }

    /// To be called before a request is sent.
    pub fn start(&self) -> Start {
        Start(self.table.lock().epoch)
    }

    /// What may be done with an inode without asking.
    pub fn mode(&self, ino: InodeId) -> Option<Mode> {
        let mode = self.table.lock().inodes.get(&ino).map(|held| held.mode);
        mode.filter(|_| self.live())
    }

    /// Whether writes may be buffered.
    pub fn may_buffer(&self, ino: InodeId) -> bool {
        self.mode(ino) == Some(Mode::Write)
    }

    /// Whether what is committed of the inode was buffered under the right to write it, or ranges
    /// of it, or may have been.
    pub fn writes(&self, ino: InodeId) -> bool {
        self.table.lock().rights(ino).next().is_some()
    }

    /// Whether the right to write was not recalled, whether or not it may be used now.
    pub fn has_right_to_write(&self, ino: InodeId) -> bool {
        self.table.lock().inodes.get(&ino).is_some_and(|held| held.mode == Mode::Write)
    }

    /// The right under which writes may be buffered now.
    pub fn right_to_write(&self, ino: InodeId) -> Option<Right> {
        let table = self.table.lock();
        let right = table.inodes.get(&ino).filter(|held| held.mode == Mode::Write);
        right.map(|held| Right(held.since)).filter(|_| self.live())
    }

    /// The directory whose quota counts what is done to an inode under its lease.
    fn zone(&self, ino: InodeId) -> u64 {
        let table = self.table.lock();
        let of_ranges = || table.ranges.get(&ino).map(|lease| lease.quota);
        let held = table.inodes.get(&ino).filter(|held| held.mode == Mode::Write || held.flushing);
        held.map(|held| held.quota).or_else(of_ranges).unwrap_or(UNKNOWN)
    }

    /// Whether so many bytes more of a file, which belongs to this user and group, may stay in a
    /// buffer.
    pub fn spend(&self, ino: InodeId, owner: (u32, u32), len: usize) -> Spent {
        match self.quotas.are_on() {
            true => self.quotas.spend(self.zone(ino), owner, len),
            false => Spent::Nothing,
        }
    }

    /// Whether what is written to a file is to be committed at once, so that who writes hears of a
    /// limit.
    pub fn has_no_credit(&self, ino: InodeId, owner: (u32, u32)) -> bool {
        self.quotas.are_on() && self.quotas.credit(self.zone(ino), owner)[0] == 0
    }

    /// While the lease may be over: the right under which these bytes are kept that were stored
    /// under it.
    /// It is kept ([`Self::keeps`]) if the lease turns out to have lasted.
    pub fn right_in_doubt(&self, ino: InodeId, range: &Range<u64>) -> Option<Right> {
        let right = self.table.lock().right_held_to(ino, range).unwrap_or(Right::GONE);
        (!self.live()).then_some(right)
    }

    /// Whether nobody else may write what was buffered under this right: it was not given back.
    pub fn keeps(&self, ino: InodeId, right: Right) -> bool {
        self.table.lock().rights(ino).any(|held| held == right)
    }

    /// Whether locks of the file may be taken without asking.
    pub fn may_lock(&self, ino: InodeId) -> bool {
        let table = self.table.lock();
        let held = table.inodes.get(&ino);
        held.is_some_and(|held| held.mode == Mode::Write && held.locks) && self.live()
    }

    /// Whether the caller may map the file to write without asking.
    pub fn may_map(&self, ino: InodeId) -> bool {
        let table = self.table.lock();
        let held = table.inodes.get(&ino);
        held.is_some_and(|held| held.mode == Mode::Write && held.maps) && self.live()
    }
    /// It is not known what a change of this mount did.
    pub fn unsure(&self) {
        self.table.lock().forget_all();
        // It goes on by itself: the change may hold what it waits for.
        drop(self.forget_all_above());
    }

    /// The same of one inode.
    pub fn unsure_of(&self, ino: InodeId) {
        let table = &mut *self.table.lock();
        table.mark(ino);
        if let Some(held) = table.inodes.get_mut(&ino) {
            (held.attr, held.content) = (None, None);
        }
        self.forget_attr_above(ino);
    }

    /// The session is another one: nothing is held any more.
    pub fn lost(&self) {
        let table = &mut *self.table.lock();
        table.forget_all();
        table.inodes.clear();
        table.ranges.clear();
    }

    /// Gives up all but the right to write, for a declaration to a new leader. Answers what is
    /// kept.
    pub fn keep_writes(&self) -> (Vec<InodeId>, Vec<v1::HeldRange>) {
        let table = &mut *self.table.lock();
        table.forget_all();
        let mut kept: Vec<_> = table.inodes.keys().copied().collect();
        kept.sort_unstable();
        (kept, table.held_ranges())
    }
}
