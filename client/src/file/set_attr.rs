//! Changes attributes, in order with what was written.

use super::inode::File;
use crate::meta::unexpected;
use crate::namespace::Requests;
use crate::to_the_end::to_the_end;
use crate::types::{Attr, SetAttr, SetTime};
use std::sync::Arc;
use weft_proto::mode::mode_after;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, Result, v1};

impl File {
    /// Changes attributes in order with what was written: a new size cuts what lies beyond, a new
    /// time is not overwritten by data that was written before. What is no size waits with the
    /// data.
    pub async fn set_attr(self: &Arc<Self>, change: SetAttr) -> Result<Attr> {
        let file = self.clone();
        to_the_end(async move { file.set_attr_in_order(change).await }).await
    }

    async fn set_attr_in_order(self: &Arc<Self>, change: SetAttr) -> Result<Attr> {
        let _order = self.order.lock().await;
        if let Some(attr) = self.keep(&change) {
            return Ok(attr);
        }
        let (append, more) = {
            let state = self.state.lock();
            (state.dirty.append, state.waiting.is_more())
        };
        let mut seen = self.failures();
        let timed = change.mtime.is_some() || change.atime.is_some();
        if timed || more || (append && change.size.is_some()) {
            self.flush_in_order().await;
        }
        self.failure_since(&mut seen)?;
        let attr = set_attr(&self.context.requests, self.ino, change).await?;
        let mut state = self.state.lock();
        if let Some(size) = change.size {
            state.dirty.cut(size..u64::MAX);
            // What stays is committed later, and was written before.
            let waiting = &mut state.waiting;
            waiting.mtime_ns = waiting.mtime_ns.map(|written| written.max(attr.mtime_ns));
            state.changed(&self.context.pages, attr, |e| e.resize(attr.data_version, size));
        }
        state.adopt(attr);
        Ok(state.view())
    }

    /// Changes attributes here, for the commit of data that waits under a lease to write, or of a
    /// new file. `None`, with nothing changed, where there is none, and where only the group can
    /// say what the change does.
    fn keep(&self, change: &SetAttr) -> Option<Attr> {
        let is_new = self.context.creates.has(self.ino);
        let state = &mut *self.state.lock();
        let owner = [change.uid, change.gid];
        let simple = change.size.is_none() && !owner.contains(&Some(u32::MAX));
        // A mode changes the list, and an owner nothing of it; who has a list is rare.
        let listed = state.attr.acls && (change.mode.is_some() || owner != [None, None]);
        let is_more = change.mode.is_some() || owner != [None, None] || change.atime.is_some();
        let waits = (!state.dirty.is_empty() || is_new && is_more) && !state.dirty.append;
        // As in `put_in`: nothing that is kept is missed by a recall.
        let right = self.context.leases.right_to_write(self.ino);
        let alike = !state.is_dirty() || state.buffered_under.right == right;
        if !simple || listed || !waits || right.is_none() || !alike {
            return None;
        }
        state.keeps_under(self.context.sessions.current().id, right);
        let now = (self.context.clock)();
        let time = |time: SetTime| match time {
            SetTime::At(ns) => ns,
            SetTime::Now => now,
        };
        let waiting = &mut state.waiting;
        let chowned = owner != [None, None];
        if change.mode.is_some() || chowned {
            let mode = waiting.mode.unwrap_or(state.attr.mode);
            waiting.mode = Some(mode_after(mode, false, change.mode, chowned));
        }
        waiting.uid = change.uid.or(waiting.uid);
        waiting.gid = change.gid.or(waiting.gid);
        waiting.atime_ns = change.atime.map(time).or(waiting.atime_ns);
        waiting.mtime_ns = change.mtime.map(time).or(waiting.mtime_ns);
        waiting.changed_ns = waiting.changed_ns.max(Some(now));
        Some(state.view())
    }
}

/// Asks the metadata group to change attributes.
pub(crate) async fn set_attr(requests: &Requests, ino: InodeId, change: SetAttr) -> Result<Attr> {
    let at = |t: Option<SetTime>| match t {
        Some(SetTime::At(ns)) => Some(ns),
        _ => None,
    };
    let op = v1::SetAttrOp {
        ino: ino.0,
        mode: change.mode,
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime_ns: at(change.atime),
        mtime_ns: at(change.mtime),
        atime_now: change.atime == Some(SetTime::Now),
        mtime_now: change.mtime == Some(SetTime::Now),
    };
    match requests.change(Op::SetAttr(op)).await? {
        Reply::Attr(attr) => attr.try_into(),
        _ => Err(unexpected("setting attributes")),
    }
}
