//! The rules of the house, one file each.
//!
//! What needs no reader of the code of its own is clippy's and rustc's: lints in the manifests, and
//! `missing_docs` in the libraries that others build on.

mod arrows;
mod circles;
mod docs;
mod journeys;
mod lengths;
mod unused;
mod width;

use crate::modules::Modules;
use crate::workspace::Workspace;
use std::fmt;
use std::path::{Path, PathBuf};

/// What breaks a rule, and where.
#[derive(Debug)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    pub path: PathBuf,
    /// 0: the file as a whole.
    pub line: usize,
    pub what: String,
}

impl Finding {
    fn new(rule: &'static str, path: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { rule, path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, path, line, what } = self;
        match line {
            0 => write!(f, "{}: {what} [{rule}]", path.display()),
            line => write!(f, "{}:{line}: {what} [{rule}]", path.display()),
        }
    }
}

/// All that breaks a rule.
pub fn all(workspace: &Workspace) -> Vec<Finding> {
    let modules = Modules::read(workspace);
    [
        arrows::check(workspace),
        circles::check(&modules),
        docs::check(workspace),
        journeys::check(workspace, &modules),
        lengths::check(workspace),
        unused::check(workspace),
        width::check(workspace),
    ]
    .into_iter()
    .flatten()
    .collect()
}
