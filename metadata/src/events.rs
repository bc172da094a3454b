//! What the leader tells admins of: the words of events ([`crate::tables::events`]), each beside
//! the entry that brings it about, so that it is kept with that, and only if it was not refused.

use crate::soft::targets::Targets;
use std::collections::BTreeMap;
use tokio::time::Instant;
use v1::TargetState::{Down, Out, Up};
use v1::set_target_request::Action;
use v1::set_target_state_entry::Change;
use weft_proto::v1;

/// Something that is as it should be, or that somebody wanted.
pub fn event(kind: &str, text: String) -> v1::Event {
    v1::Event { kind: kind.into(), text, ..Default::default() }
}

/// Something that an admin may have to do something about.
pub fn warning(kind: &str, text: String) -> v1::Event {
    v1::Event { warning: true, ..event(kind, text) }
}

/// Most events that one entry carries.
const MAX_EVENTS: usize = 100;
/// Longest texts, in bytes.
const MAX_KIND: usize = 64;
const MAX_TEXT: usize = 1024;

/// As many, and as long, as an entry may carry.
pub fn bound(events: &mut Vec<v1::Event>) {
    let more = events.len().saturating_sub(MAX_EVENTS);
    if more > 0 {
        events.truncate(MAX_EVENTS);
        events.push(warning("more", format!("and {more} more events of the same moment")));
    }
    for event in events {
        event.kind = cut(&event.kind, MAX_KIND);
        event.text = cut(&event.text, MAX_TEXT);
    }
}

/// The beginning of a text, at most so many bytes.
pub fn cut(text: &str, limit: usize) -> String {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// A target and where it is.
pub fn name_of(target: &v1::TargetInfo) -> String {
    format!("target {} ({})", target.id, place_of(target))
}

/// Where a target is.
pub fn place_of(target: &v1::TargetInfo) -> String {
    match target.domain.as_str() {
        "" => target.address.clone(),
        domain => format!("{domain}, {}", target.address),
    }
}

/// What heartbeats tell, or are missing, changes of targets.
pub fn of_changes(
    map: &v1::ClusterMap,
    changes: &[Change],
    targets: &Targets,
    now: Instant,
    since: Instant,
) -> Vec<v1::Event> {
    let known: BTreeMap<u32, _> = map.targets.iter().map(|t| (t.id, t)).collect();
    let mut events = Vec::new();
    for (change, target) in changes.iter().filter_map(|c| Some((c, *known.get(&c.target)?))) {
        let name = name_of(target);
        let why = targets.why_away(now, since, change.target);
        match (target.state(), change.state()) {
            (was, is) if was == is => {}
            (_, Down) => events.push(warning("target-down", format!("{name} is down: {why}"))),
            (_, Out) => {
                let what = format!("{name} is given up, and repaired elsewhere: {why}");
                events.push(warning("target-out", what));
            }
            (Out, Up) => {
                let what = format!("{name} is back, and was looked at as a whole");
                events.push(event("target-up", what));
            }
            (_, Up) => events.push(event("target-up", format!("{name} is up"))),
            _ => {}
        }
        match (target.full, change.full) {
            (false, true) => {
                let what = format!("{name} is full: nothing new is stored there");
                events.push(warning("target-full", what));
            }
            (true, false) => {
                events.push(event("target-room", format!("{name} has room again")));
            }
            _ => {}
        }
    }
    events
}

/// An admin has decided about a target.
pub fn of_decision(target: &v1::TargetInfo, request: &v1::SetTargetRequest) -> v1::Event {
    let name = name_of(target);
    let what = match request.action() {
        Action::GiveUp => format!("an admin has given {name} up"),
        Action::Drain => format!("an admin has {name} drained"),
        Action::Forget => format!("an admin has {name} forgotten, for good"),
        Action::TakeBack => format!("an admin takes {name} back"),
        Action::Weigh => {
            format!("an admin has set the weight of {name} to {} thousandths", request.weight)
        }
        other => format!("an admin has decided about {name}: {other:?}"),
    };
    event("target-decision", what)
}

/// An admin has decided about a metadata server.
pub fn of_member(entry: &v1::SetServerEntry) -> v1::Event {
    use v1::set_server_entry::Change::{Add, Move, Remove};
    let what = match &entry.change {
        Some(Add(add)) if add.replaces != 0 => {
            format!("server {} at {} is to replace server {}", add.id, add.address, add.replaces)
        }
        Some(Add(add)) => format!("server {} at {} is to join", add.id, add.address),
        Some(Remove(id)) => format!("server {id} is to leave"),
        Some(Move(to)) => format!("server {} is at {} from now on", to.id, to.address),
        None => "nothing".into(),
    };
    event("metadata-decision", format!("an admin has decided about the metadata group: {what}"))
}

/// An admin has decided what a tenant may have.
pub fn of_qos(rule: &v1::QosRule) -> v1::Event {
    let whose = match &rule.tenant[..] {
        "" => "all tenants without a rule of their own".to_owned(),
        tenant => format!("tenant {tenant:?}"),
    };
    let Some(v1::QosLimits { bandwidth, iops, metadata, weight }) = rule.limits else {
        return event("qos-decision", format!("an admin has cleared the rule of {whose}"));
    };
    let rates = [(bandwidth, "bytes/s"), (iops, "IOPS"), (metadata, "metadata operations/s")];
    let rates = rates.iter().filter_map(|(rate, of)| Some(format!("{} {of}", (*rate)?)));
    let weight = weight.map(|weight| format!("weight {weight}"));
    let said: Vec<String> = rates.chain(weight).collect();
    event("qos-decision", format!("an admin has set the rule of {whose}: {}", said.join(", ")))
}

/// The metadata group takes a step.
pub fn of_group(entry: &v1::ChangeMembersEntry) -> v1::Event {
    let what = match (entry.learn, entry.promote, entry.remove) {
        (0, 0, 0) => "the change of its votes is complete".into(),
        (0, 0, gone) => format!("server {gone} leaves"),
        (0, new, 0) => format!("server {new} has caught up, and votes"),
        (0, new, gone) => format!("server {new} has caught up, and votes in place of {gone}"),
        (new, ..) => format!("server {new} joins, and catches up"),
    };
    event("metadata-group", format!("the metadata group: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_carries_so_many_and_so_long() {
        let long = "\u{20ac}".repeat(MAX_TEXT);
        let mut events = vec![event("kind", long); MAX_EVENTS + 7];
        bound(&mut events);
        assert_eq!(events.len(), MAX_EVENTS + 1);
        assert!(events[MAX_EVENTS].warning && events[MAX_EVENTS].text.contains(" 7 "));
        // Whole characters.
        assert_eq!(events[0].text.len(), MAX_TEXT / 3 * 3);
        assert_eq!(cut("short", MAX_TEXT), "short");
    }
}
