//! Who of several tenants is served when, and how fast, at the targets of this daemon.
//!
//! Before each target is a [`Gate`]: it lets in as much as the drive does in a few milliseconds, so
//! that whoever comes next finds little before it, and by turns when more tenants want in than
//! that. Rates are for the whole cluster: a daemon keeps the part of them that its targets are of
//! all targets that are up.
//!
//! Invariant: nothing is refused here. Who waited for a rate as long as it can is served.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use weft_net::{Class, Gate, Limits, Pass, Policy, Served, Tenant, Tenants, Window};
use weft_proto::qos::USUAL_WEIGHT;
use weft_proto::v1;

/// What a read or write costs besides its bytes, as bytes.
pub(crate) const REQUEST: u64 = 16 << 10;
const MIB: u64 = 1 << 20;
const READ: Window =
    Window { start: 8 * MIB, min: MIB, max: 64 * MIB, aim: Duration::from_millis(5) };
const WRITE: Window =
    Window { start: 8 * MIB, min: MIB, max: 64 * MIB, aim: Duration::from_millis(10) };
/// Who reads what others make chunks of.
const REBUILD: &str = "weft:rebuild";
/// Most tenants that one heartbeat tells of.
const TOLD: usize = 64;
/// A request waits no longer for a rate: half of what clients wait for it.
const LONGEST: Duration = Duration::from_secs(5);
/// Most bytes, of payloads and answers, that wait for rates.
const MAX_WAITING: u64 = 128 << 20;

/// Of one daemon.
#[derive(Default)]
pub(crate) struct Sharing {
    tenants: Tenants,
    /// Some tenants have rates.
    paced: AtomicBool,
    /// Bytes that wait for rates.
    waiting: AtomicU64,
    /// As the metadata group told it, and the part of it that is this daemon's.
    policy: Mutex<(v1::QosPolicy, (u64, u64))>,
}

/// Bytes that wait, until this is dropped.
struct Waiting<'a> {
    of: &'a AtomicU64,
    bytes: u64,
    /// With all others.
    all: u64,
}

impl<'a> Waiting<'a> {
    fn new(of: &'a AtomicU64, bytes: u64) -> Self {
        let all = of.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        Self { of, bytes, all }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The place before a target.
pub(crate) fn gate() -> Gate {
    Gate::new(READ, WRITE)
}

impl Sharing {
    /// Who somebody of this name is; in the background, all are the same.
    pub fn tenant(&self, name: &str, background: bool) -> Arc<Tenant> {
        self.tenants.get(if background { REBUILD } else { name })
    }

    /// Whether some tenants have rates.
    pub fn paces(&self) -> bool {
        self.paced.load(Ordering::Relaxed)
    }

    /// Has a tenant keep its rates, however long who asks says that he waits. What would hold too
    /// much memory meanwhile is served, and owed: its requests would all be given up before their
    /// turn comes.
    pub async fn keep_pace(&self, tenant: &Tenant, requests: u64, bytes: u64) {
        let waits = Waiting::new(&self.waiting, bytes);
        if waits.all > MAX_WAITING {
            return tenant.owe(requests, bytes);
        }
        tenant.keep_pace(requests, bytes, Instant::now() + LONGEST).await;
    }

    /// The version of the policy that is kept.
    pub fn version(&self) -> u64 {
        self.policy.lock().0.version
    }

    /// The metadata group has told a policy, if it is another one; and this daemon has so many of
    /// all targets that are up.
    pub fn learn(&self, told: Option<v1::QosPolicy>, own: u64, of: u64) {
        let mut policy = self.policy.lock();
        let part = if of == 0 { (1, 1) } else { (own.min(of), of) };
        if told.is_none() && policy.1 == part {
            return;
        }
        let told = told.unwrap_or_else(|| policy.0.clone());
        let new = of_daemon(&told, part);
        let has_rate = |l: &Limits| l.bytes.or(l.requests).is_some();
        let paced = has_rate(&new.default) || new.named.values().any(has_rate);
        self.tenants.set_policy(new);
        self.paced.store(paced, Ordering::Relaxed);
        *policy = (told, part);
    }

    /// What tenants were given since the last call.
    pub fn report(&self) -> Vec<v1::TenantStat> {
        self.tenants.report(TOLD).into_iter().map(stat).collect()
    }
}

/// Waits for the turn of a tenant at a target.
pub(crate) async fn enter(gate: &Gate, tenant: &Tenant, class: Class, bytes: u64) -> Pass {
    gate.enter(tenant, class, bytes.saturating_add(REQUEST)).await
}

fn stat(served: Served) -> v1::TenantStat {
    let Served { tenant, requests, read_bytes, written_bytes, shared_us, paced_us } = served;
    v1::TenantStat { tenant, requests, read_bytes, written_bytes, shared_us, paced_us }
}

/// What of a policy for the cluster is for a daemon with this part of it.
fn of_daemon(policy: &v1::QosPolicy, (own, of): (u64, u64)) -> Policy {
    let part = |rate: Option<u64>| {
        let part = |rate: u64| u128::from(rate) * u128::from(own.max(1)) / u128::from(of.max(1));
        rate.map(|rate| u64::try_from(part(rate)).unwrap_or(u64::MAX).max(1))
    };
    let limits = |l: v1::QosLimits| Limits {
        weight: l.weight.unwrap_or(USUAL_WEIGHT),
        bytes: part(l.bandwidth),
        requests: part(l.iops),
    };
    let named = policy.named().map(|(name, of_it)| (name.to_owned(), limits(of_it)));
    Policy { default: limits(policy.default_limits()), named: named.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(tenant: &str, bandwidth: Option<u64>, weight: Option<u32>) -> v1::QosRule {
        let limits = v1::QosLimits { bandwidth, weight, ..Default::default() };
        v1::QosRule { tenant: tenant.into(), limits: Some(limits) }
    }

    #[test]
    fn a_daemon_keeps_its_part_and_what_is_not_said_is_as_the_default_says() {
        let rules = vec![
            rule("", Some(600), Some(50)),
            rule("a", None, Some(200)),
            rule("b", Some(u64::MAX), None),
        ];
        let policy = of_daemon(&v1::QosPolicy { version: 1, rules }, (2, 6));
        let limits = |weight, bytes| Limits { weight, bytes: Some(bytes), requests: None };
        assert_eq!(policy.default, limits(50, 200));
        assert_eq!(policy.named["a"], limits(200, 200));
        assert_eq!(policy.named["b"], limits(50, u64::MAX / 3));
        assert_eq!(of_daemon(&v1::QosPolicy::default(), (0, 0)), Policy::default());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_a_rate_is_bounded_in_time_and_memory() {
        let sharing = Sharing::default();
        let told = v1::QosPolicy { version: 1, rules: vec![rule("a", Some(1 << 20), None)] };
        sharing.learn(Some(told), 1, 1);
        let tenant = sharing.tenant("a", false);
        let took = async |bytes| {
            let begun = Instant::now();
            sharing.keep_pace(&tenant, 1, bytes).await;
            begun.elapsed()
        };
        // What it has saved up.
        took(64 << 20).await;
        assert_eq!(took(64 << 20).await, LONGEST);
        let waits = Waiting::new(&sharing.waiting, MAX_WAITING);
        assert_eq!(took(1 << 20).await, Duration::ZERO);
        drop(waits);
        assert_eq!(took(1 << 20).await, LONGEST);
        assert_eq!(sharing.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_policy_is_learnt_once_and_anew_when_targets_come_or_go() {
        let sharing = Sharing::default();
        assert!(!sharing.paces());
        let told = v1::QosPolicy { version: 3, rules: vec![rule("a", Some(100), None)] };
        sharing.learn(Some(told), 1, 4);
        assert!(sharing.paces() && sharing.version() == 3);
        sharing.learn(None, 1, 2);
        assert_eq!(sharing.policy.lock().1, (1, 2));
        assert!(sharing.paces() && sharing.version() == 3);
        sharing.learn(Some(v1::QosPolicy { version: 4, rules: Vec::new() }), 1, 2);
        assert!(!sharing.paces() && sharing.version() == 4);
    }
}
