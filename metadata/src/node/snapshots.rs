//! Snapshots in the event loop: one is made when a follower needs it, fetched before Raft hears of
//! it, and installed between two readies.
//!
//! Invariants: the log says that an installation has begun before the state is replaced, so that a
//! crash in between is put right at the next start; none is fetched for which there is no room, and
//! nothing is left of one that is not installed.

use super::Node;
use super::announced::Pause;
use super::driver::{Driver, Side, ended};
use crate::raftlog::{Append, Position};
use crate::snapshot::{self, NewSnapshot, Snapshots};
use crate::tables::members::same;
use prost::Message as _;
use raft::eraftpb::{Message, Snapshot, SnapshotMetadata};
use raft::{ProgressState, Ready, SnapshotStatus, Storage as _};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::Peers;
use weft_proto::{Error, ErrorKind, Result, v1};

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
        let (node, done) = (self.node.clone(), self.side_done.clone());
        tokio::spawn(async move {
            let dir = fetch_beside(&node, &snapshots, &peers, &manifest).await;
            match &dir {
                Ok(_) => node.behind.fetched(),
                Err(e) => {
                    let index = message.get_snapshot().get_metadata().index;
                    node.behind.note(index, snapshot::len(&manifest), e.clone());
                }
            }
            let _ = done.send(Side::Fetched(Box::new(message), dir));
        });
    }

    /// What was fetched is of no use.
    fn forget_fetched(&mut self) {
        self.fetching = true;
        let (snapshots, done) = (self.wiring.snapshots.clone(), self.side_done.clone());
        tokio::spawn(async move {
            if let Err(e) = snapshots.forget_fetched().await {
                tracing::warn!("{e}");
            }
            let _ = done.send(Side::Forgotten);
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
        self.node.damage.is_replaced();
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
                    Ok(_) => {
                        self.step(*message);
                        if self.raw.snap().is_none() {
                            // The log has it by now, or another leads.
                            self.forget_fetched();
                        }
                    }
                    // The leader notices that nobody fetches, and tries again.
                    Err(e) => tracing::warn!("could not fetch a snapshot: {e}"),
                }
            }
            Side::Forgotten => self.fetching = false,
            Side::Made(made) => {
                self.making = None;
                match made {
                    Ok(made) => {
                        self.node.damage.is_copied();
                        self.offer(made);
                    }
                    Err(e) => {
                        // What is damaged is told by itself.
                        tracing::warn!("a server that is behind is not given the state: {e}");
                        self.announced.making.grow(Instant::now());
                    }
                }
            }
            Side::Synced(index) => {
                self.syncing = false;
                self.truncate(index?)?;
            }
        }
        Ok(())
    }

    pub(super) fn offer(&mut self, snapshot: NewSnapshot) {
        let NewSnapshot { index, members, manifest } = snapshot;
        let store = self.raw.mut_store();
        let Ok(term) = store.term(index) else {
            tracing::info!(index, "a snapshot is not sent: the log does not join it any more");
            self.announced.making.grow(Instant::now());
            return self.wiring.snapshots.discard();
        };
        // As of the snapshot: it may have changed since.
        let recorded = members.map(|m| m.conf_state());
        let conf_state = recorded.unwrap_or_else(|| store.conf_state().clone());
        if !same(&conf_state, store.conf_state()) {
            // Who came meanwhile would not find itself in it. Raft asks for another.
            tracing::info!(index, "a snapshot of the group as it was before is not sent");
            return self.wiring.snapshots.discard();
        }
        self.announced.making = Pause::default();
        let conf_state = Some(conf_state);
        let metadata = Some(SnapshotMetadata { conf_state, index, term });
        store.offer_snapshot(Some(Snapshot { data: manifest.encode_to_vec(), metadata }));
    }

    pub(super) fn care_for_snapshots(&mut self) {
        let now = Instant::now();
        self.node.behind.has(self.raw.raft.raft_log.committed);
        if self.raw.store().take_snapshot_wanted()
            && self.making.is_none()
            && self.announced.making.is_over(now)
        {
            self.making = Some(self.raw.raft.raft_log.applied);
            let (snapshots, done) = (self.wiring.snapshots.clone(), self.side_done.clone());
            tokio::spawn(async move {
                let _ = done.send(Side::Made(snapshots.make().await));
            });
        }
        if self.leads.is_some() {
            self.care_for_followers(now);
        }
        let used = self.wiring.snapshots.last_used();
        if self.making.is_none() && used.is_some_and(|used| now - used > SNAPSHOT_KEEP_TIMEOUT) {
            self.raw.mut_store().offer_snapshot(None);
            self.wiring.snapshots.discard();
        }
    }

    /// Gives up who does not fetch what was announced to it, and lets it rest.
    fn care_for_followers(&mut self, now: Instant) {
        let mut waiting = BTreeSet::new();
        for (&id, progress) in self.raw.raft.prs().iter() {
            match progress.state {
                ProgressState::Snapshot => drop(waiting.insert(id)),
                // Also one that was given up while it installed what it had fetched.
                ProgressState::Replicate => self.announced.forget(id),
                ProgressState::Probe => {}
            }
        }
        let snapshots = &self.wiring.snapshots;
        for id in self.announced.look(now, &waiting, |id| snapshots.last_read(id)) {
            tracing::warn!(server = id, "a server does not fetch the snapshot that it needs");
            self.raw.report_snapshot(id, SnapshotStatus::Failure);
        }
        let resting = self.announced.resting(now);
        self.raw.mut_store().rest(resting);
    }
}

/// Fetches a snapshot, if there is room for it beside what this server has. Nothing is left of one
/// that was not fetched as a whole.
async fn fetch_beside(
    node: &Node,
    snapshots: &Snapshots,
    peers: &Peers,
    manifest: &v1::SnapshotManifest,
) -> Result<PathBuf> {
    snapshot::check(manifest)?;
    // It would take the room.
    snapshots.forget_fetched().await?;
    node.has_room_for(snapshot::len(manifest)).await?;
    let fetched = snapshots.fetch(peers, manifest).await;
    if fetched.is_err()
        && let Err(e) = snapshots.forget_fetched().await
    {
        tracing::warn!("{e}");
    }
    fetched
}

fn manifest_of(snapshot: &Snapshot) -> Result<v1::SnapshotManifest> {
    v1::SnapshotManifest::decode(&snapshot.data[..])
        .map_err(|e| Error::new(ErrorKind::Protocol, format!("snapshot manifest: {e}")))
}
