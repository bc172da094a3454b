//! The cluster map of one server, as it changes.

use crate::dial::{ANSWER_TIMEOUT, dial_and_ping};
use crate::wire::from_status;
use std::sync::Arc;
use tokio::time::timeout;
use weft_net::Transport;
use weft_proto::{Error, ErrorKind, MapEpoch, Result, map, v1};

/// What a server tells of its map from now on.
pub struct News {
    server: String,
    maps: tonic::Streaming<v1::ClusterMap>,
    /// Whoever has no map needs one now.
    urgent: bool,
}

/// Watches the map of the server at `address`, which tells of all that is newer than `have`; with
/// `changes`, as changes of that map if it can. Error: `Unavailable`.
pub async fn watch_map(
    transport: &Arc<dyn Transport>,
    address: &str,
    have: MapEpoch,
    changes: bool,
) -> Result<News> {
    let client = dial_and_ping(transport, address).await?;
    let mut client = client.max_decoding_message_size(map::MAX_BYTES);
    let request = v1::WatchMapRequest { have_epoch: have.0, changes, dropped_targets: changes };
    let answer = match timeout(ANSWER_TIMEOUT, client.watch_map(request)).await {
        Ok(answer) => answer.map_err(|status| failed(address, &from_status(&status).message))?,
        Err(_) => return Err(failed(address, "no answer")),
    };
    let urgent = have == MapEpoch(0);
    Ok(News { server: address.into(), maps: answer.into_inner(), urgent })
}

impl News {
    /// The next map or change; `None` when the server ends the watch. Who has no map yet waits for
    /// 3 s at most: a server that has one sends it at once, and one that has not heard of the
    /// cluster sends none. Error: `Unavailable`.
    pub async fn next(&mut self) -> Result<Option<v1::ClusterMap>> {
        let next = self.maps.message();
        let next = if self.urgent {
            timeout(ANSWER_TIMEOUT, next)
                .await
                .map_err(|_| failed(&self.server, "it has no map"))?
        } else {
            next.await
        };
        self.urgent = false;
        next.map_err(|status| failed(&self.server, &from_status(&status).message))
    }
}

fn failed(server: &str, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("map watch at {server}: {what}"))
}
