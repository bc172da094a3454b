//! Snapshots in the event loop: one is made when a follower needs it, fetched before Raft hears of
//! it, and installed between two readies.
//!
//! Invariant: the log says that an installation has begun before the state is replaced, so that a
//! crash in between is put right at the next start.

use super::driver::{Driver, Side, ended, raft_failed};
use crate::raftlog::{Append, Position};
use crate::snapshot::NewSnapshot;
use crate::tables::members::same;
use prost::Message as _;
use raft::eraftpb::{Message, Snapshot, SnapshotMetadata};
use raft::{Ready, SnapshotStatus, Storage as _};
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::{Error, ErrorKind, Result, v1};

/// A follower that asks for no piece of its snapshot for this long has given up.
const SNAPSHOT_STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A snapshot that nobody reads is removed after this long.
const SNAPSHOT_KEEP_TIMEOUT: Duration = Duration::from_secs(60);

impl Driver {
    /// A snapshot was announced: its files come first, then Raft sees the message.
    pub(super) fn fetch(&mut self, message: Message) {
        // One at a time, from the first file to the end of the installation: they share a folder.
        let installs = self.raw.snap().is_some();
        if self.fetching || installs || message.term < self.raw.raft.term {
            return;
        }
        if message.get_snapshot().get_metadata().index <= self.raw.raft.raft_log.committed {
            // Nothing new in it; Raft tells the leader so.
            return self.step(message);
        }
        let manifest = match manifest_of(message.get_snapshot()) {
            Ok(manifest) => manifest,
            Err(e) => return tracing::warn!("ignored a snapshot: {e}"),
        };
        self.fetching = true;
        let (snapshots, peers) = (self.wiring.snapshots.clone(), self.wiring.peers.clone());
        let done = self.side_done.clone();
        tokio::spawn(async move {
            let dir = snapshots.fetch(&peers, &manifest).await;
            let _ = done.send(Side::Fetched(Box::new(message), dir));
        });
    }

    pub(super) async fn install(&mut self, mut ready: Ready) -> Result<()> {
        // The messages wait for the installation: reporting now would confuse the order.
        self.write_now()?;
        // Every change of the log, truncations too: one that is written after the log was reset
        // would undo that in part.
        while !self.unwritten.is_empty() {
            self.written.recv().await.ok_or_else(|| ended("log"))??;
            self.unwritten.pop_front();
        }
        while self.applying > 0 {
            let applied = self.applied.recv().await.ok_or_else(|| ended("applying"))??;
            self.applying -= applied.bytes;
        }
        let snapshot = ready.snapshot().clone();
        let metadata = snapshot.get_metadata().clone();
        let at = Position { index: metadata.index, term: metadata.term };
        let dir = self.wiring.snapshots.fetched(&manifest_of(&snapshot)?)?;
        tracing::info!(index = at.index, "installing a snapshot");
        let (log, state) = (self.log.clone(), self.node.state.clone());
        let entries = ready.take_entries();
        let append = Append {
            entries: entries.clone(),
            hard_state: ready.hs().cloned().or(self.unwritten_state.take()),
            sync: true,
            ..Append::default()
        };
        self.node
            .env
            .blocking(move || {
                log.begin_install(at)?;
                state.replace(&dir)?;
                log.reset(at)?;
                log.write(&[append])
            })
            .await?;
        self.raw.mut_store().reset(at, metadata.conf_state.unwrap_or_default());
        self.raw.mut_store().append(&entries);
        let (number, messages) = (ready.number(), ready.take_persisted_messages());
        self.outbox.hold(number, false, messages);
        self.raw.advance_append_async(ready);
        self.release(number);
        self.raw.advance_apply_to(at.index);
        self.publish_map()?;
        self.node.applied.send_replace(at.index);
        Ok(())
    }

    pub(super) fn on_side(&mut self, side: Side) -> Result<()> {
        match side {
            Side::Fetched(message, dir) => {
                self.fetching = false;
                match dir {
                    Ok(_) => self.step(*message),
                    // The leader notices that nobody fetches, and tries again.
                    Err(e) => tracing::warn!("could not fetch a snapshot: {e}"),
                }
            }
            Side::Made(made) => {
                self.making = None;
                match made.and_then(|made| self.offer(made)) {
                    Ok(()) => {}
                    Err(e) => tracing::warn!("could not make a snapshot: {e}"),
                }
            }
            Side::Synced(index) => {
                self.syncing = false;
                self.truncate(index?)?;
            }
        }
        Ok(())
    }

    pub(super) fn offer(&mut self, snapshot: NewSnapshot) -> Result<()> {
        let NewSnapshot { index, members, manifest } = snapshot;
        let store = self.raw.mut_store();
        let term = store.term(index).map_err(raft_failed)?;
        // As of the snapshot: it may have changed since.
        let recorded = members.map(|m| m.conf_state());
        let conf_state = recorded.unwrap_or_else(|| store.conf_state().clone());
        if !same(&conf_state, store.conf_state()) {
            // Who came meanwhile would not find itself in it. Raft asks for another.
            tracing::info!(index, "a snapshot of the group as it was before is not sent");
            self.wiring.snapshots.discard();
            return Ok(());
        }
        let conf_state = Some(conf_state);
        let metadata = Some(SnapshotMetadata { conf_state, index, term });
        store.offer_snapshot(Some(Snapshot { data: manifest.encode_to_vec(), metadata }));
        Ok(())
    }

    pub(super) fn care_for_snapshots(&mut self) {
        if self.raw.store().take_snapshot_wanted() && self.making.is_none() {
            self.making = Some(self.raw.raft.raft_log.applied);
            let (snapshots, done) = (self.wiring.snapshots.clone(), self.side_done.clone());
            tokio::spawn(async move {
                let _ = done.send(Side::Made(snapshots.make().await));
            });
        }
        let now = Instant::now();
        let used = self.wiring.snapshots.last_used();
        let stalled: Vec<u64> = self
            .snapshot_sent
            .iter()
            .filter(|&(_, &sent)| now - used.map_or(sent, |u| u.max(sent)) > SNAPSHOT_STALL_TIMEOUT)
            .map(|(&id, _)| id)
            .collect();
        for id in stalled {
            self.snapshot_sent.remove(&id);
            // Ignored by Raft if the follower has answered by now.
            self.raw.report_snapshot(id, SnapshotStatus::Failure);
        }
        if self.making.is_none() && used.is_some_and(|used| now - used > SNAPSHOT_KEEP_TIMEOUT) {
            self.raw.mut_store().offer_snapshot(None);
            self.wiring.snapshots.discard();
        }
    }
}

fn manifest_of(snapshot: &Snapshot) -> Result<v1::SnapshotManifest> {
    v1::SnapshotManifest::decode(&snapshot.data[..])
        .map_err(|e| Error::new(ErrorKind::Protocol, format!("snapshot manifest: {e}")))
}
