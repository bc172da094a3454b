//! What is cached above this library of a file's content, in the kernel's pages, and how it is
//! taken back.
//!
//! Who fills that cache, or files there what it writes, holds the pages until its request is
//! answered; to take these back is to wait for that, and the request may wait for whoever takes
//! them back. So they are left out, and a read is answered only with what it read after.
//!
//! Invariants (I6): when everything was taken back ([`File::take_back`]), nothing that was read
//! before is used any more, and until [`Taken`] is dropped nothing fills the cache again. Where the
//! cache waits all the same for a request that had not come here yet, that one goes on, and what it
//! leaves is taken back too.
//!
//! **Shared mappings.** Nobody hears of what a program stores in pages that it maps, until the kernel writes
//! whole pages. Two mounts that had pages of one file in which programs store would so lose what the other
//! stored. Any number of mounts may map a file all the same:
//! - One mount at a time has the right to map ([`crate::opens`]; the leader keeps it): the first that opens the
//!   file to read and write. It caches as ever, under a lease to read too.
//! - Another mount that opens the file so has no pages of it but under a lease to write, which no other lease
//!   stands beside, and gives all of them back with that: before, while what was stored can be committed. Its
//!   handles go past the cache, so that only mappings are filled so, and programs that do not map never wait for it.
//!   Without that lease a request that fills a page waits for it, whoever wants the page back. So nobody does: the
//!   recall of a lease to read finds no pages there, and waits for none.
//!
//! When the time of the leases is over, pages are written back without waiting for servers that may not answer, and
//! taken back then. What they held is kept in doubt: shown to nobody, and committed only onto the content that the
//! leases were of, unless they turn out to have lasted.
//!
//! So at most one mount has pages in which it may store, what was stored is written back before another has
//! them, and each store and load takes effect in one order, as on one machine: SQLite's log and its index work. Of
//! mounts that have the file open only to read, a mapping shows what was stored after msync, munmap or close, or
//! after another mapped it to write. What that costs falls on who does it: mounts that store in one file at the
//! same time hand it to and fro, as they would on Lustre or GFS2. CephFS, NFS and JuiceFS have no such order,
//! and lose stores that share a page.

use super::{File, Wanted};
use crate::ContentCache;
use crate::files::Files;
use crate::mount::Mount;
use crate::ranges::RangeMap;
use crate::types::Via;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId};

/// A request that waits goes on after so long if the cache may wait for it.
const SOON: Duration = Duration::from_millis(2);
/// Pause before a lease that was not granted is asked for again.
const AGAIN: Duration = Duration::from_millis(2);
/// The same is looked for again at least so often.
const SELDOM: Duration = Duration::from_millis(100);
/// A read that went on and still has no answer after so long fails: the pages that it holds belong
/// to who wants to change them.
const PATIENCE: Duration = Duration::from_secs(5);
/// The round of a request that has to wait for another turn.
const NONE: u64 = u64::MAX;
/// All of a file.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// What may be cached.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Filled {
    /// What was read before this file was opened.
    #[default]
    Before,
    Since,
    Nothing,
}

/// Whether a request may go on while what is cached is taken back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Go {
    Wait,
    On,
    /// It has held its pages for too long.
    Fail,
}

struct Request {
    range: Range<u64>,
    /// It writes: what it files is there before it is answered.
    writes: bool,
    /// What was taken back when it began to read.
    round: u64,
    go: Go,
}

#[derive(Default)]
struct State {
    last: u64,
    /// Those under way, by number.
    requests: BTreeMap<u64, Request>,
    /// How often what is cached was taken back, or begun to be.
    rounds: u64,
    /// How many take it back now.
    taking: usize,
    /// What requests left there that went on meanwhile.
    left: RangeMap<()>,
    filled: Filled,
    /// How often the session ended under whose leases it was filled, and how many of these ends everything was
    /// taken back after.
    losses: u64,
    cleared: u64,
}

impl State {
    fn end(&mut self, number: u64) {
        if let Some(request) = self.requests.remove(&number)
            && request.go == Go::On
        {
            self.left.insert(request.range, ());
        }
    }
}

/// What a file knows of the cache above.
#[derive(Default)]
pub(crate) struct Above {
    state: Mutex<State>,
    /// Wakes requests that wait.
    changes: watch::Sender<()>,
    /// Held by who takes back.
    turn: tokio::sync::Mutex<()>,
}

/// A request that holds pages of the cache, until this is dropped.
pub(crate) struct Ticket<'a> {
    above: &'a Above,
    number: u64,
}

/// Nothing is cached, and nothing fills the cache until this is dropped.
pub(crate) struct Taken(Arc<File>);

impl Taken {
    pub fn is_of(&self, file: &Arc<File>) -> bool {
        Arc::ptr_eq(&self.0, file)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.above.state.lock().taking -= 1;
        self.0.above.changes.send_replace(());
    }
}

impl Above {
    /// A request that holds the pages of `range` begins. What is to fill the cache waits while that
    /// is being taken back.
    pub async fn begin(&self, range: Range<u64>, via: Via, writes: bool) -> Ticket<'_> {
        let ticket = {
            let state = &mut *self.state.lock();
            state.last += 1;
            state.filled = Filled::Since;
            let round = if state.taking == 0 { state.rounds } else { NONE };
            let request = Request { range, writes, round, go: Go::Wait };
            state.requests.insert(state.last, request);
            Ticket { above: self, number: state.last }
        };
        // What the cache itself writes, whoever takes it back waits for.
        if via == Via::Cache {
            ticket.turn().await;
        }
        ticket
    }

    /// Whether nobody takes back what is cached.
    pub fn is_open(&self) -> bool {
        self.state.lock().taking == 0
    }

    /// What may be cached of `range`, which was written past the cache.
    fn stale(&self, range: Range<u64>) -> Option<Range<u64>> {
        match self.state.lock().filled {
            Filled::Nothing => None,
            Filled::Since => Some(range),
            Filled::Before => Some(ALL),
        }
    }

    /// All is gone that was cached before this file was opened.
    fn emptied(&self) {
        let filled = &mut self.state.lock().filled;
        if *filled == Filled::Before {
            *filled = Filled::Nothing;
        }
    }

    /// Answers the losses so far.
    fn close(&self) -> u64 {
        let mut state = self.state.lock();
        state.taking += 1;
        state.rounds += 1;
        state.losses
    }

    /// The session has ended: what was stored in what is cached may have been overwritten by others.
    pub fn lose(&self) {
        self.state.lock().losses += 1;
    }

    fn is_lost(&self) -> bool {
        let state = self.state.lock();
        state.losses > state.cleared
    }

    /// Everything that was cached before so many losses is gone.
    fn clear(&self, losses: u64) {
        let mut state = self.state.lock();
        state.cleared = state.cleared.max(losses);
    }

    /// Returns when no request up to this one writes any more.
    async fn written(&self, last: u64) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let writes = self.state.lock().requests.range(..=last).any(|(_, r)| r.writes);
            if !writes || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The last request that has begun.
    fn last(&self) -> u64 {
        self.state.lock().last
    }

    /// What no request under way holds; and what those hold that write.
    fn idle(&self, page: u64) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let state = self.state.lock();
        let held = |r: &Request| whole(&r.range, page);
        let writes = state.requests.values().filter(|r| r.writes).map(held).collect();
        let mut all = RangeMap::default();
        all.insert(ALL, ());
        (without(all, &state.requests, page), writes)
    }

    /// Has requests go on for which `ranges` may wait; has reads fail that did already if `fail`.
    fn let_on(&self, ranges: &[Range<u64>], fail: bool, page: u64) {
        let mut state = self.state.lock();
        for request in state.requests.values_mut() {
            let held = whole(&request.range, page);
            if ranges.iter().any(|r| r.start < held.end && held.start < r.end) {
                request.go = match request.go {
                    Go::Wait => Go::On,
                    Go::On if fail && !request.writes => Go::Fail,
                    go => go,
                };
            }
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// What requests left that went on meanwhile. Those that are not answered yet wait again.
    fn left(&self, page: u64) -> Vec<Range<u64>> {
        let state = &mut *self.state.lock();
        for request in state.requests.values_mut().filter(|r| r.go == Go::On) {
            (request.go, request.round) = (Go::Wait, NONE);
        }
        without(std::mem::take(&mut state.left), &state.requests, page)
    }
}

impl Ticket<'_> {
    /// Waits while what is cached is taken back, unless that waits for this request. To be called
    /// again before a read is repeated.
    pub async fn turn(&self) {
        let mut changes = self.above.changes.subscribe();
        loop {
            changes.borrow_and_update();
            {
                let state = &mut *self.above.state.lock();
                let Some(request) = state.requests.get_mut(&self.number) else { return };
                if state.taking == 0 || request.go != Go::Wait {
                    request.round = state.rounds;
                    return;
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether who takes back waits for it.
    fn goes_on(&self) -> bool {
        let state = self.above.state.lock();
        state.requests.get(&self.number).is_none_or(|request| request.go != Go::Wait)
    }

    /// Returns if the request has to fail.
    pub async fn failed(&self) -> Error {
        let mut changes = self.above.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let go = self.above.state.lock().requests.get(&self.number).map(|r| r.go);
            if go == Some(Go::Fail) {
                let what = "a read takes too long, and its pages are changed elsewhere";
                return Error::new(ErrorKind::Io, what);
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The request is about to be answered. Answers whether what it holds is as good as when it was
    /// read, and is then over: if not, a read has to be repeated.
    pub fn ends(&self) -> bool {
        let state = &mut *self.above.state.lock();
        let Some(request) = state.requests.get(&self.number) else { return true };
        let good = match request.go {
            Go::Wait => request.round == state.rounds,
            Go::On => true,
            Go::Fail => false,
        };
        if good {
            state.end(self.number);
        }
        good
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.above.state.lock();
        state.end(self.number);
        let taking = state.taking > 0;
        drop(state);
        if taking {
            self.above.changes.send_replace(());
        }
    }
}

/// The pages that a range is part of.
fn whole(range: &Range<u64>, page: u64) -> Range<u64> {
    let start = range.start - range.start % page;
    start..range.end.checked_next_multiple_of(page).unwrap_or(u64::MAX)
}

fn without(mut of: RangeMap<()>, requests: &BTreeMap<u64, Request>, page: u64) -> Vec<Range<u64>> {
    for request in requests.values() {
        of.remove(whole(&request.range, page));
    }
    of.remove(ALL).into_iter().map(|(range, ())| range).collect()
}

impl File {
    /// Takes back all that is cached above of the content.
    pub async fn take_back(self: &Arc<Self>) -> Taken {
        self.take(false).await
    }

    /// The same while the lease is held under which programs may have stored there, also since the cache began
    /// to write: what it writes now ends first.
    pub async fn take_mapped_back(self: &Arc<Self>) -> Taken {
        self.take(true).await
    }

    async fn take(self: &Arc<Self>, mapped: bool) -> Taken {
        let losses = self.above.close();
        let taken = Taken(self.clone());
        self.mount.not_coherent(self.ino);
        if let Some(cache) = self.mount.content_cache() {
            self.take_from(&**cache, mapped).await;
        }
        self.above.clear(losses);
        taken
    }

    async fn take_from(&self, cache: &dyn ContentCache, mapped: bool) {
        let _turn = self.above.turn.lock().await;
        let page = cache.page();
        let last = self.above.last();
        let (mut rest, mut written) = self.above.idle(page);
        for range in &written {
            // What can be had of them now; the rest when they have ended.
            drop(cache.forget(self.ino, range.clone()));
        }
        loop {
            self.forget_all(cache, rest).await;
            if !mapped || written.is_empty() {
                return;
            }
            // What is written now may be of whole pages, and must not come after what others write.
            self.above.let_on(&written, false, page);
            while timeout(SELDOM, self.above.written(last)).await.is_err() {
                self.above.let_on(&written, false, page);
            }
            rest = std::mem::take(&mut written);
        }
    }

    async fn forget_all(&self, cache: &dyn ContentCache, mut rest: Vec<Range<u64>>) {
        let page = cache.page();
        while !rest.is_empty() {
            let forgotten = rest.iter().map(|range| cache.forget(self.ino, range.clone()));
            let mut forgotten = join_all(forgotten);
            let (begun, mut pause) = (Instant::now(), SOON);
            while timeout(pause, &mut forgotten).await.is_err() {
                let late = begun.elapsed() > PATIENCE;
                if late {
                    warn!(ino = %self.ino, "cached content is being forgotten still: a request holds it");
                }
                self.above.let_on(&rest, late, page);
                pause = (pause * 2).min(SELDOM);
            }
            rest = self.above.left(page);
        }
    }

    /// Whether others store in pages of this file, unlike this mount, under a lease to read: see above.
    pub fn is_cached_alone(&self) -> bool {
        self.mount.opens.maps_without_right(self.ino)
    }

    /// Whether programs may have stored in pages that go with the lease.
    pub fn is_mapped_under_lease(&self, keep_read: bool) -> bool {
        match self.is_cached_alone() {
            true => self.mount.meta.leases.has_right_to_write(self.ino),
            false => !keep_read && self.mount.opens.may_be_mapped(self.ino),
        }
    }

    /// What the cache writes back, whole pages, was stored there under a lease, in `session` at the latest. Error:
    /// `Io` if that is gone: others may have stored in the same pages since.
    pub fn may_write_back(&self, session: SessionId) -> Result<()> {
        let meta = &self.mount.meta;
        let bare = self.is_cached_alone() && !meta.leases.writes(self.ino);
        if bare || self.above.is_lost() || meta.sessions.current().id != session {
            let what = "what was stored through a mapping is lost: the cluster declared this mount dead meanwhile";
            return Err(Error::new(ErrorKind::Io, what));
        }
        Ok(())
    }

    /// Returns when a request may go on that fills the cache: programs may store there then. To be called
    /// again before a read is repeated.
    pub async fn may_fill(self: &Arc<Self>, ticket: &Ticket<'_>) -> Result<()> {
        loop {
            ticket.turn().await;
            let leases = &self.mount.meta.leases;
            let (good, wanted) = match self.is_cached_alone() {
                true => (leases.may_buffer(self.ino), Wanted::Alone),
                false => {
                    let mapped = self.mount.opens.may_be_mapped(self.ino);
                    let covered = !mapped || leases.mode(self.ino).is_some();
                    // What goes on is taken back before the lease that is being given up.
                    (covered || ticket.goes_on(), Wanted::Read)
                }
            };
            if good {
                return Ok(());
            }
            leases.settled(self.ino).await;
            self.settle().await;
            self.ask_for_lease(wanted).await?;
            if !self.is_cached_alone() && leases.mode(self.ino).is_none() {
                // Somebody else is served first.
                sleep(AGAIN).await;
            }
        }
    }

    /// `range` was written past the cache above. Answers when what was cached of it is gone; `None`
    /// if nothing was.
    pub fn forget_written(
        self: &Arc<Self>,
        range: Range<u64>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let cache = self.mount.content_cache()?;
        let stale = self.above.stale(range)?;
        let (file, all) = (self.clone(), stale == ALL);
        let forgotten = cache.forget(self.ino, stale);
        Some(async move {
            forgotten.await;
            if all {
                file.above.emptied();
            }
        })
    }

    /// Whether anything of the content may be cached above.
    pub fn is_cached(&self) -> bool {
        let filled = self.above.state.lock().filled;
        self.mount.content_cache().is_some() && filled != Filled::Nothing
    }

    /// What is cached above of `range` is good no more. Does not wait until it is gone: who asks
    /// may hold it.
    pub fn forget_behind(&self, range: Range<u64>) {
        forget_behind(&self.mount, self.ino, range);
    }
}

/// Takes back what is cached above when the time of the leases under which it was cached is over,
/// for ever: the leader cannot be asked then, and others may change it.
pub(crate) async fn forget_in_time(mount: Arc<Mount>, files: Weak<Files>) {
    let leases = &mount.meta.leases;
    loop {
        leases.lapsed().await;
        let Some(open) = files.upgrade() else { return };
        warn!("no metadata leader has answered in time: what is cached is not used any more");
        open.lapse().await;
        drop(open);
        leases.revived().await;
        let Some(open) = files.upgrade() else { return };
        open.revive();
    }
}

/// [`File::forget_behind`], also of a file that is not open.
pub(crate) fn forget_behind(mount: &Mount, ino: InodeId, range: Range<u64>) {
    mount.not_coherent(ino);
    if let Some(cache) = mount.content_cache() {
        // It is on its way.
        drop(cache.forget(ino, range));
    }
}
