//! Metadata servers: who is away, behind or damaged, who has no room, whose clock is apart.

use super::problem::{Problem, Severity, count};
use crate::status::Answers;
use std::collections::BTreeSet;
use weft_proto::ErrorKind;
use weft_proto::v1::{MemberRole, NodeInfo, StatusReply};

/// Clocks that differ by more are told of; tickets are good for ten minutes.
const CLOCK_S: i64 = 3;
const CLOCK_CRITICAL_S: i64 = 300;

pub(super) fn problems(leader: Option<&StatusReply>, answers: Option<&Answers>) -> Vec<Problem> {
    let mut all = Vec::new();
    match leader {
        None => all.extend(answers.map(no_leader)),
        Some(reply) => {
            all.extend(away(reply, answers));
            all.extend(held(reply));
            if !reply.membership.is_empty() {
                all.push(Problem::new(
                    Severity::Note,
                    "membership",
                    format!("the metadata group is to change; waiting: {}", reply.membership),
                    "nothing, but that the group is not yet as an admin wants it",
                    "weft metadata list",
                ));
            }
        }
    }
    all.extend(no_room(leader, answers));
    all.extend(behind_or_damaged(leader, answers));
    all.extend(clocks(leader, answers));
    all
}

fn no_leader(answers: &Answers) -> Problem {
    let answer = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    let silent: Vec<_> =
        answers.iter().filter(|(_, a)| a.is_err()).map(|(at, _)| &at[..]).collect();
    let refused = |e: &weft_proto::Error| e.kind == ErrorKind::NotPermitted;
    if answers.iter().any(|(_, a)| a.as_ref().err().is_some_and(refused)) {
        return Problem::new(
            Severity::Critical,
            "refused",
            "the metadata servers refuse this certificate".into(),
            "nothing can be told of the cluster",
            "weft ca list",
        );
    }
    let text = match silent.len() {
        0 => "the metadata servers answer and have no leader".to_owned(),
        _ => format!(
            "no leader: {answer} of {} metadata servers answer; silent: {}",
            answers.len(),
            silent.join(", ")
        ),
    };
    Problem::new(
        Severity::Critical,
        "no_leader",
        text,
        "nothing is served: programs wait until a majority of the servers reach each other",
        "systemctl start weft-metadata@N on the machines of the silent ones; \
         journalctl -u 'weft-metadata@*'",
    )
}

fn votes(member: &NodeInfo) -> bool {
    matches!(member.role(), MemberRole::Voter | MemberRole::Incoming)
}

/// Members that do not answer the leader, or who asks here.
fn away(reply: &StatusReply, answers: Option<&Answers>) -> Vec<Problem> {
    let members = || reply.map.iter().flat_map(|map| &map.members);
    let silent_here = |member: &NodeInfo| {
        let mut asked = answers.into_iter().flatten();
        asked.any(|(at, answer)| at == &member.address && answer.is_err())
    };
    let asked = |member: &NodeInfo| {
        answers.is_some_and(|all| all.iter().any(|(at, _)| at == &member.address))
    };
    let lost = |member: &NodeInfo| {
        let stat = reply.members.iter().find(|stat| stat.id == member.id);
        stat.is_some_and(|stat| !stat.active)
    };
    let voters = members().filter(|m| votes(m)).count();
    let lost_votes = members().filter(|m| votes(m) && lost(m)).count();
    // With so many left, one more and there is no majority.
    let spare = (voters - lost_votes).saturating_sub(voters / 2 + 1);
    let mut all = Vec::new();
    for member in members() {
        let (id, at) = (member.id, &member.address);
        let start = format!(
            "systemctl start weft-metadata@{id} on its machine; if its disk is lost: \
             weft metadata replace {id} NEW ADDR"
        );
        if lost(member) {
            let (known, command) = match (asked(member), silent_here(member)) {
                (true, false) => (
                    "answers here and not the leader: it is cut off from it",
                    "check the network and the firewall between it and the leader",
                ),
                _ => ("does not answer", &start[..]),
            };
            let text = format!("metadata server {id} ({at}) {known}");
            let (severity, consequence) = match spare {
                0 if voters > 1 => {
                    (Severity::Critical, "one more without an answer, and nothing is served".into())
                }
                _ => (
                    Severity::Warning,
                    format!("{} may be lost besides", count(spare as u64, "more")),
                ),
            };
            all.push(Problem::new(severity, "metadata_away", text, &consequence, command));
        } else if silent_here(member) {
            let text =
                format!("metadata server {id} ({at}) answers the others and not this machine");
            let consequence = "clients that cannot reach it use the others";
            let command = "check the network and the firewall between here and there";
            all.push(Problem::new(
                Severity::Warning,
                "metadata_unreached",
                text,
                consequence,
                command,
            ));
        }
    }
    all
}

/// What each server says, once.
fn each<'a>(
    leader: Option<&'a StatusReply>,
    answers: Option<&'a Answers>,
) -> impl Iterator<Item = &'a StatusReply> {
    let asked = answers.into_iter().flatten().filter_map(|(_, answer)| answer.as_ref().ok());
    let mut seen = BTreeSet::new();
    leader.into_iter().chain(asked).filter(move |reply| seen.insert(reply.id))
}

/// Servers that cannot take the state over from others, or cannot give it to them.
fn behind_or_damaged(leader: Option<&StatusReply>, answers: Option<&Answers>) -> Vec<Problem> {
    let mut all = Vec::new();
    for reply in each(leader, answers) {
        if !reply.cannot_fetch.is_empty() {
            all.push(Problem::new(
                Severity::Warning,
                "metadata_behind",
                format!(
                    "metadata server {} is behind and cannot fetch the state: {}",
                    reply.id, reply.cannot_fetch
                ),
                "it does not count as a copy: one less may be lost",
                "df on its machine; journalctl -u 'weft-metadata@*' there",
            ));
        }
        if !reply.damaged.is_empty() {
            let command = format!(
                "journalctl -u weft-metadata@{0} and dmesg on its machine; if its disk has damaged \
                 it: stop it, move its whole data folder away, and start it",
                reply.id
            );
            all.push(Problem::new(
                Severity::Warning,
                "metadata_damaged",
                format!(
                    "metadata server {} could not read or copy what it has: {}",
                    reply.id, reply.damaged
                ),
                "another leads if one can; servers that are behind get nothing from this one",
                &command,
            ));
        }
    }
    all
}

fn no_room(leader: Option<&StatusReply>, answers: Option<&Answers>) -> Vec<Problem> {
    let mut all = Vec::new();
    for reply in each(leader, answers).filter(|reply| reply.low_on_room) {
        let text = format!(
            "the disk of metadata server {} has {} MiB left, less than its reserve",
            reply.id,
            reply.free_bytes >> 20
        );
        all.push(Problem::new(
            Severity::Critical,
            "metadata_full",
            text,
            "nothing new is taken (ENOSPC); reading and removing go on",
            "free room on the disk of its data folder, or weft metadata replace",
        ));
    }
    all
}

/// After a restore nothing is deleted for a while.
fn held(reply: &StatusReply) -> Option<Problem> {
    let left = (reply.held_until_ns - reply.clock_ns).max(0) / 60_000_000_000;
    (reply.held_until_ns != 0).then(|| {
        Problem::new(
            Severity::Note,
            "deletion_held",
            format!(
                "restored from a backup: nothing is deleted from targets for {} h {} min",
                left / 60,
                left % 60
            ),
            "a newer backup may still be restored; space of what is removed is free only then",
            "",
        )
    })
}

/// Clocks of daemons against the leader's, and of servers against each other.
fn clocks(leader: Option<&StatusReply>, answers: Option<&Answers>) -> Vec<Problem> {
    let mut apart: Vec<(String, i64)> = Vec::new();
    let daemons = leader.into_iter().flat_map(|reply| &reply.daemons);
    apart.extend(daemons.map(|c| (format!("storage daemon {}", c.daemon), c.ahead_s)));
    if let (Some(leader), Some(answers)) = (leader, answers) {
        // The leader was asked at the same moment as the others, if it is among them.
        let of_leader = answers.iter().filter_map(|(_, a)| a.as_ref().ok());
        let base = of_leader.clone().find(|a| a.id == leader.id).map_or(0, |a| a.clock_ns);
        if base != 0 {
            let others = of_leader.filter(|a| a.clock_ns != 0 && a.id != leader.id);
            apart.extend(others.map(|a| {
                let ahead = a.clock_ns.saturating_sub(base) / 1_000_000_000;
                (format!("metadata server {}", a.id), ahead)
            }));
        }
    }
    apart.retain(|(_, ahead)| ahead.abs() > CLOCK_S);
    apart.sort_by_key(|(_, ahead)| -ahead.abs());
    let Some((worst, ahead)) = apart.first() else { return Vec::new() };
    let direction = if *ahead > 0 { "ahead of" } else { "behind" };
    let others = match apart.len() - 1 {
        0 => String::new(),
        n => format!(", and {} too", count(n as u64, "other")),
    };
    let severity =
        if ahead.abs() >= CLOCK_CRITICAL_S { Severity::Critical } else { Severity::Warning };
    vec![Problem::new(
        severity,
        "clocks_apart",
        format!("the clock of {worst} is {} s {direction} the leader's{others}", ahead.abs()),
        "times of files differ by where they were written; from minutes on, certificates and \
         tickets are refused",
        "timedatectl timesync-status on that machine; start chrony or systemd-timesyncd",
    )]
}
