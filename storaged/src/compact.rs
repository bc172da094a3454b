//! Puts pieces of a file together in new segments, as the leader orders: reads them, and writes
//! them one after the other, on whichever targets take new data.
//!
//! Invariant (I7): what was written of an order that was not answered is of a session of the
//! leader's own, which ends that when it has not heard of all.

use crate::rebuild::{MARGIN, MAX_MAKING, Rebuilder, ending, late};
use bytes::Bytes;
use futures_util::stream::iter;
use futures_util::{StreamExt, TryStreamExt};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::{Instant, sleep_until, timeout_at};
use v1::extent::Source;
use weft_net::AlignedBuf;
use weft_proto::layout::MAX_SEGMENT;
use weft_proto::{Error, ErrorKind, Layout, MapEpoch, Result, SegmentId, SessionId, v1};
use weft_segments::Segment;

/// Most pieces in one order, and how many are read at a time.
const MAX_PIECES: usize = 16_384;
const READS: usize = 16;

/// What is to be read, and how it is written.
struct Order {
    pieces: Vec<(Arc<Segment>, u64, u64)>,
    bytes: u64,
    layout: Layout,
    first: SegmentId,
    epoch: MapEpoch,
    cluster: Bytes,
}

impl TryFrom<v1::CompactRequest> for Order {
    type Error = Error;

    fn try_from(q: v1::CompactRequest) -> Result<Self> {
        let bad =
            |what: &str| Error::new(ErrorKind::Invalid, format!("an order to compact {what}"));
        let layout = Layout::try_from(q.layout.ok_or_else(|| bad("without a layout"))?)?;
        let segments = q.segments.into_iter().map(|info| {
            let segment = Segment::try_from(info)?;
            Ok((segment.id, Arc::new(segment)))
        });
        let segments = segments.collect::<Result<HashMap<_, _>>>()?;
        if q.extents.len() > MAX_PIECES {
            return Err(bad("of too many pieces"));
        }
        let (mut pieces, mut bytes) = (Vec::with_capacity(q.extents.len()), 0u64);
        for e in q.extents {
            let Some(Source::Segment(v1::SegmentPart { id: Some(id), off })) = e.source else {
                return Err(bad("of what is in no segment"));
            };
            let segment = segments.get(&id.into()).ok_or_else(|| bad("of unknown segments"))?;
            let within = off.checked_add(e.len).is_some_and(|end| end <= segment.geometry.length);
            bytes = bytes.saturating_add(e.len);
            if e.len == 0 || !within || bytes > MAX_SEGMENT {
                return Err(bad("of nothing, too much, or what is beyond a segment"));
            }
            pieces.push((segment.clone(), off, e.len));
        }
        if bytes == 0 || q.session == 0 {
            return Err(bad("of nothing, or in no session"));
        }
        let first = SegmentId { session: SessionId(q.session), seq: q.first_seq };
        let (epoch, cluster) = (MapEpoch(q.epoch), q.cluster);
        Ok(Self { pieces, bytes, layout, first, epoch, cluster })
    }
}

impl Rebuilder {
    /// Carries one order out; others wait.
    pub async fn compact(
        self: &Arc<Self>,
        q: v1::CompactRequest,
        deadline: Instant,
    ) -> Result<v1::CompactReply> {
        let order = Order::try_from(q)?;
        let begin_by = deadline.checked_sub(MARGIN).unwrap_or(deadline);
        self.await_map(order.epoch, begin_by).await?;
        if self.cluster() != order.cluster {
            let what = "this daemon belongs to another cluster than who gave the order";
            return Err(Error::new(ErrorKind::WrongCluster, what));
        }
        let turn = timeout_at(begin_by, self.compacting.lock());
        let _turn = turn.await.map_err(|_| late())?;
        let permit = timeout_at(begin_by, self.making.acquire_many(MAX_MAKING / 4))
            .await
            .map_err(|_| late())?;
        let _permit = permit.map_err(|_| ending())?;
        let (begun, making) = (Instant::now(), self.pace.making());
        let data = self.read(&order, begin_by).await?;
        self.writer.begin(order.first);
        let segments = self.segments.put(&order.layout, &data, begin_by).await?;
        drop(making);
        let pause = self.pace.pause(begun.elapsed());
        sleep_until((Instant::now() + pause).min(begin_by)).await;
        Ok(v1::CompactReply { segments: segments.iter().map(Segment::to_wire).collect() })
    }

    async fn read(&self, order: &Order, deadline: Instant) -> Result<Bytes> {
        let reads = order.pieces.iter().cloned().map(|(segment, off, len)| {
            let segments = self.segments.clone();
            async move { segments.get(&segment, off, len, false, deadline).await }
        });
        let mut reads = iter(reads).buffered(READS);
        let mut data = AlignedBuf::take(order.bytes as usize);
        let mut at = 0;
        while let Some(piece) = reads.try_next().await? {
            data.as_mut_slice()[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        data.set_len(at);
        Ok(data.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::Profile;

    fn order() -> v1::CompactRequest {
        let id = SegmentId { session: SessionId(3), seq: 1 };
        let layout = Layout::for_profile(Profile::ec(4, 2).unwrap());
        let info = v1::SegmentInfo {
            id: Some(id.into()),
            profile: Some(Profile::replica(3).unwrap().into()),
            unit: layout.unit,
            length: 5000,
            pg: 1,
            seats: vec![0, 1, 2].into(),
        };
        let piece = |off, len| {
            let source = Some(Source::Segment(v1::SegmentPart { id: Some(id.into()), off }));
            v1::Extent { file_off: 0, len, source }
        };
        v1::CompactRequest {
            extents: vec![piece(0, 10), piece(4000, 1000)],
            segments: vec![info],
            layout: Some(layout.into()),
            epoch: 1,
            session: 9,
            first_seq: 4,
            cluster: vec![7; 16].into(),
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Order::try_from(order()).unwrap();
        assert_eq!((good.bytes, good.pieces.len(), good.first.seq), (1010, 2, 4));
        let wrong: [fn(&mut v1::CompactRequest); 9] = [
            |q| q.layout = None,
            |q| q.session = 0,
            |q| q.extents.clear(),
            |q| q.segments.clear(),
            |q| q.extents[0].len = 0,
            |q| q.extents[1].len = 1001,
            |q| q.extents[1].len = u64::MAX,
            |q| q.extents[0].source = Some(Source::Inline(vec![0; 10].into())),
            |q| q.extents = vec![q.extents[0].clone(); MAX_PIECES + 1],
        ];
        for (at, wrong) in wrong.iter().enumerate() {
            let mut q = order();
            wrong(&mut q);
            assert!(Order::try_from(q).is_err(), "{at}");
        }
    }
}
