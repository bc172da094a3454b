//! Accepts connections until told to stop.

use super::budget::Budget;
use super::door::{Door, Seat};
use super::seated::Seated;
use super::session::{self, Context, stopped};
use super::{ServerOptions, Service};
use crate::address::Address;
use crate::metrics::CONNECTIONS;
use crate::rdma;
use crate::stream::BoxStream;
use crate::transport::{Listener, Opening, Speaks};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use weft_proto::{Error, ErrorKind};

/// A connection that has not said what it wants by then is closed.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept (mostly: no file descriptors left).
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Time for a peer to hear that there is no place for it.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked for idle connections.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// So many newcomers at a time are told that there is no place for them; others are just closed.
const REFUSALS: usize = 64;
/// Of the memory for requests and answers, a quarter is kept back for [`crate::Way::Freeing`], and
/// no more than this.
const KEPT_BACK: usize = 64 << 20;

/// Serves until `shutdown` becomes true, then stops to read, lets the requests in flight finish (a
/// few seconds at most), and returns. Dropping the future cuts everything off at once.
pub async fn serve(
    mut listener: Box<dyn Listener>,
    service: Arc<dyn Service>,
    options: ServerOptions,
    mut shutdown: watch::Receiver<bool>,
) {
    // It is told from the beginning on.
    CONNECTIONS.get();
    let kept_back = KEPT_BACK.min(options.max_memory / 4);
    let context = Arc::new(Context {
        service,
        common: Budget::new(options.max_memory - kept_back),
        kept_back: Budget::new(kept_back),
        options,
        shutdown: shutdown.clone(),
    });
    let door = Door::new(context.options.max_connections);
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                Ok((opening, address)) => match door.enter(address.host()) {
                    Ok(seat) => {
                        sessions.spawn(admit(context.clone(), opening, address, seat));
                    }
                    Err(why) => {
                        tracing::warn!(%address, "refusing a connection: {why}");
                        if let Ok(permit) = refusals.clone().try_acquire_owned() {
                            let context = context.clone();
                            sessions.spawn(async move {
                                refuse(&context, opening, why).await;
                                drop(permit);
                            });
                        }
                    }
                },
                Err(error) => {
                    let room = door.make_room();
                    tracing::warn!(%error, room, "cannot accept a connection");
                    sleep(ACCEPT_RETRY_INTERVAL).await;
                }
            },
            _ = looks.tick() => door.look(),
        }
    }
    drop(listener);
    while sessions.join_next().await.is_some() {}
}

async fn admit(context: Arc<Context>, opening: Box<dyn Opening>, address: Address, seat: Seat) {
    let mut shutdown = context.shutdown.clone();
    let speaks = tokio::select! {
        biased;
        speaks = timeout(FIRST_BYTES_TIMEOUT, opening.speaks()) => speaks,
        () = seat.lost() => return,
        () = stopped(&mut shutdown) => return,
    };
    match speaks {
        Ok(Ok(Speaks::Frames(link))) => session::run(context, link, address, seat).await,
        Ok(Ok(Speaks::Http2(stream))) => {
            let stream = Box::new(Seated::new(stream, seat));
            hand_over(context.options.http2.as_ref(), stream, &address)
        }
        Ok(Ok(Speaks::Http1(stream))) => {
            let stream = Box::new(Seated::new(stream, seat));
            hand_over(context.options.http1.as_ref(), stream, &address)
        }
        Ok(Ok(Speaks::Rdma(stream))) => {
            // Who asks is told so, or has gone.
            let refusal = rdma::refuse(stream, "this server does not serve RDMA");
            let _ = timeout(REFUSAL_TIMEOUT, refusal).await;
        }
        Ok(Ok(Speaks::Unknown(first))) => {
            tracing::warn!(%address, first = format!("{first:02x?}"), "unknown protocol, closing");
        }
        Ok(Err(error)) => tracing::debug!(%address, %error, "closed before it said anything"),
        Err(_) => tracing::debug!(%address, "silent after connecting, closing"),
    }
}

fn hand_over(http: Option<&mpsc::Sender<BoxStream>>, stream: BoxStream, address: &Address) {
    match http.map(|to| to.try_send(stream)) {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(%address, %error, "cannot take an HTTP connection"),
        None => tracing::warn!(%address, "this HTTP is not served on this port, closing"),
    }
}

/// Answers the hello of a peer that there is no place for; what speaks otherwise is just closed.
async fn refuse(context: &Context, opening: Box<dyn Opening>, why: String) {
    let refusal = async {
        if let Ok(Speaks::Frames(link)) = opening.speaks().await {
            let name = &context.options.identity.name;
            let what = format!("{name}: {why}");
            session::refuse(link, Error::new(ErrorKind::Unavailable, what)).await;
        }
    };
    // Who does not listen learns nothing.
    let _ = timeout(REFUSAL_TIMEOUT, refusal).await;
}
