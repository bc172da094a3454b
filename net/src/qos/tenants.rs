//! Who uses a server: weights and rates as the policy says, and what each was given.
//!
//! Invariant: no more than [`MAX_TENANTS`] are told apart; whoever comes after those is one of
//! `(others)` together, until one of them was idle for long enough to be forgotten.

use super::bucket::Bucket;
use crate::sync::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use weft_proto::qos::{OWN, USUAL_WEIGHT};

const MAX_TENANTS: usize = 65_536;
const OTHERS: &str = "(others)";
/// Who was idle for so long is forgotten: longer than anybody may owe what it had.
const IDLE: Duration = Duration::from_secs(120);
/// Those are looked for no more often.
const SWEEP: Duration = Duration::from_secs(1);

/// What a tenant may have of one server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Its part beside others is as its weight to theirs.
    pub weight: u32,
    /// Bytes a second.
    pub bytes: Option<u64>,
    /// Requests a second.
    pub requests: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { weight: USUAL_WEIGHT, bytes: None, requests: None }
    }
}

/// What all tenants may have of one server.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Policy {
    /// Of those that are not named, but for daemons at work on their own, which it does not bind.
    pub default: Limits,
    /// By name.
    pub named: HashMap<String, Limits>,
}

/// What a tenant was given since the last report.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Served {
    /// Its name.
    pub tenant: String,
    /// Requests that were served, and their bytes.
    pub requests: u64,
    /// Bytes that it read.
    pub read_bytes: u64,
    /// Bytes that it wrote.
    pub written_bytes: u64,
    /// What its requests waited for others, in all, in microseconds.
    pub shared_us: u64,
    /// What they waited for a rate of its own.
    pub paced_us: u64,
}

/// One who uses a server.
pub struct Tenant {
    id: u64,
    name: Arc<str>,
    weight: AtomicU32,
    /// It has a rate.
    paced: AtomicBool,
    buckets: Mutex<Buckets>,
    requests: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    shared_us: AtomicU64,
    paced_us: AtomicU64,
    /// When it was last asked for, in milliseconds of [`Tenants`].
    asked: AtomicU64,
}

#[derive(Default)]
struct Buckets {
    bytes: Bucket,
    requests: Bucket,
}

/// All who use a server.
pub struct Tenants {
    by_name: RwLock<HashMap<Arc<str>, Arc<Tenant>>>,
    policy: RwLock<Policy>,
    next: AtomicU64,
    begun: Instant,
    /// When those that were idle were last looked for.
    swept: AtomicU64,
}

impl Default for Tenants {
    fn default() -> Self {
        Self {
            by_name: RwLock::default(),
            policy: RwLock::default(),
            next: AtomicU64::new(0),
            begun: Instant::now(),
            swept: AtomicU64::new(0),
        }
    }
}

impl Tenants {
    /// The tenant of this name.
    pub fn get(&self, name: &str) -> Arc<Tenant> {
        let now = self.now_ms();
        let known = |by_name: &HashMap<Arc<str>, Arc<Tenant>>, name: &str| {
            let known = by_name.get(name)?;
            known.asked.store(now, Ordering::Relaxed);
            Some(known.clone())
        };
        if let Some(known) = known(&self.by_name.read(), name) {
            return known;
        }
        let mut by_name = self.by_name.write();
        self.forget_idle(&mut by_name, now);
        let name = if by_name.len() < MAX_TENANTS { name } else { OTHERS };
        if let Some(known) = known(&by_name, name) {
            return known;
        }
        let name: Arc<str> = name.into();
        let new = Arc::new(Tenant::new(self.next.fetch_add(1, Ordering::Relaxed), name.clone()));
        new.asked.store(now, Ordering::Relaxed);
        new.set(self.policy.read().of(&name));
        by_name.insert(name, new.clone());
        new
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Forgets who was idle for long, and is at work on nothing.
    fn forget_idle(&self, by_name: &mut HashMap<Arc<str>, Arc<Tenant>>, now: u64) {
        if now.saturating_sub(self.swept.load(Ordering::Relaxed)) < SWEEP.as_millis() as u64 {
            return;
        }
        self.swept.store(now, Ordering::Relaxed);
        by_name.retain(|_, tenant| {
            let idle = now.saturating_sub(tenant.asked.load(Ordering::Relaxed));
            idle < IDLE.as_millis() as u64 || Arc::strong_count(tenant) > 1
        });
    }

    /// From now on this is what tenants may have.
    pub fn set_policy(&self, policy: Policy) {
        if *self.policy.read() == policy {
            return;
        }
        let by_name = self.by_name.write();
        by_name.values().for_each(|tenant| tenant.set(policy.of(&tenant.name)));
        *self.policy.write() = policy;
    }

    /// What was served since the last call: of those who had most, the most first.
    pub fn report(&self, most: usize) -> Vec<Served> {
        let mut by_name = self.by_name.write();
        let all = by_name.values().map(|tenant| tenant.take_served());
        let mut all: Vec<_> = all.filter(|served| served.requests > 0).collect();
        self.forget_idle(&mut by_name, self.now_ms());
        drop(by_name);
        let much = |s: &Served| (s.read_bytes.saturating_add(s.written_bytes), s.requests);
        all.sort_by(|a, b| much(b).cmp(&much(a)).then_with(|| a.tenant.cmp(&b.tenant)));
        all.truncate(most);
        all
    }
}

impl Policy {
    fn of(&self, name: &str) -> Limits {
        let unnamed = if name.starts_with(OWN) { Limits::default() } else { self.default };
        self.named.get(name).copied().unwrap_or(unnamed)
    }
}

impl Tenant {
    fn new(id: u64, name: Arc<str>) -> Self {
        Self {
            id,
            name,
            weight: AtomicU32::new(USUAL_WEIGHT),
            paced: AtomicBool::new(false),
            buckets: Mutex::default(),
            requests: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            shared_us: AtomicU64::new(0),
            paced_us: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// Tells it from others of this server.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Its part beside others is as this to theirs.
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    fn set(&self, limits: Limits) {
        self.weight.store(limits.weight.max(1), Ordering::Relaxed);
        let mut buckets = self.buckets.lock();
        buckets.bytes.set(limits.bytes);
        buckets.requests.set(limits.requests);
        self.paced.store(limits.bytes.or(limits.requests).is_some(), Ordering::Relaxed);
    }

    /// Waits until its rates allow so many requests with so many bytes, but no longer than `until`:
    /// what waited so long is served, and what it took is owed. Who gives up owes nothing.
    pub async fn keep_pace(&self, requests: u64, bytes: u64, until: Instant) {
        if !self.paced.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let at = {
            let buckets = &mut *self.buckets.lock();
            buckets.bytes.take(now, bytes).max(buckets.requests.take(now, requests))
        };
        let Some(at) = at else { return };
        let mut taken = Taken { of: self, requests, bytes, used: false };
        sleep_until(at.min(until)).await;
        taken.used = true;
        self.paced_us.fetch_add(now.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// What others wait for is not kept back: what it takes of the rates is owed.
    pub fn owe(&self, requests: u64, bytes: u64) {
        if self.paced.load(Ordering::Relaxed) {
            let (now, buckets) = (Instant::now(), &mut *self.buckets.lock());
            buckets.bytes.take(now, bytes);
            buckets.requests.take(now, requests);
        }
    }

    /// It waited so long for others.
    pub(super) fn note_wait(&self, time: Duration) {
        self.shared_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Requests of it were served, with so many bytes either way.
    pub fn note_served(&self, requests: u64, read_bytes: u64, written_bytes: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    }

    fn take_served(&self) -> Served {
        Served {
            tenant: self.name.to_string(),
            requests: self.requests.swap(0, Ordering::Relaxed),
            read_bytes: self.read_bytes.swap(0, Ordering::Relaxed),
            written_bytes: self.written_bytes.swap(0, Ordering::Relaxed),
            shared_us: self.shared_us.swap(0, Ordering::Relaxed),
            paced_us: self.paced_us.swap(0, Ordering::Relaxed),
        }
    }
}

/// Tokens that were taken, and are given back unless they are used.
struct Taken<'a> {
    of: &'a Tenant,
    requests: u64,
    bytes: u64,
    used: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.used {
            let mut buckets = self.of.buckets.lock();
            buckets.bytes.give(self.bytes);
            buckets.requests.give(self.requests);
        }
    }
}

#[cfg(test)]
mod tests;
