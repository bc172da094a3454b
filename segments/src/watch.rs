//! The newest cluster map, and the watch that keeps it new.
//!
//! Invariants: the epoch that [`MapWatch::current`] answers never goes back; changes are carried
//! out on the map that they are of.

use crate::map::Map;
use crate::rng::Rng;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, info, warn};
use weft_net::Transport;
use weft_proto::{ErrorKind, MapEpoch, Result, map, v1};

/// The newest map, kept new by a task.
pub struct MapWatch {
    newest: watch::Sender<Arc<Map>>,
    /// The server that is watched is behind the others.
    follow_another: Notify,
}

impl MapWatch {
    /// An empty map, of epoch 0.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { newest: watch::Sender::new(Arc::default()), follow_another: Notify::new() })
    }

    /// The newest map that is known.
    pub fn current(&self) -> Arc<Map> {
        self.newest.borrow().clone()
    }

    /// Takes a map, or changes of the one that is known, if that is newer. Error: `StaleMap`,
    /// changes of another.
    pub fn offer(&self, news: v1::ClusterMap) -> Result<()> {
        let known = self.current();
        if news.epoch <= known.epoch.0 {
            return Ok(());
        }
        let wire = if news.since == 0 {
            news
        } else {
            let mut wire = (*known.wire).clone();
            map::apply(&mut wire, news)?;
            wire
        };
        self.newest.send_replace(Arc::new(Map::new(wire)));
        Ok(())
    }

    /// Waits until the map is newer than `than`; answers false if `deadline` came first.
    pub async fn newer(&self, than: MapEpoch, deadline: Instant) -> bool {
        let mut seen = self.newest.subscribe();
        timeout_at(deadline, seen.wait_for(|map| map.epoch > than)).await.is_ok_and(|r| r.is_ok())
    }

    /// There is a newer map, which the server that is watched does not have.
    pub fn follow_another(&self) {
        self.follow_another.notify_one();
    }

    /// Follows the map for ever, going from one metadata server to the next as they fail. One of
    /// `metadata` (`host:port`) is enough to find the others.
    pub async fn follow(
        self: Arc<Self>,
        metadata: Vec<String>,
        transport: Arc<dyn Transport>,
        rng: Arc<Rng>,
    ) {
        let (mut failed, mut changes) = (0, true);
        for turn in 0.. {
            let servers = self.servers(&metadata);
            let server = &servers[turn % servers.len()];
            let before = self.current().epoch;
            let end = tokio::select! {
                end = self.watch(server, transport.clone(), changes) => end,
                () = self.follow_another.notified() => Ok(()),
            };
            debug!(server, ?end, "map watch ended");
            // Changes that do not fit the map here: then all of the next one.
            changes = !end.as_ref().is_err_and(|error| error.kind == ErrorKind::StaleMap);
            failed = if self.current().epoch > before { 0 } else { failed + 1 };
            if failed == 3 {
                let error = end.err();
                warn!(server, ?error, "cannot watch the cluster map; going on with the last");
            }
            sleep(rng.backoff(failed)).await;
        }
    }

    /// The metadata servers to ask, in this order: those of the map, then others of `configured`.
    pub fn servers(&self, configured: &[String]) -> Vec<String> {
        let map = self.current();
        weft_control::members_first(map.wire.members.iter().map(|m| m.address.clone()), configured)
    }

    async fn watch(
        &self,
        server: &str,
        transport: Arc<dyn Transport>,
        changes: bool,
    ) -> Result<()> {
        let have = self.current().epoch;
        let mut maps = weft_control::watch_map(&transport, server, have, changes).await?;
        while let Some(news) = maps.next().await? {
            if news.epoch > self.current().epoch.0 {
                info!(server, epoch = news.epoch, since = news.since, "cluster map");
            }
            self.offer(news)?;
        }
        Ok(())
    }
}
