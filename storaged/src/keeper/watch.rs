//! Watches a drive behind a fabric, and brings back the paths to it.

use super::Keeper;
use crate::engine::Engine;
use crate::nvmeof::{self, Remote};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Between two looks at a path. Reading sysfs costs some microseconds.
const LOOK: Duration = Duration::from_millis(250);
/// Between two attempts to connect paths that are missing.
const CONNECT: Duration = Duration::from_secs(5);
/// Before a drive that could make nothing durable is asked whether it can now, at first and at
/// most: while it hangs on that, nothing is read from it.
const FLUSH: Duration = Duration::from_secs(60);
const FLUSH_MOST: Duration = Duration::from_secs(600);

impl Keeper {
    /// Returns why the target must be opened again.
    pub(super) async fn watch(&self, remote: &Remote, engine: &Engine) -> String {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut errors = 0;
        let mut away = false;
        // What it was opened with all the same, so that it can be read.
        let known = engine.failure();
        let (mut wait, mut asks) = (FLUSH, Instant::now() + FLUSH);
        loop {
            looks.tick().await;
            if let Some(why) = engine.failure().filter(|_| known.is_none()) {
                return why;
            }
            if !nvmeof::is_live(&self.roots, remote) {
                let why = nvmeof::lost_paths(&self.roots, remote);
                if !std::mem::replace(&mut away, true) {
                    tracing::warn!(target = %self.location, "target is away: {why}");
                }
                self.set_away(engine, Some(why));
                continue;
            }
            let stat = engine.stat();
            let now = stat.read_errors + stat.write_errors;
            // A device that was taken away and made anew answers under another number: ask ours.
            if (away || now != errors)
                && let Err(e) = engine.probe().await
            {
                return e.message;
            }
            errors = now;
            if std::mem::replace(&mut away, false) {
                tracing::info!(target = %self.location, "target is back");
                self.set_away(engine, None);
            }
            if known.is_some() && Instant::now() >= asks {
                if engine.flush().await.is_ok() {
                    return "its drive can make durable what it holds".into();
                }
                wait = (wait * 2).min(FLUSH_MOST);
                asks = Instant::now() + wait;
            }
        }
    }

    fn set_away(&self, engine: &Engine, why: Option<String>) {
        if let Some(id) = engine.id() {
            self.targets.set_away(id, why);
        }
    }

    /// Connects again what the kernel gave up.
    pub(super) async fn connect_paths(&self, remote: &Remote) -> Infallible {
        loop {
            sleep(CONNECT).await;
            if let Err(e) = nvmeof::connect_all(&self.roots, remote, &self.fabric).await {
                tracing::debug!(target = %self.location, "{e}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
