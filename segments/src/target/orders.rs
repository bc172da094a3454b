//! What the metadata group orders a target's daemon to do with its chunks.

use super::{MAX_DELETE, TargetClient};
use crate::segment::Segment;
use tokio::time::Instant;
use weft_proto::{ChunkId, Error, ErrorKind, MapEpoch, Result, v1};

impl TargetClient {
    /// Has the target's daemon make chunks of this target of the other shards of their segments, as
    /// the map of `epoch` says where they are, unless they are there; with `heal`, also if they are
    /// and are damaged. Answers what became of each.
    pub async fn rebuild(
        &self,
        items: Vec<(&Segment, u8)>,
        epoch: MapEpoch,
        heal: bool,
        deadline: Instant,
    ) -> Result<v1::RebuildReply> {
        let item = |(segment, shard): (&Segment, u8)| v1::rebuild_request::Item {
            segment: Some(segment.to_wire()),
            shard: shard.into(),
        };
        let count = items.len();
        let items = items.into_iter().map(item).collect();
        let (target, epoch) = (self.id.0, epoch.0);
        let request = v1::RebuildRequest { target, items, epoch, heal, knows_busy: true };
        let reply = self.call(&request, deadline).await?;
        if reply.outcomes.len() != count {
            let what = format!("{} outcomes for {count} chunks", reply.outcomes.len());
            return Err(self.said(Error::new(ErrorKind::Protocol, what)));
        }
        Ok(reply)
    }

    /// Has the target's daemon write the bytes of these extents as new segments, of the session and
    /// with the numbers that `order` says. Answers these.
    pub async fn compact(
        &self,
        order: &v1::CompactRequest,
        deadline: Instant,
    ) -> Result<Vec<Segment>> {
        let reply = self.call(order, deadline).await?;
        let segments =
            reply.segments.into_iter().map(Segment::try_from).collect::<Result<Vec<_>>>();
        let segments = segments.map_err(|e| self.said(e))?;
        let (has, bytes) = (
            segments.iter().map(|s| u128::from(s.geometry.length)).sum::<u128>(),
            order.extents.iter().map(|e| u128::from(e.len)).sum::<u128>(),
        );
        if has != bytes || segments.iter().any(|s| s.id.session.0 != order.session) {
            let what = format!("wrote {has} bytes for {bytes}, or in another session");
            return Err(self.said(Error::new(ErrorKind::Protocol, what)));
        }
        Ok(segments)
    }

    /// Has the target's daemon delete those of these chunks of which the metadata group says, when
    /// asked by it, that they have no business there. Answers how many it deleted.
    pub async fn disown(&self, chunks: &[ChunkId], deadline: Instant) -> Result<u64> {
        let mut deleted = 0;
        for chunks in chunks.chunks(MAX_DELETE) {
            let chunks = chunks.iter().copied().map(Into::into).collect();
            let request = v1::DisownRequest { target: self.id.0, chunks };
            deleted += self.call(&request, deadline).await?.deleted;
        }
        Ok(deleted)
    }
}
