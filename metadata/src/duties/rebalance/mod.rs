//! Moves data to targets that hold less than their share, such as new ones.
//!
//! This duty finds which seats are to move ([`plan`]), and [`super::repair`] moves them, behind
//! everything that is lost or drained. A plan is made when nothing else moves, nothing is to be
//! looked at or deleted for what has moved, and the targets have been the same for a while, so that
//! what they say to hold is what they will hold. It is carried out to its end, unless the targets
//! change; the next is made after it.

mod plan;

use crate::node::{Known, Node};
use crate::soft::repair::Lot;
use crate::soft::targets::Targets;
use crate::state::StateMachine;
use plan::Held;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_proto::{PgId, Result, v1};
use weft_segments::Segment;

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// After a plan without any seat, and after an error.
const REST_INTERVAL: Duration = Duration::from_secs(300);
/// Segments of a group that are counted in one step.
const PAGE: usize = 4096;

/// What a plan is made of.
#[derive(PartialEq)]
struct Basis {
    /// Number, state, whether it is drained, and share of each target.
    targets: Vec<(u32, i32, bool, u64)>,
    /// The groups that take new segments.
    open: Vec<u32>,
}

/// Keeps the targets at their shares, for as long as this server leads.
pub async fn rebalance(node: &Arc<Node>, targets: &Targets) {
    let settle = Duration::from_millis(node.config.rebalance_after_ms);
    let mut basis = None;
    let mut due = Instant::now() + settle;
    node.repair.set_shifts(Vec::new());
    loop {
        sleep(LOOK_INTERVAL.min(settle)).await;
        let map = node.map();
        let now = Some(Basis::of(&map));
        if now != basis {
            node.repair.set_shifts(Vec::new());
            (basis, due) = (now, Instant::now() + settle);
            continue;
        }
        if moves(node, &map) || targets.is_any_to_be_looked_at() {
            due = due.max(Instant::now() + settle);
            continue;
        }
        if Instant::now() < due || !node.all_know(Known::Weights) {
            continue;
        }
        let used = targets.stats().iter().map(|stat| (stat.target, stat.used_bytes)).collect();
        let lacking = plan::shortage(&map, &used);
        if lacking == 0 {
            continue;
        }
        let planned = match held(node, &map).await {
            Ok(held) => {
                let of = map.clone();
                node.env.blocking(move || Ok(plan::plan(&of, &used, &held))).await
            }
            Err(error) => Err(error),
        };
        let shifts = planned.unwrap_or_else(|error| {
            tracing::error!("cannot plan which seats are to move for balance: {error}");
            Vec::new()
        });
        // What takes long to count may be of another map by now.
        if Some(Basis::of(&node.map())) != basis {
            continue;
        }
        let bytes: u64 = shifts.iter().map(|shift| shift.lot.bytes).sum();
        tracing::info!(seats = shifts.len(), bytes, lacking, "moving data for balance");
        due = Instant::now() + if shifts.is_empty() { REST_INTERVAL } else { settle };
        node.repair.set_shifts(shifts);
    }
}

impl Basis {
    fn of(map: &v1::ClusterMap) -> Self {
        let of = |t: &v1::TargetInfo| (t.id, t.state, t.draining, t.share());
        let open = map.groups().filter(|pg| !pg.retired).map(|pg| pg.id);
        Self { targets: map.targets.iter().map(of).collect(), open: open.collect() }
    }
}

/// Whether seats move, or are to, but for those whose moves do not go on.
fn moves(node: &Node, map: &v1::ClusterMap) -> bool {
    let goes_on = |pg: &v1::PgInfo| {
        pg.moves.iter().any(|m| !node.repair.has_problem((PgId(pg.id), m.seat as u8)))
    };
    node.repair.has_shifts() || map.groups().any(goes_on)
}

/// What lies in the seats of the retired groups.
async fn held(node: &Arc<Node>, map: &v1::ClusterMap) -> Result<Vec<Held>> {
    let mut all = Vec::new();
    for pg in map.groups().filter(|pg| pg.retired && pg.moves.is_empty()) {
        let (state, begun, id, seats) =
            (node.state.clone(), Instant::now(), pg.id, pg.targets.len());
        let counted = node.env.blocking(move || lots(&state, PgId(id), seats)).await?;
        if counted.iter().any(|lot| lot.chunks > 0) {
            all.push(Held { pg: id, seats: counted });
        }
        // Half of the time is for others.
        sleep(begun.elapsed()).await;
    }
    Ok(all)
}

/// The committed chunks in each seat of a group.
fn lots(state: &StateMachine, pg: PgId, seats: usize) -> Result<Vec<Lot>> {
    let (mut lots, mut after) = (vec![Lot::default(); seats], None);
    loop {
        let (infos, next) = state.group_segments(pg, after, PAGE)?;
        for info in infos {
            let segment = Segment::try_from(info)?;
            for (shard, seat) in (0u8..).zip(&segment.seats) {
                let bytes = segment.geometry.shard_len(shard);
                if let Some(lot) = lots.get_mut(usize::from(*seat)).filter(|_| bytes > 0) {
                    lot.bytes += bytes;
                    lot.chunks += 1;
                }
            }
        }
        if next.is_none() {
            return Ok(lots);
        }
        after = next;
    }
}
