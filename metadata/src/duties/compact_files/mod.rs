//! Has storage daemons write those parts of files again that lie in pieces, or in segments that
//! hold much that nobody shows ([`crate::compaction`]), and shows the files from there: what was
//! overwritten gives its room back, and long runs are read at once.
//!
//! A file is left alone while it is changed, but not for long. What was written again is shown only
//! where the file has not changed meanwhile ([`crate::ops`], `move_extents`), so nobody waits for
//! this, and nobody else's change is lost.
//!
//! Invariant (I7): chunks are written in a session of this leader's own. It is ended when an order
//! failed of which something may be left, and by the next leader; what it has not committed is
//! swept then.

mod files;
mod orders;
mod pass;

use crate::compaction::Seats;
use crate::node::{Known, Node};
use files::Files;
use orders::{Orders, end_writers};
use pass::Pass;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use weft_net::Peers;
use weft_proto::{InodeId, v1};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Files that are worked on at a time.
const MAX_FILES: usize = 2;

/// Compacts files for as long as this server leads.
pub async fn compact_files(node: &Arc<Node>, peers: &Arc<Peers>) {
    end_writers(node).await;
    let orders = Arc::new(Orders::new(node.clone(), peers.clone()));
    let mut files = Files::default();
    let mut shortage = Shortage::default();
    let mut jobs: JoinSet<(InodeId, Pass)> = JoinSet::new();
    loop {
        // One that ends makes room for the next.
        match timeout(LOOK_INTERVAL, jobs.join_next()).await {
            Ok(Some(Ok((ino, pass)))) => files.ended(ino, pass),
            // Of a job that panicked nothing is known: its file is looked at again.
            Ok(Some(Err(_))) | Err(_) => {}
            Ok(None) => {
                files.working.clear();
                orders.settle().await;
                sleep(LOOK_INTERVAL).await;
            }
        }
        files.tell_compacted(node).await;
        // What is under way ends before the session does that it is written in.
        if orders.is_over() || node.has_room().is_err() || !node.all_know(Known::MovesOfExtents) {
            continue;
        }
        let seats = shortage.look(node);
        if let Err(error) = files.look(node, seats).await {
            tracing::error!("cannot read the list of files to compact: {error}");
        }
        while jobs.len() < MAX_FILES
            && let Some(ino) = files.due.pop_front()
        {
            files.working.insert(ino);
            let pass = files.begin(ino);
            let orders = orders.clone();
            jobs.spawn(async move { (ino, orders.compact(ino, pass, seats).await) });
        }
    }
}

/// Fewer targets take data than there are.
#[derive(Default)]
struct Shortage {
    since: Option<Instant>,
}

impl Shortage {
    /// For how many targets segments are cut: what is away is waited for until it would be given
    /// up.
    fn look(&mut self, node: &Node) -> Seats {
        let map = node.map();
        let takes =
            |t: &&v1::TargetInfo| t.state() == v1::TargetState::Up && !t.full && !t.draining;
        let takes: HashSet<u32> = map.targets.iter().filter(takes).map(|t| t.id).collect();
        let open = || map.groups().filter(|pg| !pg.retired);
        let now = open().map(|pg| pg.targets.iter().filter(|id| takes.contains(id)).count());
        let (now, all) =
            (now.max().unwrap_or(0), open().map(|pg| pg.targets.len()).max().unwrap_or(0));
        if now >= all {
            self.since = None;
            return Seats { now, all };
        }
        let short = self.since.get_or_insert_with(Instant::now).elapsed();
        match short < Duration::from_millis(node.config.target_out_ms) {
            true => Seats { now, all },
            false => Seats { now, all: now },
        }
    }
}
