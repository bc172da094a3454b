//! What breaks a rule, and where.

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
    /// Of the rule of this name.
    pub fn new(rule: &'static str, path: &Path, line: usize, what: impl Into<String>) -> Self {
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
