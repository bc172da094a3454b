//! The daemon's side of the control service: finds the leading metadata server, registers targets,
//! sends heartbeats.

use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use v1::control_client::ControlClient;
use weft_net::{Address, Transport};
use weft_proto::{Error, ErrorKind, Result, v1};

/// Longest wait for one answer. A server waits itself for an election to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// A request of the control service.
pub(crate) trait Question: Clone + Send {
    type Answer: Send;
    fn ask(
        self,
        client: &mut ControlClient<Channel>,
    ) -> impl Future<Output = Asked<Self::Answer>> + Send;
}
type Asked<A> = Result<tonic::Response<A>, tonic::Status>;

impl Question for v1::RegisterTargetRequest {
    type Answer = v1::RegisterTargetReply;
    async fn ask(self, client: &mut ControlClient<Channel>) -> Asked<Self::Answer> {
        client.register_target(self).await
    }
}

impl Question for v1::HeartbeatRequest {
    type Answer = v1::HeartbeatReply;
    async fn ask(self, client: &mut ControlClient<Channel>) -> Asked<Self::Answer> {
        client.heartbeat(self).await
    }
}

/// A connection to the metadata group.
pub(crate) struct Control {
    transport: Arc<dyn Transport>,
    addresses: Vec<String>,
    /// Next of `addresses` to try.
    next: usize,
    /// Where the leader is, as the last one asked said.
    leader: Option<String>,
    client: Option<ControlClient<Channel>>,
}

impl Control {
    pub fn new(transport: Arc<dyn Transport>, addresses: Vec<String>) -> Self {
        Self { transport, addresses, next: 0, leader: None, client: None }
    }

    /// Asks each server once, and the leader that they name. Errors: `WrongCluster`; `NotFound`
    /// when the leader does not know a target of a heartbeat; `Unavailable` or `NotLeader` when
    /// none leads.
    pub async fn call<Q: Question>(&mut self, question: Q) -> Result<Q::Answer> {
        let mut last = Error::new(ErrorKind::Unavailable, "no metadata server is configured");
        for _ in 0..=self.addresses.len() {
            let mut client = match self.client().await {
                Ok(client) => client,
                Err(e) => {
                    last = e;
                    continue;
                }
            };
            match timeout(PATIENCE, question.clone().ask(&mut client)).await {
                Ok(Ok(answer)) => {
                    self.client = Some(client);
                    return Ok(answer.into_inner());
                }
                Ok(Err(status)) => {
                    last = error_of(&status);
                    self.leader = Some(last.hint.clone()).filter(|h| !h.is_empty());
                    let retry = matches!(last.kind, ErrorKind::NotLeader | ErrorKind::Unavailable);
                    if !retry {
                        self.client = Some(client);
                        return Err(last);
                    }
                }
                Err(_) => {
                    last = Error::new(ErrorKind::TimedOut, "a metadata server does not answer");
                }
            }
        }
        Err(last)
    }

    /// The connection that served last, or a new one to the leader if known, else to the next
    /// server.
    async fn client(&mut self) -> Result<ControlClient<Channel>> {
        if let Some(client) = self.client.take() {
            return Ok(client);
        }
        let address = match self.leader.take() {
            Some(leader) => leader,
            None => {
                let address = self.addresses.get(self.next % self.addresses.len().max(1)).cloned();
                self.next += 1;
                address.unwrap_or_default()
            }
        };
        let fail = |what: String| {
            Error::new(ErrorKind::Unavailable, format!("metadata server {address}: {what}"))
        };
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).map_err(|e| fail(e.to_string()))?;
        let transport = self.transport.clone();
        let to = address.parse::<Address>().map_err(|e| fail(e.to_string()))?;
        let connector = tower::service_fn(move |_| {
            let (transport, to) = (transport.clone(), to.clone());
            async move { transport.stream(&to).await.map(TokioIo::new) }
        });
        match timeout(PATIENCE, endpoint.connect_with_connector(connector)).await {
            Ok(Ok(channel)) => Ok(ControlClient::new(channel)),
            Ok(Err(e)) => Err(fail(error_chain(&e))),
            Err(_) => Err(fail("no connection in time".into())),
        }
    }
}

/// The error that a metadata server sent, from the metadata entries `weft-error` and `weft-leader`.
fn error_of(status: &tonic::Status) -> Error {
    let entry = |name| status.metadata().get(name).and_then(|v| v.to_str().ok());
    let kind = entry("weft-error").and_then(|code| code.parse().ok()).map(ErrorKind::from_code);
    let mut error = Error::new(kind.unwrap_or(ErrorKind::Unavailable), status.message());
    error.hint = entry("weft-leader").unwrap_or_default().to_string();
    error
}

fn error_chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        text = format!("{text}: {e}");
        source = e.source();
    }
    text
}
