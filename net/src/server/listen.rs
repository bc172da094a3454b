//! Accepts connections until told to stop.

use super::session::{self, Context};
use super::sniff::{Speaks, sniff};
use super::{ServerOptions, Service};
use crate::transport::{BoxStream, Listener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// A connection that has not said what it wants by then is closed.
const FIRST_BYTES: Duration = Duration::from_secs(5);
/// Pause after a failed accept (mostly: no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` becomes true, then stops to read, lets the requests in flight finish (a
/// few seconds at most), and returns. Dropping the future cuts everything off at once.
pub async fn serve(
    mut listener: Box<dyn Listener>,
    service: Arc<dyn Service>,
    options: ServerOptions,
    mut shutdown: watch::Receiver<bool>,
) {
    let context = Arc::new(Context { service, options, shutdown: shutdown.clone() });
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut shutdown) => break,
            Some(ended) = sessions.join_next(), if !sessions.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection's task failed");
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    sessions.spawn(admit(context.clone(), stream, address));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    while sessions.join_next().await.is_some() {}
}

/// Returns when `shutdown` is true; never if its sender has gone without saying so.
pub(super) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    if shutdown.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn admit(context: Arc<Context>, stream: BoxStream, address: String) {
    let mut shutdown = context.shutdown.clone();
    let speaks = tokio::select! {
        biased;
        speaks = timeout(FIRST_BYTES, sniff(stream)) => speaks,
        () = stopped(&mut shutdown) => return,
    };
    match speaks {
        Ok(Ok(Speaks::Frames(stream))) => session::run(context, stream, address).await,
        Ok(Ok(Speaks::Http2(stream))) => {
            hand_over(context.options.http2.as_ref(), stream, &address)
        }
        Ok(Ok(Speaks::Unknown(first))) => {
            tracing::warn!(%address, first = format!("{first:02x?}"), "unknown protocol, closing");
        }
        Ok(Err(error)) => tracing::debug!(%address, %error, "closed before it said anything"),
        Err(_) => tracing::debug!(%address, "silent after connecting, closing"),
    }
}

fn hand_over(http2: Option<&mpsc::Sender<BoxStream>>, stream: BoxStream, address: &str) {
    match http2.map(|to| to.try_send(stream)) {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(%address, %error, "cannot take an HTTP/2 connection"),
        None => tracing::warn!(%address, "HTTP/2 is not served on this port, closing"),
    }
}
