//! What follows from a full check: targets are told of what is wrong with them, and the files are
//! named of which content is lost. What is deleted and made anew, the cluster decides itself: a
//! check may be wrong about what is going on.

use super::facade::Filesystem;
use super::report::{Finding, FsckProgress, FsckReport};
use crate::meta::unexpected;
use crate::types::FileKind;
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_proto::v1::extent::Source;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ChunkId, ErrorKind, InodeId, Result, SegmentId, TargetId, v1};

/// A target gets so long to look at one chunk.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Each look mends one sort of what is wrong, and shows what follows. There are nine sorts, and
/// some come about twice.
const MAX_LOOKS: u32 = 64;
/// Looks after one another that mended nothing, though they planned to.
const MAX_IN_VAIN: u32 = 5;
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Names of a directory, asked for at a time.
const MAX_PAGE: u32 = 4096;

impl Filesystem {
    /// Tells targets of the chunks that are missing on them, or are others than they should be: the
    /// cluster makes them anew from the other shards of their segments. Who cannot be told is told
    /// the next time.
    pub async fn report_findings(&self, report: &FsckReport) {
        let map = self.inner.segments.map().current();
        let mut wrong: BTreeMap<TargetId, Vec<(ChunkId, u64)>> = BTreeMap::new();
        for finding in &report.findings {
            if let Finding::Missing { chunk, target, expected }
            | Finding::WrongLength { chunk, target, expected, .. } = finding
            {
                wrong.entry(*target).or_default().push((*chunk, *expected));
            }
        }
        let told = wrong.into_iter().filter_map(|(id, chunks)| {
            let client = self.inner.segments.target(map.target(id)?);
            Some(async move {
                for (chunk, expected) in chunks {
                    let deadline = Instant::now() + REPORT_TIMEOUT;
                    let told = client.report_corrupt(chunk, 0, 0, expected, deadline).await;
                    if let Err(error) = told {
                        // The others would fare no better.
                        tracing::warn!(target = %id, %chunk, %error, "cannot report a chunk");
                        return;
                    }
                }
            })
        });
        join_all(told).await;
    }

    /// Has the metadata group mend what the namespace has against itself, until there is nothing
    /// more that it can mend. Answers what was mended, and how much beyond that.
    pub async fn mend_namespace(
        &self,
        progress: impl Fn(FsckProgress),
    ) -> Result<(Vec<String>, u64)> {
        let (mut mended, mut others, mut in_vain) = (Vec::new(), 0, 0);
        for look in 0..MAX_LOOKS {
            progress(FsckProgress::MendingNamespace(look));
            let Reply::Mend(reply) =
                self.inner.group.ask_patiently(Op::Mend(v1::MendOp {})).await?
            else {
                return Err(unexpected("mends"));
            };
            // What is in use changes between the look and the mend.
            in_vain = if reply.mended.is_empty() { in_vain + 1 } else { 0 };
            if in_vain > 0 && (reply.passed_over == 0 || in_vain > MAX_IN_VAIN) {
                break;
            }
            if in_vain > 0 {
                sleep(RETRY_INTERVAL).await;
            }
            mended.extend(reply.mended);
            others += reply.others;
        }
        Ok((mended, others))
    }

    /// The paths of the files with content in any of these segments, or content that metadata knows
    /// to be lost, each by one of its names, in order. What is moved meanwhile may be missed.
    pub async fn files_of(
        &self,
        segments: &BTreeSet<SegmentId>,
        progress: impl Fn(FsckProgress),
    ) -> Result<Vec<Vec<u8>>> {
        let (mut found, mut seen, mut files) = (Vec::new(), BTreeSet::from([InodeId::ROOT]), 0);
        let mut dirs = vec![(InodeId::ROOT, Vec::new())];
        while let Some((dir, path)) = dirs.pop() {
            let mut cookie = 0;
            loop {
                let page = match self.read_dir(dir, cookie, MAX_PAGE, false).await {
                    Ok(page) => page,
                    Err(error) if is_gone(error.kind) => break,
                    Err(error) => return Err(error),
                };
                for entry in page.entries {
                    cookie = entry.cookie;
                    let path = [&path[..], b"/", &entry.name].concat();
                    match entry.kind {
                        FileKind::Directory if seen.insert(entry.ino) => {
                            dirs.push((entry.ino, path));
                        }
                        FileKind::Regular if seen.insert(entry.ino) => {
                            if self.has_any(entry.ino, segments).await? {
                                found.push(path);
                            }
                            files += 1;
                            progress(FsckProgress::Files(files));
                        }
                        _ => {}
                    }
                }
                if page.end {
                    break;
                }
            }
        }
        found.sort();
        Ok(found)
    }

    async fn has_any(&self, ino: InodeId, segments: &BTreeSet<SegmentId>) -> Result<bool> {
        let mut off = 0;
        loop {
            let op = Op::GetExtents(v1::GetExtentsOp { ino: ino.0, off, len: u64::MAX - off });
            let page = match self.inner.requests.ask(op).await {
                Ok(Reply::Extents(page)) => page,
                Ok(_) => return Err(unexpected("extents")),
                Err(error) if is_gone(error.kind) => return Ok(false),
                // It makes no sense, and cannot be read.
                Err(error) if error.kind == ErrorKind::Internal => return Ok(true),
                Err(error) => return Err(error),
            };
            for extent in &page.extents {
                let end = extent.file_off.saturating_add(extent.len);
                off = off.max(end);
                let lost = match &extent.source {
                    Some(Source::Segment(part)) => {
                        part.id.is_some_and(|id| segments.contains(&id.into()))
                    }
                    Some(Source::Inline(_)) => false,
                    None => true,
                };
                if lost {
                    return Ok(true);
                }
            }
            if !page.truncated || page.extents.is_empty() {
                return Ok(false);
            }
        }
    }
}

fn is_gone(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::Stale | ErrorKind::NotDirectory)
}
