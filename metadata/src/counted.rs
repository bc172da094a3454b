//! What a status says that has to be counted in the state, which takes long.
//!
//! Invariant: of one server one count runs at a time, beside the log's own thread, and is for all
//! who ask within a second, however many ask and go again.

use crate::env::Env;
use crate::node::Node;
use crate::placement::survival;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;
use weft_proto::{InodeId, Result, v1};

/// What is older is counted anew.
const FRESH: Duration = Duration::from_secs(1);

/// What waits is counted up to a bound.
const COUNTED: usize = 100_000;

/// What was counted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counted {
    /// Segments that wait for deletion.
    pub garbage_segments: u64,
    /// Files that may be worth being put together again.
    pub scattered_files: u64,
    /// Placement groups that have lost more than their parity.
    pub lost_groups: u64,
    /// Placement groups that have lost all of it.
    pub bare_groups: u64,
}

impl Counted {
    fn of(node: &Node) -> Self {
        let (lost_groups, bare_groups) = lacking(node);
        let garbage = node.state.garbage(None, COUNTED);
        let scattered = node.state.to_compact(InodeId(0), COUNTED);
        Self {
            garbage_segments: garbage.map_or(0, |segments| segments.len() as u64),
            scattered_files: scattered.map_or(0, |files| files.len() as u64),
            lost_groups,
            bare_groups,
        }
    }
}

/// Placement groups that have lost more than their parity, and all of it.
pub(crate) fn lacking(node: &Node) -> (u64, u64) {
    let map = node.map();
    if map.targets.iter().all(|t| t.state() == v1::TargetState::Up) {
        return (0, 0);
    }
    node.state.groups_in_use().map_or((0, 0), |in_use| survival::lacking(&map, &in_use))
}

/// What was counted last, and when.
#[derive(Clone, Default)]
pub(crate) struct Counts(Arc<Mutex<Option<(Instant, Counted)>>>);

impl Counts {
    /// What a server has counted of late. Error: `Internal`, the count ended early.
    pub async fn get(&self, node: &Arc<Node>) -> Result<Counted> {
        // Only who leads knows all of it, and only of him much is asked.
        if !node.view().ready {
            return Ok(Counted::default());
        }
        let of = node.clone();
        self.lately(&node.env, move || Counted::of(&of)).await
    }

    async fn lately(
        &self,
        env: &Env,
        count: impl FnOnce() -> Counted + Send + 'static,
    ) -> Result<Counted> {
        let mut last = self.0.clone().lock_owned().await;
        match *last {
            Some((at, counted)) if at.elapsed() < FRESH => return Ok(counted),
            _ => {}
        }
        // The lock goes along: a count that nobody waits for any more goes on to its end.
        let count = move || {
            let counted = count();
            *last = Some((Instant::now(), counted));
            Ok(counted)
        };
        env.blocking(count).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use tokio::time::{advance, timeout};

    fn counted(garbage_segments: u64) -> Counted {
        Counted { garbage_segments, ..Counted::default() }
    }

    /// Its thread goes on meanwhile: what is counted here waits for it.
    #[tokio::test(start_paused = true)]
    async fn one_counts_beside_the_log_for_all_who_ask_and_who_has_gone() {
        let (counts, env) = (Counts::default(), Env::real());
        let (go, wait) = mpsc::channel();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let first = {
            let (counts, env) = (counts.clone(), env.clone());
            tokio::spawn(async move {
                let count = move || {
                    let _ = begun.send(());
                    counted(wait.recv().unwrap_or(0))
                };
                counts.lately(&env, count).await
            })
        };
        has_begun.await.unwrap();
        first.abort();
        assert!(first.await.is_err());
        let again = || -> Counted { unreachable!("it is counted already") };
        let mut asked: Vec<_> = (0..3).map(|_| Box::pin(counts.lately(&env, again))).collect();
        for one in &mut asked {
            assert!(timeout(Duration::ZERO, one).await.is_err(), "it waits for the count");
        }
        go.send(7).unwrap();
        for one in asked {
            assert_eq!(one.await.unwrap(), counted(7));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_old_is_counted_anew() {
        let env = Env { threads: false, ..Env::real() };
        let (counts, runs) = (Counts::default(), Arc::new(AtomicU64::new(0)));
        let ask = || {
            let runs = runs.clone();
            counts.lately(&env, move || counted(runs.fetch_add(1, Ordering::Relaxed)))
        };
        for n in 0..3 {
            for _ in 0..20 {
                assert_eq!(ask().await.unwrap(), counted(n));
            }
            advance(FRESH).await;
        }
    }
}
