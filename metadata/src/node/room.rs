//! Room on the disk of the data folder, which each server looks after for itself.
//!
//! A server whose disk is full can write neither log nor state: it ends, and may not even start
//! again. So what makes the namespace larger is refused before, by the leader, for as long as the
//! disk of any server of the group has less left than its reserve; what makes it smaller, and what
//! keeps sessions, locks, repair and the group going, goes on and lives of that.
//!
//! Invariant: nothing that was acknowledged is lost to a full disk, as long as the reserve is not
//! eaten by others. It is for the log, which keeps some hundred megabytes, and for the store, which
//! writes what it merges anew before it frees what there was: never more than that was.

use super::troubles::Room;
use super::{Node, UNKNOWN};
use crate::folder::MOVE_AWAY;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;
use weft_proto::{Error, ErrorKind, NodeId, Result};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Looks after the room of this server, for ever.
pub async fn watch(node: Arc<Node>) {
    loop {
        match node.look_at_room().await {
            Ok(room) => {
                node.note_room(room.free, room.reserve);
                node.behind.note_room(&room);
            }
            Err(error) => tracing::warn!("how much room there is left is not known: {error}"),
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Bytes that are free on the disk of a folder, and all that it has.
fn free_bytes(dir: &std::path::Path) -> Result<(u64, u64)> {
    let failed = |e| Error::new(ErrorKind::Io, format!("{}: {e}", dir.display()));
    let stat = nix::sys::statvfs::statvfs(dir).map_err(failed)?;
    let unit = stat.fragment_size();
    Ok((stat.blocks_available() * unit, stat.blocks() * unit))
}

impl Node {
    /// The room that there is now.
    pub(super) async fn look_at_room(&self) -> Result<Room> {
        let dir = self.config.data_dir.clone();
        let (free, all) = self.env.blocking(move || free_bytes(&dir)).await?;
        Ok(Room { free, reserve: self.config.reserve(all) })
    }

    /// Refuses a snapshot of so many bytes that would take what is to stay free: the log lies on
    /// the same disk. Error: `NoSpace`.
    pub(super) async fn has_room_for(&self, bytes: u64) -> Result<()> {
        let room = self.look_at_room().await?;
        if room.fits(bytes) {
            return Ok(());
        }
        // Rounded up: nothing is told as too little.
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the state takes {} MiB beside what is there, and the disk of {} has {} MiB left, \
                 of which {} MiB are to stay free: make {} MiB more room there, or {MOVE_AWAY}",
                mib(bytes),
                self.config.data_dir.display(),
                room.free >> 20,
                room.reserve >> 20,
                mib(room.missing(bytes)),
            ),
        ))
    }

    /// `free` bytes are left on the disk of this server, which is to keep `reserve`.
    pub(super) fn note_room(&self, free: u64, reserve: u64) {
        self.free_bytes.store(free, Ordering::Relaxed);
        self.reserve_bytes.store(reserve, Ordering::Relaxed);
        let low = free < reserve;
        if self.low_on_room.swap(low, Ordering::Relaxed) == low {
            return;
        }
        let (at, free, reserve) = (self.config.data_dir.display(), free >> 20, reserve >> 20);
        match low {
            true => tracing::error!(
                "the disk of {at} has {free} MiB left, less than the reserve of {reserve} MiB: the \
                 cluster takes nothing new until there is more"
            ),
            false => tracing::info!("the disk of {at} has {free} MiB left again"),
        }
    }

    /// Bytes left on the disk of this server; 0, too, while that is not known yet.
    pub fn free_bytes(&self) -> u64 {
        match self.free_bytes.load(Ordering::Relaxed) {
            UNKNOWN => 0,
            free => free,
        }
    }

    /// Whether this server's disk has less left than its reserve.
    pub fn low_on_room(&self) -> bool {
        self.low_on_room.load(Ordering::Relaxed)
    }

    /// Another server says whether its disk has less left than its reserve.
    pub(super) fn note_low(&self, server: NodeId, low: bool) {
        let mut others = self.others_low.lock();
        match low {
            true => others.insert(server),
            false => others.remove(&server),
        };
    }

    /// Another server of the group whose disk has less left than its reserve. One that has left
    /// says nothing any more.
    fn low_member(&self) -> Option<NodeId> {
        let low = self.others_low.lock();
        if low.is_empty() {
            return None;
        }
        let group = self.membership();
        low.iter().copied().find(|server| group.get(server.0).is_some())
    }

    /// Whether there is room for what sessions have done already, of which the reserve keeps half.
    /// Error: `Unavailable`.
    pub fn has_last_room(&self) -> Result<()> {
        let free = self.free_bytes.load(Ordering::Relaxed);
        // Unknown is as much as can be.
        if free >= self.reserve_bytes.load(Ordering::Relaxed) / 2 {
            return Ok(());
        }
        let what = format!("the disk of this metadata server has {} MiB left", free >> 20);
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// Whether the namespace may grow. Error: `NoSpace`.
    pub fn has_room(&self) -> Result<()> {
        let me = Some(self.config.id).filter(|_| self.low_on_room());
        let Some(server) = me.or_else(|| self.low_member()) else { return Ok(()) };
        let at = self.address_of(server).unwrap_or_default();
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the disk of metadata server {server} at {at} has less left than its reserve: make \
                 room there"
            ),
        ))
    }
}
