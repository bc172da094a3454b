//! What is rare and allowed, made frequent by a seed (FoundationDB's BUGGIFY): answers that are
//! lost or late, small batches, a lead that is given up. A simulation chooses for each run which of
//! these points fire, and how often, so that orders of events are seen that chance hardly makes.
//!
//! Only a build with the feature `sim` can, and only on a thread that has [`choose`]n. Everywhere
//! else [`fires`] is `false` before anything is compiled.

#[cfg(feature = "sim")]
use rand::{Rng, SeedableRng, rngs::SmallRng};
#[cfg(feature = "sim")]
use std::cell::RefCell;
use std::time::Duration;

/// Where something rare may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// An answer of the metadata group is lost: the request is sent again.
    AnswerLost,
    /// It is a while until an answer of the metadata group has an effect.
    AnswerLate,
    /// A metadata server takes a while to answer.
    ServerLate,
    /// The leader of the metadata group steps down.
    StepDown,
    /// A lease that could be granted is not.
    GrantWithheld,
    /// A mount takes a while to answer a recall.
    RecallLate,
    /// A mount forgets what it knows under its leases.
    Forgetful,
    /// The log of changes takes no more for now.
    LogFull,
    /// One step of the log of changes is told at a time.
    OneStep,
    /// Two pieces of a file are committed at a time.
    TwoPieces,
    /// What is durable is committed at once, as if memory was short.
    CommitSoon,
    /// It is a while until it is known that what was written is durable.
    LandLate,
    /// A storage daemon takes a while to answer.
    DaemonLate,
}

impl Point {
    #[cfg(feature = "sim")]
    const COUNT: usize = Point::DaemonLate as usize + 1;

    /// How often one that fires does, of what others do: this one costs an election each time.
    #[cfg(feature = "sim")]
    const fn share(number: usize) -> f64 {
        if number == Point::StepDown as usize { 0.01 } else { 1.0 }
    }
}

/// Longest of what takes a while.
const LATE: Duration = Duration::from_millis(400);
/// How often points fire that do.
#[cfg(feature = "sim")]
const OFTEN: [f64; 4] = [0.005, 0.02, 0.1, 0.4];
/// How many of the points fire at all in a run.
#[cfg(feature = "sim")]
const CHOSEN: f64 = 0.3;

#[cfg(feature = "sim")]
struct Points {
    random: SmallRng,
    often: [f64; Point::COUNT],
}

#[cfg(feature = "sim")]
thread_local! {
    static POINTS: RefCell<Option<Points>> = const { RefCell::new(None) };
}

/// Has a seed decide what fires on this thread from now on.
#[cfg(feature = "sim")]
pub fn choose(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let often = std::array::from_fn(|number| match random.random_bool(CHOSEN) {
        true => OFTEN[random.random_range(0..OFTEN.len())] * Point::share(number),
        false => 0.0,
    });
    POINTS.set(Some(Points { random, often }));
}

/// Whether a seed decides here.
#[cfg(feature = "sim")]
pub fn is_seeded() -> bool {
    POINTS.with_borrow(Option::is_some)
}

/// Whether a seed decides here: never, in such a build.
#[cfg(not(feature = "sim"))]
#[inline]
pub const fn is_seeded() -> bool {
    false
}

/// Whether this rare thing happens now.
#[cfg(feature = "sim")]
pub fn fires(point: Point) -> bool {
    POINTS.with_borrow_mut(|points| {
        points.as_mut().is_some_and(|points| {
            let often = points.often[point as usize];
            often > 0.0 && points.random.random_bool(often)
        })
    })
}

/// Whether this rare thing happens now: never, in such a build.
#[cfg(not(feature = "sim"))]
#[inline]
pub const fn fires(_: Point) -> bool {
    false
}

/// Waits for a while, if this point fires.
#[inline]
pub async fn pause(point: Point) {
    if fires(point) {
        tokio::time::sleep(while_of()).await;
    }
}

#[cfg(feature = "sim")]
fn while_of() -> Duration {
    POINTS.with_borrow_mut(|points| {
        points.as_mut().map_or(LATE, |points| LATE.mul_f64(points.random.random_range(0.0..1.0)))
    })
}

#[cfg(not(feature = "sim"))]
const fn while_of() -> Duration {
    LATE
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_what_fires() {
        let fired = |seed| {
            choose(seed);
            (0..1000).map(|_| fires(Point::AnswerLost)).collect::<Vec<_>>()
        };
        let seeds = 0..100;
        let some = seeds.clone().filter(|seed| fired(*seed).contains(&true)).count();
        assert!((10..60).contains(&some), "{some}");
        assert!(seeds.clone().all(|seed| fired(seed) == fired(seed)));
        // And nothing fires where nobody has chosen.
        std::thread::spawn(|| assert!((0..1000).all(|_| !fires(Point::AnswerLost))))
            .join()
            .unwrap();
    }
}
