//! Clocks: what time it is, on servers and clients, and how fast it passes there.
//!
//! Time on some hosts can be faster than on the others, also the monotonic one, and so it is slower
//! on those: leases are made for hosts of which one has a tenth more than the other.

use super::faults::{PAUSE, SESSION, Script, Step, World};
use super::hosts::{CLIENTS, SERVERS};
use rand::Rng;
use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

/// Clocks on which something depends: of servers, and of clients after them.
pub const CLOCKS: usize = SERVERS.len() + CLIENTS.len();
/// How far a clock is wrong, in milliseconds, at most.
const STEPS_MS: [i64; 3] = [5000, 60_000, 2 * 3_600_000];

thread_local! {
    /// By how many nanoseconds the clock of each host is wrong.
    static WRONG: [Cell<i64>; CLOCKS] = const { [const { Cell::new(0) }; CLOCKS] };
    /// Where time is fast.
    static FAST: [Cell<bool>; CLOCKS] = const { [const { Cell::new(false) }; CLOCKS] };
    /// When all hosts have done what they do now, in simulated time.
    static TICK_END: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Until then each host goes on now.
pub fn begin_tick(end: Duration) {
    TICK_END.set(end);
}

/// How long the simulation has lasted, in nanoseconds: the same wherever it is asked, also where
/// time is fast. `None`: it is over.
pub fn elapsed() -> Option<u64> {
    turmoil::sim_elapsed().map(|elapsed| elapsed.min(TICK_END.get()).as_nanos() as u64)
}

pub fn now() -> u64 {
    elapsed().expect("inside the simulation")
}

/// What the clock of a host says, in nanoseconds since 1970.
fn wall<const CLOCK: usize>() -> i64 {
    turmoil::since_epoch().map_or(0, |t| t.as_nanos() as i64) + WRONG.with(|by| by[CLOCK].get())
}

pub const SERVER_CLOCKS: [fn() -> i64; SERVERS.len()] = [wall::<0>, wall::<1>, wall::<2>];
pub const CLIENT_CLOCKS: [fn() -> i64; CLIENTS.len()] = [wall::<3>, wall::<4>, wall::<5>];

/// From now on a clock is wrong by so much.
pub fn set_clock(clock: usize, wrong_ns: i64) {
    WRONG.with(|by| by[clock].set(wrong_ns));
}

/// How fast that is: from 2.5 to 7.5 %, as a tick of the simulation takes some of what it gains.
const GAIN_INTERVAL: Duration = Duration::from_millis(400);
const GAIN: Duration = Duration::from_millis(30);

/// From now on time passes faster on a host, also the monotonic one, or as elsewhere.
pub fn set_fast(clock: usize, fast: bool) {
    FAST.with(|all| all[clock].set(fast));
}

/// Does what a host does, at the speed of its clock.
pub async fn at_speed_of<T>(clock: usize, work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        never = gain(clock) => match never {},
    }
}

async fn gain(clock: usize) -> Infallible {
    loop {
        tokio::time::sleep(GAIN_INTERVAL).await;
        if FAST.with(|all| all[clock].get()) {
            tokio::time::advance(GAIN).await;
        }
    }
}

impl World {
    /// The clock of a host is wrong for a while, in which something else happens perhaps: stepped,
    /// or too fast or too slow.
    pub fn wrong_clock(&mut self, now: Duration) -> (String, Vec<Step>) {
        if self.random.random_bool(0.5) {
            return self.wrong_speed(now);
        }
        let clock = self.random.random_range(0..CLOCKS);
        let most = STEPS_MS[self.random.random_range(0..STEPS_MS.len())];
        let wrong_ms: i64 = self.random.random_range(-most..most);
        let mut what = format!("the clock of {} is wrong by {wrong_ms} ms", self.owner(clock));
        let mut steps = vec![Step::SetClock(clock, wrong_ms * 1_000_000), Step::Pause(200..10_000)];
        if self.random.random_bool(0.5) {
            let (other, script) = self.draw(now);
            what += &format!("; {other}");
            steps.extend(script.steps);
        }
        steps.extend([Step::Pause(PAUSE), Step::SetClock(clock, 0)]);
        (what, steps)
    }

    /// Time is faster on one server or client than on all others, or slower, while something else
    /// happens.
    fn wrong_speed(&mut self, now: Duration) -> (String, Vec<Step>) {
        let (one, slow) = (self.random.random_range(0..CLOCKS), self.random.random_bool(0.5));
        let fast: Vec<_> = (0..CLOCKS).filter(|clock| (*clock == one) != slow).collect();
        let (other, Script { steps: others, .. }) = self.draw(now);
        let mut steps: Vec<_> = fast.iter().map(|clock| Step::SetFast(*clock, true)).collect();
        steps.push(Step::Pause(PAUSE));
        steps.extend(others);
        steps.push(Step::Pause(SESSION));
        steps.extend(fast.iter().map(|clock| Step::SetFast(*clock, false)));
        let how = if slow { "slow" } else { "fast" };
        (format!("time is {how} on {}; {other}", self.owner(one)), steps)
    }

    fn owner(&self, clock: usize) -> &'static str {
        self.servers.into_iter().chain(CLIENTS).nth(clock).unwrap_or("?")
    }
}
