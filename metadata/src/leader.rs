//! What the leader does besides answering: it makes the cluster, declares silent sessions dead and
//! silent targets down, says whose turn it is to take a lock, removes inodes without names, extents that are
//! cut out of files and what ended sessions leave, and makes placement groups.
//!
//! Every duty runs only while this server leads, in tasks that end with the term; whatever they
//! decide goes through the log, so that a duty cut off in the middle is taken up by the next leader.

use crate::conflicts;
use crate::gc;
use crate::node::{Effect, Node};
use crate::placement;
use crate::server::cluster_of;
use crate::targets::Targets;
use rand::RngCore;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_net::Peers;
use weft_proto::{InodeId, Result, SessionId, v1};

/// How often sessions and targets are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// A session that does not answer a recall for so many times its time to live is not renewed any more: a
/// flush may have to wait for storage, and others wait for it.
const ANSWER: u32 = 3;
/// Inodes removed by one log entry.
const PURGE_BATCH: usize = 256;
/// Files trimmed by one log entry.
const TRIM_BATCH: usize = 64;

/// Runs the duties of every term in which this server leads.
pub async fn run(node: Arc<Node>, targets: Arc<Targets>, peers: Arc<Peers>) {
    let mut views = node.watch_view();
    loop {
        let Ok(view) = views.wait_for(|v| v.ready).await.map(|v| *v) else { return };
        let mut duties = start(&node, &targets, &peers, view.term);
        let over = views.wait_for(|v| !v.ready || v.term != view.term).await.is_err();
        duties.shutdown().await;
        if over {
            return;
        }
    }
}

fn start(node: &Arc<Node>, targets: &Arc<Targets>, peers: &Arc<Peers>, term: u64) -> JoinSet<()> {
    let since = Instant::now();
    let mut duties = JoinSet::new();
    let n = node.clone();
    duties.spawn(async move { make_cluster(&n).await });
    let n = node.clone();
    duties.spawn(async move { keep_sessions(&n).await });
    let n = node.clone();
    duties.spawn(async move { give_turns(&n).await });
    let n = node.clone();
    duties.spawn(async move { purge_orphans(&n, term).await });
    let n = node.clone();
    duties.spawn(async move { trim_files(&n).await });
    let n = node.clone();
    duties.spawn(async move { clear_sessions(&n).await });
    let (n, t) = (node.clone(), targets.clone());
    duties.spawn(async move { keep_targets(&n, &t, since).await });
    let n = node.clone();
    duties.spawn(async move { placement::keep(&n).await });
    let (n, p) = (node.clone(), peers.clone());
    duties.spawn(async move { gc::collect(&n, &p).await });
    let (n, t, p) = (node.clone(), targets.clone(), peers.clone());
    duties.spawn(async move { gc::sweep(&n, &t, &p).await });
    duties
}

/// Proposes a change of the leader's own. A failure is logged; the duty comes back to it.
pub async fn propose(node: &Node, what: &str, body: Body) -> Result<v1::MetaReply> {
    let effect = match &body {
        Body::ExpireSession(e) => Effect::SessionEnds(SessionId(e.session)),
        _ => Effect::Nothing,
    };
    let reply = node.propose(body, effect).await;
    if let Err(e) = &reply {
        tracing::warn!("could not {what}: {e}");
    }
    reply
}

async fn make_cluster(node: &Node) {
    // The pool's profile was checked with the configuration.
    let Ok(profile) = node.config.pool_profile() else { return };
    while cluster_of(&node.map()).is_none() {
        let mut cluster = [0; 16];
        node.env.rng(0x636c_7573_7465_7200 ^ node.config.id.0).fill_bytes(&mut cluster);
        let members = node
            .config
            .peers
            .iter()
            .map(|p| v1::NodeInfo { id: p.id.0, address: p.address.clone() })
            .collect();
        let entry = v1::InitClusterEntry {
            cluster: cluster.to_vec().into(),
            profile: Some(profile.into()),
            members,
        };
        if propose(node, "make the cluster", Body::InitCluster(entry)).await.is_err() {
            sleep(LOOK).await;
        }
    }
}

async fn keep_sessions(node: &Arc<Node>) {
    let ttl = node.config.session_ttl();
    let mut looked = Instant::now();
    let mut expiries = JoinSet::new();
    loop {
        sleep(LOOK).await;
        let now = Instant::now();
        // Whoever renewed meanwhile is heard only after this.
        let stall = now.duration_since(looked).saturating_sub(2 * LOOK);
        looked = now;
        let dead = {
            let mut sessions = node.sessions.lock();
            if !stall.is_zero() {
                tracing::warn!(?stall, "this server stood still; sessions get that much longer");
                sessions.stalled(stall);
            }
            sessions.begin_expiry(now, ttl, ANSWER * ttl)
        };
        for session in dead {
            tracing::info!(
                session = session.0,
                "session is silent or keeps a recalled lease for too long and is declared dead"
            );
            // Not waited for: time goes on for the others.
            let node = node.clone();
            expiries.spawn(async move {
                let entry = v1::ExpireSessionEntry { session: session.0 };
                let body = Body::ExpireSession(entry);
                if propose(&node, "declare a session dead", body).await.is_err() {
                    node.sessions.lock().spare(session);
                }
            });
        }
        while expiries.try_join_next().is_some() {}
    }
}

/// Tells who waits for a lock when it is its turn.
async fn give_turns(node: &Node) {
    let news = node.sessions.lock().locks.news.clone();
    let mut look = Instant::now() + LOOK;
    loop {
        // What comes often, comes together.
        if tokio::time::timeout_at(look, news.notified()).await.is_err() {
            look = Instant::now() + LOOK;
            node.sessions.lock().locks.look_around(Instant::now());
        }
        // The state is read under the lock, so that whoever waits now waits for what is held now:
        // in older answers there could be a circle that never was.
        let mut held = |ino, flock| node.state.locks_of(ino, flock);
        let settled = node.sessions.lock().locks.settle(Instant::now(), &mut held);
        if let Err(error) = settled {
            tracing::error!("cannot read the locks that others wait for: {error}");
            sleep(LOOK).await;
        }
    }
}

/// Removes inodes that have no name and that nobody has open.
async fn purge_orphans(node: &Arc<Node>, term: u64) {
    let mut after = InodeId(0);
    // What was put on the list before this is gone.
    let mut done = None;
    loop {
        let put = node.state.orphaned();
        if done == Some(put) {
            sleep(LOOK).await;
            continue;
        }
        let orphans = match node.state.orphans(after, PURGE_BATCH) {
            Ok(orphans) => orphans,
            Err(error) => {
                tracing::error!("cannot read the list of inodes without names: {error}");
                sleep(LOOK).await;
                continue;
            }
        };
        if orphans.is_empty() && after == InodeId(0) {
            done = Some(put);
            continue;
        }
        // Creates and opens that the scan may have seen the end of are in the table only when the
        // event loop has dealt with their entries.
        if node.settled(node.state.applied()).await.is_err() {
            return;
        }
        // A session that opened one under a lease, without asking, says so when that is recalled.
        let closed = node.sessions.lock().not_open(&orphans);
        // None is granted a lease until they are gone: under it, one could be opened without asking.
        let patience = Instant::now() + node.config.session_ttl();
        let Ok(claim) = conflicts::claim_own(node, term, closed, patience).await else {
            sleep(LOOK).await;
            continue;
        };
        let free = node.sessions.lock().begin_purge(&claim.inos);
        if !free.is_empty() {
            let entry = v1::PurgeInodesEntry { inos: free.iter().map(|i| i.0).collect() };
            let purged = propose(node, "remove orphans", Body::PurgeInodes(entry)).await;
            node.sessions.lock().end_purge(&free);
            if purged.is_ok() {
                // A large one is removed in bounded steps: look again at the same place, and not from
                // the start, where there is much that was removed.
                after = orphans.first().map_or(after, |first| InodeId(first.0.saturating_sub(1)));
                continue;
            }
        }
        drop(claim);
        after = match orphans.last() {
            Some(&last) if orphans.len() == PURGE_BATCH => last,
            _ => {
                sleep(LOOK).await;
                InodeId(0)
            }
        };
    }
}

/// Deletes what files do not show any more, step by step.
async fn trim_files(node: &Node) {
    let mut done = None;
    loop {
        let put = node.state.cut();
        if done == Some(put) {
            sleep(LOOK).await;
            continue;
        }
        match node.state.to_trim(TRIM_BATCH) {
            Ok(files) if files.is_empty() => done = Some(put),
            Ok(files) => {
                let entry = v1::TrimFilesEntry { inos: files.iter().map(|ino| ino.0).collect() };
                if propose(node, "trim files", Body::TrimFiles(entry)).await.is_err() {
                    sleep(LOOK).await;
                }
            }
            Err(error) => {
                tracing::error!("cannot read the list of files to trim: {error}");
                sleep(LOOK).await;
            }
        }
    }
}

/// Deletes what ended sessions have left, step by step.
async fn clear_sessions(node: &Node) {
    let mut done = None;
    loop {
        let put = node.state.ended();
        if done == Some(put) {
            sleep(LOOK).await;
            continue;
        }
        match node.state.ended_session() {
            Ok(None) => done = Some(put),
            Ok(Some(session)) => {
                let body = Body::ExpireSession(v1::ExpireSessionEntry { session: session.0 });
                if propose(node, "delete what a session left", body).await.is_err() {
                    sleep(LOOK).await;
                }
            }
            Err(error) => {
                tracing::error!("cannot read the list of ended sessions: {error}");
                sleep(LOOK).await;
            }
        }
    }
}

async fn keep_targets(node: &Arc<Node>, targets: &Targets, since: Instant) {
    let settings = (node.config.target_down_after(), node.config.full_percent);
    loop {
        sleep(LOOK).await;
        let changes = targets.changes(Instant::now(), since, settings.0, settings.1, &node.map());
        if changes.is_empty() {
            continue;
        }
        for change in &changes {
            tracing::info!(target = change.target, state = ?change.state(), full = change.full, "target changes");
        }
        let entry = v1::SetTargetStateEntry { changes };
        // The reply says whether it took effect; if not, the next look decides anew.
        let _ = propose(node, "change the state of targets", Body::SetTargetState(entry)).await;
    }
}
