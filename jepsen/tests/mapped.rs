//! A page that another mount has just made a part of a file is there for whoever maps it.

use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use std::{fs, io};
use weft_jepsen::workload::{Pager, waited_in};
use weft_tests::Cluster;

const ROUNDS: usize = 900;
/// So many are killed at most, of five to eight while notices overtook answers: a mount does not
/// hear what is in the kernel's queue
/// (docs/decisions/027-the-kernel-keeps-names-under-leases.md).
const MOST_KILLED: usize = 2;
/// A notice waits two milliseconds for who was told attributes. Where a thread is kept from the
/// processor for about as long, that is too short, and who is killed then says nothing.
const LATE: Duration = Duration::from_millis(1);

/// How long each thread of a mount has waited for a processor so far.
struct Waited(HashMap<OsString, Duration>);

impl Waited {
    fn now(threads: &Path) -> io::Result<Self> {
        let all = fs::read_dir(threads)?.flatten().filter_map(|thread| {
            Some((thread.file_name(), waited_in(&thread.path().join("schedstat"))?))
        });
        Ok(Self(all.collect()))
    }

    /// The longest that one of them has waited since `before`.
    fn longest_since(&self, before: &Self) -> Duration {
        let before = |thread| before.0.get(thread).copied().unwrap_or_default();
        let waited = self.0.iter().map(|(thread, now)| now.saturating_sub(before(thread)));
        waited.max().unwrap_or_default()
    }
}

/// One of those who map the same files at once.
struct Worker {
    mount: PathBuf,
    /// Of the process that serves the mount.
    threads: PathBuf,
    pager: Pager,
}

/// How many were killed, and how many of them though no thread was kept from the processor.
#[derive(Default)]
struct Killed {
    all: usize,
    in_time: usize,
}

impl Worker {
    fn work(mut self, together: &Barrier) -> Result<Killed> {
        let mut killed = Killed::default();
        for round in 0..ROUNDS {
            let (before, pager_before) = (Waited::now(&self.threads)?, self.pager.waited());
            together.wait();
            thread::park_timeout(Duration::from_micros(rand::random_range(0..1500)));
            // It is made, and made long enough unless it is.
            match self.pager.get(&self.mount.join(format!("d/{round}"))) {
                Err(error) if error.raw_os_error().is_none() => {
                    let of_mount = Waited::now(&self.threads)?.longest_since(&before);
                    let longest = of_mount.max(self.pager.waited().saturating_sub(pager_before));
                    println!("round {round}: killed; a thread has waited {longest:?}");
                    killed.all += 1;
                    killed.in_time += usize::from(longest < LATE);
                }
                got => ensure!(got? == 0),
            }
        }
        Ok(killed)
    }
}

#[test]
fn who_maps_a_file_that_others_make_longer_is_hardly_ever_killed() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_owned(), cluster.mount_again("b")?, cluster.mount_again("c")?];
    fs::create_dir(mounts[0].join("d"))?;
    let together = Barrier::new(mounts.len());
    thread::scope(|scope| {
        let begin = |mount: PathBuf| {
            let threads = format!("/proc/{}/task", cluster.pid_of_mount(&mount)?).into();
            let worker = Worker { mount, threads, pager: Pager::default() };
            let together = &together;
            anyhow::Ok(move || worker.work(together))
        };
        // All are there before any waits for the others.
        let workers = mounts.into_iter().map(begin).collect::<Result<Vec<_>>>()?;
        let workers: Vec<_> = workers.into_iter().map(|worker| scope.spawn(worker)).collect();
        let mut killed = Killed::default();
        for worker in workers {
            let more = worker.join().ok().context("a thread panicked")??;
            (killed.all, killed.in_time) = (killed.all + more.all, killed.in_time + more.in_time);
        }
        let Killed { all, in_time } = killed;
        println!("{all} were killed in {ROUNDS} rounds, {in_time} with nobody late");
        ensure!(in_time <= MOST_KILLED, "{in_time} were killed in {ROUNDS} rounds");
        anyhow::Ok(())
    })?;
    cluster.await_clean()
}
