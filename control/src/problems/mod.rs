//! What is wrong with a cluster, the worst first: with what follows from it, and the command that
//! helps. Told alike by `weft status`, `weft top` and the console.

mod daemons;
mod drives;
mod network;
mod problem;
mod servers;
mod targets;

pub use problem::{Problem, Severity};

use crate::status::Answers;
use problem::count;
use weft_proto::v1::StatusReply;

/// What is wrong by what a leader says, and by what all servers answered, if they were asked. The
/// worst comes first.
pub fn problems(leader: Option<&StatusReply>, answers: Option<&Answers>) -> Vec<Problem> {
    let mut all = servers::problems(leader, answers);
    if let Some(reply) = leader {
        all.extend(targets::problems(reply));
        all.extend(daemons::problems(reply));
        all.extend(drives::problems(reply));
        all.extend(network::problems(reply));
    }
    // As they were found among those that are as bad.
    all.sort_by_key(|problem| problem.severity);
    all
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
mod tests;
