//! What servers say of themselves, and what their leader says of the cluster.

use crate::dial::{ANSWER_TIMEOUT, dial};
use crate::wire::from_status;
use std::sync::Arc;
use tokio::time::timeout;
use weft_net::Transport;
use weft_proto::v1::{StatusReply, StatusRequest};
use weft_proto::{Error, ErrorKind, Result};

/// What each server answered, with its address.
pub type Answers = Vec<(String, Result<StatusReply>)>;

/// The status of one server, as it sees itself. Errors: `Unavailable`; `TimedOut` after 3 s.
pub async fn status_of(transport: &Arc<dyn Transport>, address: &str) -> Result<StatusReply> {
    let ask = async {
        let mut client = dial(transport, address).await?;
        let answer = client.status(StatusRequest {}).await.map_err(|status| {
            let e = from_status(&status);
            Error { message: format!("metadata server {address}: {}", e.message), ..e }
        })?;
        Ok(answer.into_inner())
    };
    timeout(ANSWER_TIMEOUT, ask).await.unwrap_or_else(|_| {
        let what = format!("metadata server {address}: no answer within {ANSWER_TIMEOUT:?}");
        Err(Error::new(ErrorKind::TimedOut, what))
    })
}

/// The status of every server, in the order given, asked at the same time.
pub async fn statuses(transport: &Arc<dyn Transport>, addresses: &[String]) -> Answers {
    let asks = addresses.iter().cloned().map(|address| {
        let transport = transport.clone();
        let ask = async move { status_of(&transport, &address).await };
        tokio::spawn(ask)
    });
    let asks: Vec<_> = asks.collect();
    let mut answers = Vec::with_capacity(asks.len());
    for (ask, address) in asks.into_iter().zip(addresses) {
        let failed = |e| Err(Error::new(ErrorKind::Internal, format!("{address}: {e}")));
        answers.push((address.clone(), ask.await.unwrap_or_else(failed)));
    }
    answers
}

/// The leader's status: among `answers`, or found by following them. Errors: `Unavailable` when no
/// server answers, `NotLeader` when none leads.
pub async fn leader_of(transport: &Arc<dyn Transport>, answers: &Answers) -> Result<StatusReply> {
    let replies = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    if let Some(reply) = replies().find(|r| leads(r)) {
        return Ok(reply.clone());
    }
    // A list that names only some of the members still reaches the leader.
    if let Some(hint) = replies().map(|r| &r.leader_address).find(|a| !a.is_empty()) {
        let reply = status_of(transport, hint).await?;
        if leads(&reply) {
            return Ok(reply);
        }
    }
    match answers.iter().find_map(|(_, answer)| answer.as_ref().err()) {
        Some(error) if replies().next().is_none() => {
            let what = format!("no metadata server answers; is the cluster running? ({error})");
            Err(Error::new(ErrorKind::Unavailable, what))
        }
        _ => {
            let what = "the metadata servers have no leader; a majority of them must be running";
            Err(Error::new(ErrorKind::NotLeader, what))
        }
    }
}

/// Asks the leader of the group of which the servers at `addresses` are members. Errors as of
/// [`leader_of`].
pub async fn leader_status(
    transport: &Arc<dyn Transport>,
    addresses: &[String],
) -> Result<StatusReply> {
    leader_of(transport, &statuses(transport, addresses).await).await
}

fn leads(reply: &StatusReply) -> bool {
    reply.leader != 0 && reply.leader == reply.id
}
