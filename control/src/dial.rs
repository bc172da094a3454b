//! A connection to one metadata server.

use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Uri};
use weft_net::{Address, BoxStream, Transport};
use weft_proto::v1::control_client::ControlClient;
use weft_proto::{Error, ErrorKind, Result, Role, map};

/// Longest wait for a connection, and for one answer. A server waits itself for an election to end.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two pings of a connection, and the longest wait for the answer to one.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
/// Bytes of the longest answer. A status carries the whole map: many thousand placement groups
/// exceed tonic's 4 MiB. As much again is for what comes beside it.
const LONGEST: usize = 2 * map::MAX_BYTES;

/// The control service of one server.
pub type Client = ControlClient<Channel>;

/// Connects to the server at `address`. Error: `Unavailable` with what went wrong, after 3 s at
/// most.
pub async fn dial(transport: &Arc<dyn Transport>, address: &str) -> Result<Client> {
    connect(transport, address, |endpoint| endpoint).await
}

/// As [`dial`], for who waits for long: the connection ends when the server answers no pings.
pub(crate) async fn dial_and_ping(transport: &Arc<dyn Transport>, address: &str) -> Result<Client> {
    let pings = |endpoint: Endpoint| {
        endpoint
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_INTERVAL)
            .keep_alive_while_idle(true)
    };
    connect(transport, address, pings).await
}

async fn connect(
    transport: &Arc<dyn Transport>,
    address: &str,
    tune: impl Fn(Endpoint) -> Endpoint,
) -> Result<Client> {
    let fail = |what: String| {
        Error::new(ErrorKind::Unavailable, format!("metadata server {address}: {what}"))
    };
    let to = address.parse::<Address>().map_err(|e| fail(e.to_string()))?;
    // Only names the server in requests: the transport knows the way.
    let endpoint = Endpoint::from_shared(format!("http://{}", authority(&to)));
    let endpoint = tune(endpoint.map_err(|e| fail(e.to_string()))?);
    let transport = transport.clone();
    let connector = tower::service_fn(move |_: Uri| {
        let (transport, to) = (transport.clone(), to.clone());
        async move { proved(transport.stream(&to).await?).map(TokioIo::new) }
    });
    match timeout(ANSWER_TIMEOUT, endpoint.connect_with_connector(connector)).await {
        Ok(Ok(channel)) => Ok(ControlClient::new(channel).max_decoding_message_size(LONGEST)),
        Ok(Err(e)) => Err(fail(with_hint(with_causes(&e)))),
        Err(_) => Err(fail(format!("no connection within {ANSWER_TIMEOUT:?}"))),
    }
}

/// What a server that wants certificates looks like to who shows none.
fn with_hint(text: String) -> String {
    match text.contains("http2 error") {
        true => format!(
            "{text}; if the cluster has certificates, give --tls-ca, --tls-cert and --tls-key"
        ),
        false => text,
    }
}

/// Where who serves has to prove who it is, a metadata server.
fn proved(stream: BoxStream) -> io::Result<BoxStream> {
    match stream.subject() {
        Some(subject) if subject.role != Role::Metadata => {
            let what = format!("its certificate is that of {subject}, and no metadata server's");
            Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
        }
        _ => Ok(stream),
    }
}

/// Host and port without the network that they are on.
fn authority(address: &Address) -> String {
    match address.host() {
        host if host.contains(':') => format!("[{host}]:{}", address.port()),
        host => format!("{host}:{}", address.port()),
    }
}

/// An error and what caused it; tonic's own says only "transport error". A cause that the text
/// before it already tells is left out.
fn with_causes(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        let cause = e.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = e.source();
    }
    text
}
