//! The newest cluster map, and the watch that keeps it new.
//!
//! Invariants: the epoch that [`MapWatch::current`] answers never goes back; changes are carried
//! out on the map that they are of.

use crate::map::Map;
use crate::rng::Rng;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::{Endpoint, Uri};
use tracing::{debug, info, warn};
use weft_net::{Address, Transport};
use weft_proto::v1::control_client::ControlClient;
use weft_proto::{Error, ErrorKind, MapEpoch, Result, map, v1};

const CONNECT: Duration = Duration::from_secs(3);
const KEEPALIVE: Duration = Duration::from_secs(3);

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
            let mut servers = metadata.clone();
            servers.extend(self.current().wire.members.iter().map(|m| m.address.clone()));
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
                warn!(server, error = ?end.err(), "cannot watch the cluster map; going on with the last");
            }
            sleep(rng.backoff(failed)).await;
        }
    }

    async fn watch(
        &self,
        server: &str,
        transport: Arc<dyn Transport>,
        changes: bool,
    ) -> Result<()> {
        let channel = channel(server, transport).await?;
        let have_epoch = self.current().epoch.0;
        let mut control = ControlClient::new(channel).max_decoding_message_size(map::MAX_BYTES);
        let bad = |what: tonic::Status| {
            Error::new(ErrorKind::Unavailable, format!("map watch at {server}: {what}"))
        };
        let request = v1::WatchMapRequest { have_epoch, changes };
        let mut maps = timeout(CONNECT, control.watch_map(request))
            .await
            .map_err(|_| bad(tonic::Status::deadline_exceeded("no answer")))?
            .map_err(bad)?
            .into_inner();
        loop {
            let news = maps.message();
            let news = match self.current().epoch.0 {
                // Who has a map sends it at once; a server that has not heard of the cluster yet
                // sends none.
                0 => timeout(CONNECT, news)
                    .await
                    .map_err(|_| bad(tonic::Status::deadline_exceeded("it has no map")))?,
                _ => news.await,
            };
            let Some(news) = news.map_err(bad)? else { return Ok(()) };
            if news.epoch > self.current().epoch.0 {
                info!(server, epoch = news.epoch, since = news.since, "cluster map");
            }
            self.offer(news)?;
        }
    }
}

/// A gRPC channel to a metadata server over `transport`.
async fn channel(
    address: &str,
    transport: Arc<dyn Transport>,
) -> Result<tonic::transport::Channel> {
    let bad = |what: &dyn std::fmt::Display| {
        Error::new(
            ErrorKind::Unavailable,
            format!("cannot reach metadata server {address}: {what}"),
        )
    };
    let connector = tower::service_fn({
        let address = address.parse::<Address>().map_err(|e| bad(&e))?;
        move |_: Uri| {
            let (transport, address) = (transport.clone(), address.clone());
            async move { transport.stream(&address).await.map(TokioIo::new) }
        }
    });
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|e| bad(&e))?
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true);
    timeout(CONNECT, endpoint.connect_with_connector(connector))
        .await
        .map_err(|_| bad(&"no answer"))?
        .map_err(|e| bad(&e))
}
