//! Opens a session. A retry with the same nonce gets the same one. A leader opens some of its own.

use crate::known::Known;
use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::schema::{self, Cluster, NonceOwner, Session};
use crate::store::{Read, StoreResult, Txn};
use weft_proto::{ErrorKind, SessionId, v1};

/// How long a session lives without being renewed, in milliseconds.
pub const SESSION_TTL_MS: u64 = 10_000;

const NONCE_LEN: usize = 16;
/// Longest name of a client, in bytes.
const MAX_CLIENT: usize = 1024;

pub(crate) struct Plan {
    cluster: Cluster,
    existing: Option<u64>,
}

impl Operation for v1::OpenSessionOp {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
        let Some(cluster) = state.cluster()? else {
            return refuse(ErrorKind::Unavailable, "the cluster is not initialised yet");
        };
        if self.nonce.len() != NONCE_LEN || self.client.len() > MAX_CLIENT {
            return refuse(
                ErrorKind::Invalid,
                format!("a session needs a nonce of {NONCE_LEN} bytes and a short client name"),
            );
        }
        let known: Option<NonceOwner> = state.load(&schema::nonce(&self.nonce))?;
        let existing = known.map(|known| known.session);
        if let Some(number) = existing
            && let Some(session) = state.session(SessionId(number))?
            && session.owner != self.owner
        {
            let what = format!("session {number} is that of {:?}", session.owner);
            return refuse(ErrorKind::NotPermitted, what);
        }
        Ok(Plan { cluster, existing })
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let session = match plan.existing {
            Some(session) => session,
            None => open(self, tx)?,
        };
        Ok(Reply::OpenSession(v1::OpenSessionReply {
            session,
            ttl_ms: SESSION_TTL_MS,
            cluster: plan.cluster.id,
            incarnation: plan.cluster.incarnation,
            ..Default::default()
        }))
    }
}

fn open(op: &v1::OpenSessionOp, tx: &mut Txn<'_>) -> StoreResult<u64> {
    let (client, nonce, owner) = (op.client.clone(), op.nonce.clone(), op.owner.clone());
    let confined = op.confined;
    if confined {
        // From now on no version may come that passes over it.
        super::raise_level(tx, Known::Confined as u32)?;
    }
    let session = Session { client, nonce, owner, confined, acked_below: 1, ..Default::default() };
    let number = begin(tx, session)?;
    tx.put(schema::nonce(&op.nonce), &NonceOwner { session: number });
    Ok(number)
}

fn begin(tx: &mut Txn<'_>, session: Session) -> StoreResult<u64> {
    let number = tx.edit_counters(|c| {
        c.next_session += 1;
        c.next_session - 1
    })?;
    tx.put(schema::session(SessionId(number)), &session);
    Ok(number)
}

/// A session of the leader's own.
impl Operation for v1::OpenWriterEntry {
    type Plan = Cluster;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Cluster, Fault> {
        match state.cluster()? {
            Some(cluster) => Ok(cluster),
            None => refuse(ErrorKind::Unavailable, "the cluster is not initialised yet"),
        }
    }

    fn apply(&self, cluster: Cluster, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let session = begin(tx, Session { leaders: true, ..Default::default() })?;
        let opened = v1::OpenSessionReply { session, cluster: cluster.id, ..Default::default() };
        Ok(Reply::OpenSession(opened))
    }
}
