//! Requests that hold pages of the cache above this library, by which it is taken back in order:
//! see [`super::take_back`].

use crate::cache::ALL;
use crate::ranges::RangeMap;
use crate::types::Via;
use std::collections::BTreeMap;
use std::ops::Range;
use tokio::sync::watch;
use weft_net::sync::Mutex;

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
    /// It writes, and is waited for.
    On,
}

struct Request {
    range: Range<u64>,
    /// It writes: what it files is there before it is answered.
    writes: bool,
    /// It waits for its turn: unlike what the cache itself writes.
    waits: bool,
    /// What was taken back when it began to read.
    round: u64,
    go: Go,
    /// Of a write: what was filled meanwhile in its range, with what was there before it.
    filled: RangeMap<()>,
    /// Of a read: something of its range was written meanwhile.
    overtaken: bool,
}

/// How a request ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// What it holds is as good as when it was read.
    Good,
    /// It is not, and the read has to be repeated.
    Again,
    /// It is not, and has to be forgotten after the answer.
    Stale,
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

impl Request {
    /// A write that waits for its turn.
    fn is_waiting_write(&self) -> bool {
        self.writes && self.waits && self.go == Go::Wait
    }
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
            let filled = RangeMap::default();
            let (go, waits) = (Go::Wait, via == Via::Cache);
            let request = Request { range, writes, waits, round, go, filled, overtaken: false };
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
        let losses = state.losses;
        drop(state);
        self.changes.send_replace(());
        losses
    }

    /// Returns while what is cached is taken back.
    pub async fn closed(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if !self.is_open() || changes.changed().await.is_err() {
                return;
            }
        }
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

    /// Returns when no request up to this one writes to any of these pages any more.
    pub async fn written(&self, ranges: &[Range<u64>], page: u64, last: u64) {
        let mut changes = self.changes.subscribe();
        let is_of = |r: &Request| r.writes && overlaps(ranges, &whole(&r.range, page));
        loop {
            changes.borrow_and_update();
            let writes = self.state.lock().requests.range(..=last).any(|(_, r)| is_of(r));
            if !writes || changes.changed().await.is_err() {
                return;
            }
        }
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

    /// Has writes go on for which `ranges` may wait. Answers the last request that has begun.
    pub fn let_on(&self, ranges: &[Range<u64>], page: u64) -> u64 {
        let state = &mut *self.state.lock();
        for request in state.requests.values_mut().filter(|request| request.writes) {
            if overlaps(ranges, &whole(&request.range, page)) {
                request.go = Go::On;
            }
        }
        self.changes.send_replace(());
        state.last
    }

    /// What of `ranges` no request under way holds by now; and what those hold that write. Of a
    /// file that is `mapped`, writes that do not wait for their turn are waited for, and leave
    /// nothing out.
    pub fn besides(
        &self,
        ranges: &[Range<u64>],
        page: u64,
        mapped: bool,
    ) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let state = self.state.lock();
        let mut rest = RangeMap::default();
        ranges.iter().for_each(|range| drop(rest.insert(range.clone(), ())));
        let waits = |request: &&Request| !(mapped && request.writes) || request.is_waiting_write();
        let waiting = || state.requests.values().filter(waits);
        let writes = waiting().filter(|request| request.writes);
        let writes = writes.map(|r| whole(&r.range, page)).filter(|held| overlaps(ranges, held));
        let writes = writes.collect();
        (without(rest, waiting(), page), writes)
    }

    /// All that requests left in `ranges` until now is about to be forgotten. To do so twice would
    /// be to wait for whoever has come meanwhile to write the same pages again.
    pub fn clear_left(&self, ranges: &[Range<u64>]) {
        let left = &mut self.state.lock().left;
        ranges.iter().for_each(|range| drop(left.remove(range.clone())));
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

    /// The request is about to be answered, and over unless it has to be repeated. A read that is
    /// overtaken by writes is, if it is `patient`.
    pub fn ends(&self, patient: bool) -> End {
        let state = &mut *self.above.state.lock();
        let Some(request) = state.requests.get_mut(&self.number) else { return End::Good };
        let (range, writes) = (request.range.clone(), request.writes);
        let in_time = request.go == Go::On || request.round == state.rounds;
        let overtaken = std::mem::take(&mut request.overtaken);
        if !writes && (!in_time || (overtaken && patient)) {
            return End::Again;
        }
        state.end(self.number);
        if !writes {
            // The cache lets go of most pages while it writes them.
            let written = state.requests.values_mut().filter(|r| r.writes);
            for write in written.filter(|r| overlaps([&range], &r.range)) {
                write.filled.insert(range.clone(), ());
            }
        }
        if in_time && !overtaken { End::Good } else { End::Stale }
    }

    /// What it wrote is there to be read. Reads under way may hold what was there before, and hear
    /// of it. Answers what was filled with that already.
    pub fn wrote(&self) -> Vec<Range<u64>> {
        let state = &mut *self.above.state.lock();
        let Some(request) = state.requests.get_mut(&self.number) else { return Vec::new() };
        let (range, mut filled) = (request.range.clone(), std::mem::take(&mut request.filled));
        let reads = state.requests.values_mut().filter(|r| !r.writes);
        reads.filter(|r| overlaps([&range], &r.range)).for_each(|r| r.overtaken = true);
        filled.remove(ALL).into_iter().map(|(range, ())| range).collect()
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

fn overlaps<'a>(ranges: impl IntoIterator<Item = &'a Range<u64>>, with: &Range<u64>) -> bool {
    ranges.into_iter().any(|range| range.start < with.end && with.start < range.end)
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
