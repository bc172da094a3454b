//! Deletes chunks that have no business where they are (I7): those that a dead session never
//! committed, and those of seats that were given to another target.
//!
//! [`sweep`] lists the targets for chunks of sessions that are dead: all of a target once, when
//! this server begins to lead or the target comes up or was opened anew, and then those of one
//! session at a time, when it has ended. Before it lists, it fences those sessions off: what they
//! had sent may arrive at any time, and is refused then, until the target is opened anew.
//!
//! A look at all of a target finds the chunks of seats that are not its own, too. Those it does not
//! delete: a seat may be given back, and a request to delete arrive after that. It tells the
//! target's daemon, which asks again while it makes no chunk there ([`v1::DisownRequest`]). A
//! target that was given up comes back after such a look. The first that finds it opened anew also
//! finds what it lacks, which is made anew ([`super::heal`]); of more than is remembered at a time,
//! the rest is found by further looks, when enough of it is made, or was tried in vain.
//!
//! While nothing may be deleted ([`super::hold`]), targets are fenced, and so come back, and what
//! is there stays.
//!
//! Invariant: a chunk is swept only if, at one moment after it was listed, its session was dead and
//! its segment unknown: a dead session commits nothing any more (I5), so that stays true. What a
//! target that is down holds waits for it and delays nothing else.

mod missing;

use super::hold;
use crate::node::Node;
use crate::soft::targets::Targets;
use crate::state::Unwanted;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_net::Peers;
use weft_proto::{Result, SessionId, TargetId, v1};
use weft_segments::TargetClient;

/// Pause when there is nothing to do, and before a target that failed is tried again.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a storage daemon may take for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Chunks listed at a time.
const PAGE: u32 = 4096;
/// A target that is suspected is looked at as a whole no more often than this.
const SUSPECT_INTERVAL: Duration = Duration::from_secs(10);
/// When all of a target is looked at once more.
const WHOLE_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// A target that is up.
struct Up {
    address: String,
    /// The number that its daemon gave to opening it: fences are forgotten then, and with an index
    /// that was lost, chunks come back that were deleted.
    opened: u64,
}

/// What was looked at already, and what is to be.
#[derive(Default)]
struct Swept {
    /// Targets that were looked at as a whole, when, and as which opening of them; not those that
    /// have been away since.
    whole: BTreeMap<TargetId, (Instant, u64)>,
    /// As which opening of them all was found out that targets lack: they may lose something when
    /// they are opened.
    known: BTreeMap<TargetId, u64>,
    /// Targets that failed, and until when they are left alone.
    resting: BTreeMap<TargetId, Instant>,
    /// When targets were last looked at, or could not be.
    tried: BTreeMap<TargetId, Instant>,
}

impl Swept {
    /// Targets to be looked at as a whole, of those that are up. Those of which it is not known yet
    /// what they lack are, too, if there is room to note it.
    fn whole_due(
        &mut self,
        now: Instant,
        up: &BTreeMap<TargetId, Up>,
        has_room: impl Fn(TargetId) -> bool,
    ) -> Vec<TargetId> {
        self.whole.retain(|target, (at, opened)| {
            up.get(target).is_some_and(|up| up.opened == *opened) && now - *at < WHOLE_INTERVAL
        });
        self.resting.retain(|_, until| now < *until);
        let is_done = |t: &TargetId, (at, opened): &(Instant, u64)| {
            self.known.get(t) == Some(opened) || now - *at < SUSPECT_INTERVAL || !has_room(*t)
        };
        let due = |t: &&TargetId| {
            let done = self.whole.get(t).is_some_and(|look| is_done(t, look));
            !done && !self.resting.contains_key(t)
        };
        up.keys().filter(due).copied().collect()
    }

    /// A target was looked at as a whole; `all_found`: nothing that it lacks was passed over.
    fn looked(&mut self, now: Instant, target: TargetId, opened: u64, all_found: bool) {
        self.whole.insert(target, (now, opened));
        if all_found {
            self.known.insert(target, opened);
        }
    }

    /// What is there is not known: later, and all of it.
    fn failed(&mut self, target: TargetId, until: Instant) {
        self.whole.remove(&target);
        self.resting.insert(target, until);
    }
}

/// Looks for what dead sessions left, for as long as this server leads.
pub async fn sweep(node: &Arc<Node>, targets: &Targets, peers: &Arc<Peers>) {
    let (mut swept, mut held) = (Swept::default(), false);
    let (mut live, mut next) = sessions(node).unwrap_or((BTreeSet::new(), u64::MAX));
    loop {
        let holds = hold::holds(node);
        if held && !holds {
            // What was passed over.
            swept.whole.clear();
            swept.known.clear();
        }
        held = holds;
        let returning =
            targets.returning(Instant::now(), node.config.target_down_after(), &node.map());
        let up = up(&node.map(), &targets.stats(), &returning);
        for target in targets.take_suspects() {
            match swept.whole.get(&target) {
                // Many moves end one after another.
                Some((at, _)) if at.elapsed() < SUSPECT_INTERVAL => targets.suspect(target),
                _ => drop(swept.whole.remove(&target)),
            }
        }
        for target in &returning {
            // It went and came while others were looked at.
            let seen = swept.whole.get(target).map(|(_, opened)| *opened);
            if seen.is_some() && targets.looked_at(*target) != seen {
                swept.whole.remove(target);
            }
        }
        let mut due = swept.whole_due(Instant::now(), &up, |id| !holds && targets.has_room(id));
        // Those that are waited for; whoever failed before comes behind all others. One at a time:
        // others may come back meanwhile, and sessions end.
        let tried = |target: &TargetId| swept.tried.get(target).copied();
        due.sort_by_key(|target| (!returning.contains(target), tried(target)));
        let idle = due.len() < 2;
        if let Some(target) = due.into_iter().next() {
            swept.tried.insert(target, Instant::now());
            look(node, targets, peers, &up, target, &[], &mut swept).await;
            if let Some((_, opened)) = swept.whole.get(&target) {
                targets.note_looked_at(target, *opened);
            }
        }
        // After those: who ended meanwhile may not have been seen there.
        let ended = match sessions(node) {
            Ok((now, following)) => {
                // Some may have come and gone since the last time.
                live.extend((next..following).map(SessionId));
                let ended = live.difference(&now).copied().collect();
                (live, next) = (now, following);
                ended
            }
            Err(error) => {
                tracing::error!("cannot read the list of sessions: {error}");
                Vec::new()
            }
        };
        if !ended.is_empty() {
            for target in swept.whole.keys().copied().collect::<Vec<_>>() {
                look(node, targets, peers, &up, target, &ended, &mut swept).await;
            }
        }
        if idle {
            sleep(IDLE_INTERVAL).await;
        }
    }
}

/// The targets that are up and that this leader has heard of, and those that return.
fn up(
    map: &v1::ClusterMap,
    stats: &[v1::TargetStat],
    returning: &BTreeSet<TargetId>,
) -> BTreeMap<TargetId, Up> {
    let opened: BTreeMap<_, _> = stats.iter().map(|stat| (stat.target, stat.opened)).collect();
    let is_up = |t: &&v1::TargetInfo| {
        t.state() == v1::TargetState::Up || returning.contains(&TargetId(t.id))
    };
    let up = map.targets.iter().filter(is_up).filter_map(|t| {
        let (address, opened) = (t.address.clone(), *opened.get(&t.id)?);
        Some((TargetId(t.id), Up { address, opened }))
    });
    up.collect()
}

/// Looks for what these sessions left on a target; at all of it if there are none.
async fn look(
    node: &Arc<Node>,
    targets: &Targets,
    peers: &Peers,
    up: &BTreeMap<TargetId, Up>,
    target: TargetId,
    ended: &[SessionId],
    swept: &mut Swept,
) {
    let Some(Up { address, opened }) = up.get(&target) else { return };
    let at = TargetClient::new(peers, target, address);
    let find = (swept.known.get(&target) != Some(opened)).then_some(targets);
    match fence_and_sweep(node, find, peers, &at, ended).await {
        Ok(all_found) if ended.is_empty() => {
            swept.looked(Instant::now(), target, *opened, all_found);
        }
        Ok(_) => {}
        Err(e) => {
            tracing::warn!(target = target.0, "could not look for chunks of dead sessions: {e}");
            swept.failed(target, Instant::now() + RETRY_INTERVAL);
        }
    }
}

/// If all of it is looked at, `find` is told what it lacks. Answers false if there is more that it
/// lacks, or may be.
async fn fence_and_sweep(
    node: &Arc<Node>,
    find: Option<&Targets>,
    peers: &Peers,
    target: &TargetClient,
    ended: &[SessionId],
) -> Result<bool> {
    if ended.is_empty() {
        let (live, next) = sessions(node)?;
        target.fence(&between(&live, next), Instant::now() + REQUEST_TIMEOUT).await?;
        return sweep_target(node, find, peers, target, None).await;
    }
    let ranges: Vec<_> = ended.iter().map(|id| id.0..=id.0).collect();
    target.fence(&ranges, Instant::now() + REQUEST_TIMEOUT).await?;
    for &session in ended {
        sweep_target(node, None, peers, target, Some(session)).await?;
    }
    Ok(true)
}

/// The sessions before `next` that do not live.
fn between(live: &BTreeSet<SessionId>, next: u64) -> Vec<RangeInclusive<u64>> {
    let mut first = 0;
    let mut ended = Vec::new();
    for end in live.range(..SessionId(next)).map(|id| id.0).chain([next]) {
        if first < end {
            ended.push(first..=end - 1);
        }
        first = end.saturating_add(1);
    }
    ended
}

/// The sessions that live, and the number of the next.
fn sessions(node: &Node) -> Result<(BTreeSet<SessionId>, u64)> {
    let next = node.state.next_session()?;
    Ok((node.state.live_sessions()?, next))
}

/// Answers false if there is more that the target lacks than `find` was told, or may be.
async fn sweep_target(
    node: &Arc<Node>,
    mut find: Option<&Targets>,
    peers: &Peers,
    target: &TargetClient,
    session: Option<SessionId>,
) -> Result<bool> {
    let (mut after, mut all_found) = (None, true);
    while !hold::holds(node) {
        let begun = Instant::now();
        let listed = target.list(after, session, PAGE, begun + REQUEST_TIMEOUT).await?;
        let chunks: Vec<_> = listed.items.iter().map(|(chunk, _)| *chunk).collect();
        if chunks.is_empty() && find.is_none() {
            return Ok(all_found);
        }
        // Behind the last of all may be something that it lacks.
        let last = chunks.last().copied().filter(|_| listed.more);
        // The state must be at least as new as the list: a chunk in it whose session is dead now,
        // and whose segment is not known now, will never be.
        node.read_barrier().await?;
        // Thousands of reads: not on the thread that answers everybody.
        let (state, id) = (node.state.clone(), target.id());
        let seats = find.map_or_else(Vec::new, |_| missing::seats(node, id));
        // Of what is missing, what is known of already is passed over, or it would hide the rest.
        let mut known = find.map_or_else(Vec::new, |targets| targets.missing(id, after, last));
        let judge = move || -> Result<_> {
            known.extend(&chunks);
            known.sort_unstable();
            let missing = state.missing(&seats, after, last, &known)?;
            Ok((state.unwanted(id, chunks)?, missing))
        };
        let (Unwanted { dead, misplaced }, (missing, all)) = node.env.blocking(judge).await?;
        if !dead.is_empty() {
            tracing::info!(%target, chunks = dead.len(), "deleting what dead sessions left");
            target.delete(&dead, Instant::now() + REQUEST_TIMEOUT).await?;
        }
        let misplaced = hold::held_elsewhere(node, peers, misplaced).await?;
        if !misplaced.is_empty() {
            let deleted = target.disown(&misplaced, Instant::now() + REQUEST_TIMEOUT).await?;
            tracing::info!(%target, chunks = deleted, "deleted what other targets hold now");
        }
        if let Some(targets) = find {
            all_found = missing::note(node, targets, target, missing).await? && all;
            // What lies behind is for another look, and this one is for the others.
            find = find.filter(|_| all_found);
        }
        if !listed.more {
            return Ok(all_found);
        }
        after = last;
        // Half of the time is for others.
        sleep(begun.elapsed()).await;
    }
    Ok(all_found && find.is_none())
}

#[cfg(test)]
mod tests;
