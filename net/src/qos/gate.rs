//! A place before something that can do only so much at once, such as a drive: who goes in is
//! decided by [`super::queue`].
//!
//! How much goes in at once follows from how long what is inside takes: while somebody waits, the
//! window grows or shrinks until requests take about as long as they are to. A fast drive is given
//! much, a slow one little, and whoever comes next finds little before it in either.
//!
//! Invariants: who has a [`Pass`] is counted as inside until that is dropped; after every change
//! all those are let in who may be ([`State::pump`]), so nobody waits for a wake-up that has been.

use super::queue::{Asked, Begun, CLASSES, FairQueue, Place, SHORT};
use super::tenants::Tenant;
use crate::sync::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// What a request is to those that wait: each class has a window of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Goes first within a tenant: somebody waits for it.
    Read = 0,
    /// All others.
    Write = 1,
}

/// How much of a class is inside at once.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// At first, as cost.
    pub start: u64,
    /// At least; one request always is.
    pub min: u64,
    /// At most.
    pub max: u64,
    /// How long a request should take inside while others wait.
    pub aim: Duration,
}

/// A gate. Clones are the same one.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    windows: [Window; CLASSES],
    state: Mutex<State>,
}

struct State {
    queue: FairQueue<oneshot::Sender<Pass>>,
    /// Of each class, what ended since the window was last set, and how long that took in all.
    ended: [(u32, Duration); CLASSES],
}

/// The right to be inside; dropped at the end.
pub struct Pass {
    gate: Arc<Inner>,
    request: Begun,
    begun: Instant,
}

/// The window is set anew each so many requests.
const EACH: u32 = 8;

impl Gate {
    /// With these windows of the classes.
    pub fn new(read: Window, write: Window) -> Self {
        let state = State {
            queue: FairQueue::new([read.start, write.start]),
            ended: [(0, Duration::ZERO); CLASSES],
        };
        Self(Arc::new(Inner { windows: [read, write], state: Mutex::new(state) }))
    }

    /// Waits for the turn of a request of so much cost, which is cut if it makes no sense. Who
    /// gives up has taken nothing.
    pub async fn enter(&self, tenant: &Tenant, class: Class, cost: u64) -> Pass {
        let class = class as usize;
        let asked = Asked { tenant: tenant.id(), weight: tenant.weight(), class, cost };
        let (mut waits, turn) = {
            let mut state = self.0.state.lock();
            if let Some(begun) = state.queue.try_begin(asked) {
                return self.0.pass(begun);
            }
            let (granted, turn) = oneshot::channel();
            let place = state.queue.push(asked, granted);
            let let_in = state.pump(&self.0);
            drop(state);
            let waits = Waits { gate: &self.0, place: Some(place) };
            hand_out(let_in);
            (waits, turn)
        };
        let begun = Instant::now();
        let pass = turn.await;
        waits.place = None;
        tenant.note_wait(begun.elapsed());
        // The gate lives, and keeps the other end until it is let in.
        pass.unwrap_or_else(|_| self.0.pass(Begun { tenant: asked.tenant, class, cost: 0 }))
    }

    /// How much of a class is let in at once now.
    pub fn window(&self, class: Class) -> u64 {
        self.0.state.lock().queue.room(class as usize)
    }
}

/// Who is let in, and where that is heard.
type LetIn = Vec<(oneshot::Sender<Pass>, Pass)>;

impl State {
    /// Lets in all who may be.
    #[must_use]
    fn pump(&mut self, gate: &Arc<Inner>) -> LetIn {
        std::iter::from_fn(|| self.queue.next()).map(|(begun, to)| (to, gate.pass(begun))).collect()
    }
}

/// Not under the lock: who has gone meanwhile drops its pass, which lets others in.
fn hand_out(let_in: LetIn) {
    let_in.into_iter().for_each(|(to, pass)| drop(to.send(pass)));
}

/// Somebody waits, until this is dropped or has no place.
struct Waits<'a> {
    gate: &'a Arc<Inner>,
    place: Option<Place>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        // Others may have waited behind it. Who was let in is not in the queue any more.
        let let_in = {
            let mut state = self.gate.state.lock();
            state.queue.cancel(place);
            state.pump(self.gate)
        };
        hand_out(let_in);
    }
}

impl Inner {
    fn pass(self: &Arc<Self>, request: Begun) -> Pass {
        Pass { gate: self.clone(), request, begun: Instant::now() }
    }

    /// What was inside has ended after this time.
    fn leave(self: &Arc<Self>, request: Begun, took: Duration) {
        let let_in = {
            let state = &mut *self.state.lock();
            // Short writes find room without that, and are inside for no time.
            let counts = request.class == Class::Read as usize || request.cost > SHORT;
            if counts && state.queue.is_short(request.class) {
                self.adapt(state, request.class, took);
            }
            state.queue.end(request);
            state.pump(self)
        };
        hand_out(let_in);
    }

    /// The window was full: it follows how long this took.
    fn adapt(&self, state: &mut State, class: usize, took: Duration) {
        let (ended, in_all) = &mut state.ended[class];
        (*ended, *in_all) = (*ended + 1, *in_all + took);
        if *ended < EACH {
            return;
        }
        let mean = in_all.as_secs_f64() / f64::from(*ended);
        (*ended, *in_all) = (0, Duration::ZERO);
        let Window { min, max, aim, .. } = self.windows[class];
        let ratio = (aim.as_secs_f64() / mean.max(1e-6)).clamp(0.5, 2.0);
        let room = state.queue.room(class) as f64 * (1.0 + ratio) / 2.0;
        state.queue.set_room(class, (room as u64).clamp(min, max));
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        self.gate.leave(self.request, took);
    }
}

#[cfg(test)]
mod tests;
