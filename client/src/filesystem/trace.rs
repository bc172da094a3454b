//! Where the bytes of a file lie, for people: its extents, and whether the chunks are there.

use super::facade::Filesystem;
use crate::meta::unexpected;
use crate::types::Attr;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::Buffer;
use weft_proto::layout::BLOCK;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Layout, Result, SegmentId, TargetId, v1};
use weft_segments::Segment;

/// A target that does not answer a question about a chunk for so long is not asked on.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// A file, and where its bytes are.
#[derive(Clone, Debug)]
pub struct FileTrace {
    /// Its attributes, as of what is committed.
    pub attr: Attr,
    /// How new data of it is laid out.
    pub layout: Layout,
    /// In the order of the file; what lies between is holes.
    pub extents: Vec<v1::Extent>,
    /// Those that the extents name.
    pub segments: BTreeMap<SegmentId, Segment>,
    /// It has more extents than were asked for.
    pub truncated: bool,
}

/// What became of the question whether a chunk is where it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChunkLook {
    /// Its last block is there and matches; or, if all was read, each of its blocks.
    Good,
    /// The target does not have it, or not all of it.
    Missing,
    /// What is there does not match its checksums, or the drive cannot read it.
    Damaged(String),
    /// The target did not say, for this reason.
    Silent(String),
}

impl Filesystem {
    /// Where the bytes of a file are, of at most about `max_extents` extents. What others have
    /// written and not stored yet is stored first. Errors: `Invalid`, it is no regular file.
    pub async fn trace(&self, ino: InodeId, max_extents: usize) -> Result<FileTrace> {
        let layout = self.get_layout(ino).await?;
        let (mut extents, mut segments) = (Vec::<v1::Extent>::new(), BTreeMap::new());
        loop {
            let off = extents.last().map_or(0, |e| e.file_off.saturating_add(e.len));
            let op = v1::GetExtentsOp { ino: ino.0, off, len: u64::MAX - off };
            let Reply::Extents(reply) = self.inner.requests.ask(Op::GetExtents(op)).await? else {
                return Err(unexpected("extents"));
            };
            for info in reply.segments {
                let segment = Segment::try_from(info)?;
                segments.insert(segment.id, segment);
            }
            let more = reply.truncated && !reply.extents.is_empty();
            extents.extend(reply.extents);
            if !more || extents.len() >= max_extents {
                let none = || Error::new(ErrorKind::Protocol, "extents without their file");
                let attr = reply.attr.ok_or_else(none)?.try_into()?;
                return Ok(FileTrace { attr, layout, extents, segments, truncated: more });
            }
        }
    }

    /// Asks a target for a chunk of a segment: for the last block of it, or, with `whole`, for all.
    /// Takes as much memory as is read, for as long.
    pub async fn look_at_chunk(
        &self,
        segment: &Segment,
        shard: u8,
        target: TargetId,
        whole: bool,
    ) -> ChunkLook {
        let map = self.inner.segments.map().current();
        let Some(target) = map.target(target) else {
            return ChunkLook::Silent("the target is not in the cluster map".into());
        };
        let length = segment.geometry.shard_len(shard);
        let block = u64::from(BLOCK);
        let off = if whole { 0 } else { length.saturating_sub(block) };
        let Ok(asked) = usize::try_from(length - off) else {
            return ChunkLook::Silent("the chunk is too long".into());
        };
        let into = vec![Buffer::take(asked)];
        let (client, until) = (self.inner.segments.target(target), Instant::now() + ASK_TIMEOUT);
        match client.get(segment.chunk(shard), off, into, until).await {
            Ok(_) => ChunkLook::Good,
            Err(e) => match e.kind {
                // A part that does not lie in it was asked for.
                ErrorKind::NotFound | ErrorKind::Invalid => ChunkLook::Missing,
                ErrorKind::Corrupt | ErrorKind::Io => ChunkLook::Damaged(e.to_string()),
                _ => ChunkLook::Silent(e.to_string()),
            },
        }
    }
}
