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
//! Looks are cut into steps: other targets have their turn between them, and what fails goes on
//! where it was ([`swept`]).
//!
//! While nothing may be deleted ([`super::hold`]), targets are fenced, and so come back, and what
//! is there stays.
//!
//! Invariant: a chunk is swept only if, at one moment after it was listed, its session was dead and
//! its segment unknown: a dead session commits nothing any more (I5), so that stays true. What a
//! target that is down holds waits for it and delays nothing else.

mod missing;
mod swept;

use super::hold;
use crate::node::Node;
use crate::soft::targets::Targets;
use crate::state::Unwanted;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use swept::{Pass, Swept, Up};
use tokio::time::{Instant, sleep};
use weft_net::Peers;
use weft_proto::{ChunkId, Result, SessionId, TargetId, v1};
use weft_segments::TargetClient;

/// Pause when there is nothing to do, and before a target that failed is tried again.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a storage daemon may take for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Chunks listed at a time.
const PAGE: u32 = 4096;
/// Pages of one step of a look at all of a target.
const PAGES: usize = 8;
/// Sessions that one step looks for at a target.
const SESSIONS: usize = 256;

/// Looks for what dead sessions left, for as long as this server leads.
pub async fn sweep(node: &Arc<Node>, targets: &Targets, peers: &Arc<Peers>) {
    let mut swept = Swept::default();
    let (mut live, mut next) = sessions(node).unwrap_or((BTreeSet::new(), u64::MAX));
    loop {
        let holds = hold::holds(node);
        if !holds {
            swept.hold_is_over();
        }
        let returning =
            targets.returning(Instant::now(), node.config.target_down_after(), &node.map());
        let up = up(&node.map(), &targets.stats(), &returning);
        for target in targets.take_suspects() {
            if !swept.suspect(Instant::now(), target) {
                targets.suspect(target);
            }
        }
        for target in &returning {
            // It went and came while others were looked at.
            let seen = swept.looked_at(*target);
            if seen.is_some() && targets.looked_at(*target) != seen {
                swept.forget(*target);
            }
        }
        let room = |id| !holds && targets.has_room(id);
        let due = swept.whole_due(Instant::now(), &up, &returning, room);
        let mut idle = due.len() < 2;
        // One step at a time: others may come back meanwhile, and sessions end.
        if let Some(target) = due.into_iter().next() {
            let returns = returning.contains(&target);
            let step = look(node, targets, peers, &up, target, returns, &mut swept).await;
            idle &= !matches!(step, Step::GoesOn);
            if let Some(opened) = swept.looked_at(target).filter(|_| matches!(step, Step::Ended)) {
                targets.note_looked_at(target, opened);
            }
        }
        // After those: who ended meanwhile may not have been seen there.
        match sessions(node) {
            Ok((now, following)) => {
                // Some may have come and gone since the last time.
                live.extend((next..following).map(SessionId));
                let ended: Vec<SessionId> = live.difference(&now).copied().collect();
                swept.ended(&ended);
                (live, next) = (now, following);
            }
            Err(error) => tracing::error!("cannot read the list of sessions: {error}"),
        }
        for target in swept.ended_due() {
            look_for_ended(node, peers, &up, target, &mut swept).await;
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

/// What became of a step.
enum Step {
    GoesOn,
    Ended,
    Failed,
}

/// A step of a look at all of a target.
async fn look(
    node: &Arc<Node>,
    targets: &Targets,
    peers: &Peers,
    up: &BTreeMap<TargetId, Up>,
    target: TargetId,
    returns: bool,
    swept: &mut Swept,
) -> Step {
    let Some(Up { address, opened }) = up.get(&target) else { return Step::Failed };
    let at = TargetClient::new(peers, target, address);
    let mut pass = swept.go_on(Instant::now(), target, *opened, returns);
    match step(node, targets, peers, &at, &mut pass).await {
        Ok(Came::ToTheEnd) => {
            swept.looked(Instant::now(), target, pass, false);
            Step::Ended
        }
        // What is there stays, and the target may come back with it.
        Ok(Came::ToAHold) => {
            swept.looked(Instant::now(), target, pass, true);
            Step::Ended
        }
        Ok(Came::SoFar) => {
            swept.came_to(target, pass);
            Step::GoesOn
        }
        Err(e) => {
            tracing::warn!(target = target.0, "could not look for chunks of dead sessions: {e}");
            swept.came_to(target, pass);
            swept.failed(target, Instant::now() + RETRY_INTERVAL);
            Step::Failed
        }
    }
}

/// How far a step of a look has come.
enum Came {
    SoFar,
    ToTheEnd,
    /// Nothing may be deleted now: what was not looked at yet is passed over.
    ToAHold,
}

/// Goes on with a look at all of a target.
async fn step(
    node: &Arc<Node>,
    targets: &Targets,
    peers: &Peers,
    target: &TargetClient,
    pass: &mut Pass,
) -> Result<Came> {
    if !pass.is_fenced {
        let (live, next) = sessions(node)?;
        target.fence(&between(&live, next), Instant::now() + REQUEST_TIMEOUT).await?;
        pass.is_fenced = true;
    }
    for _ in 0..PAGES {
        // What lies behind what did not fit is for another look, and this one is for the others.
        let find = Some(targets).filter(|_| pass.finds && pass.all_found);
        let Some(page) = sweep_page(node, find, peers, target, pass.after, None).await? else {
            pass.all_found &= !pass.finds;
            return Ok(Came::ToAHold);
        };
        pass.all_found &= page.all_found;
        pass.after = page.last;
        if page.last.is_none() {
            return Ok(Came::ToTheEnd);
        }
    }
    Ok(Came::SoFar)
}

/// Looks for what sessions that have ended left on a target.
async fn look_for_ended(
    node: &Arc<Node>,
    peers: &Peers,
    up: &BTreeMap<TargetId, Up>,
    target: TargetId,
    swept: &mut Swept,
) {
    let Some(Up { address, .. }) = up.get(&target) else { return };
    let at = TargetClient::new(peers, target, address);
    if let Err(e) = sweep_ended(node, peers, &at, swept).await {
        tracing::warn!(target = target.0, "could not look for chunks of ended sessions: {e}");
        swept.failed(target, Instant::now() + RETRY_INTERVAL);
    }
}

async fn sweep_ended(
    node: &Arc<Node>,
    peers: &Peers,
    target: &TargetClient,
    swept: &mut Swept,
) -> Result<()> {
    let (ended, mut after) = swept.some_ended(target.id(), SESSIONS);
    let ranges: Vec<_> = ended.iter().map(|id| id.0..=id.0).collect();
    target.fence(&ranges, Instant::now() + REQUEST_TIMEOUT).await?;
    let mut pages = PAGES;
    for session in ended {
        loop {
            let page = sweep_page(node, None, peers, target, after, Some(session)).await?;
            let Some(page) = page else {
                swept.held_ended(target.id(), session);
                after = None;
                break;
            };
            after = page.last;
            swept.came_to_ended(target.id(), session, after);
            if after.is_none() {
                break;
            }
            pages -= 1;
            if pages == 0 {
                return Ok(());
            }
        }
    }
    Ok(())
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

/// What became of one page of a list of chunks.
struct Page {
    /// The last of it, if more come.
    last: Option<ChunkId>,
    /// Nothing that the target lacks there was passed over.
    all_found: bool,
}

/// Deletes what has no business on a target, of the chunks after `after`, those of one session or
/// of all; `find` is told what it lacks there. `None`: nothing may be deleted now, and nothing was
/// looked at.
async fn sweep_page(
    node: &Arc<Node>,
    find: Option<&Targets>,
    peers: &Peers,
    target: &TargetClient,
    after: Option<ChunkId>,
    session: Option<SessionId>,
) -> Result<Option<Page>> {
    if hold::holds(node) {
        return Ok(None);
    }
    let begun = Instant::now();
    let listed = target.list(after, session, PAGE, begun + REQUEST_TIMEOUT).await?;
    let chunks: Vec<_> = listed.items.iter().map(|(chunk, _)| *chunk).collect();
    // Behind the last of all may be something that it lacks.
    let last = chunks.last().copied().filter(|_| listed.more);
    let mut page = Page { last, all_found: true };
    if chunks.is_empty() && find.is_none() {
        return Ok(Some(page));
    }
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
    if !delete(node, peers, target, dead, misplaced).await? {
        return Ok(None);
    }
    if let Some(targets) = find {
        page.all_found = missing::note(node, targets, target, missing).await? && all;
    }
    if page.last.is_some() {
        // Half of the time is for others.
        sleep(begun.elapsed()).await;
    }
    Ok(Some(page))
}

/// Deletes chunks from a target: those of dead sessions, and those that others hold now. Answers
/// false if nothing may be deleted.
async fn delete(
    node: &Arc<Node>,
    peers: &Peers,
    target: &TargetClient,
    dead: Vec<ChunkId>,
    misplaced: Vec<(ChunkId, Vec<u32>)>,
) -> Result<bool> {
    if hold::holds(node) {
        return Ok(false);
    }
    if !dead.is_empty() {
        tracing::info!(%target, chunks = dead.len(), "deleting what dead sessions left");
        target.delete(&dead, Instant::now() + REQUEST_TIMEOUT).await?;
    }
    let misplaced = hold::held_elsewhere(node, peers, misplaced).await?;
    if misplaced.is_empty() {
        return Ok(true);
    }
    if hold::holds(node) {
        return Ok(false);
    }
    let deleted = target.disown(&misplaced, Instant::now() + REQUEST_TIMEOUT).await?;
    tracing::info!(%target, chunks = deleted, "deleted what other targets hold now");
    Ok(true)
}

#[cfg(test)]
mod tests;
