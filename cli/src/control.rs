//! Asks metadata servers for their status over gRPC.

use crate::output::describe;
use anyhow::{Context, Result, bail};
use std::time::Duration;
use weft_proto::v1::control_client::ControlClient;
use weft_proto::v1::{self, StatusReply};

/// Where the cluster is.
#[derive(clap::Args, Clone, Debug)]
pub struct ClusterArgs {
    /// Addresses of the metadata servers, host:port separated by commas; one that lives is enough
    #[arg(
        long,
        env = "WEFT_CLUSTER",
        value_delimiter = ',',
        required = true,
        value_name = "ADDR,.."
    )]
    pub cluster: Vec<String>,
}

/// Longest that one server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The status of one server, as it sees itself.
pub async fn status_of(address: &str) -> Result<StatusReply> {
    let ask = async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
            .with_context(|| format!("{address:?} is not an address; write host:port"))?;
        let channel = endpoint.connect_timeout(PATIENCE).connect().await?;
        // Status carries the whole map: many thousand placement groups exceed tonic's 4 MiB. As much again
        // is for what comes beside it.
        let most = 2 * weft_proto::map::MAX_BYTES;
        let mut client = ControlClient::new(channel).max_decoding_message_size(most);
        Ok(client.status(v1::StatusRequest {}).await?.into_inner())
    };
    tokio::time::timeout(PATIENCE, ask)
        .await
        .unwrap_or_else(|_| bail!("no answer within {PATIENCE:?}"))
        .with_context(|| format!("metadata server {address}"))
}

/// The status of every server, in the order given, asked at the same time.
pub async fn statuses(addresses: &[String]) -> Vec<(String, Result<StatusReply>)> {
    let asks: Vec<_> = addresses
        .iter()
        .cloned()
        .map(|address| tokio::spawn(async move { (address.clone(), status_of(&address).await) }))
        .collect();
    let mut answers = Vec::with_capacity(asks.len());
    for (ask, address) in asks.into_iter().zip(addresses) {
        answers.push(ask.await.unwrap_or_else(|e| (address.clone(), Err(e.into()))));
    }
    answers
}

/// The leader's status: among `answers`, or found by following them.
pub async fn leader_of(answers: &[(String, Result<StatusReply>)]) -> Result<StatusReply> {
    let replies = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    if let Some(reply) = replies().find(|r| r.leader != 0 && r.leader == r.id) {
        return Ok(reply.clone());
    }
    // A list that names only some of the members still reaches the leader.
    let hint = replies().map(|r| &r.leader_address).find(|a| !a.is_empty());
    if let Some(address) = hint {
        let reply = status_of(address).await?;
        if reply.leader == reply.id {
            return Ok(reply);
        }
    }
    match answers.iter().filter_map(|(_, answer)| answer.as_ref().err()).next() {
        Some(error) if replies().next().is_none() => {
            bail!("no metadata server answers; is the cluster running? ({})", describe(error))
        }
        _ => bail!("the metadata servers have no leader; a majority of them must be running"),
    }
}

/// Asks the cluster's leader.
pub async fn leader_status(cluster: &[String]) -> Result<StatusReply> {
    leader_of(&statuses(cluster).await).await
}
