//! The lease of a file: what is known is made good by it, and writes are buffered under it.

use super::inode::File;
use super::write::Way;
use crate::cache::{Mode, Start};
use crate::meta::unexpected;
use crate::types::Attr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, Layout, Result, v1};

/// A lease that is asked for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wanted {
    Read,
    /// To write, if nobody else uses the file; else to write these bytes of it, or to read.
    Write(Option<v1::Records>),
    /// To write: others give up theirs.
    Alone,
}

/// A write waits for what has to be given back first for so long before it is committed by itself.
const RETURN_TIMEOUT: Duration = Duration::from_secs(2);
/// The leader is asked again after so long: another one need not want it back.
const RETURN_INTERVAL: Duration = Duration::from_millis(200);
/// Whether who gives it back waits for the write is looked at so often meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
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
            // came with may be on its way to this file still. Or this file was never told, and it
            // is forgotten since: then it is asked for.
            Some(Mode::Write) if self.adopt_known(|l| l.attr_before_changes(self.ino)) => {
                return Ok(());
            }
            // It may have come with an answer that this file was not told, that of a lookup by
            // name; then so did the attributes.
            Some(Mode::Read) if self.adopt_known(|l| l.attr(self.ino)) => return Ok(()),
            _ => {}
        }
        let without = async {
            self.lease_is_told().await?;
            self.settle().await;
            self.ask_for_lease(Wanted::Read).await.map(drop)
        };
        Box::pin(without).await
    }

    /// Returns when the leader was told of the lease that was given back last. Error: `TimedOut`.
    pub(super) async fn lease_is_told(&self) -> Result<()> {
        let settled = self.context.leases.settled(self.ino);
        timeout_at(self.context.requests.deadline(), settled).await.map_err(|_| {
            let what = "the metadata group was not told yet that a lease was given back";
            Error::new(ErrorKind::TimedOut, what)
        })
    }

    /// Without a lease nothing may stay buffered, where only this mount would see it: what is left
    /// of a lease that was lost is committed, or dropped and told to its writers, before anything
    /// else is seen.
    pub async fn settle(self: &Arc<Self>) {
        let leases = &self.context.leases;
        if leases.mode(self.ino).is_none() && self.is_dirty() && !self.is_in_ranges() {
            let _ = self.write_back().await;
        }
    }

    /// Whether what is buffered lies in ranges that nobody else may write, or read before.
    fn is_in_ranges(&self) -> bool {
        self.context.leases.live() && !self.is_new() && self.owes_ranges()
    }

    /// What was kept under a right that is gone is committed, or dropped and told to its writers,
    /// before anything is seen: it is not shown, and was stored before.
    pub async fn settle_doubt(self: &Arc<Self>) -> Result<()> {
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

    /// Asks for the right to buffer what is going to be written: `records`, the first of them now;
    /// `None`: wherever the file ends. Not where it was refused a moment ago.
    pub(super) async fn prepare_to_write(
        self: &Arc<Self>,
        records: Option<v1::Records>,
        way: Way<'_>,
    ) -> Result<()> {
        let leases = &self.context.leases;
        let may = || match &records {
            Some(records) => leases.right_to(self.ino, &records.first()).is_some(),
            None => leases.may_buffer(self.ino),
        };
        let kind = usize::from(records.is_some());
        let refused = self.refused_until.lock()[kind].is_some_and(|until| Instant::now() < until);
        // Without any lease, the pages that the caller caches of the write would never be recalled.
        if may() || (refused && leases.mode(self.ino).is_some()) {
            return Ok(());
        }
        let until = Instant::now() + RETURN_TIMEOUT;
        let session = self.context.sessions.current().id;
        let granted = loop {
            let releasing = leases.is_releasing(session, self.ino);
            self.lease_is_told().await?;
            self.settle().await;
            // What is left of an earlier right goes first: its commit has others' ranges recalled.
            if records.is_some() && self.is_in_doubt() {
                return Ok(());
            }
            let wanted = if refused { Wanted::Read } else { Wanted::Write(records) };
            let (asked, newest) = (leases.start(), leases.newest_grant(self.ino));
            let owes = self.ask_for_lease(wanted).await?;
            if may() || refused || !owes || !self.given_back((asked, releasing), way, until).await {
                let is_newer = leases.newest_grant(self.ino) > newest;
                break is_newer && leases.keeps_since(asked, self.ino);
            }
        };
        // Ranges are refused by older leaders only, which grant a lease to read.
        let is_refusal = records.is_none() || (granted && leases.mode(self.ino).is_some());
        if !refused && is_refusal && !may() {
            self.refused_until.lock()[kind] = Some(Instant::now() + REFUSAL_INTERVAL);
        }
        Ok(())
    }

    /// Whether what the caller caches of these bytes would be recalled.
    pub fn is_covered(&self, range: &Range<u64>) -> bool {
        let leases = &self.context.leases;
        leases.mode(self.ino).is_some() || leases.right_to(self.ino, range).is_some()
    }

    /// Waits until a recall of what is held of the file was carried out that came after the leader
    /// was `asked`, or was under way then. Answers whether the leader is to be asked again: not if
    /// who gives it back waits for this write, nor after `until`.
    async fn given_back(
        &self,
        (asked, mut was_releasing): (Start, bool),
        way: Way<'_>,
        until: Instant,
    ) -> bool {
        let (leases, session) = (&self.context.leases, self.context.sessions.current().id);
        let again = until.min(Instant::now() + RETURN_INTERVAL);
        loop {
            let waited_for = match way {
                Way::Along(Some(ticket)) => ticket.goes_on(),
                Way::Along(None) | Way::Past(_) => false,
                Way::Back => true,
            };
            if waited_for {
                return false;
            }
            let is_releasing = leases.is_releasing(session, self.ino);
            was_releasing |= is_releasing || !leases.keeps_since(asked, self.ino);
            let now = Instant::now();
            if (!is_releasing && was_releasing) || now >= again {
                return now < until;
            }
            let _ = timeout(LOOK_INTERVAL, leases.releases_change()).await;
        }
    }

    /// Answers whether an earlier lease has to be given back first.
    pub(super) async fn ask_for_lease(&self, wanted: Wanted) -> Result<bool> {
        let (write, alone) = (wanted != Wanted::Read, wanted == Wanted::Alone);
        let records = match wanted {
            Wanted::Write(records) => records,
            _ => None,
        };
        let op = Op::Lease(v1::LeaseOp { ino: self.ino.0, write, alone, records });
        let Reply::Open(reply) = self.context.requests.ask(op).await? else {
            return Err(unexpected("asking for a lease"));
        };
        let (attr, layout) = attr_and_layout(&reply)?;
        // Older leaders do not say so of ranges.
        let leases = &self.context.leases;
        let in_ranges = || leases.mode(self.ino).is_none() && leases.holds_ranges(self.ino);
        let owes = reply.owes || (records.is_some() && in_ranges());
        self.opened(attr, layout, reply.extents)?;
        Ok(owes)
    }
}
