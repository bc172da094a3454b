//! Shared mappings: under which lease the pages are in which programs may store, as [`super::take_back`]
//! tells.

use super::above::Ticket;
use super::inode::File;
use super::lease::Wanted;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use weft_proto::{Error, ErrorKind, Result, SessionId};

/// Pause before a lease that was not granted is asked for again.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

impl File {
    /// Whether others store in pages of this file, unlike this mount, under a lease to read: see above.
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

    /// What the cache writes back, whole pages, was stored there under a lease, in `session` at the latest. Error:
    /// `Io` if that is gone: others may have stored in the same pages since.
    pub fn may_write_back(&self, session: SessionId) -> Result<()> {
        let bare = self.is_cached_alone() && !self.context.leases.writes(self.ino);
        if bare || self.above.is_lost() || self.context.sessions.current().id != session {
            let what = "what was stored through a mapping is lost: the cluster declared this mount dead meanwhile";
            return Err(Error::new(ErrorKind::Io, what));
        }
        Ok(())
    }

    /// Returns when a request may go on that fills the cache: programs may store there then. To be called
    /// again before a read is repeated.
    pub async fn may_fill(self: &Arc<Self>, ticket: &Ticket<'_>) -> Result<()> {
        loop {
            ticket.turn().await;
            let leases = &self.context.leases;
            let (good, wanted) = match self.is_cached_alone() {
                true => (leases.may_buffer(self.ino), Wanted::Alone),
                false => {
                    let mapped = self.context.opens.may_be_mapped(self.ino);
                    let covered = !mapped || leases.mode(self.ino).is_some();
                    // What goes on is taken back before the lease that is being given up.
                    (covered || ticket.goes_on(), Wanted::Read)
                }
            };
            if good {
                return Ok(());
            }
            leases.settled(self.ino).await;
            self.settle().await;
            self.ask_for_lease(wanted).await?;
            if !self.is_cached_alone() && leases.mode(self.ino).is_none() {
                // Somebody else is served first.
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}
