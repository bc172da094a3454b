//! A mount goes from the process that serves it to another: what that one takes.

use super::facade::Filesystem;
use crate::Options;
use crate::cache::{ContentCache, NameCache};
use crate::meta::renew;
use crate::options::after;
use std::sync::Arc;
use std::time::Duration;
use tracing::info;
use weft_proto::{Error, ErrorKind, Result, SessionId, Uuid, v1};

/// Programs wait meanwhile.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A put that nobody wants any more may still be under way in the other process, and take numbers
/// of segments.
const SEGMENTS_JUMP: u64 = 1 << 32;

impl Filesystem {
    /// Finds the cluster, for a session that another process has. Errors: `Invalid` without
    /// metadata servers, `TimedOut` if none of them answers.
    pub async fn succeed(options: Options, cluster: Option<Uuid>) -> Result<Successor> {
        let deadline = after(options.op_deadline.min(options.connect_timeout));
        let fs = Self::new(options, cluster)?;
        fs.inner.watch_map();
        fs.await_map(deadline).await?;
        Ok(Successor { fs, cluster })
    }
}

/// A process that is going to go on with the session of a mount. It has found the cluster, and does
/// nothing on its own; dropped, it has done nothing.
pub struct Successor {
    fs: Filesystem,
    cluster: Option<Uuid>,
}

impl Successor {
    /// Takes what the mount has. Until [`Self::begin`] the process that gave it may resume. Errors:
    /// `SessionExpired`, `TimedOut` if no metadata leader answers; `Protocol`.
    pub async fn adopt(
        &self,
        mut state: v1::ClientState,
        content_cache: Arc<dyn ContentCache>,
        name_cache: Arc<dyn NameCache>,
    ) -> Result<()> {
        let inner = &self.fs.inner;
        if state.session == 0 {
            return Err(Error::new(ErrorKind::Protocol, "the state of a mount without a session"));
        }
        inner.group.confinement.adopt(&state);
        let _ = inner.group.incarnation.set(state.incarnation);
        let v1::ClientState { session, last_request, last_segment, last_open, .. } = state;
        let last_segment = last_segment.saturating_add(SEGMENTS_JUMP);
        inner.group.sessions.resume(SessionId(session), last_request, last_segment);
        inner.group.leases.adopt(&state.leases, &state.surplus);
        inner.opens.resume(last_open);
        inner.log.adopt(&mut state);
        inner.files.adopt(state.files, state.directories)?;
        inner.locks.adopt(state.last_ticket, state.locks);
        inner.pages.set_cache(content_cache);
        inner.group.leases.set_name_cache(name_cache);
        // The leader answers, and the session lives.
        let op = v1::RenewOp::default();
        let reply = renew(&inner.group, SessionId(session), op, RENEWAL_TIMEOUT).await?;
        inner.has_session(Duration::from_millis(reply.ttl_ms.max(1)), self.cluster);
        Ok(())
    }

    /// The mount, of which nothing may be asked before [`Self::begin`].
    pub fn filesystem(&self) -> Filesystem {
        self.fs.clone()
    }

    /// Goes on in place of the other process, which does so no more.
    pub fn begin(self) -> Filesystem {
        self.fs.inner.start();
        info!(session = %self.fs.session(), "took over");
        self.fs
    }
}
