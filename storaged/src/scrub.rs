//! Scrub: reads everything that the targets hold, again and again, and compares it with its
//! checksums, so that damage is found while enough other shards are whole to make it good again
//! ([`Targets::look_at`] notes it, and heartbeats tell).
//!
//! A pass takes the configured time: each chunk has its turn by how many bytes are before it. Who
//! reads and writes goes first ([`Pace`]). What was missed, as while the daemon was off, is made up
//! for at a few times the pace, not at once. How far a pass has come, and what it
//! has found, survives a restart.

use crate::config::Clock;
use crate::engine::{Engine, Scrub};
use crate::service::Targets;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use weft_proto::{ChunkId, Error, ErrorKind, Result, TargetId, Uuid};

/// Chunks that are looked up at once.
const PAGE: usize = 1000;
/// A pass is through after this part of its time, so that it ends in time where others are at work.
const SHARE: f64 = 0.9;
/// What was missed is made up for at so many times the pace.
const CATCH_UP: f64 = 4.0;
/// How often a pass is put down, and who waits looks at what has changed.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// How often targets that are not scrubbed are looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Scrubs all targets, each in `period`, for ever; not at all if that is 0.
pub(crate) async fn run(targets: Arc<Targets>, period: Duration, clock: Clock) {
    if period.is_zero() {
        return std::future::pending().await;
    }
    let mut scrubs = FuturesUnordered::new();
    let mut running: BTreeSet<Uuid> = BTreeSet::new();
    let mut look = Instant::now();
    loop {
        tokio::select! {
            ended = scrubs.next(), if !scrubs.is_empty() => {
                running.retain(|uuid| Some(*uuid) != ended);
            }
            () = sleep_until(look) => {
                for (id, engine) in targets.engines() {
                    let uuid = engine.uuid();
                    if running.insert(uuid) {
                        let targets = targets.clone();
                        scrubs.push(Scrubber { targets, id, uuid, period, clock }.run());
                    }
                }
                look = Instant::now() + LOOK_INTERVAL;
            }
        }
    }
}

/// The passes over one target. It does not keep the target open: what waits for it to be closed
/// waits for one chunk at most.
struct Scrubber {
    targets: Arc<Targets>,
    id: TargetId,
    uuid: Uuid,
    period: Duration,
    clock: Clock,
}

impl Scrubber {
    /// Until the target cannot be used.
    async fn run(self) -> Uuid {
        if let Err(error) = self.go_round().await {
            tracing::info!(target = %self.id, "scrub stops until the target can be used: {error}");
            sleep(MAX_INTERVAL.min(self.period)).await;
        }
        self.uuid
    }

    async fn go_round(&self) -> Result<()> {
        let mut scrub = self.engine()?.scrub();
        // As if the pass had begun when it did, without the time in which the target was closed.
        let mut begun = Instant::now().checked_sub(scrub.elapsed).unwrap_or_else(Instant::now);
        loop {
            self.pass(&mut scrub, begun).await?;
            let bytes = scrub.done_bytes;
            if bytes > 0 {
                tracing::info!(target = %self.id, bytes, "scrub has read everything");
            }
            scrub = Scrub { last_s: self.clock.now_s(), ..Scrub::default() };
            // One that was late does not make the next one late. What holds nothing is looked at
            // again soon, so that what comes is not late either.
            let wait = if bytes > 0 { self.period } else { MAX_INTERVAL.min(self.period) };
            begun = Instant::now().max(begun + wait);
            self.put_down(scrub).await?;
            while Instant::now() < begun {
                self.rest(begun).await?;
                self.put_down(scrub).await?;
            }
        }
    }

    /// Reads everything from where it was put down, in its turn.
    async fn pass(&self, scrub: &mut Scrub, begun: Instant) -> Result<()> {
        let (mut put_down, mut not_before) = (Instant::now(), begun);
        loop {
            let page = self.engine()?.list(scrub.after, None, PAGE).await?;
            for (chunk, length) in page.items {
                loop {
                    let turn = self.turn(scrub, begun)?.max(not_before);
                    scrub.elapsed = begun.elapsed();
                    if put_down.elapsed() > MAX_INTERVAL.min(self.period / 100) {
                        self.put_down(*scrub).await?;
                        put_down = Instant::now();
                    }
                    if Instant::now() >= turn {
                        break;
                    }
                    self.rest(turn).await?;
                }
                not_before = Instant::now() + self.look_at(chunk, length).await?;
                (scrub.after, scrub.done_bytes) = (Some(chunk), scrub.done_bytes + length);
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Puts down how far a scrub has come, and what it and others have found.
    async fn put_down(&self, scrub: Scrub) -> Result<()> {
        self.engine()?.set_scrub(scrub, self.targets.damaged_of(self.id.0)).await
    }

    /// When the chunk behind those that were read has its turn.
    fn turn(&self, scrub: &Scrub, begun: Instant) -> Result<Instant> {
        let used = self.engine()?.stat().used_bytes.max(scrub.done_bytes).max(1);
        let before = scrub.done_bytes as f64 / used as f64;
        Ok(begun + self.period.mul_f64(SHARE * before))
    }

    /// Reads one chunk. Answers how long to rest after it.
    async fn look_at(&self, chunk: ChunkId, length: u64) -> Result<Duration> {
        let engine = self.engine()?;
        let pace = self.targets.rebuilder.get().map(|rebuilder| &rebuilder.pace);
        let (looking, reading) = (Instant::now(), pace.map(|pace| pace.making()));
        let looked = self.targets.look_at(&engine, (self.id.0, chunk), 0, 0).await;
        drop(reading);
        match looked {
            // Damage is noted; what was deleted meanwhile is not wanted.
            Ok(_) => {}
            Err(e) if matches!(e.kind, ErrorKind::Io | ErrorKind::NotFound) => {}
            Err(e) => return Err(e),
        }
        let share = length as f64 / engine.stat().used_bytes.max(length).max(1) as f64;
        let rest = pace.map_or(Duration::ZERO, |pace| pace.pause(looking.elapsed()));
        Ok(rest.max(self.period.mul_f64(SHARE * share / CATCH_UP)))
    }

    /// Rests until then, or for a while.
    async fn rest(&self, until: Instant) -> Result<()> {
        self.engine()?;
        sleep_until(until.min(Instant::now() + MAX_INTERVAL)).await;
        Ok(())
    }

    /// The target, to be held for a moment. Errors: it cannot be used, or is another one now.
    fn engine(&self) -> Result<Engine> {
        let engine = self.targets.served(self.id.0)?;
        if let Some(why) = engine.failure() {
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        match engine.uuid() == self.uuid {
            true => Ok(engine),
            false => Err(Error::new(ErrorKind::Unavailable, "it is another drive now")),
        }
    }
}
