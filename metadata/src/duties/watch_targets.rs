//! Says which targets are up, down, given up and full.

use super::by_halves;
use super::propose::propose_telling;
use super::stall::Looks;
use crate::events;
use crate::node::{Known, Node};
use crate::soft::targets::{Limits, Targets};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use v1::TargetState;
use v1::log_entry::Body;
use v1::set_target_state_entry::Change;
use weft_proto::v1;

/// Changes the state of targets as heartbeats tell it, or are missing since `since`.
pub async fn watch_targets(node: &Arc<Node>, targets: &Targets, mut since: Instant) {
    let limits = Limits {
        down_after: node.config.target_down_after(),
        out_after: Duration::from_millis(node.config.target_out_ms),
        full_percent: node.config.full_percent,
    };
    let mut looks = Looks::begin();
    // At most one, which is not waited for: who waits does not notice that time stood still.
    let mut proposal = JoinSet::new();
    loop {
        let (now, stall) = looks.next().await;
        if !stall.is_zero() {
            targets.stalled(now, stall);
            since += stall;
        }
        while proposal.try_join_next().is_some() {}
        if !proposal.is_empty() {
            continue;
        }
        let map = node.map();
        let wall_ns = node.env.clock.now_ns();
        let mut changes = targets.changes(now, since, wall_ns, limits, &map);
        if changes.is_empty() {
            continue;
        }
        note_downtimes(&mut changes, &map, wall_ns, node.all_know(Known::Downtimes));
        for change in &changes {
            tracing::info!(target = change.target, state = ?change.state(), full =
                change.full, "target changes");
        }
        let events = changes.iter().map(|change| {
            events::of_changes(&map, std::slice::from_ref(change), targets, now, since)
        });
        let changes: Vec<(Change, Vec<v1::Event>)> = changes.iter().copied().zip(events).collect();
        let node = node.clone();
        proposal.spawn(async move {
            let node = &*node;
            // If it takes no effect, the next look decides anew. One target of which the record
            // makes no sense keeps no other from being down.
            let change = |some: Vec<(Change, Vec<v1::Event>)>| async move {
                let (changes, events): (Vec<_>, Vec<_>) = some.into_iter().unzip();
                let body = Body::SetTargetState(v1::SetTargetStateEntry { changes });
                let what = "change the state of targets";
                propose_telling(node, what, body, events.concat()).await.map(drop)
            };
            by_halves::change(changes, change).await;
        });
    }
}

/// A target that goes down says since when, for the next leader, if every server of the group keeps
/// that (`all_know`): what one does not know it would drop, and hold another state than the others.
fn note_downtimes(changes: &mut [Change], map: &v1::ClusterMap, wall_ns: i64, all_know: bool) {
    for change in changes.iter_mut().filter(|_| all_know) {
        let goes = |t: &v1::TargetInfo| t.id == change.target && t.state() != TargetState::Down;
        if change.state() == TargetState::Down && map.targets.iter().any(goes) {
            change.down_ns = wall_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_when_a_target_is_down_is_noted_when_it_goes_down_and_all_know_of_it() {
        use TargetState::{Down, Out, Up};
        let states = [Up, Down, Down, Up, Out];
        let target = |(id, state): (u32, TargetState)| v1::TargetInfo {
            id,
            state: state.into(),
            ..Default::default()
        };
        let targets = (1..).zip(states).map(target).collect();
        let map = v1::ClusterMap { targets, ..Default::default() };
        // The second is full as well now, the third is given up, and the fourth is not.
        let to = [(1, Down), (2, Down), (3, Out), (4, Up), (5, Down), (99, Down)];
        let noted = |all_know| {
            let change = |(target, state): (u32, TargetState)| Change {
                target,
                state: state.into(),
                full: true,
                ..Default::default()
            };
            let mut changes = to.map(change);
            note_downtimes(&mut changes, &map, 70, all_know);
            changes.map(|change| change.down_ns)
        };
        assert_eq!(noted(true), [70, 0, 0, 0, 70, 0]);
        assert_eq!(noted(false), [0; 6]);
    }
}
