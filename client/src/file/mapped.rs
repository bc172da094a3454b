//! Shared mappings.
//!
//! Nobody hears of what a program stores in pages that it maps, until the kernel writes whole
//! pages. Two mounts that had pages of one file in which programs store would so lose what the
//! other stored. Any number of mounts may map a file all the same:
//! - One mount at a time has the right to map ([`Opens`](crate::namespace::Opens); the leader keeps
//!   it): the first that opens the file to read and write. It caches as ever, under a lease to read
//!   too.
//! - Another mount that opens the file so has no pages of it but under a lease to write, which no
//!   other lease stands beside, and gives all of them back with that: before, while what was stored
//!   can be committed. Its handles go past the cache, so that only mappings are filled so, and
//!   programs that do not map never wait for it. Without that lease a request that fills a page
//!   waits for it, whoever wants the page back. So nobody does: the recall of a lease to read finds
//!   no pages there, and waits for none.
//!
//! When the time of the leases is over, pages are written back without waiting for servers that may
//! not answer, and taken back then. What they held is kept in doubt: shown to nobody, and committed
//! only onto the content that the leases were of, unless they turn out to have lasted.
//!
//! So at most one mount has pages in which it may store, what was stored is written back before
//! another has them, and each store and load takes effect in one order, as on one machine: SQLite's
//! log and its index work. Of mounts that have the file open only to read, a mapping shows what was
//! stored after msync, munmap or close, or after another mapped it to write. What that costs falls
//! on who does it: mounts that store in one file at the same time hand it to and fro, as they would
//! on Lustre or GFS2. CephFS, NFS and JuiceFS have no such order, and lose stores that share a
//! page.

use super::above::Ticket;
use super::inode::File;
use super::lease::Wanted;
use super::write::Way;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use weft_proto::{Error, ErrorKind, Result, SessionId, v1};

/// Pause before a lease that was not granted is asked for again.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

impl File {
    /// Whether others store in pages of this file, unlike this mount, under a lease to read.
    pub fn is_cached_alone(&self) -> bool {
        self.context.opens.maps_without_right(self.ino)
    }

    /// Whether programs may have stored in pages that go with the lease.
    pub fn is_mapped_under_lease(&self, keep_read: bool) -> bool {
        match self.is_cached_alone() {
            true => self.context.leases.has_right_to_write(self.ino),
            false => !keep_read && self.context.opens.may_be_mapped(self.ino),
        }
    }

    /// What the cache writes back, whole pages, was stored there under a lease, in `session` at the
    /// latest. Error: `Io` if that is gone: others may have stored in the same pages since.
    pub fn may_write_back(&self, session: SessionId) -> Result<()> {
        let bare = self.is_cached_alone() && !self.context.leases.writes(self.ino);
        if bare || self.above.is_lost() || self.context.sessions.current().id != session {
            let what = "what was stored through a mapping is lost: the cluster declared this mount \
                        dead meanwhile";
            return Err(Error::new(ErrorKind::Io, what));
        }
        Ok(())
    }

    /// Returns when a request may go on that fills the cache: programs may store there then. To be
    /// called again before a read is repeated. `writes`: what it writes, and is going to.
    pub async fn may_fill(
        self: &Arc<Self>,
        ticket: &Ticket<'_>,
        writes: Option<v1::Records>,
    ) -> Result<()> {
        let leases = &self.context.leases;
        // Whole pages are left of what is written, of bytes that nobody else writes.
        let right = |records: &v1::Records| leases.right_to(self.ino, &records.first());
        let may_write = || writes.as_ref().and_then(right).is_some();
        loop {
            ticket.turn().await;
            let (good, wanted) = match self.is_cached_alone() {
                true => (leases.may_buffer(self.ino), Wanted::Alone),
                false => {
                    let mapped = self.context.opens.may_be_mapped(self.ino);
                    let covered = !mapped || leases.mode(self.ino).is_some() || may_write();
                    // What goes on is taken back before the lease that is being given up.
                    (covered || ticket.goes_on(), Wanted::Read)
                }
            };
            if good {
                return Ok(());
            }
            if writes.is_some() && wanted == Wanted::Read {
                self.prepare_to_write(writes, Way::Along(Some(ticket))).await?;
                // A lease to read would have the ranges of all others recalled.
                if may_write() || ticket.goes_on() {
                    return Ok(());
                }
            }
            self.lease_is_told().await?;
            self.settle().await;
            self.ask_for_lease(wanted).await?;
            let granted = match wanted {
                Wanted::Alone => leases.may_buffer(self.ino),
                _ => leases.mode(self.ino).is_some(),
            };
            if !granted {
                // Somebody else is served first, or an earlier lease has to be given back.
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}
