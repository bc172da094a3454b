//! Calls that only the leader of the metadata group answers.

use crate::dial::{ANSWER_TIMEOUT, Client, dial};
use crate::wire::from_status;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Response, Status};
use weft_net::Transport;
use weft_proto::{Error, ErrorKind, Result, v1};

/// A request of the control service.
pub trait Question: Clone + Send {
    /// What it is answered.
    type Answer: Send;

    /// Longest wait for the answer of one server.
    const PATIENCE: Duration = ANSWER_TIMEOUT;

    /// Asks one server.
    fn ask(
        self,
        client: &mut Client,
    ) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;
}

impl Question for v1::RegisterTargetRequest {
    type Answer = v1::RegisterTargetReply;

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.register_target(self).await
    }
}

impl Question for v1::HeartbeatRequest {
    type Answer = v1::HeartbeatReply;

    /// A leader's host that dies says nothing, and a target is down that the next leader does not
    /// hear of soon.
    const PATIENCE: Duration = Duration::from_secs(1);

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.heartbeat(self).await
    }
}

impl Question for v1::CheckChunksRequest {
    type Answer = v1::CheckChunksReply;

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.check_chunks(self).await
    }
}

impl Question for v1::SetTargetRequest {
    type Answer = v1::SetTargetReply;

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.set_target(self).await
    }
}

impl Question for v1::CheckDomainsRequest {
    type Answer = v1::CheckDomainsReply;

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.check_domains(self).await
    }
}

impl Question for v1::ListEventsRequest {
    type Answer = v1::ListEventsReply;

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.list_events(self).await
    }
}

impl Question for v1::SetQosRequest {
    type Answer = v1::SetQosReply;

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.set_qos(self).await
    }
}

impl Question for v1::ListQosRequest {
    type Answer = v1::ListQosReply;

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.list_qos(self).await
    }
}

impl Question for v1::SetMemberRequest {
    type Answer = v1::SetMemberReply;

    async fn ask(self, client: &mut Client) -> Result<Response<Self::Answer>, Status> {
        client.set_member(self).await
    }
}

/// Where to ask, in this order: the members of the group, then those configured that are none.
pub fn members_first(
    members: impl IntoIterator<Item = String>,
    configured: &[String],
) -> Vec<String> {
    let mut all: Vec<String> = members.into_iter().filter(|m| !m.is_empty()).collect();
    for address in configured {
        if !all.contains(address) {
            all.push(address.clone());
        }
    }
    all
}

/// The metadata group, with a connection to the server that answered last.
pub struct Group {
    transport: Arc<dyn Transport>,
    /// As configured.
    seeds: Vec<String>,
    /// The members as last heard of, and then the seeds.
    addresses: Vec<String>,
    /// Next of `addresses` to try.
    next: usize,
    /// Where the leader is, as the last one asked said.
    leader: Option<String>,
    /// With its address.
    client: Option<(String, Client)>,
}

impl Group {
    /// The group of which the servers at `addresses` are members. Nothing is connected yet.
    pub fn new(transport: Arc<dyn Transport>, addresses: Vec<String>) -> Self {
        let seeds = addresses.clone();
        Self { transport, seeds, addresses, next: 0, leader: None, client: None }
    }

    /// The members are these now. The servers that the group was made with are asked after them.
    pub fn learn(&mut self, members: impl IntoIterator<Item = String>) {
        let addresses = members_first(members, &self.seeds);
        if self.addresses != addresses {
            (self.addresses, self.next) = (addresses, 0);
        }
    }

    /// Asks each server once, and the leader that they name, each for [`Question::PATIENCE`] at
    /// most once it is connected. Errors: what the leader says; `Unavailable`, `NotLeader` or
    /// `TimedOut` of the last one asked when none leads.
    pub async fn call<Q: Question>(&mut self, question: Q) -> Result<Q::Answer> {
        let mut last = Error::new(ErrorKind::Unavailable, "no metadata server is configured");
        // Others may think for a while that one of these leads.
        let mut silent = Vec::new();
        for _ in 0..=self.addresses.len() {
            let (address, mut client) = match self.client.take() {
                Some(kept) => kept,
                None => {
                    let Some(address) = self.address() else { break };
                    match dial(&self.transport, &address).await {
                        Ok(client) => (address, client),
                        Err(e) => {
                            last = e;
                            silent.push(address);
                            continue;
                        }
                    }
                }
            };
            match timeout(Q::PATIENCE, question.clone().ask(&mut client)).await {
                Ok(Ok(answer)) => {
                    self.client = Some((address, client));
                    return Ok(answer.into_inner());
                }
                Ok(Err(status)) => {
                    last = from_status(&status);
                    let is_new = |hint: &String| !hint.is_empty() && !silent.contains(hint);
                    self.leader = Some(last.hint.clone()).filter(is_new);
                    let retry = matches!(last.kind, ErrorKind::NotLeader | ErrorKind::Unavailable);
                    if !retry {
                        self.client = Some((address, client));
                        return Err(last);
                    }
                }
                Err(_) => {
                    last = Error::new(ErrorKind::TimedOut, "a metadata server does not answer");
                    let at = self.addresses.iter().position(|known| *known == address);
                    self.next = at.map_or(self.next, |at| at + 1);
                    silent.push(address);
                }
            }
        }
        Err(last)
    }

    /// Whom to connect to: the leader if it is known, else the next server. `None`: there is none.
    fn address(&mut self) -> Option<String> {
        self.leader.take().or_else(|| {
            let at = self.next % self.addresses.len().max(1);
            self.next = at + 1;
            self.addresses.get(at).cloned()
        })
    }
}

#[cfg(test)]
mod tests;
