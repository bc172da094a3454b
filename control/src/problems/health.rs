//! The health of a cluster, in a word.

use super::problem::{Problem, Severity, count};
use weft_proto::v1::StatusReply;

/// Kinds of problems that make a cluster degraded although none of them is critical: something is
/// down, or damaged. By the others it is slower or fuller, or was once, or may be soon.
const DEGRADING: [&str; 6] = [
    "metadata_away",
    "metadata_behind",
    "metadata_damaged",
    "metadata_unreached",
    "records_damaged",
    "target_down",
];

/// `ok`: everything is up and whole. `degraded`: something is down or damaged, or takes nothing, or
/// data lacks redundancy. `unknown`: no leader answers. `problems`: as of
/// [`problems`](super::problems()).
pub fn health(leader: Option<&StatusReply>, problems: &[Problem]) -> &'static str {
    let Some(reply) = leader else { return "unknown" };
    let degrades =
        |p: &Problem| p.severity == Severity::Critical || DEGRADING.contains(&&p.kind[..]);
    // What is made anew, or waits for a target to come back.
    let lacks = reply.repair.as_ref().is_some_and(|repair| repair.missing_chunks > 0);
    if lacks || problems.iter().any(degrades) { "degraded" } else { "ok" }
}

/// What to say of the health: that everything is there and whole does not mean that nothing is
/// wrong.
pub fn headline(health: &str, problems: &[Problem]) -> String {
    match problems.iter().filter(|problem| problem.severity != Severity::Note).count() {
        wrong if health == "ok" && wrong > 0 => format!("ok, {}", count(wrong as u64, "problem")),
        _ => health.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::problems;
    use super::super::tests::{answers, cluster, down};
    use super::*;
    use weft_proto::v1::RepairStat;

    /// What is so now and is for an admin to mend, not what was once or costs time only.
    #[test]
    fn the_health_counts_what_is_down_or_damaged() {
        let of = |reply: &StatusReply| health(Some(reply), &problems(Some(reply), None));
        let mut reply = cluster();
        reply.targets[3].stalled_ms = 5000;
        reply.targets[4].read_errors = 3;
        assert_eq!((of(&reply), health(None, &[])), ("ok", "unknown"));
        let mut broken = vec![cluster(); 7];
        broken[0].cannot_fetch = "no room".into();
        broken[1].damaged = "a block".into();
        broken[2].repair = Some(RepairStat { damaged_records: 1, ..Default::default() });
        broken[3].repair = Some(RepairStat { missing_chunks: 1, ..Default::default() });
        broken[4].members[0].active = false;
        broken[5].low_on_room = true;
        down(&mut broken[6], &[2]);
        for (n, reply) in broken.iter().enumerate() {
            assert_eq!(of(reply), "degraded", "{n}");
        }
        // What only others say of themselves.
        let reply = cluster();
        let mut asked = answers(&reply);
        asked[2].1.as_mut().unwrap().cannot_fetch = "no room".into();
        assert_eq!(health(Some(&reply), &problems(Some(&reply), Some(&asked))), "degraded");
    }
}
