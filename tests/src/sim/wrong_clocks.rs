//! Clocks that are wrong, and time that passes at another speed, as faults.

use super::clocks::CLOCKS;
use super::faults::{PAUSE, SESSION, Script, Step, World};
use super::names::CLIENTS;
use rand::Rng;
use std::time::Duration;

/// How far a clock is wrong, in milliseconds, at most.
const STEPS_MS: [i64; 3] = [5000, 60_000, 2 * 3_600_000];

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
