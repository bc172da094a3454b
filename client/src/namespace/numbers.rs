//! Numbers of inodes that are set aside for what is made here, and whether the group knows batches,
//! which is told with them: without that nothing is done here.

use super::log::ChangeLog;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::debug;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, v1};

/// Numbers to ask for, and how few are left when more are asked for.
const RESERVED_NUMBERS: u32 = 16384;
/// Who was refused some asks again so much later; and a group that does not know batches yet, of
/// which a part may be older or has not said anything, then twice as long after each answer.
const RESERVE_PAUSE: Duration = Duration::from_secs(1);
const MAX_RESERVE_PAUSE: Duration = Duration::from_secs(64);
pub(super) const MIN_NUMBERS: u64 = 8192;

impl ChangeLog {
    /// Asks for numbers where they will be needed. Whether the group knows batches, without which
    /// nothing is done here, is told with them.
    pub(super) fn want_numbers(self: &Arc<Self>, dir: InodeId) {
        let mut table = self.table.lock();
        let left: u64 = table.numbers.iter().map(|range| range.end - range.start).sum();
        let asks_again = table.asks_again.is_some_and(|(from, _)| from <= Instant::now());
        let few = left < MIN_NUMBERS;
        if (few || asks_again) && !table.reserving && self.group.leases.may_buffer(dir) {
            table.reserving = true;
            let count = if few { RESERVED_NUMBERS } else { 1 };
            tokio::spawn(self.clone().reserve(count, table.ended));
        }
    }

    async fn reserve(self: Arc<Self>, count: u32, ended: u64) {
        let op = v1::ReserveInodesOp { count, ..Default::default() };
        let answer = self.group.change(Op::ReserveInodes(op), self.group.deadline()).await;
        if answer.is_err() {
            // Whoever does something next would only be refused, too.
            sleep(RESERVE_PAUSE).await;
        }
        let mut table = self.table.lock();
        table.reserving = false;
        match answer {
            Ok(Reply::ReserveInodes(v1::ReserveInodesReply { first, batches, xattrs })) => {
                (table.batches, table.xattrs) = (batches, xattrs);
                let pause = table.asks_again.map_or(RESERVE_PAUSE, |(_, pause)| pause);
                let later = (pause * 2).min(MAX_RESERVE_PAUSE);
                table.asks_again = (!batches || !xattrs).then(|| (Instant::now() + pause, later));
                if table.ended == ended {
                    let end = first.saturating_add(count.into());
                    match table.numbers.back_mut().filter(|last| last.end == first) {
                        Some(last) => last.end = end,
                        None => table.numbers.push_back(first..end),
                    }
                }
            }
            Ok(_) => {}
            Err(error) => debug!(%error, "no numbers for what is new; the group makes it"),
        }
    }
}
