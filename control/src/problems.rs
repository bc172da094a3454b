//! What is wrong with a cluster, the worst first: with what follows from it, and the command that
//! helps. Told alike by `weft status`, `weft top` and the console.

mod drives;
mod servers;
mod targets;

use crate::status::Answers;
use serde::{Deserialize, Serialize};
use weft_proto::v1::StatusReply;

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something cannot be read or written, or with the next failure it cannot.
    Critical,
    /// It costs redundancy, speed or room, or is about to.
    Warning,
    /// It is under way and ends by itself.
    Note,
}

/// One thing that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// For scripts, such as `target_down`.
    pub kind: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub text: String,
    /// What follows from it.
    pub consequence: String,
    /// The command that helps; empty: it ends by itself.
    pub command: String,
}

impl Problem {
    fn new(severity: Severity, kind: &str, text: String, consequence: &str, command: &str) -> Self {
        let (kind, consequence) = (kind.into(), consequence.into());
        Self { kind, severity, text, consequence, command: command.into() }
    }
}

/// Most problems of one kind that are told one by one.
const TOLD: usize = 8;

/// What is wrong by what a leader says, and by what all servers answered, if they were asked. The
/// worst comes first.
pub fn problems(leader: Option<&StatusReply>, answers: Option<&Answers>) -> Vec<Problem> {
    let mut all = servers::problems(leader, answers);
    if let Some(reply) = leader {
        all.extend(targets::problems(reply));
        all.extend(drives::problems(reply));
    }
    // As they were found among those that are as bad.
    all.sort_by_key(|problem| problem.severity);
    all
}

/// The first of many, and how many more there are.
fn bounded(mut all: Vec<Problem>, what: &str) -> Vec<Problem> {
    let more = all.len().saturating_sub(TOLD);
    if more > 0 {
        let severity = all.iter().map(|p| p.severity).min().unwrap_or(Severity::Note);
        let kind = all[0].kind.clone();
        all.truncate(TOLD);
        let text = format!("and {more} more {what}");
        all.push(Problem::new(severity, &kind, text, "as above", "weft target list"));
    }
    all
}

/// Numbers with commas; of many, the first.
fn list(ids: &[u32]) -> String {
    let first: Vec<_> = ids.iter().take(12).map(u32::to_string).collect();
    match ids.len().saturating_sub(12) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// `n things`, or `1 thing`.
fn count(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
