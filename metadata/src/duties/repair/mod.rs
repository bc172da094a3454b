//! Makes what targets that are given up, or drained, held at other targets: the leader orders, the
//! storage daemons do it.
//!
//! A seat of a retired placement group is given away in a move ([`crate::ops`], `move_seats`): it
//! begins; every chunk of the seat is made at the other target, which its daemon does of the other
//! shards ([`v1::RebuildRequest`]); it is finished. Only then readers look there. A move that is
//! cut off anywhere, here or there, is taken up from its start: what is there already is not made
//! again.
//!
//! Invariants: a move is finished only when, for every segment that names the seat, the chunk is
//! durable at the other target, or the segment is no more: none can come, since the group is
//! sealed. What was made of a segment that went meanwhile is deleted (I7).

mod job;
mod plan;
mod seat;

use super::propose::propose;
use crate::node::Node;
use crate::soft::repair::{Left, Seat};
use crate::soft::targets::Targets;
use job::Job;
use plan::Leaving;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use v1::move_seats_entry::Step;
use weft_net::Peers;
use weft_proto::{PgId, TargetId, v1};

const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Moves under way for each target that is up.
const MOVES_PER_TARGET: usize = 2;
/// A move that failed is tried again after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Gives seats away, for as long as this server leads.
pub async fn repair(node: &Arc<Node>, targets: &Arc<Targets>, peers: &Arc<Peers>) {
    let mut repair = Repair::default();
    loop {
        sleep(LOOK_INTERVAL).await;
        let map = node.map();
        let leaving = repair.in_use(node, plan::leaving(&map)).await;
        let up = map.targets.iter().filter(|t| t.state() == v1::TargetState::Up).count();
        let stats = targets.stats();
        let used = stats.iter().map(|stat| (stat.target, stat.used_bytes)).collect();
        let planned = plan::plan(&map, &leaving, &used, MOVES_PER_TARGET * up);
        repair.tell(node, &map, &leaving, &planned.stuck, &stats);
        // Parts of chunks may be where a move does not lead any more.
        let ends = planned.changes.iter().filter(|c| c.step() == Step::Cancel);
        let left: Vec<_> = ends.filter_map(|c| c.r#move.map(|m| TargetId(m.to))).collect();
        if !planned.changes.is_empty() {
            let entry = v1::MoveSeatsEntry { changes: planned.changes };
            if propose(node, "move seats", Body::MoveSeats(entry)).await.is_ok() {
                left.into_iter().for_each(|target| targets.suspect(target));
            }
            continue;
        }
        repair.work(node, targets, peers, &map, &leaving);
    }
}

/// Whether chunks may be missing by this map: a seat of theirs is of a target that does not serve.
pub fn may_miss(map: &v1::ClusterMap) -> bool {
    let away = map.targets.iter().filter(|t| t.state() != v1::TargetState::Up);
    let away: HashSet<u32> = away.map(|t| t.id).collect();
    let mut groups = map.pools.iter().flat_map(|pool| &pool.pgs);
    !away.is_empty() && groups.any(|pg| pg.targets.iter().any(|id| away.contains(id)))
}

#[derive(Default)]
struct Repair {
    /// Chunks of the seats that are to be given away.
    counted: HashMap<(u32, u32), u64>,
    jobs: JoinSet<((u32, u32), bool)>,
    /// Seats whose moves are worked on.
    working: HashSet<(u32, u32)>,
    resting: HashMap<(u32, u32), Instant>,
}

impl Repair {
    /// Those of these seats that any chunk may lie in, and counts these.
    async fn in_use(&mut self, node: &Arc<Node>, mut leaving: Vec<Leaving>) -> Vec<Leaving> {
        let known: HashSet<_> = leaving.iter().map(|l| (l.pg, l.seat)).collect();
        self.counted.retain(|seat, _| known.contains(seat));
        let unknown = leaving.iter().map(|l| (l.pg, l.seat));
        let unknown: Vec<_> = unknown.filter(|seat| !self.counted.contains_key(seat)).collect();
        if !unknown.is_empty() {
            let state = node.state.clone();
            let count =
                move || unknown.into_iter().map(|at| Ok((at, seat::chunks(&state, at)?))).collect();
            match node.env.blocking(count).await {
                Ok(counted) => self.counted.extend::<HashMap<_, _>>(counted),
                Err(error) => {
                    tracing::error!("cannot count the chunks of lost targets: {error}");
                    return Vec::new();
                }
            }
        }
        // What names no segment is dropped with its group.
        leaving.retain(|l| self.counted.get(&(l.pg, l.seat)).is_some_and(|&n| n > 0));
        leaving
    }

    /// Says what is left.
    fn tell(
        &self,
        node: &Node,
        map: &v1::ClusterMap,
        leaving: &[Leaving],
        stuck: &HashSet<(u32, u32)>,
        stats: &[v1::TargetStat],
    ) {
        let known = node.repair.left();
        let left: BTreeMap<Seat, Left> = leaving
            .iter()
            .map(|l| {
                let at = (PgId(l.pg), l.seat as u8);
                let counted = self.counted.get(&(l.pg, l.seat)).copied().unwrap_or(1);
                let chunks = known.get(&at).map_or(counted, |left| left.chunks.max(1));
                let stuck = stuck.contains(&(l.pg, l.seat));
                (at, Left { chunks, missing: l.missing, stuck })
            })
            .collect();
        let down = map.targets.iter().filter(|t| t.state() == v1::TargetState::Down);
        let held = |t: &v1::TargetInfo| {
            // Who was never heard of may hold something.
            stats.iter().find(|stat| stat.target == t.id).map_or(1, |stat| stat.chunks)
        };
        node.repair.set_left(map.epoch, left, down.map(held).sum());
    }

    /// Works on the moves that are begun and not worked on.
    fn work(
        &mut self,
        node: &Arc<Node>,
        targets: &Arc<Targets>,
        peers: &Arc<Peers>,
        map: &Arc<v1::ClusterMap>,
        leaving: &[Leaving],
    ) {
        while let Some(ended) = self.jobs.try_join_next() {
            let Ok((seat, done)) = ended else {
                // A task that panicked: all are looked at anew.
                self.working.clear();
                continue;
            };
            self.working.remove(&seat);
            if !done {
                self.resting.insert(seat, Instant::now() + RETRY_INTERVAL);
            }
        }
        self.resting.retain(|_, until| *until > Instant::now());
        let moves: HashMap<(u32, u32), u32> = (map.pools.iter().flat_map(|pool| &pool.pgs))
            .flat_map(|pg| pg.moves.iter().map(|m| ((pg.id, m.seat), m.to)))
            .collect();
        for l in leaving {
            let seat = (l.pg, l.seat);
            let Some(&to) = moves.get(&seat) else { continue };
            if self.resting.contains_key(&seat) || !self.working.insert(seat) {
                continue;
            }
            let job = Job::new(node, targets, peers, PgId(l.pg), l.seat, TargetId(to));
            self.jobs.spawn(async move { (seat, job.run().await) });
        }
    }
}
