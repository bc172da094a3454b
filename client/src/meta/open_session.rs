//! Opens a session with the metadata group, and ends that of a client that is dead.

use super::group::{ATTEMPT_TIMEOUT, Group, unexpected};
use crate::options::after;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, Result, SessionId, Uuid, v1};
use weft_segments::Rng;

/// Sessions of clients that have died are ended within this, all of them; the own one lives longer
/// without being renewed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before it is tried again where there was no room for one more.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);

/// Opens the first session of a mount, and ends those of the clients that are dead and in whose
/// place it is. Before, where there is no room for one more, since it is those that may take it;
/// else after, so that a cluster that does not answer has been found by then. If there is no room
/// after that either, others may leave some until the deadline. Errors: those of
/// [`open_session`], and `Busy`.
pub(crate) async fn begin_session(
    group: &Group,
    client: &str,
    mut dead: &[Uuid],
    rng: &Rng,
    deadline: Instant,
) -> Result<(Duration, Option<Uuid>)> {
    let mut is_told = false;
    let opened = loop {
        let busy = match open_session(group, None, client, rng, deadline).await {
            Err(error) if error.kind == ErrorKind::Busy => error,
            Err(error) => return Err(error),
            Ok(opened) => break opened,
        };
        if !dead.is_empty() {
            end_sessions(group, std::mem::take(&mut dead)).await;
            continue;
        }
        let next = Instant::now() + BUSY_INTERVAL;
        if next >= deadline {
            return Err(busy);
        }
        if !std::mem::replace(&mut is_told, true) {
            warn!(error = %busy, "there is no room for this client yet; trying on");
        }
        sleep_until(next).await;
    };
    end_sessions(group, dead).await;
    Ok(opened)
}

/// Opens a session and makes it the current one. Answers its time to live and the cluster. Errors:
/// `WrongCluster` if that is not `of`, the one that was mounted; `Stale` if it was restored from a
/// backup since: what the mount knows of files is of a past that the cluster does not have.
pub(crate) async fn open_session(
    group: &Group,
    of: Option<Uuid>,
    client: &str,
    rng: &Rng,
    deadline: Instant,
) -> Result<(Duration, Option<Uuid>)> {
    let key = Uuid(rng.nonce());
    if let Some(keep) = &group.keep_session {
        keep(key);
    }
    let nonce = key.0.to_vec().into();
    let op =
        Op::OpenSession(v1::OpenSessionOp { client: client.into(), nonce, ..Default::default() });
    let request = v1::MetaRequest { op: Some(op), ..Default::default() };
    let sent = Instant::now();
    match group.send(&request, ATTEMPT_TIMEOUT, deadline).await?.result()? {
        Reply::OpenSession(reply) if reply.session != 0 => {
            let cluster = Uuid::from_slice(&reply.cluster);
            if of.is_some() && cluster != of {
                let what =
                    "another cluster was made in place of the one that was mounted: mount it anew";
                return Err(Error::new(ErrorKind::WrongCluster, what));
            }
            if *group.incarnation.get_or_init(|| reply.incarnation) != reply.incarnation {
                let what = "the cluster was restored from a backup since it was mounted: mount it \
                            anew";
                return Err(Error::new(ErrorKind::Stale, what));
            }
            group.confinement.opened(&reply);
            // What an answer in the last session has granted since that was lost; not what others
            // are granted in this one, as soon as they know of it.
            group.leases.lost();
            // An earlier try may have opened it: its time runs from then.
            group.leases.renewed(sent, Duration::from_millis(reply.ttl_ms));
            group.sessions.begin(SessionId(reply.session));
            Ok((Duration::from_millis(reply.ttl_ms), cluster))
        }
        _ => Err(unexpected("opening a session")),
    }
}

async fn end_sessions(group: &Group, dead: &[Uuid]) {
    let until = after(END_TIMEOUT);
    for key in dead {
        end_session(group, *key, until).await;
    }
}

/// Ends the session of a client that is dead for certain. If that cannot be done, it ends when its
/// time is over.
async fn end_session(group: &Group, key: Uuid, deadline: Instant) {
    let op = Op::EndSession(v1::EndSessionOp { nonce: key.0.to_vec().into() });
    let request = v1::MetaRequest { op: Some(op), ..Default::default() };
    let told = group.send(&request, ATTEMPT_TIMEOUT, deadline).await;
    match told.map_err(Error::from).and_then(|answered| answered.result()) {
        Ok(_) => info!("the session of the client before, which died, is over"),
        Err(error) => warn!(%error, "the session of the client before ends when its time is over"),
    }
}
