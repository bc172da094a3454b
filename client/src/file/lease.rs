//! The lease of a file: what is known is made good by it, and writes are buffered under it.

use super::inode::File;
use crate::cache::Mode;
use crate::meta::unexpected;
use crate::types::Attr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, Layout, Result, v1};

/// A lease that is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Read,
    /// To write, if nobody else uses the file.
    Write,
    /// To write: others give up theirs.
    Alone,
}

/// After a lease to write was refused, it is not asked for again for this long.
const REFUSAL_INTERVAL: Duration = Duration::from_millis(100);

/// The parts of an open's answer that must be there.
pub(crate) fn attr_and_layout(reply: &v1::OpenReply) -> Result<(Attr, Layout)> {
    let bad = |what| Error::new(ErrorKind::Protocol, what);
    let attr = reply.attr.ok_or_else(|| bad("open without attributes"))?.try_into()?;
    let layout = reply.layout.ok_or_else(|| bad("open without a layout"))?.try_into()?;
    Ok((attr, layout))
}

impl File {
    /// Returns when what is known here of the committed content is what it is now: at once under a
    /// lease, else after the leader was asked.
    pub(super) async fn refresh(self: &Arc<Self>) -> Result<()> {
        // Boxed, as what follows the leases: what is rare would make every read's future as large.
        if self.is_in_doubt() {
            Box::pin(self.settle_doubt()).await?;
        }
        let leases = &self.context.leases;
        match leases.mode(self.ino) {
            // Only this mount has changed it since, and knows how; but the answer that the lease
            // came with may be on its way to this file still.
            Some(Mode::Write) => {
                if let Some(attr) = leases.attr(self.ino) {
                    self.state.lock().adopt_newer(attr);
                }
                return Ok(());
            }
            // It may have come with an answer that this file was not told, that of a lookup by
            // name; then so did the attributes.
            Some(Mode::Read) => {
                if let Some(attr) = leases.attr(self.ino) {
                    self.told(attr);
                    return Ok(());
                }
            }
            None => {}
        }
        let without = async {
            leases.settled(self.ino).await;
            self.settle().await;
            self.ask_for_lease(Wanted::Read).await
        };
        Box::pin(without).await
    }

    /// Without a lease nothing may stay buffered, where only this mount would see it: what is left
    /// of a lease that was lost is committed, or dropped and told to its writers, before anything
    /// else is seen.
    pub async fn settle(self: &Arc<Self>) {
        if self.context.leases.mode(self.ino).is_none() && self.is_dirty() {
            let _ = self.write_back().await;
        }
    }

    /// What was kept under a right that is gone is committed, or dropped and told to its writers,
    /// before anything is seen: it is not shown, and was stored before.
    async fn settle_doubt(self: &Arc<Self>) -> Result<()> {
        while self.is_in_doubt() {
            // What was dropped is no matter of who reads.
            if let Err(error) = self.write_back().await
                && self.is_in_doubt()
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Asks for the right to buffer writes, unless it was refused a moment ago.
    pub(super) async fn prepare_to_write(self: &Arc<Self>) -> Result<()> {
        let leases = &self.context.leases;
        let refused = self.refused_until.lock().is_some_and(|until| Instant::now() < until);
        // Without any lease, the pages that the caller caches of the write would never be recalled.
        if leases.may_buffer(self.ino) || (refused && leases.mode(self.ino).is_some()) {
            return Ok(());
        }
        leases.settled(self.ino).await;
        self.settle().await;
        self.ask_for_lease(if refused { Wanted::Read } else { Wanted::Write }).await?;
        if !refused && !leases.may_buffer(self.ino) {
            *self.refused_until.lock() = Some(Instant::now() + REFUSAL_INTERVAL);
        }
        Ok(())
    }

    pub(super) async fn ask_for_lease(&self, wanted: Wanted) -> Result<()> {
        let (write, alone) = (wanted != Wanted::Read, wanted == Wanted::Alone);
        let op = Op::Lease(v1::LeaseOp { ino: self.ino.0, write, alone });
        let Reply::Open(reply) = self.context.requests.ask(op).await? else {
            return Err(unexpected("asking for a lease"));
        };
        let (attr, layout) = attr_and_layout(&reply)?;
        self.opened(attr, layout, reply.extents).map(drop)
    }
}
