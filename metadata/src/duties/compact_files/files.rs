//! The files on the list: whose turn it is.

use super::pass::Pass;
use crate::compaction::Seats;
use crate::duties::propose::propose;
use crate::node::Node;
use crate::ops::MAX_COMPACTED;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use v1::compacted_entry::File;
use v1::log_entry::Body;
use weft_proto::{InodeId, Result, v1};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A file that is changed all the time is compacted all the same, this often; or after three times
/// as long as others are to be left alone.
const BUSY_INTERVAL: Duration = Duration::from_secs(30);
/// A file is looked at again after this, when some was written again or could not be, and then
/// after twice as long each time.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// Where nothing helps but other targets, or another room on them, after this.
const WAIT_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// Files of the list that are read at a time, no more of the time than one part in so many.
const MAX_LISTED: usize = 16_384;
const LOOK_SHARE: u32 = 20;

/// What is known of the files on the list.
#[derive(Default)]
pub(super) struct Files {
    waiting: HashMap<InodeId, Waiting>,
    pub working: BTreeSet<InodeId>,
    /// To be worked on next.
    pub due: VecDeque<InodeId>,
    /// To be taken off the list, and when some were.
    compacted: Vec<File>,
    /// When the first of these was begun.
    begun: Option<Instant>,
    told: Option<Instant>,
    /// When the list was read, how long that took, and what the state counted then.
    looked: Option<(Instant, Duration, u64)>,
    /// So far it was read: the rest has its turn next.
    after: InodeId,
}

struct Waiting {
    /// It has been on the list since, or since it was looked at.
    since: Instant,
    /// It is left alone until then, and after that for so long.
    until: Instant,
    pause: Duration,
    /// Work on it began then, and was not put off since.
    begun: Option<Instant>,
    rest: Option<Rest>,
    pass: Option<Pass>,
}

/// A file is left alone while it is the same, and as many targets take data, but not for ever:
/// whether these have room in long pieces is not known here.
struct Rest {
    seats: Seats,
    version: u64,
    until: Instant,
}

impl Waiting {
    fn new(now: Instant) -> Self {
        Self { since: now, until: now, pause: RETRY_INTERVAL, begun: None, rest: None, pass: None }
    }

    /// Whether it was left alone for long enough. `version`: of its content now.
    fn is_due(&self, now: Instant, seats: Seats, version: u64) -> bool {
        match &self.rest {
            Some(rest) if rest.seats != seats => true,
            Some(rest) if rest.version == version => rest.until <= now,
            _ => self.until <= now,
        }
    }
}

impl Files {
    /// The pass that a file is worked on in.
    pub fn begin(&mut self, ino: InodeId) -> Pass {
        let Some(waiting) = self.waiting.get_mut(&ino) else { return Pass::new() };
        waiting.begun.get_or_insert_with(Instant::now);
        waiting.pass.take().unwrap_or_else(Pass::new)
    }

    /// A part of a pass has ended.
    pub fn ended(&mut self, ino: InodeId, pass: Pass) {
        self.working.remove(&ino);
        let now = Instant::now();
        let waiting = self.waiting.entry(ino).or_insert_with(|| Waiting::new(now));
        waiting.since = now;
        if pass.from.is_some() {
            waiting.pass = Some(pass);
            // Behind others, and at once if there are none.
            self.due.push_back(ino);
            return;
        }
        let version = pass.version.unwrap_or(0);
        let waits = pass.waits.filter(|_| pass.failed.is_none() && !pass.again);
        waiting.rest = waits.map(|seats| Rest { seats, version, until: now + WAIT_INTERVAL });
        if let Some(error) = &pass.failed {
            tracing::warn!(%ino, "a file cannot be compacted yet: {error}");
        } else if waiting.rest.is_none() && !pass.again {
            let begun = waiting.begun;
            self.waiting.remove(&ino);
            self.compacted.push(File { ino: ino.0, data_version: version });
            self.begun = self.begun.into_iter().chain(begun).min();
            return;
        }
        // Who is looked at once more only to see that all is done is worked on still.
        waiting.begun = waiting.begun.filter(|_| pass.again && pass.failed.is_none());
        waiting.until = now + waiting.pause;
        waiting.pause = (waiting.pause * 2).min(MAX_RETRY_INTERVAL);
    }

    /// Takes files off the list, many at a time.
    pub async fn tell_compacted(&mut self, node: &Node) {
        let is_early = self.told.is_some_and(|at| at.elapsed() < LOOK_INTERVAL);
        if is_early && self.compacted.len() < MAX_COMPACTED {
            return;
        }
        while !self.compacted.is_empty() {
            let some = self.compacted.len().min(MAX_COMPACTED);
            let entry = v1::CompactedEntry { files: self.compacted[..some].to_vec() };
            if propose(node, "take files off a list", Body::Compacted(entry)).await.is_err() {
                break;
            }
            self.compacted.drain(..some);
            let begun = self.begun.take().unwrap_or_else(Instant::now);
            node.compaction.note_files(begun, some as u64);
        }
        self.told = Some(Instant::now());
    }

    /// Reads the list, unless that was done a moment ago, or cannot show anything new. Those that
    /// have waited longest are due first.
    pub async fn look(&mut self, node: &Arc<Node>, seats: Seats) -> Result<()> {
        let (begun, count) = (Instant::now(), node.state.scattered());
        let idle = self.waiting.is_empty() && self.working.is_empty() && self.compacted.is_empty();
        if let Some((at, took, seen)) = self.looked {
            let early = at.elapsed() < LOOK_INTERVAL.max(took * LOOK_SHARE);
            if early || (idle && seen == count) {
                return Ok(());
            }
        }
        let (state, now_ns, after) = (node.state.clone(), node.env.clock.now_ns(), self.after);
        let quiet = Duration::from_millis(node.config.compact_after_ms);
        let quiet_ns = i64::try_from(quiet.as_nanos()).unwrap_or(i64::MAX);
        let list = move || {
            let listed = state.to_compact(after, MAX_LISTED)?;
            let look = |ino| {
                let attr = state.attr(ino)?.unwrap_or_default();
                let is_quiet = now_ns.saturating_sub(attr.ctime_ns) >= quiet_ns;
                Ok((ino, is_quiet, attr.data_version))
            };
            listed.into_iter().map(look).collect::<Result<Vec<_>>>()
        };
        let listed = node.env.blocking(list).await?;
        let now = Instant::now();
        self.looked = Some((now, now - begun, count));
        let known: HashSet<InodeId> = listed.iter().map(|(ino, ..)| *ino).collect();
        let last = listed.last().filter(|_| listed.len() == MAX_LISTED).map(|(ino, ..)| *ino);
        self.after = last.unwrap_or(InodeId(0));
        let was_read = |ino: &InodeId| *ino > after && last.is_none_or(|last| *ino <= last);
        self.waiting.retain(|ino, _| !was_read(ino) || known.contains(ino));
        let told: HashSet<u64> = self.compacted.iter().map(|file| file.ino).collect();
        let busy = BUSY_INTERVAL.max(quiet * 3);
        let mut due = Vec::new();
        for (ino, quiet, version) in listed {
            let waiting = self.waiting.entry(ino).or_insert_with(|| Waiting::new(now));
            let ready = quiet || waiting.pass.is_some() || now - waiting.since >= busy;
            let is_free = !told.contains(&ino.0) && !self.working.contains(&ino);
            if ready && waiting.is_due(now, seats, version) && is_free {
                due.push((waiting.since, ino));
            }
        }
        due.sort_unstable();
        self.due = due.into_iter().map(|(_, ino)| ino).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_in_vain_rests_until_something_changes() {
        let (mut files, ino) = (Files::default(), InodeId(7));
        let seats = Seats { now: 6, all: 6 };
        let ended = |files: &mut Files, pass: Pass| {
            files.ended(ino, Pass { from: None, version: Some(3), ..pass });
        };
        for _ in 0..20 {
            ended(&mut files, Pass { waits: Some(seats), ..Pass::default() });
        }
        assert!(files.compacted.is_empty(), "it stays on the list");
        let is_due = |files: &Files, after, seats, version| {
            files.waiting[&ino].is_due(Instant::now() + after, seats, version)
        };
        assert!(!is_due(&files, MAX_RETRY_INTERVAL * 30, seats, 3));
        assert!(is_due(&files, MAX_RETRY_INTERVAL, seats, 4), "it was written since");
        assert!(is_due(&files, Duration::ZERO, Seats { now: 7, all: 7 }, 3));
        assert!(is_due(&files, WAIT_INTERVAL, seats, 3), "room may have come together");
        // Where some was moved, or could not be written, the rest is soon tried again.
        ended(&mut files, Pass { waits: Some(seats), again: true, ..Pass::default() });
        assert!(is_due(&files, MAX_RETRY_INTERVAL, seats, 3));
    }
}
