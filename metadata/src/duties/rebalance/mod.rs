//! Moves data to targets that hold less than their share, such as new ones.
//!
//! This duty finds which seats are to move ([`plan`]), and [`super::repair`] moves them, behind
//! everything that is lost or drained. A plan is made when nothing else moves, nothing is still to
//! be deleted where it was before, and the targets have been the same for a while, so that what
//! they say to hold is what they will hold. It is carried out to its end, unless the targets
//! change; the next is made after it.

mod plan;

use crate::duties::hold;
use crate::node::{Known, Node};
use crate::soft::repair::Lot;
use crate::soft::targets::Targets;
use crate::state::StateMachine;
use plan::Held;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_proto::{PgId, Result, SegmentId, v1};
use weft_segments::Segment;

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// After a plan without any seat, and after an error; and after as many as come without a change.
const REST_INTERVAL: Duration = Duration::from_secs(300);
const MAX_REST_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// While so many segments wait to be deleted, what targets hold says little.
const MUCH_GARBAGE: usize = 1000;
/// What a chunk takes beside its bytes, and the step that those are stored in.
const BLOCK: u64 = 4096;
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

/// Keeps the targets at their shares, for as long as this server leads, since `since`.
pub async fn rebalance(node: &Arc<Node>, targets: &Targets, since: Instant) {
    let settle = Duration::from_millis(node.config.rebalance_after_ms);
    let (mut basis, mut due, mut rest) = (None, Instant::now() + settle, REST_INTERVAL);
    node.repair.set_shifts(Vec::new());
    loop {
        sleep(LOOK_INTERVAL.min(settle)).await;
        let map = node.map();
        let now = Some(Basis::of(&map));
        if now != basis {
            node.repair.set_shifts(Vec::new());
            (basis, due, rest) = (now, Instant::now() + settle, REST_INTERVAL);
            continue;
        }
        if is_busy(node, targets, &map) {
            due = due.max(Instant::now() + settle);
            continue;
        }
        let used = || targets.used(since);
        if Instant::now() < due
            || !node.all_know(Known::Weights)
            || plan::imbalance(&map, &used()) == 0
        {
            continue;
        }
        let counted = held(node, &map).await;
        // Counting takes long: what is wanted may be something else by now.
        let map = node.map();
        if Some(Basis::of(&map)) != basis || is_busy(node, targets, &map) {
            continue;
        }
        let used = used();
        let imbalance = plan::imbalance(&map, &used);
        let planned = match counted {
            Ok(held) => node.env.blocking(move || Ok(plan::plan(&map, &used, &held))).await,
            Err(error) => Err(error),
        };
        let shifts = planned.unwrap_or_else(|error| {
            tracing::error!("cannot plan which seats are to move for balance: {error}");
            Vec::new()
        });
        let bytes: u64 = shifts.iter().map(|shift| shift.lot.bytes).sum();
        tracing::info!(seats = shifts.len(), bytes, imbalance, "moving data for balance");
        if shifts.is_empty() {
            due = Instant::now() + rest;
            rest = (rest * 2).min(MAX_REST_INTERVAL);
        } else {
            (due, rest) = (Instant::now() + settle, REST_INTERVAL);
        }
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

/// Whether anything is under way by which targets will hold more or less than they say now.
fn is_busy(node: &Node, targets: &Targets, map: &v1::ClusterMap) -> bool {
    // But for moves that do not go on.
    let goes_on = |pg: &v1::PgInfo| {
        pg.moves.iter().any(|m| !node.repair.has_problem((PgId(pg.id), m.seat as u8)))
    };
    // What moves is not deleted where it was.
    if hold::holds(node) {
        return true;
    }
    let garbage = || node.state.garbage(None, MUCH_GARBAGE).map_or(0, |found| found.len());
    node.repair.has_shifts()
        || targets.has_suspects()
        || map.groups().any(goes_on)
        || garbage() == MUCH_GARBAGE
}

/// What lies in the seats of the retired groups of which all targets serve.
async fn held(node: &Arc<Node>, map: &v1::ClusterMap) -> Result<Vec<Held>> {
    let mut all = Vec::new();
    let up = map.targets.iter().filter(|t| t.state() == v1::TargetState::Up);
    let up: HashSet<u32> = up.map(|t| t.id).collect();
    let serves = |pg: &&v1::PgInfo| pg.targets.iter().all(|id| up.contains(id));
    for pg in map.groups().filter(|pg| pg.retired && pg.moves.is_empty()).filter(serves) {
        let (state, begun, id, seats) =
            (node.state.clone(), Instant::now(), pg.id, pg.targets.len());
        let (mut counted, damaged) =
            node.env.blocking(move || lots(&state, PgId(id), seats)).await?;
        node.repair.note_damaged(Instant::now(), damaged);
        // What could not be moved is left where it is for now.
        for (seat, lot) in (0u8..).zip(&mut counted) {
            if node.repair.is_left(Instant::now(), (PgId(id), seat)) {
                *lot = Lot::default();
            }
        }
        if counted.iter().any(|lot| lot.chunks > 0) {
            all.push(Held { pg: id, seats: counted });
        }
        // Half of the time is for others.
        sleep(begun.elapsed()).await;
    }
    Ok(all)
}

/// The committed chunks in each seat of a group, and segments of which nothing is known: these are
/// passed over.
fn lots(state: &StateMachine, pg: PgId, seats: usize) -> Result<(Vec<Lot>, Vec<SegmentId>)> {
    let (mut lots, mut damaged, mut after) = (vec![Lot::default(); seats], Vec::new(), None);
    loop {
        let page = state.group_segments(pg, false, after, PAGE)?;
        damaged.extend(page.damaged.iter().map(|d| d.id).take(PAGE.saturating_sub(damaged.len())));
        for info in page.segments {
            let segment = Segment::try_from(info)?;
            for (shard, seat) in (0u8..).zip(&segment.seats) {
                let bytes = segment.geometry.shard_len(shard);
                if let Some(lot) = lots.get_mut(usize::from(*seat)).filter(|_| bytes > 0) {
                    lot.bytes += bytes.next_multiple_of(BLOCK) + BLOCK;
                    lot.chunks += 1;
                }
            }
        }
        if page.next.is_none() {
            return Ok((lots, damaged));
        }
        after = page.next;
    }
}
