//! What a look answers.

use serde::Serialize;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    /// Works, but slower or less safely than it could, or could not be found out.
    Warn,
    /// Does not work, or will lose time or data.
    Fail,
    NotApplicable,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
            Self::NotApplicable => "n/a",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub name: String,
    /// What was found.
    pub found: String,
    pub verdict: Verdict,
    /// What to do; there whenever something is wrong.
    pub advice: Option<String>,
}

impl Check {
    pub fn ok(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(name, found, Verdict::Ok, None)
    }

    pub fn none(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(name, why, Verdict::NotApplicable, None)
    }

    pub fn warn(name: impl Into<String>, found: impl Into<String>, advice: &str) -> Self {
        Self::new(name, found, Verdict::Warn, Some(advice.to_owned()))
    }

    pub fn fail(name: impl Into<String>, found: impl Into<String>, advice: &str) -> Self {
        Self::new(name, found, Verdict::Fail, Some(advice.to_owned()))
    }

    fn new(
        name: impl Into<String>,
        found: impl Into<String>,
        verdict: Verdict,
        advice: Option<String>,
    ) -> Self {
        Self { name: name.into(), found: found.into(), verdict, advice }
    }
}
