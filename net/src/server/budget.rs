//! Memory for requests and answers that all connections of a server share.
//!
//! Who holds something already is given more only while it leaves at least as much free as it holds
//! then: so one tenant cannot take more than half, two no more than a third each, and somebody new
//! always finds something. Who waits is served in the order of what it holds, then of its arrival;
//! nobody overtakes, so a large request is not starved by small ones. What waits holds nothing of
//! the budget for itself, so those that do hold something end without it.

use crate::sync::Mutex;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

pub(super) struct Budget {
    max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    /// Of tenants that hold something or have connections.
    tenants: HashMap<Arc<str>, Tenant>,
    waiting: Vec<Waiting>,
    tickets: u64,
}

#[derive(Default)]
struct Tenant {
    accounts: usize,
    held: usize,
}

struct Waiting {
    ticket: u64,
    tenant: Arc<str>,
    bytes: usize,
    granted: bool,
    waker: Waker,
}

impl Budget {
    /// Of `max` bytes.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, state: Mutex::default() })
    }

    /// What a connection from `tenant` draws on.
    pub fn account(self: &Arc<Self>, tenant: &str) -> Account {
        let tenant: Arc<str> = tenant.into();
        self.state.lock().tenants.entry(tenant.clone()).or_default().accounts += 1;
        Account { budget: self.clone(), tenant }
    }

    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.state.lock().used
    }
}

impl State {
    fn held(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).map_or(0, |tenant| tenant.held)
    }

    /// Whether `bytes`, which are not 0, may be taken.
    fn fits(&self, max: usize, tenant: &str, bytes: usize) -> bool {
        let (free, held) = (max.saturating_sub(self.used), self.held(tenant));
        match held {
            // What is larger than all there is gets it alone.
            0 => bytes <= free || self.used == 0,
            held => held.saturating_add(bytes) <= free.saturating_sub(bytes),
        }
    }

    fn take(&mut self, tenant: &Arc<str>, bytes: usize) {
        self.used += bytes;
        self.tenants.entry(tenant.clone()).or_default().held += bytes;
    }

    fn give(&mut self, tenant: &Arc<str>, bytes: usize) {
        self.used -= bytes;
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.held -= bytes;
        }
    }

    /// Grants to those that wait what there is for them. Answers whom to wake.
    fn grant(&mut self, max: usize) -> Vec<Waker> {
        let mut woken = Vec::new();
        loop {
            let waits = self.waiting.iter().enumerate().filter(|(_, waiting)| !waiting.granted);
            let first = waits.min_by_key(|(_, w)| (self.held(&w.tenant), w.ticket));
            let Some((at, first)) = first.filter(|(_, w)| self.fits(max, &w.tenant, w.bytes))
            else {
                return woken;
            };
            let (tenant, bytes) = (first.tenant.clone(), first.bytes);
            self.take(&tenant, bytes);
            let first = &mut self.waiting[at];
            first.granted = true;
            woken.push(first.waker.clone());
        }
    }
}

/// What one connection draws on; it gives back itself whatever it took.
pub(super) struct Account {
    budget: Arc<Budget>,
    tenant: Arc<str>,
}

impl Account {
    /// Takes memory if it can be had without overtaking anybody.
    pub fn try_take(&self, bytes: usize) -> bool {
        let mut state = self.budget.state.lock();
        let idle = state.waiting.iter().all(|waiting| waiting.granted);
        let taken = idle && state.fits(self.budget.max, &self.tenant, bytes);
        if taken {
            state.take(&self.tenant, bytes);
        }
        taken
    }

    /// Waits for memory and takes it.
    pub async fn take(&self, bytes: usize) {
        if self.try_take(bytes) {
            return;
        }
        let mut place = Place { account: self, ticket: None, bytes };
        poll_fn(|cx| place.poll(cx.waker())).await;
    }

    /// Takes memory that is in use already, whether there is any or not.
    pub fn overdraw(&self, bytes: usize) {
        self.budget.state.lock().take(&self.tenant, bytes);
    }

    pub fn give(&self, bytes: usize) {
        self.change(|state| state.give(&self.tenant, bytes));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.budget.state.lock();
        change(&mut state);
        let woken = state.grant(self.budget.max);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        if let Some(tenant) = state.tenants.get_mut(&self.tenant) {
            tenant.accounts -= 1;
            if tenant.accounts == 0 && tenant.held == 0 {
                state.tenants.remove(&self.tenant);
            }
        }
    }
}

/// A place in the queue, given up when dropped.
struct Place<'a> {
    account: &'a Account,
    ticket: Option<u64>,
    bytes: usize,
}

impl Place<'_> {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let budget = &self.account.budget;
        let mut state = budget.state.lock();
        let Some(ticket) = self.ticket else {
            state.tickets += 1;
            let ticket = state.tickets;
            self.ticket = Some(ticket);
            let tenant = self.account.tenant.clone();
            let (bytes, waker) = (self.bytes, waker.clone());
            state.waiting.push(Waiting { ticket, tenant, bytes, granted: false, waker });
            // It may be next, and there may be room since it was looked for.
            let woken = state.grant(budget.max);
            drop(state);
            woken.into_iter().for_each(Waker::wake);
            return Poll::Pending;
        };
        let at = state.waiting.iter().position(|waiting| waiting.ticket == ticket);
        match at {
            Some(at) if state.waiting[at].granted => {
                state.waiting.swap_remove(at);
                self.ticket = None;
                Poll::Ready(())
            }
            Some(at) => {
                state.waiting[at].waker.clone_from(waker);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        self.account.change(|state| {
            let Some(at) = state.waiting.iter().position(|w| w.ticket == ticket) else { return };
            let gone = state.waiting.swap_remove(at);
            if gone.granted {
                state.give(&gone.tenant, gone.bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    fn poll(waiting: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        waiting.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn whoever_takes_leaves_as_much_as_it_holds() {
        let budget = Budget::new(120);
        let hosts: Vec<_> = ["a", "b", "c"].iter().map(|host| budget.account(host)).collect();
        // However many connections a host has.
        let more = budget.account("a");
        let held: Vec<usize> =
            hosts.iter().map(|host| (0..1000).filter(|_| host.try_take(1)).count()).collect();
        assert_eq!(held, [60, 30, 15]);
        assert!(!more.try_take(1) && budget.account("d").try_take(15));
        hosts[0].give(60);
        assert!(more.try_take(7));
        assert_eq!(budget.used(), 60 + 7);
    }

    #[test]
    fn who_holds_least_is_next_and_nobody_overtakes() {
        let budget = Budget::new(100);
        let (hog, other, new) =
            (budget.account("hog"), budget.account("other"), budget.account("new"));
        hog.overdraw(80);
        other.overdraw(15);
        let (mut first, mut second, mut third) =
            (pin!(hog.take(1)), pin!(other.take(4)), pin!(new.take(20)));
        assert!(!poll(first.as_mut()) && !poll(second.as_mut()) && !poll(third.as_mut()));
        // There is room for the first two, who were here first and hold more.
        assert!(!other.try_take(1));
        hog.give(15);
        assert!(poll(third.as_mut()), "it holds nothing and fits");
        assert!(!poll(first.as_mut()) && !poll(second.as_mut()));
        hog.give(65);
        assert!(poll(first.as_mut()) && poll(second.as_mut()));
        assert_eq!(budget.used(), 1 + 19 + 20);
    }

    #[test]
    fn what_is_larger_than_all_gets_it_alone_and_a_dropped_wait_keeps_nothing() {
        let budget = Budget::new(100);
        let (a, b) = (budget.account("a"), budget.account("b"));
        assert!(a.try_take(10));
        {
            let mut large = pin!(b.take(1000));
            assert!(!poll(large.as_mut()));
            // Those that come later do not starve it.
            assert!(!a.try_take(1));
            a.give(10);
            assert_eq!(budget.used(), 1000, "it is granted, though not taken yet");
        }
        assert_eq!(budget.used(), 0);
        {
            let mut waits = pin!(b.take(1000));
            assert!(poll(waits.as_mut()), "alone");
            let mut next = pin!(a.take(1));
            assert!(!poll(next.as_mut()));
        }
        b.give(1000);
        assert!(a.try_take(50));
        assert_eq!(budget.used(), 50);
    }
}
