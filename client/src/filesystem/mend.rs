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
use tokio::time::Instant;
use weft_proto::v1::extent::Source;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ChunkId, ErrorKind, InodeId, Result, SegmentId, TargetId, v1};

/// A target gets so long to look at one chunk.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
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

    /// The paths of the files with content in any of these segments, each by one of its names, in
    /// order. What is moved meanwhile may be missed.
    pub async fn files_of(
        &self,
        segments: &BTreeSet<SegmentId>,
        progress: impl Fn(FsckProgress),
    ) -> Result<Vec<Vec<u8>>> {
        let (mut found, mut seen, mut files) = (Vec::new(), BTreeSet::new(), 0);
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
                        FileKind::Directory => dirs.push((entry.ino, path)),
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
                Err(error) => return Err(error),
            };
            for extent in &page.extents {
                let end = extent.file_off.saturating_add(extent.len);
                off = off.max(end);
                if let Some(Source::Segment(part)) = &extent.source
                    && part.id.is_some_and(|id| segments.contains(&id.into()))
                {
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
