//! Requests that hold pages of the cache above this library, by which it is taken back in order:
//! see [`super::take_back`].

use crate::cache::ALL;
use crate::ranges::RangeMap;
use crate::types::Via;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use tokio::sync::watch;
use weft_proto::{Error, ErrorKind};

/// The round of a request that has to wait for another turn.
const NONE: u64 = u64::MAX;

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
    /// How often the session ended under whose leases it was filled, and how many of these ends
    /// everything was taken back after.
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
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// A request that holds pages of the cache, until this is dropped.
pub(crate) struct Ticket<'a> {
    above: &'a Above,
    number: u64,
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
    pub fn stale(&self, range: Range<u64>) -> Option<Range<u64>> {
        match self.state.lock().filled {
            Filled::Nothing => None,
            Filled::Since => Some(range),
            Filled::Before => Some(ALL),
        }
    }

    /// All is gone that was cached before this file was opened.
    pub fn emptied(&self) {
        let filled = &mut self.state.lock().filled;
        if *filled == Filled::Before {
            *filled = Filled::Nothing;
        }
    }

    /// Whether anything may be cached.
    pub fn is_filled(&self) -> bool {
        self.state.lock().filled != Filled::Nothing
    }

    /// What is cached begins to be taken back. Answers the losses so far.
    pub fn close(&self) -> u64 {
        let mut state = self.state.lock();
        state.taking += 1;
        state.rounds += 1;
        state.losses
    }

    /// It was taken back, and what is in use of it may be filled again.
    pub fn reopen(&self) {
        self.state.lock().taking -= 1;
        self.changes.send_replace(());
    }

    /// The session has ended: what was stored in what is cached may have been overwritten by
    /// others.
    pub fn lose(&self) {
        self.state.lock().losses += 1;
    }

    pub fn is_lost(&self) -> bool {
        let state = self.state.lock();
        state.losses > state.cleared
    }

    /// Everything that was cached before so many losses is gone.
    pub fn clear(&self, losses: u64) {
        let mut state = self.state.lock();
        state.cleared = state.cleared.max(losses);
    }

    /// Returns when no request up to this one writes any more.
    pub async fn written(&self, last: u64) {
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
    pub fn last(&self) -> u64 {
        self.state.lock().last
    }

    /// What no request under way holds; and what those hold that write.
    pub fn idle(&self, page: u64) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let state = self.state.lock();
        let held = |r: &Request| whole(&r.range, page);
        let writes = state.requests.values().filter(|r| r.writes).map(held).collect();
        let mut all = RangeMap::default();
        all.insert(ALL, ());
        (without(all, state.requests.values(), page), writes)
    }

    /// Has requests go on for which `ranges` may wait; has reads fail that did already if `fail`.
    pub fn let_on(&self, ranges: &[Range<u64>], fail: bool, page: u64) {
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

    /// What requests left that went on meanwhile. Those that are not answered yet wait again, and
    /// so what they hold is not answered here; but for writes of a file that is `mapped`: in a page
    /// that was filled meanwhile a program may have stored by now, and the cache may be writing it.
    pub fn left(&self, page: u64, mapped: bool) -> Vec<Range<u64>> {
        let state = &mut *self.state.lock();
        for request in state.requests.values_mut().filter(|r| r.go == Go::On) {
            (request.go, request.round) = (Go::Wait, NONE);
        }
        let waiting = state.requests.values().filter(|request| !(mapped && request.writes));
        without(std::mem::take(&mut state.left), waiting, page)
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
    pub fn goes_on(&self) -> bool {
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

fn without<'a>(
    mut of: RangeMap<()>,
    requests: impl Iterator<Item = &'a Request>,
    page: u64,
) -> Vec<Range<u64>> {
    for request in requests {
        of.remove(whole(&request.range, page));
    }
    of.remove(ALL).into_iter().map(|(range, ())| range).collect()
}
