//! Clocks: what time it is, on servers and clients, and how fast it passes there.
//!
//! Time on some hosts can be faster than on the others, also the monotonic one, and so it is slower
//! on those: leases are made for hosts of which one has a tenth more than the other.

use super::names::{CLIENTS, SERVERS};
use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

/// Clocks on which something depends: of servers, and of clients after them.
pub const CLOCKS: usize = SERVERS.len() + CLIENTS.len();

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
