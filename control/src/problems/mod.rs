//! What is wrong with a cluster, the worst first: with what follows from it, and the command that
//! helps. Told alike by `weft status`, `weft top` and the console.

mod daemons;
mod drives;
mod health;
mod network;
mod problem;
mod servers;
mod targets;

pub use health::{headline, health};
pub use problem::{Problem, Severity};

use crate::status::Answers;
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

#[cfg(test)]
mod tests;
