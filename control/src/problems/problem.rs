//! One thing that is wrong, and how it is worded.

use serde::{Deserialize, Serialize};

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
    pub(super) fn new(
        severity: Severity,
        kind: &str,
        text: String,
        consequence: &str,
        command: &str,
    ) -> Self {
        let (kind, consequence) = (kind.into(), consequence.into());
        Self { kind, severity, text, consequence, command: command.into() }
    }
}

/// Most problems of one kind that are told one by one.
pub(super) const TOLD: usize = 8;

/// The first of many, and how many more there are.
pub(super) fn bounded(mut all: Vec<Problem>, what: &str) -> Vec<Problem> {
    let more = all.len().saturating_sub(TOLD);
    if more > 0 {
        let severity = all.iter().map(|p| p.severity).min().unwrap_or(Severity::Note);
        let kind = all[0].kind.clone();
        let same = all.iter().all(|p| p.command == all[0].command);
        let command = if same { all[0].command.clone() } else { "weft target list".into() };
        all.truncate(TOLD);
        let text = format!("and {more} more {what}");
        all.push(Problem::new(severity, &kind, text, "as above", &command));
    }
    all
}

/// Numbers with commas; of many, the first.
pub(super) fn list(ids: &[u32]) -> String {
    let first: Vec<_> = ids.iter().take(12).map(u32::to_string).collect();
    match ids.len().saturating_sub(12) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// `n things`, or `1 thing`.
pub(super) fn count(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}
