//! How often the disk can make something durable: one writer that waits for each fdatasync, and
//! four writers whose records share them, as a replicated log does.

use crate::bench::context::{Context, Sample};
use crate::bench::task::{Outcome, goes_on, noise};
use anyhow::Result;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Bytes of one record.
const RECORD: usize = 4096;
/// The log is overwritten from its start when it gets here: its blocks exist already.
const LOG_BYTES: u64 = 16 << 20;
const WRITERS: u64 = 4;

pub fn run(context: &Context) -> Result<Vec<Sample>> {
    let path = context.scratch().join("log");
    let file = allocate(&path)?;
    let (count, limit) = (context.operations, context.limit);
    let samples = vec![
        context.measure("fsync", || alone(&file, count, limit))?,
        context.measure("group_fsync", || grouped(&file, count, limit))?,
    ];
    std::fs::remove_file(&path)?;
    Ok(samples)
}

fn allocate(path: &Path) -> Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all_at(&noise(LOG_BYTES as usize, 5), 0)?;
    file.sync_all()?;
    Ok(file)
}

fn alone(file: &File, count: u64, limit: Duration) -> Result<Outcome> {
    let record = noise(RECORD, 6);
    let mut outcome = Outcome::default();
    let start = Instant::now();
    for i in 0..count {
        if !goes_on(start, limit) {
            break;
        }
        let begun = Instant::now();
        file.write_all_at(&record, i * RECORD as u64 % LOG_BYTES)?;
        file.sync_data()?;
        outcome.latencies_us.push(begun.elapsed().as_secs_f32() * 1e6);
        outcome.operations += 1;
    }
    outcome.seconds = start.elapsed().as_secs_f64();
    Ok(outcome)
}

fn grouped(file: &File, count: u64, limit: Duration) -> Result<Outcome> {
    let log = GroupLog { file, state: Mutex::default(), turned: Condvar::new() };
    let start = Instant::now();
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let work = || {
            let record = noise(RECORD, 7);
            let mut outcome = Outcome::default();
            for _ in 0..count {
                if !goes_on(start, limit) {
                    break;
                }
                let begun = Instant::now();
                log.append(&record)?;
                outcome.latencies_us.push(begun.elapsed().as_secs_f32() * 1e6);
                outcome.operations += 1;
            }
            Ok(outcome)
        };
        let threads: Vec<_> = (0..WRITERS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| anyhow::bail!("a writer died")))
            .collect()
    });
    let mut sum = Outcome { seconds: start.elapsed().as_secs_f64(), ..Outcome::default() };
    for outcome in outcomes {
        let outcome = outcome?;
        sum.operations += outcome.operations;
        sum.latencies_us.extend(outcome.latencies_us);
    }
    Ok(sum)
}

/// A log whose first waiting writer syncs for all that have written meanwhile.
struct GroupLog<'a> {
    file: &'a File,
    state: Mutex<GroupState>,
    turned: Condvar,
}

#[derive(Default)]
struct GroupState {
    /// Records written to the file, and those known to be durable.
    written: u64,
    durable: u64,
    syncing: bool,
    failed: bool,
}

impl GroupLog<'_> {
    /// Returns when the record is durable.
    fn append(&self, record: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let mine = state.written;
        self.file.write_all_at(record, mine * RECORD as u64 % LOG_BYTES)?;
        state.written += 1;
        while state.durable <= mine {
            anyhow::ensure!(!state.failed, "the log could not be synced");
            if state.syncing {
                state = self.turned.wait(state).unwrap_or_else(|e| e.into_inner());
                continue;
            }
            state.syncing = true;
            let covers = state.written;
            drop(state);
            let synced = self.file.sync_data();
            state = self.lock();
            state.syncing = false;
            match synced {
                Ok(()) => state.durable = covers,
                Err(_) => state.failed = true,
            }
            self.turned.notify_all();
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_writer_gets_all_its_records_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = allocate(&dir.path().join("log")).unwrap();
        let long = Duration::from_secs(60);
        let outcome = grouped(&file, 20, long).unwrap();
        assert_eq!(outcome.operations, 20 * WRITERS);
        assert_eq!(outcome.latencies_us.len(), 20 * WRITERS as usize);
        assert_eq!(alone(&file, 5, long).unwrap().operations, 5);
        assert_eq!(alone(&file, 5, Duration::ZERO).unwrap().operations, 0);
    }
}
