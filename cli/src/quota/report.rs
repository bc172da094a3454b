//! Quotas, for people and for scripts.

use super::attribute::Quota;
use super::words::{group_name, user_name};
use crate::output::{OutputArgs, Table, plain};
use crate::size::Size;
use anyhow::Result;
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What may be used of something, and what is.
#[derive(Serialize, PartialEq, Debug)]
struct Amount {
    limit: Option<u64>,
    soft: Option<u64>,
    used: Option<u64>,
    /// Seconds until the soft limit stands against more; negative: since when it does.
    grace_left: Option<i64>,
}

#[derive(Serialize, PartialEq, Debug)]
struct Shown {
    /// `tree`, `user`, `group` or `project`.
    kind: String,
    id: u64,
    /// Of a user or a group, if this machine knows it.
    name: Option<String>,
    /// Of a folder: where it is, or was when the quota was set.
    path: Option<String>,
    bytes: Amount,
    inodes: Amount,
    grace_seconds: Option<u64>,
    /// A limit is reached, or a soft one exceeded.
    exceeded: bool,
    /// What was there before is being counted; nothing is refused until that is done.
    counting: bool,
    project: Option<u64>,
}

fn amount(hard: u64, soft: u64, used: u64, since: i64, grace: u64, now: i64) -> Amount {
    let some = |limit: u64| Some(limit).filter(|limit| *limit != 0);
    let past = now.saturating_sub(since) / 1_000_000_000;
    let left = i64::try_from(grace).unwrap_or(i64::MAX).saturating_sub(past);
    Amount {
        limit: some(hard),
        soft: some(soft),
        used: Some(used),
        grace_left: (since != 0).then_some(left),
    }
}

impl Shown {
    fn new(quota: Quota, now: i64) -> Self {
        let q = &quota;
        let bytes = amount(q.bytes, q.soft_bytes, q.used_bytes, q.bytes_since, q.grace, now);
        let inodes = amount(q.inodes, q.soft_inodes, q.used_inodes, q.inodes_since, q.grace, now);
        let reached = |a: &Amount| {
            a.limit.is_some_and(|limit| a.used >= Some(limit))
                || a.soft.is_some_and(|soft| a.used > Some(soft))
        };
        let exceeded = reached(&bytes) || reached(&inodes);
        let name = match q.kind.as_str() {
            "user" => user_name(q.id),
            "group" => group_name(q.id),
            _ => None,
        };
        Self {
            id: q.id,
            name,
            path: Some(quota.path).filter(|path| !path.is_empty()),
            bytes,
            inodes,
            grace_seconds: Some(quota.grace).filter(|grace| *grace != 0),
            exceeded,
            counting: quota.counting,
            project: Some(quota.project).filter(|project| *project != 0),
            kind: quota.kind,
        }
    }

    /// Of a place that no quota covers.
    fn none(path: &Path) -> Self {
        let nothing = || Amount { limit: None, soft: None, used: None, grace_left: None };
        Self {
            kind: "tree".into(),
            id: 0,
            name: None,
            path: Some(path.display().to_string()),
            bytes: nothing(),
            inodes: nothing(),
            grace_seconds: None,
            exceeded: false,
            counting: false,
            project: None,
        }
    }

    /// Whose it is.
    fn whose(&self) -> String {
        match (self.kind.as_str(), &self.name, &self.path) {
            ("tree", _, Some(path)) => path.clone(),
            ("tree", ..) => format!("inode {}", self.id),
            (kind, Some(name), _) => format!("{kind} {name}"),
            (kind, None, _) => format!("{kind} {}", self.id),
        }
    }

    fn state(&self) -> &'static str {
        match (self.counting, self.exceeded) {
            (true, _) => "counting",
            (_, true) => "exceeded",
            _ => "ok",
        }
    }
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

/// Where a folder is that is this one, or one above it, by its inode.
fn above(place: &Path, ino: u64) -> Option<String> {
    let is_it = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.ino() == ino);
    if is_it(place) {
        return Some(place.display().to_string());
    }
    let whole = place.canonicalize().ok()?;
    whole.ancestors().find(|path| is_it(path)).map(|path| path.display().to_string())
}

/// Shows the first of these that holds.
pub fn show(place: &Path, found: Vec<Quota>, output: OutputArgs) -> Result<()> {
    let shown = match found.into_iter().find(|quota| !quota.ends) {
        Some(quota) if quota.kind == "tree" => {
            let mut shown = Shown::new(quota, now());
            shown.path = above(place, shown.id).or(shown.path);
            shown
        }
        Some(quota) => Shown::new(quota, now()),
        None => Shown::none(place),
    };
    output.print(&shown, text)
}

/// Shows all that have limits, and all owners that are counted.
pub fn all(found: Vec<Quota>, output: OutputArgs) -> Result<()> {
    let now = now();
    let shown: Vec<_> = found.into_iter().filter(|quota| !quota.ends).collect();
    let shown: Vec<_> = shown.into_iter().map(|quota| Shown::new(quota, now)).collect();
    output.print(&shown, |shown| table(shown))
}

fn bytes(n: Option<u64>) -> String {
    n.map_or_else(|| "-".into(), |n| Size(n).to_string())
}

fn count(n: Option<u64>) -> String {
    n.map_or_else(|| "-".into(), |n| n.to_string())
}

fn text(shown: &Shown) -> String {
    let mut out = format!("quota of {}: {}\n", plain(&shown.whose()), shown.state());
    let mut table = Table::new(&["", "USED", "SOFT", "LIMIT", "GRACE"]);
    let (b, i) = (&shown.bytes, &shown.inodes);
    table.row(["bytes".into(), bytes(b.used), bytes(b.soft), bytes(b.limit), grace(shown, b)]);
    table.row(["inodes".into(), count(i.used), count(i.soft), count(i.limit), grace(shown, i)]);
    out += &table.render("  ");
    if let Some(project) = shown.project {
        out += &format!("  counts for project {project}\n");
    }
    out
}

/// What is left of the time of grace.
fn grace(shown: &Shown, amount: &Amount) -> String {
    let time = |seconds: u64| humantime::format_duration(Duration::from_secs(seconds)).to_string();
    match (amount.grace_left, amount.soft, shown.grace_seconds) {
        (Some(left), ..) if left <= 0 => "over".into(),
        (Some(left), ..) => format!("{} left", time(left.unsigned_abs())),
        (None, Some(_), Some(grace)) => time(grace),
        _ => "-".into(),
    }
}

fn table(shown: &[Shown]) -> String {
    if shown.is_empty() {
        return "no quotas".into();
    }
    let heading =
        ["QUOTA", "STATE", "BYTES", "SOFT", "LIMIT", "INODES", "SOFT", "LIMIT", "PROJECT"];
    let mut table = Table::new(&heading);
    for s in shown {
        table.row([
            s.whose(),
            s.state().into(),
            bytes(s.bytes.used),
            bytes(s.bytes.soft),
            bytes(s.bytes.limit),
            count(s.inodes.used),
            count(s.inodes.soft),
            count(s.inodes.limit),
            count(s.project),
        ]);
    }
    table.render("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reached_is_exceeded() {
        let kind = || "tree".to_owned();
        let quota = Quota { kind: kind(), bytes: 100, used_bytes: 99, ..Default::default() };
        assert!(!Shown::new(quota.clone(), 0).exceeded);
        assert!(Shown::new(Quota { used_bytes: 100, ..quota.clone() }, 0).exceeded);
        let soft = Quota { soft_inodes: 5, used_inodes: 5, inodes: 9, grace: 60, ..quota };
        assert!(!Shown::new(soft.clone(), 0).exceeded);
        let over = Quota { used_inodes: 6, inodes_since: 1_000_000_000, ..soft };
        let shown = Shown::new(over, 31_000_000_000);
        assert!(shown.exceeded && shown.inodes.grace_left == Some(30), "{shown:?}");
        assert!(text(&shown).contains("30s left"), "{}", text(&shown));
        let nothing = serde_json::to_value(Shown::none(Path::new("/x"))).unwrap();
        assert_eq!(
            (&nothing["bytes"]["limit"], &nothing["path"]),
            (&serde_json::Value::Null, &"/x".into())
        );
    }
}
