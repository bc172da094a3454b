//! How fast this daemon makes chunks, and reads for others that make some, while somebody waits for
//! its targets.
//!
//! Each of these is followed by a pause of so many times as long as it took. The factor follows
//! what who reads and writes here waits: as long as requests take no longer than they do when
//! nothing is made, it is halved each time; when they take a fifth longer, it is doubled, up to
//! what leaves this the share of the time that the daemon's configuration says
//! (`background_share`). Where nobody else asks for anything there is no pause, and several chunks
//! are made, and read, at a time; else one of each target is ([`Turn`]): many at once would be a
//! burst that whoever comes just then waits for.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::time::error::Elapsed as Late;
use tokio::time::{Instant, timeout_at};
use weft_proto::TargetId;

/// A request counts with one part in so many.
const WEIGHT: u32 = 16;
/// What the factor ends with.
const MIN_FACTOR: f64 = 0.25;
/// Others are at work if one of them has been heard within this.
const QUIET_AFTER: Duration = Duration::from_millis(200);
/// Requests take too long at so many times what they take otherwise, or less than this longer.
const TOO_LONG: f64 = 1.2;
const TOLERANCE: Duration = Duration::from_micros(50);
/// No pause is longer.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// What requests took when nothing was made says nothing any more after this.
const FORGET_AFTER: Duration = Duration::from_secs(30);
/// Who makes a chunk of what it reads here is not kept from it for longer: it has deadlines.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);

/// Of one daemon.
pub(crate) struct Pace {
    state: Mutex<State>,
    max_factor: f64,
    to_make: Turns,
    to_read: Turns,
}

/// Keeps others from doing the same at a target until it is dropped.
pub(crate) type Turn = OwnedMutexGuard<()>;

#[derive(Default)]
struct Turns(Mutex<BTreeMap<TargetId, Arc<tokio::sync::Mutex<()>>>>);

#[derive(Default)]
struct State {
    /// What a request takes on average while nothing is made, and while something is.
    alone: Option<Duration>,
    beside: Option<Duration>,
    last_alone: Option<Instant>,
    last_request: Option<Instant>,
    /// Chunks that are being made.
    making: usize,
    factor: f64,
}

/// Something is being made until this is dropped.
pub(crate) struct Making<'a>(&'a Pace);

impl Pace {
    /// Goes on for so many percent of the time at least: 1 to 100.
    pub fn new(share: u32) -> Self {
        let max_factor = 100.0 / f64::from(share.clamp(1, 100)) - 1.0;
        let (to_make, to_read) = Default::default();
        Self { state: Mutex::default(), max_factor, to_make, to_read }
    }

    /// A request of somebody else was answered after this time.
    pub fn note_request(&self, took: Duration) {
        let state = &mut *self.state.lock();
        let now = Some(Instant::now());
        state.last_request = now;
        let mean = if state.making > 0 { &mut state.beside } else { &mut state.alone };
        if state.making == 0 {
            state.last_alone = now;
        }
        *mean = Some(mean.map_or(took, |mean| (mean * (WEIGHT - 1) + took) / WEIGHT));
    }

    /// A chunk is being made from now on.
    pub fn making(&self) -> Making<'_> {
        self.state.lock().making += 1;
        Making(self)
    }

    /// Waits for the turn to make a chunk for a target; none is needed while nobody else asks for
    /// anything. It ends behind the pause. `Err`: it did not come until then.
    pub async fn turn_to_make(
        &self,
        target: TargetId,
        until: Instant,
    ) -> Result<Option<Turn>, Late> {
        match self.is_shared() {
            true => self.to_make.take(target, until).await.map(Some),
            false => Ok(None),
        }
    }

    /// As [`Self::turn_to_make`], to read from one; who waits for long reads without.
    pub async fn turn_to_read(&self, target: TargetId, until: Instant) -> Option<Turn> {
        let until = until.min(Instant::now() + TURN_TIMEOUT);
        match self.is_shared() {
            true => self.to_read.take(target, until).await.ok(),
            false => None,
        }
    }

    /// Whether somebody else has asked for something just now.
    fn is_shared(&self) -> bool {
        self.state.lock().is_shared()
    }

    /// How long to wait after a chunk that took so long.
    pub fn pause(&self, took: Duration) -> Duration {
        let state = &mut *self.state.lock();
        if !state.is_shared() {
            // Nothing was learnt that holds for who comes next.
            (state.beside, state.factor) = (None, 0.0);
            return Duration::ZERO;
        }
        if state.last_alone.is_some_and(|at| at.elapsed() > FORGET_AFTER) {
            (state.alone, state.last_alone) = (None, None);
        }
        let suffers = match (state.alone, state.beside) {
            (Some(alone), Some(beside)) => beside > alone.mul_f64(TOO_LONG) + TOLERANCE,
            // It is not known what they would take: as if they suffered. The pauses will tell.
            (None, Some(_)) => true,
            _ => false,
        };
        state.factor = match suffers {
            true => (state.factor * 2.0).max(1.0).min(self.max_factor),
            false if state.factor > MIN_FACTOR => state.factor / 2.0,
            false => 0.0,
        };
        took.mul_f64(state.factor).min(MAX_PAUSE)
    }
}

impl Turns {
    async fn take(&self, target: TargetId, until: Instant) -> Result<Turn, Late> {
        let turn = self.0.lock().entry(target).or_default().clone();
        timeout_at(until, turn.lock_owned()).await
    }
}

impl State {
    fn is_shared(&self) -> bool {
        self.last_request.is_some_and(|at| at.elapsed() <= QUIET_AFTER)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.state.lock().making -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn who_suffers_gets_room_and_who_does_not_keeps_nothing_back() {
        let pace = Pace::new(20);
        assert_eq!(pace.pause(10 * MS), Duration::ZERO, "nobody asks for anything");
        assert!(!pace.is_shared());
        (0..50).for_each(|_| pace.note_request(MS));
        let made = pace.making();
        (0..50).for_each(|_| pace.note_request(MS));
        assert_eq!(pace.pause(10 * MS), Duration::ZERO, "nobody suffers");
        (0..50).for_each(|_| pace.note_request(4 * MS));
        let pauses: Vec<_> = (0..6).map(|_| pace.pause(10 * MS)).collect();
        assert_eq!(pauses, [10, 20, 40, 40, 40, 40].map(|n| n * MS));
        assert_eq!(pace.pause(1000 * MS), MAX_PAUSE);
        (0..50).for_each(|_| pace.note_request(MS));
        let pauses: Vec<_> = (0..7).map(|_| pace.pause(10 * MS)).collect();
        assert_eq!(pauses[..3], [20, 10, 5].map(|n| n * MS));
        assert_eq!(pauses[6], Duration::ZERO);
        // What requests take alone was learnt too long ago, and the pauses let it be learnt again.
        advance(FORGET_AFTER + MS).await;
        pace.note_request(MS);
        assert_eq!(pace.pause(10 * MS), 10 * MS, "as if they suffered");
        drop(made);
        (0..50).for_each(|_| pace.note_request(MS));
        let pauses: Vec<_> = (0..3).map(|_| pace.pause(20 * MS)).collect();
        assert_eq!(pauses, [10, 5, 0].map(|n| n * MS));
        (0..50).for_each(|_| pace.note_request(4 * MS));
        assert_eq!(pace.pause(10 * MS), Duration::ZERO, "they are slow without us");
        assert!(pace.is_shared());
        advance(QUIET_AFTER * 2).await;
        assert_eq!(pace.pause(10 * MS), Duration::ZERO);
        assert!(!pace.is_shared());
    }

    #[tokio::test(start_paused = true)]
    async fn each_target_has_one_turn_while_others_use_it() {
        let pace = Pace::new(20);
        let soon = || Instant::now() + MS;
        let (one, other) = (TargetId(1), TargetId(2));
        let free = pace.turn_to_make(one, soon()).await.unwrap();
        assert!(free.is_none() && pace.turn_to_read(one, soon()).await.is_none(), "nobody asks");
        pace.note_request(MS);
        let making = pace.turn_to_make(one, soon()).await.unwrap();
        let reading = pace.turn_to_read(one, soon()).await;
        assert!(making.is_some() && reading.is_some(), "who makes and who reads have their own");
        assert!(pace.turn_to_make(other, soon()).await.unwrap().is_some());
        assert!(pace.turn_to_make(one, soon()).await.is_err());
        drop(making);
        assert!(pace.turn_to_make(one, soon()).await.unwrap().is_some());

        let far = Instant::now() + 100 * TURN_TIMEOUT;
        let (begun, waiting) = (Instant::now(), pace.turn_to_read(one, far));
        assert!(waiting.await.is_none(), "it is taken");
        assert_eq!(begun.elapsed(), TURN_TIMEOUT);
        pace.note_request(MS);
        let waiting = pace.turn_to_read(one, far);
        let (turn, ()) = tokio::join!(waiting, async { drop(reading) });
        assert!(turn.is_some());
        advance(QUIET_AFTER * 2).await;
        assert!(pace.turn_to_read(one, far).await.is_none(), "nobody asks any more");
    }
}
