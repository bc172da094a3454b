//! A full check (I7): every chunk on a target is referenced, or owned by a live session, or waiting
//! for deletion; every shard of every committed segment is on its target; the namespace agrees with
//! itself.
//!
//! The cluster goes on working meanwhile. So what one look finds wrong is looked at again, and only
//! what is wrong both times is reported. A target that could not be looked at is reported as such:
//! nobody knows of it what is wrong.

use super::facade::Filesystem;
use super::report::{Finding, FsckProgress, FsckReport};
use crate::meta::unexpected;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ChunkId, Error, ErrorKind, Result, TargetId, v1};
use weft_segments::{Map, Segment, Target};

/// Items in one answer.
const MAX_PAGE: u32 = 4096;
/// A target that does not list a page in this time is not asked on.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Filesystem {
    /// Checks everything; `progress` is told where it is. Fails only if metadata cannot be asked.
    pub async fn fsck(&self, progress: impl Fn(FsckProgress)) -> Result<FsckReport> {
        progress(FsckProgress::Namespace);
        let namespace = match self.inner.group.ask_patiently(Op::Check(v1::CheckOp {})).await? {
            Reply::Check(check) => check,
            _ => {
                return Err(unexpected("a check"));
            }
        };
        let mut report = self.look(&progress).await?;
        if !report.findings.is_empty() {
            progress(FsckProgress::Again(report.findings.len()));
            sleep(LOOK_INTERVAL).await;
            let first = report;
            report = self.look(&progress).await?;
            report.findings = seen_twice(first.findings, report.findings);
            report.lost.retain(|segment| first.lost.contains(segment));
        }
        report.findings.extend(namespace.problems.into_iter().map(Finding::Metadata));
        if namespace.lost_extents > 0 {
            report.findings.push(Finding::Lost(namespace.lost_extents));
        }
        report.inodes = namespace.inodes;
        report.extents = namespace.extents;
        report.orphans = namespace.orphans;
        Ok(report)
    }

    /// Compares chunks with segments. Chunks are listed first: a segment that is committed later is
    /// looked for in vain, and found by the second look.
    async fn look(&self, progress: &impl Fn(FsckProgress)) -> Result<FsckReport> {
        let map = self.inner.segments.map().current();
        let mut look = Look {
            map: &map,
            chunks: HashMap::new(),
            unchecked: HashSet::new(),
            report: FsckReport::default(),
        };
        for target in map.targets().filter(|t| !t.out) {
            if let Err(error) = self.list_chunks(target, &mut look, progress).await {
                look.unchecked.insert(target.id);
                let why = error.to_string();
                look.report.findings.push(Finding::Unreachable { target: target.id, why });
            }
            look.report.targets += 1;
        }
        let live = self.compare_segments(&mut look, progress).await?;
        look.rest(&live);
        Ok(look.report)
    }

    async fn list_chunks(
        &self,
        target: &Target,
        look: &mut Look<'_>,
        progress: &impl Fn(FsckProgress),
    ) -> Result<()> {
        let client = self.inner.segments.target(target);
        let mut after = None;
        loop {
            progress(FsckProgress::Chunks { target: target.id, listed: look.report.chunks });
            let page = client.list(after, None, MAX_PAGE, Instant::now() + LIST_TIMEOUT).await?;
            after = page.items.last().map(|(chunk, _)| *chunk);
            let found = page.items.into_iter().map(|(chunk, length)| ((target.id, chunk), length));
            look.chunks.extend(found);
            look.report.chunks = look.chunks.len() as u64;
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Answers the live sessions.
    async fn compare_segments(
        &self,
        look: &mut Look<'_>,
        progress: &impl Fn(FsckProgress),
    ) -> Result<HashSet<u64>> {
        let mut after = None;
        loop {
            let FsckReport { segments, chunks, .. } = look.report;
            let explained = chunks - look.chunks.len() as u64;
            progress(FsckProgress::Segments { segments, explained, chunks });
            let op = Op::ListSegments(v1::ListSegmentsOp { after, limit: MAX_PAGE });
            let Reply::ListSegments(page) = self.inner.requests.ask(op).await? else {
                return Err(unexpected("segments"));
            };
            let more = page.more && !page.items.is_empty();
            for item in page.items {
                let info = item.segment.ok_or_else(|| {
                    Error::new(ErrorKind::Protocol, "listed segment without a record")
                })?;
                after = info.id;
                match Segment::try_from(info) {
                    Ok(segment) => look.compare(&segment, item.garbage),
                    // The check of the namespace tells of it.
                    Err(error) => tracing::warn!("a segment cannot be checked: {error}"),
                }
            }
            if !more {
                return Ok(page.live_sessions.into_iter().collect());
            }
        }
    }
}

/// What two looks found wrong, in order. A target that the second could not look at counts,
/// whatever the first saw. One that only the second could look at counts as not looked at if
/// anything is wrong there: that was seen once.
fn seen_twice(first: Vec<Finding>, second: Vec<Finding>) -> Vec<Finding> {
    let is_unseen = |f: &Finding| matches!(f, Finding::Unreachable { .. });
    let unseen: BTreeMap<Option<TargetId>, Finding> =
        first.iter().filter(|f| is_unseen(f)).map(|f| (f.target(), f.clone())).collect();
    let first: BTreeSet<Finding> = first.into_iter().collect();
    let found: BTreeSet<Finding> = second
        .into_iter()
        .filter_map(|f| match first.contains(&f) || is_unseen(&f) {
            true => Some(f),
            false => unseen.get(&f.target()).cloned(),
        })
        .collect();
    found.into_iter().collect()
}

struct Look<'a> {
    map: &'a Map,
    /// Chunks that were found and not explained yet, with their lengths.
    chunks: HashMap<(TargetId, ChunkId), u64>,
    unchecked: HashSet<TargetId>,
    report: FsckReport,
}

impl Look<'_> {
    /// Explains the chunks of a segment where they should be.
    fn compare(&mut self, segment: &Segment, garbage: bool) {
        self.report.segments += 1;
        let mut whole = 0;
        for shard in 0..segment.geometry.profile.width() {
            let (chunk, expected) = (segment.chunk(shard), segment.geometry.shard_len(shard));
            let home = segment
                .seats
                .get(usize::from(shard))
                .and_then(|&seat| self.map.seat(segment.pg, seat));
            let found = home.and_then(|t| self.chunks.remove(&(t.id, chunk)));
            if garbage {
                self.report.garbage_chunks += u64::from(found.is_some());
            }
            let target = home.map_or(TargetId(0), |t| t.id);
            if !garbage && !self.unchecked.contains(&target) {
                match found {
                    Some(length) if length != expected => {
                        self.report.findings.push(Finding::WrongLength {
                            chunk,
                            target,
                            length,
                            expected,
                        });
                    }
                    None if expected > 0 => {
                        self.report.findings.push(Finding::Missing { chunk, target, expected })
                    }
                    _ => whole += 1,
                }
            } else {
                whole += 1;
            }
            self.misplaced(segment, chunk, garbage);
        }
        if whole < segment.geometry.profile.k() {
            self.report.lost.insert(segment.id);
        }
    }

    fn misplaced(&mut self, segment: &Segment, chunk: ChunkId, garbage: bool) {
        let seat = segment.seats.get(usize::from(chunk.shard)).copied();
        for target in self.map.targets().map(|t| t.id) {
            if self.chunks.remove(&(target, chunk)).is_none() {
                continue;
            }
            if garbage {
                self.report.garbage_chunks += 1;
            } else if seat.is_none_or(|seat| !self.map.is_for(target, segment.pg, seat)) {
                self.report.findings.push(Finding::Misplaced { chunk, target });
            }
        }
    }

    /// Chunks of segments that metadata does not know.
    fn rest(&mut self, live: &HashSet<u64>) {
        for (target, chunk) in self.chunks.keys() {
            if live.contains(&chunk.segment.session.0) {
                self.report.uncommitted_chunks += 1;
            } else {
                self.report.findings.push(Finding::Leaked { chunk: *chunk, target: *target });
            }
        }
    }
}
