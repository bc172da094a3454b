//! Admits servers that lost their disks.

use super::{Effect, Node};
use std::sync::Arc;
use weft_proto::{Error, ErrorKind, NodeId, Result, v1};

impl Node {
    /// Has the group note that a server lost its disk and starts anew. Answers what it must know to
    /// take part again; see [`crate::join`]. The same request again is told the same: its server
    /// was silent all the while. One entry for a server is under way at a time, whoever gives up
    /// waiting for it. Errors: `NotFound`, it does not belong to this group; `Invalid`, it has left
    /// it; those of [`Self::propose`].
    pub async fn admit(self: &Arc<Self>, request: v1::JoinRequest) -> Result<v1::JoinReply> {
        let server = NodeId(request.node);
        let group = self.membership();
        if group.removed.contains(&server.0) {
            let what = format!(
                "server {server} has left the group for good: give this one another number, and \
                 add it with `weft metadata add`"
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        if server == self.config.id || group.get(server.0).is_none() {
            let what = format!(
                "server {server} does not belong to the group: add it with `weft metadata add \
                 {server} ADDRESS`"
            );
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let admission = self.admissions.lock().entry(server).or_default().clone();
        let members = group.founders.clone();
        let mut last = admission.lock_owned().await;
        let node = self.clone();
        let admitted = tokio::spawn(async move {
            let known =
                last.as_ref().filter(|(nonce, _)| !nonce.is_empty() && *nonce == request.nonce);
            if let Some((_, reply)) = known {
                return Ok(reply.clone());
            }
            tracing::warn!(server = server.0, "a server with an empty disk asks to be admitted");
            let entry = v1::log_entry::Body::AdmitServer(v1::AdmitServerEntry { node: server.0 });
            let (at, _) = node.propose_at(entry, Vec::new(), Effect::Nothing).await?;
            let cluster = node.map().cluster.clone();
            let (term, index) = (at.term, at.index);
            let reply = v1::JoinReply { empty: false, cluster, members, term, index };
            *last = Some((request.nonce, reply.clone()));
            Ok(reply)
        });
        admitted.await.map_err(|e| Error::new(ErrorKind::Internal, format!("admission: {e}")))?
    }
}
