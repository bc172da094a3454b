//! Who writes the log: the event loop itself while the disk is quick, since handing a write over
//! and being woken by its end costs more than a short wait; else the worker, beside the loop.
//!
//! Invariants: the loop writes only when the worker has nothing left to write, so that changes
//! reach the disk in order; before it does, everything that is ready to leave has left.
//!
//! A write of the loop's own that hangs needs no one to step down: meanwhile nothing leaves, no
//! heartbeat and no answer, the lease to answer reads runs out, and the others elect another after
//! an election timeout. The price is that who is connected here waits for its deadline. What the
//! worker writes beside the loop is watched ([`super::driver`]), since the loop would go on
//! leading.

use super::driver::{Driver, ended};
use super::setup::LogJob;
use crate::raftlog::Append;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::Result;
use weft_proto::planted::{self, Bug};

/// A write that takes longer than this must not hold up the loop.
const QUICK: Duration = Duration::from_millis(10);
/// After a slow one the worker writes for this long.
const SLOW_FOR: Duration = Duration::from_secs(1);

impl Driver {
    /// Has a change of the log written, by whomever.
    pub(super) fn write(&mut self, job: LogJob) -> Result<()> {
        let quick = self.slow_until.is_none_or(|until| Instant::now() >= until);
        if !self.in_place.is_empty() || (quick && self.unwritten.is_empty()) {
            self.in_place.push(job);
            return Ok(());
        }
        self.unwritten.push_back(Instant::now());
        if self.writer.submit(job) { Ok(()) } else { Err(ended("log")) }
    }

    /// Writes what was left to the loop, after the messages that wait for no disk have gone.
    pub(super) async fn write_in_place(&mut self) -> Result<()> {
        tokio::task::yield_now().await;
        if let Some(last) = self.in_place.last().filter(|_| planted::is(Bug::AnswerBeforeSync)) {
            self.release(last.number);
            tokio::time::sleep(QUICK).await;
        }
        if let Some(number) = self.write_now()? {
            self.release(number);
        }
        Ok(())
    }

    /// Writes it at once. Answers the highest ready that is durable now; it is not reported yet.
    pub(super) fn write_now(&mut self) -> Result<Option<u64>> {
        let (numbers, changes): (Vec<u64>, Vec<Append>) =
            self.in_place.drain(..).map(|job| (job.number, job.append)).unzip();
        let begin = Instant::now();
        if !changes.is_empty() {
            self.log.write(&changes)?;
        }
        let took = begin.elapsed();
        if took > QUICK {
            self.slow_until = Some(begin + took + SLOW_FOR);
        }
        Ok(numbers.into_iter().max())
    }
}
