//! Makes what targets that are given up, or drained, held at other targets, and behind that what is
//! to move for balance ([`super::rebalance`]): the leader orders, the storage daemons do it.
//!
//! A seat of a retired placement group is given away in a move ([`crate::ops`], `move_seats`): it
//! begins; every chunk of the seat is made at the other target, which its daemon does of the other
//! shards ([`v1::RebuildRequest`]); it is finished. Only then readers look there. A move that is
//! cut off anywhere, here or there, is taken up from its start: what is there already is not made
//! again.
//!
//! Invariants: a move is finished only when, for every segment that names the seat, the chunk is
//! durable at the other target, or the segment is no more: none can come, since the group is
//! sealed. What was made of a segment that went meanwhile is deleted (I7). A segment of which the
//! record makes no sense nobody could read anywhere: it is told of and passed over, and its chunks
//! stay where they are; but one that only this server cannot read holds its moves up, as other
//! servers know what is to be made of it.

mod job;
mod plan;
mod seat;

use super::by_halves;
use super::propose::propose;
use crate::node::Node;
use crate::soft::repair::{Left, Seat, Shift};
use crate::soft::targets::Targets;
use job::{Ended, Job, Obstacle};
use plan::{Avoid, Leaving, MOVES_PER_TARGET};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use v1::log_entry::Body;
use v1::move_seats_entry::{Change, Step};
use weft_net::Peers;
use weft_proto::{PgId, Result, TargetId, v1};

/// Looks are so far apart. Those that follow a change or the end of a move come sooner, but for
/// the least interval and as long as a look takes: seats with little in them would wait most of the
/// time.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
const LEAST_INTERVAL: Duration = Duration::from_millis(10);
/// A seat in which nothing lay is looked at again after this.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(5);
/// A seat whose change was refused is left out of plans for so long.
const PASSED_INTERVAL: Duration = Duration::from_secs(10);
/// A move that failed is tried again after this, and then after twice as long each time in which it
/// has made nothing.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// A target that cannot store for tries that are this far apart is not asked for the seat, if
/// another can be, for so long.
const REFUSED_AFTER: Duration = Duration::from_secs(8);
const REFUSED_INTERVAL: Duration = Duration::from_secs(600);
/// One that cannot read, but holds some of the seat, is asked for longer: that would go, too.
const CUT_OFF_AFTER: Duration = MAX_RETRY_INTERVAL;
/// With so many targets in that time that cannot make a seat, it is not they that are cut off from
/// the others, and no other is asked since one cannot read: what one has made goes when it is left.
const MAX_CUT_OFF: usize = 4;

/// Gives seats away, for as long as this server leads.
pub async fn repair(node: &Arc<Node>, targets: &Arc<Targets>, peers: &Arc<Peers>) {
    let mut repair = Repair::default();
    node.repair.forget();
    let mut took = Duration::ZERO;
    loop {
        sleep(took.clamp(LEAST_INTERVAL, LOOK_INTERVAL)).await;
        let _ = timeout(LOOK_INTERVAL, repair.due.notified()).await;
        let begun = Instant::now();
        let map = node.map();
        let leaving = repair.in_use(node, plan::leaving(&map)).await;
        let up = map.targets.iter().filter(|t| t.state() == v1::TargetState::Up).count();
        let stats = targets.stats();
        let used = stats.iter().map(|stat| (stat.target, stat.used_bytes)).collect();
        let limit = MOVES_PER_TARGET * up;
        let avoid = repair.avoid(begun, &map, node.config.target_out_ms);
        let shifts = node.repair.shifts();
        let (of, also) = (map.clone(), shifts.clone());
        let plan = move || {
            let planned = plan::plan(&of, &leaving, &also, &used, &avoid, limit);
            Ok((planned, leaving))
        };
        let Ok((planned, leaving)) = node.env.blocking(plan).await else { continue };
        repair.tell(node, &map, &leaving, &planned.stuck, &stats);
        took = begun.elapsed();
        // Parts of chunks may be where a move does not lead any more.
        let mut left = Vec::new();
        for change in planned.changes.iter().filter(|c| c.step() == Step::Cancel) {
            let Some(v1::SeatMove { seat, to, .. }) = change.r#move else { continue };
            // The same move may begin again, after what it has made was deleted: nobody who
            // worked on it before finishes it then.
            repair.stop((change.pg, seat));
            left.push(TargetId(to));
        }
        if !planned.changes.is_empty() {
            if repair.change(node, planned.changes).await {
                left.into_iter().for_each(|target| targets.suspect(target));
                node.repair.forget_shifts(&planned.shifted);
                repair.note_counted(&shifts, &planned.shifted);
                repair.due.notify_one();
            }
            continue;
        }
        node.repair.forget_shifts(&planned.shifted);
        repair.work(node, targets, peers, &map, &leaving);
    }
}

/// Whether chunks may be missing by this map: a seat of theirs is of a target that does not serve.
pub fn may_miss(map: &v1::ClusterMap) -> bool {
    let away = map.targets.iter().filter(|t| t.state() != v1::TargetState::Up);
    let away: HashSet<u32> = away.map(|t| t.id).collect();
    let mut groups = map.groups();
    !away.is_empty() && groups.any(|pg| pg.targets.iter().any(|id| away.contains(id)))
}

#[derive(Default)]
struct Repair {
    /// Chunks of the seats that are to be given away, and when they were counted; none at all are
    /// in the group.
    counted: HashMap<(u32, u32), (Option<u64>, Instant)>,
    jobs: JoinSet<((u32, u32), u32, Ended)>,
    /// A move has come to an end, or moves have begun.
    due: Arc<Notify>,
    /// Seats whose moves are worked on.
    working: HashMap<(u32, u32), AbortHandle>,
    /// Seats whose moves have failed: when they are tried again, and after how long the next time.
    resting: HashMap<(u32, u32), (Instant, Duration)>,
    /// Targets that would not store chunks of a seat, and until when they are not asked to again.
    refused: HashMap<(u32, u32, u32), Instant>,
    /// Since when targets are down.
    down: HashMap<u32, Instant>,
    /// What moves for balance waits for what is lost.
    balance_waits: Arc<AtomicBool>,
    /// Seats of which a change was refused, and until when none is tried.
    passed: HashMap<(u32, u32), Instant>,
}

impl Repair {
    /// Those of these seats that any chunk may lie in, and counts these.
    async fn in_use(&mut self, node: &Arc<Node>, mut leaving: Vec<Leaving>) -> Vec<Leaving> {
        let known: HashSet<_> = leaving.iter().map(|l| (l.pg, l.seat)).collect();
        let now = Instant::now();
        // Where nothing was, something may come until the group is sealed.
        let stands = |n: Option<u64>, at: Instant| n.is_some() || now - at < RECOUNT_INTERVAL;
        self.counted.retain(|seat, &mut (n, at)| known.contains(seat) && stands(n, at));
        let unknown = leaving.iter().map(|l| (l.pg, l.seat));
        let unknown: Vec<_> = unknown.filter(|seat| !self.counted.contains_key(seat)).collect();
        if !unknown.is_empty() {
            let state = node.state.clone();
            let count = move || {
                let chunks = |at| Ok((at, (seat::chunks(&state, at)?, now)));
                unknown.into_iter().map(chunks).collect::<Result<Vec<_>>>()
            };
            match node.env.blocking(count).await {
                Ok(counted) => self.counted.extend(counted),
                Err(error) => {
                    // Those that are known are worked on.
                    tracing::error!("cannot count the chunks of lost targets: {error}");
                }
            }
        }
        // What names no segment is dropped with its group.
        leaving.retain(|l| self.counted.get(&(l.pg, l.seat)).is_none_or(|(n, _)| n.is_some()));
        leaving
    }

    /// Changes the map. What is refused is passed over for a while. Answers whether any was made.
    async fn change(&mut self, node: &Arc<Node>, changes: Vec<Change>) -> bool {
        let make = |changes| {
            let (node, entry) = (node.clone(), v1::MoveSeatsEntry { changes });
            async move { propose(&node, "move seats", Body::MoveSeats(entry)).await.map(drop) }
        };
        let outcome = by_halves::change(changes, make).await;
        for (change, error) in outcome.refused {
            let Some((pg, seat)) = self.pass_over(Instant::now(), &change) else { continue };
            tracing::error!(pg, seat, "a seat is passed over: its move is refused: {error}");
            let what = format!("seat {seat} of placement group {pg} is passed over: {error}");
            node.repair.set_problem((PgId(pg), seat as u8), Some(what));
        }
        outcome.any
    }

    /// A change was refused: its seat is left out of plans for a while. Answers which that is.
    fn pass_over(&mut self, now: Instant, refused: &Change) -> Option<(u32, u32)> {
        let seat = plan::seat_of(refused)?;
        self.passed.insert(seat, now + PASSED_INTERVAL);
        Some(seat)
    }

    /// What moves for balance was counted when that was planned.
    fn note_counted(&mut self, shifts: &[Shift], begun: &HashSet<(u32, u32)>) {
        for Shift { pg, seat, lot, .. } in shifts {
            if begun.contains(&(*pg, *seat)) {
                self.counted.insert((*pg, *seat), (Some(lot.chunks), Instant::now()));
            }
        }
    }

    /// What a plan goes round now.
    fn avoid(&mut self, now: Instant, map: &v1::ClusterMap, out_ms: u64) -> Avoid {
        self.refused.retain(|_, until| *until > now);
        self.passed.retain(|_, until| *until > now);
        let down = |t: &&v1::TargetInfo| t.state() == v1::TargetState::Down;
        let down: HashSet<u32> = map.targets.iter().filter(down).map(|t| t.id).collect();
        self.down.retain(|id, _| down.contains(id));
        for id in down {
            self.down.entry(id).or_insert(now);
        }
        // A daemon that merely starts anew goes on with what it has made.
        let patience = Duration::from_millis(out_ms / 10);
        let away = self.down.iter().filter(|(_, since)| now - **since >= patience);
        let rests = |seat: &&(u32, u32)| !self.working.contains_key(seat);
        let resting = self.resting.iter().filter(|(_, (until, _))| *until > now);
        Avoid {
            resting: resting.map(|(seat, _)| seat).filter(rests).copied().collect(),
            refused: self.refused.keys().copied().collect(),
            away: away.map(|(id, _)| *id).collect(),
            passed: self.passed.keys().copied().collect(),
        }
    }

    /// Nobody works on a move any more, when this returns or soon after: nothing more is proposed
    /// for it.
    fn stop(&mut self, seat: (u32, u32)) {
        if let Some(job) = self.working.remove(&seat) {
            job.abort();
        }
        self.resting.remove(&seat);
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
                let counted = self.counted.get(&(l.pg, l.seat)).map_or(1, |&(n, _)| n.unwrap_or(0));
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

    /// Notes what has become of the moves that were worked on: those that failed rest, and targets
    /// that would not take one are asked no more for a while.
    fn reap(&mut self, node: &Node, map: &v1::ClusterMap, leaving: &[Leaving]) {
        while let Some(ended) = self.jobs.try_join_next() {
            // Of a task that was stopped or panicked nothing is known here.
            let Ok((seat, to, ended)) = ended else { continue };
            let Ended { failed, made, any_there } = ended;
            let mut groups = map.groups().filter(|pg| pg.id == seat.0);
            let moves = groups.next().into_iter().flat_map(|pg| &pg.moves);
            if !moves.into_iter().any(|m| (m.seat, m.to) == (seat.1, to)) {
                continue; // It leads elsewhere now, or is no more.
            }
            self.working.remove(&seat);
            let Some(obstacle) = failed.filter(|obstacle| *obstacle != Obstacle::Waits) else {
                self.resting.remove(&seat);
                continue;
            };
            let pause = self.rest(seat, made);
            // It has no room in one piece, cannot write, or reaches no others: another may.
            let up = map.targets.iter().any(|t| t.id == to && t.state() == v1::TargetState::Up);
            // Its target holds the seat as well as ever: it is left there.
            let needless = leaving.iter().any(|l| (l.pg, l.seat) == seat && l.rebalances);
            let lasts = pause >= REFUSED_AFTER;
            let cut_off = pause >= if any_there { CUT_OFF_AFTER } else { REFUSED_AFTER };
            let refusals = self.refused.keys().filter(|(pg, at, _)| (*pg, *at) == seat).count();
            let refused = match obstacle {
                Obstacle::NoRoom => true,
                Obstacle::CannotStore => up && lasts,
                Obstacle::CannotRead => cut_off && (needless || up && refusals < MAX_CUT_OFF),
                Obstacle::Other => needless && lasts,
                Obstacle::Waits => false,
            };
            if refused && needless {
                node.repair.leave(Instant::now(), (PgId(seat.0), seat.1 as u8));
            }
            if refused {
                let until = Instant::now() + REFUSED_INTERVAL;
                self.refused.insert((seat.0, seat.1, to), until);
            }
        }
    }

    /// A move that failed is left alone for a while: for so long. It is longer each time, but where
    /// something was made.
    fn rest(&mut self, seat: (u32, u32), made: bool) -> Duration {
        let again = self.resting.get(&seat).filter(|_| !made).map(|(_, pause)| *pause);
        let pause = again.unwrap_or(RETRY_INTERVAL);
        let next = (pause * 2).min(MAX_RETRY_INTERVAL);
        self.resting.insert(seat, (Instant::now() + pause, next));
        pause
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
        self.reap(node, map, leaving);
        self.working.retain(|_, job| !job.is_finished());
        let known: HashSet<_> = leaving.iter().map(|l| (l.pg, l.seat)).collect();
        self.resting.retain(|seat, _| known.contains(seat));
        let moves: HashMap<(u32, u32), u32> =
            map.groups().flat_map(|pg| pg.moves.iter().map(|m| ((pg.id, m.seat), m.to))).collect();
        // What moves for balance waits for what is lost.
        let lost = leaving.iter().any(|l| {
            let seat = (l.pg, l.seat);
            let goes_on = moves.contains_key(&seat) && !self.resting.contains_key(&seat);
            l.missing && !l.rebalances && goes_on
        });
        self.balance_waits.store(lost, Ordering::Relaxed);
        for l in leaving.iter().filter(|l| !(lost && l.rebalances)) {
            let seat = (l.pg, l.seat);
            let Some(&to) = moves.get(&seat) else { continue };
            let rests = self.resting.get(&seat).is_some_and(|(until, _)| *until > Instant::now());
            if rests || self.working.contains_key(&seat) {
                continue;
            }
            let total = self.counted.get(&seat).map_or(1, |&(n, _)| n.unwrap_or(0));
            let mut job = Job::new(node, targets, peers, PgId(l.pg), l.seat, TargetId(to), total);
            if l.rebalances {
                job = job.while_not(self.balance_waits.clone());
            }
            let due = self.due.clone();
            let job = self.jobs.spawn(async move {
                let ended = job.run().await;
                due.notify_one();
                (seat, to, ended)
            });
            self.working.insert(seat, job);
        }
    }
}

#[cfg(test)]
mod tests;
