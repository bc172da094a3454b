//! Makes a chunk of the others of its segment, for the target that is to hold it.

use crate::gather::Gather;
use crate::segment::Segment;
use crate::segments::Segments;
use std::sync::Arc;
use tokio::time::Instant;
use weft_net::Buffer;
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, Result};

impl Segments {
    /// All bytes of one chunk, made of verified blocks (I3): of its own target, if that is up and
    /// has it, else, or if `of_others`, of as many others as the profile needs. Does not wait for
    /// targets that are away. Errors, if too few of them answer with good blocks: `Unavailable`,
    /// they may when those that did not answer do; else `Io`.
    pub async fn rebuild(
        self: &Arc<Self>,
        segment: &Segment,
        shard: u8,
        of_others: bool,
        deadline: Instant,
    ) -> Result<Buffer> {
        if shard >= segment.geometry.profile.width() || segment.geometry.shard_len(shard) == 0 {
            let what = format!("segment {} has no shard {shard}", segment.id);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let shard = match planted::is(Bug::OtherShardRebuilt) {
            false => shard,
            true => (shard + 1) % segment.geometry.profile.width(),
        };
        let map = self.map.current();
        let gather = Gather::of_shard(self, &map, segment, shard, of_others);
        gather.run(deadline).await.map_err(|lost| {
            let profile = segment.geometry.profile;
            let what = format!(
                "shard {shard} of segment {} ({profile}) cannot be made: fewer than {} others are \
                 good: {}",
                segment.id,
                profile.k(),
                lost.why
            );
            let kind = match lost.may_come_back {
                true => ErrorKind::Unavailable,
                false => ErrorKind::Io,
            };
            Error::new(kind, what)
        })
    }
}
