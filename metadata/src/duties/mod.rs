//! What the leader does besides answering, one duty a file.
//!
//! Every duty runs only while this server leads, in tasks that end with the term; whatever they
//! decide goes through the log ([`propose`]), so that a duty cut off in the middle is taken up by
//! the next leader.

mod by_halves;
mod change_members;
mod clear_sessions;
mod collect_garbage;
mod compact_files;
mod count_usage;
mod expire_sessions;
mod give_turns;
mod heal;
pub(crate) mod hold;
mod make_cluster;
mod place;
mod propose;
mod purge_orphans;
mod rebalance;
pub mod repair;
mod sample;
mod stall;
mod sweep;
mod tell_events;
mod trim_files;
mod watch_targets;

use crate::node::Node;
use crate::soft::targets::Targets;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weft_net::Peers;

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
    targets.begin(since, term);
    let all = || (node.clone(), targets.clone(), peers.clone());
    let mut duties = JoinSet::new();
    let (n, ..) = all();
    duties.spawn(async move { make_cluster::make_cluster(&n).await });
    let (n, ..) = all();
    duties.spawn(async move { change_members::change_members(&n).await });
    let (n, ..) = all();
    duties.spawn(async move { expire_sessions::expire_sessions(&n, term).await });
    let (n, ..) = all();
    duties.spawn(async move { give_turns::give_turns(&n).await });
    let (n, ..) = all();
    duties.spawn(async move { purge_orphans::purge_orphans(&n, term).await });
    let (n, ..) = all();
    duties.spawn(async move { trim_files::trim_files(&n).await });
    let (n, ..) = all();
    duties.spawn(async move { count_usage::count_usage(&n, term).await });
    let (n, ..) = all();
    duties.spawn(async move { clear_sessions::clear_sessions(&n).await });
    let (n, t, _) = all();
    duties.spawn(async move { watch_targets::watch_targets(&n, &t, since).await });
    let (n, ..) = all();
    duties.spawn(async move { place::place(&n).await });
    let (n, _, p) = all();
    duties.spawn(async move { collect_garbage::collect_garbage(&n, &p).await });
    let (n, t, p) = all();
    duties.spawn(async move { sample::sample(&n, &t, &p).await });
    let (n, t, p) = all();
    duties.spawn(async move { repair::repair(&n, &t, &p).await });
    let (n, t, p) = all();
    duties.spawn(async move { heal::heal(&n, &t, &p).await });
    let (n, t, _) = all();
    duties.spawn(async move { rebalance::rebalance(&n, &t, since).await });
    let (n, _, p) = all();
    duties.spawn(async move { compact_files::compact_files(&n, &p).await });
    let (n, t, p) = all();
    duties.spawn(async move { sweep::sweep(&n, &t, &p).await });
    let (n, t, _) = all();
    duties.spawn(async move { tell_events::tell_events(&n, &t, term).await });
    duties
}
