//! Reads what is committed: where it is, and from there.

use super::extents::{Plan, Source};
use super::inode::File;
use crate::meta::unexpected;
use crate::types::ReadData;
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, Result, SegmentId, v1};

/// How long another server may take to tell a newer map before chunks that are nowhere are lost: by
/// an old one all of them can be looked for where they were.
const MISSING_MAP_TIMEOUT: Duration = Duration::from_secs(5);

/// A storage daemon hears within a second of the key that a new leader signs tickets with.
pub(super) const TICKET_INTERVAL: Duration = Duration::from_millis(100);

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

impl File {
    /// Committed bytes of `range`, with zeros for holes, in order.
    pub(super) async fn read_committed(self: &Arc<Self>, range: Range<u64>) -> Result<Vec<Bytes>> {
        let deadline = self.context.requests.deadline();
        // Segments that were not found. Of one that the file still has then, the data is lost.
        let mut missing = HashSet::new();
        let mut asked_anew = false;
        loop {
            let plan = self.plan(range.clone(), deadline).await?;
            let segments: Vec<_> = plan.iter().map(|(_, source)| segment_of(source)).collect();
            let fetch = |(range, source)| {
                let is_there = segment_of(&source).is_some_and(|id| missing.contains(&id));
                self.fetch(range, source, is_there, deadline)
            };
            let parts = join_all(plan.into_iter().map(fetch));
            let (mut bytes, mut gone) = (Vec::new(), Vec::new());
            // Once, for all parts together.
            let (may_ask, mut waits, mut refused) = (!asked_anew, false, false);
            for (part, segment) in parts.await.into_iter().zip(segments) {
                match (part, segment) {
                    (Ok(part), _) => bytes.extend(part),
                    (Err(error), Some(id))
                        if error.kind == ErrorKind::NotFound && !missing.contains(&id) =>
                    {
                        gone.push(id);
                    }
                    // Its chunks may have gone to other targets, of which the map's server has not
                    // heard.
                    (Err(error), Some(id)) if error.kind == ErrorKind::NotFound && may_ask => {
                        (asked_anew, waits) = (true, true);
                        gone.push(id);
                    }
                    // The answer that says where it is brings one.
                    (Err(error), Some(_))
                        if error.kind == ErrorKind::NoTicket && Instant::now() < deadline =>
                    {
                        refused = true;
                    }
                    (Err(error), _) => {
                        let message = format!("inode {} bytes {range:?}: {error}", self.ino);
                        return Err(Error::new(ErrorKind::Io, message));
                    }
                }
            }
            if waits {
                let (map, now) = (self.context.segments.map(), Instant::now());
                map.follow_another();
                let patience = deadline.saturating_duration_since(now) / 2;
                let until = now + patience.min(MISSING_MAP_TIMEOUT);
                map.newer(map.current().epoch, until).await;
            }
            if refused {
                sleep(TICKET_INTERVAL).await;
            } else if gone.is_empty() {
                return Ok(bytes);
            }
            // They may be gone because the file was changed elsewhere.
            missing.extend(gone);
            self.state.lock().extents.forget();
        }
    }

    pub(super) async fn fetch(
        &self,
        range: Range<u64>,
        source: Option<Source>,
        is_there: bool,
        deadline: Instant,
    ) -> Result<Vec<Bytes>> {
        let len = range.end - range.start;
        Ok(match source {
            Some(Source::Inline(bytes)) => vec![bytes.slice(..(len as usize).min(bytes.len()))],
            Some(Source::Lost) => {
                let what = format!(
                    "the content from {} to {} is lost, as a check of the filesystem has found: \
                     write it anew",
                    range.start, range.end
                );
                return Err(Error::new(ErrorKind::Io, what));
            }
            Some(Source::Segment { segment, off }) => {
                return self.context.content(&segment, off..off + len, is_there, deadline).await;
            }
            None => {
                let mut zeros = ReadData::default();
                push_zeros(&mut zeros, len);
                zeros.parts().to_vec()
            }
        })
    }

    /// The version of the content that a plan made now is of.
    pub(super) fn version(&self) -> u64 {
        self.state.lock().extents.version()
    }

    /// Finds out where `range` is.
    pub(super) async fn plan(&self, range: Range<u64>, deadline: Instant) -> Result<Plan> {
        // Each answer tells more, unless the file changes under it every time.
        loop {
            let (gap, size) = {
                let state = self.state.lock();
                match state.extents.look(range.clone()) {
                    Ok(plan) => return Ok(plan),
                    Err(gap) => (gap, state.attr.size),
                }
            };
            if Instant::now() >= deadline {
                return Err(self.too_busy());
            }
            // Boxed: most reads know.
            Box::pin(self.learn(gap.start..gap.end.max(size))).await?;
        }
    }

    /// Asks what is in `gap`; the answer may be only about its beginning.
    pub(super) async fn learn(&self, gap: Range<u64>) -> Result<()> {
        let len = gap.end - gap.start;
        let op = v1::GetExtentsOp { ino: self.ino.0, off: gap.start, len };
        let Reply::Extents(reply) = self.context.requests.ask(Op::GetExtents(op)).await? else {
            return Err(unexpected("extents"));
        };
        let attr = reply.attr.map(TryInto::try_into).transpose()?;
        let mut state = self.state.lock();
        state.extents.learn(gap.start, len, reply)?;
        if let Some(attr) = attr {
            self.adopt_told(&mut state, attr);
        }
        Ok(())
    }

    pub(super) fn too_busy(&self) -> Error {
        let what = format!("inode {} changes faster than it can be read", self.ino);
        Error::new(ErrorKind::Busy, what)
    }
}

fn segment_of(source: &Option<Source>) -> Option<SegmentId> {
    match source {
        Some(Source::Segment { segment, .. }) => Some(segment.id),
        _ => None,
    }
}

pub(super) fn push_zeros(data: &mut ReadData, len: u64) {
    let mut left = len as usize;
    while left > 0 {
        let part = left.min(ZEROS.len());
        data.push(Bytes::from_static(&ZEROS[..part]));
        left -= part;
    }
}
