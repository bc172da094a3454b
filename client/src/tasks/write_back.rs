//! Commits written data on its own: when it is old, and when writers wait for room. Drops what was
//! read ahead of who reads no more.
//!
//! Invariant: a file that cannot make progress holds up no other: nothing is waited for here.

use crate::budget::Budget;
use crate::file::{File, Files};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How often to look again while writers wait.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(20);

/// What has not landed for this long is not waited for by others.
const LANDING_TIMEOUT: Duration = Duration::from_secs(2);

/// Who has not read on for this long, or twice it, does so later.
const REST_INTERVAL: Duration = Duration::from_secs(10);

/// Runs until the mount is gone.
pub(crate) async fn run(budget: Arc<Budget>, age: Duration, files: Weak<Files>) {
    let pause = (age / 5).max(Duration::from_millis(10));
    let mut tick = Instant::now() + pause;
    let mut rest = Instant::now() + REST_INTERVAL;
    loop {
        tokio::select! {
            biased;
            () = budget.pressure.notified() => {}
            () = sleep_until(tick) => {}
        }
        let Some(files) = files.upgrade() else { return };
        let now = Instant::now();
        if now >= rest {
            files.rest();
            rest = now + REST_INTERVAL;
        }
        if now >= tick {
            // Before they are held here: what is used is not forgotten.
            files.sweep();
        }
        let files = files.all();
        let is_short = budget.is_short();
        if is_short {
            make_room(&files, now);
        }
        if now >= tick {
            let old = |f: &&Arc<File>| f.oldest().is_some_and(|born| now - born >= age);
            files.iter().filter(old).for_each(|f| f.flush_behind());
        }
        if is_short || now >= tick {
            tick = now + if is_short { PRESSURE_INTERVAL } else { pause };
        }
    }
}

/// What is durable is committed; only if nothing is on its way that may land soon, buffers are sent
/// as they are: segments should be whole.
fn make_room(files: &[Arc<File>], now: Instant) {
    let durable: Vec<_> = files.iter().filter(|f| f.has_durable()).collect();
    durable.iter().for_each(|f| f.commit_behind());
    let lands = |f: &Arc<File>| {
        f.has_flying() && f.oldest().is_some_and(|born| now.duration_since(born) < LANDING_TIMEOUT)
    };
    if durable.is_empty() && !files.iter().any(lands) {
        files.iter().filter(|f| f.is_dirty()).for_each(|f| f.flush_behind());
    }
}
