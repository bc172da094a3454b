//! What tenants may have of the metadata group, and what they were given of late.
//!
//! Before the leader's work is a [`Gate`]: so many requests at once, of several tenants by turns.
//! One that waits for other clients gives its place back before it does ([`give_place_back`]), and
//! one that waits for anything else soon, whether it is answered or not.
//!
//! Invariant: what others wait for is kept back neither for a turn nor for a rate ([`Urgency`]),
//! so nobody waits in a circle.

mod lately;

use crate::state::StateMachine;
use lately::{Lately, TOLD};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use v1::meta_request::Op;
use weft_net::{Class, Gate, Limits, Pass, Policy, Served, Tenant, Tenants, Window};
use weft_proto::qos::USUAL_WEIGHT;
use weft_proto::{Error, ErrorKind, Result, v1};

/// What a request costs at the gate: some hundred of one tenant may go before those of another.
const REQUEST: u64 = 64 << 10;
/// Requests that the leader works at, at once.
const PLACES: u64 = 128 * REQUEST;
const WINDOW: Window =
    Window { start: PLACES, min: PLACES, max: PLACES, aim: Duration::from_millis(5) };
/// A request keeps its place no longer.
const HOLD: Duration = Duration::from_millis(2);
/// Of the time that who asks waits, at most this part goes to keep a rate.
const PART: (u32, u32) = (3, 4);

/// Of one server.
pub struct Sharing {
    tenants: Tenants,
    gate: Gate,
    /// As what count of the state's the policy was read.
    seen: AtomicU64,
    policy: Mutex<Arc<v1::QosPolicy>>,
    storage: Mutex<Lately>,
    metadata: Mutex<Lately>,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            tenants: Tenants::default(),
            gate: Gate::new(WINDOW, WINDOW),
            seen: AtomicU64::new(0),
            policy: Mutex::default(),
            storage: Mutex::default(),
            metadata: Mutex::default(),
        }
    }
}

impl Sharing {
    /// What tenants may have, as of the state now.
    pub fn policy(&self, state: &StateMachine) -> Result<Arc<v1::QosPolicy>> {
        self.refresh(state)?;
        Ok(self.policy.lock().clone())
    }

    fn refresh(&self, state: &StateMachine) -> Result<()> {
        let changes = state.qos_changes();
        if self.seen.load(Ordering::Acquire) == changes {
            return Ok(());
        }
        let mut kept = self.policy.lock();
        if self.seen.load(Ordering::Acquire) == changes {
            return Ok(());
        }
        let policy = state.qos()?;
        self.tenants.set_policy(of_leader(&policy));
        *kept = Arc::new(policy);
        self.seen.store(changes, Ordering::Release);
        Ok(())
    }

    /// Answers a request when it is its turn. `awaited` ends when others wait for what its session
    /// holds. Error: `TimedOut`.
    pub async fn in_turn<T, A: Future<Output = ()>>(
        &self,
        state: &StateMachine,
        turn: Turn<'_>,
        deadline: Instant,
        awaited: impl Fn() -> A,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.refresh(state)?;
        let Turn { tenant, count, urgency } = turn;
        let tenant = self.tenants.get(tenant);
        let answer = match urgency {
            Urgency::SignOfLife => answer.await,
            Urgency::Freeing => {
                tenant.owe(count, 0);
                answer.await
            }
            Urgency::Common => {
                let place = self.place(&tenant, count, deadline, awaited).await?;
                with_place(place, answer).await
            }
        };
        tenant.note_served(count, 0, 0);
        answer
    }

    /// Waits for a place among those that are worked at; none, if others have come to wait for who
    /// asks.
    async fn place<A: Future<Output = ()>>(
        &self,
        tenant: &Tenant,
        count: u64,
        deadline: Instant,
        awaited: impl Fn() -> A,
    ) -> Result<Option<Pass>> {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now) * PART.0 / PART.1;
        tokio::select! {
            biased;
            () = tenant.keep_pace(count, 0, now + left) => {}
            () = awaited() => {
                tenant.owe(count, 0);
                return Ok(None);
            }
        }
        tokio::select! {
            biased;
            place = self.gate.enter(tenant, Class::Read, count.saturating_mul(REQUEST)) => {
                Ok(Some(place))
            }
            () = awaited() => Ok(None),
            () = sleep_until(deadline) => {
                let what = "the metadata leader has more to do than it can: others came first";
                Err(Error::new(ErrorKind::TimedOut, what))
            }
        }
    }

    /// A storage daemon tells what it has served.
    pub fn hear(&self, now: Instant, served: Vec<v1::TenantStat>) {
        self.storage.lock().note(now, served);
        let own = self.tenants.report(TOLD).into_iter().map(stat).collect();
        self.metadata.lock().note(now, own);
    }

    /// What storage daemons and this server give tenants, a second.
    pub fn served(&self, now: Instant) -> (Vec<v1::TenantStat>, Vec<v1::TenantStat>) {
        (self.storage.lock().rates(now), self.metadata.lock().rates(now))
    }
}

tokio::task_local! {
    /// The place of the request that a task works at.
    static PLACE: Cell<Option<Pass>>;
}

/// Gives the place of the request that is being answered back, if it has one: it is going to wait
/// for other clients, and what ends that may need the place.
pub fn give_place_back() {
    let _ = PLACE.try_with(Cell::take);
}

async fn with_place<T>(place: Option<Pass>, answer: impl Future<Output = T>) -> T {
    let answer = PLACE.scope(Cell::new(place), async {
        let mut answer = std::pin::pin!(answer);
        if let Ok(answered) = timeout(HOLD, &mut answer).await {
            return answered;
        }
        // It waits for the log, or for whatever else.
        give_place_back();
        answer.await
    });
    answer.await
}

/// Whether others may wait for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// They may if they wait for what its session holds.
    Common,
    /// It gives back what others may wait for.
    Freeing,
    /// Without it a session ends, or others wait for it.
    SignOfLife,
}

impl Urgency {
    /// Of a request. `has_turn`: a lock that is to be set, was waited for, and others wait for that
    /// now. Who asks is not believed: it would say that of all it asks.
    pub fn of(op: Option<&Op>, has_turn: impl Fn(&v1::SetLockOp) -> bool) -> Self {
        match op {
            Some(Op::Renew(_) | Op::Recalls(_) | Op::ReturnLeases(_) | Op::CancelLock(_)) => {
                Self::SignOfLife
            }
            Some(Op::Close(_) | Op::CloseSession(_) | Op::EndSession(_)) => Self::Freeing,
            // Told, given back, or waited for before.
            Some(Op::SetLock(op)) if op.held || releases(op) || has_turn(op) => Self::Freeing,
            _ => Self::Common,
        }
    }
}

fn releases(op: &v1::SetLockOp) -> bool {
    op.lock.as_ref().is_none_or(|lock| lock.kind() == v1::lock::Kind::None)
}

/// Whose turn it is to be, for so many operations.
pub struct Turn<'a> {
    tenant: &'a str,
    count: u64,
    urgency: Urgency,
}

impl<'a> Turn<'a> {
    /// Of a request of this tenant.
    pub fn of(tenant: &'a str, op: Option<&Op>, urgency: Urgency) -> Self {
        Self { tenant, count: op.map_or(1, count), urgency }
    }
}

/// Operations that a request asks for.
fn count(op: &Op) -> u64 {
    let count = match op {
        Op::Batch(op) => op.steps.len(),
        Op::MakeFiles(op) => op.files.len(),
        Op::LookupMany(op) => op.items.len(),
        Op::LeaseMany(op) => op.inos.len(),
        _ => 1,
    };
    (count as u64).max(1)
}

fn of_leader(policy: &v1::QosPolicy) -> Policy {
    let limits = |l: v1::QosLimits| Limits {
        weight: l.weight.unwrap_or(USUAL_WEIGHT),
        bytes: None,
        requests: l.metadata,
    };
    let named = policy.named().map(|(name, of_it)| (name.to_owned(), limits(of_it)));
    Policy { default: limits(policy.default_limits()), named: named.collect() }
}

fn stat(served: Served) -> v1::TenantStat {
    let Served { tenant, requests, read_bytes, written_bytes, shared_us, paced_us } = served;
    v1::TenantStat { tenant, requests, read_bytes, written_bytes, shared_us, paced_us }
}

#[cfg(test)]
mod tests;
