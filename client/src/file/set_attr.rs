//! Changes attributes, in order with what was written.

use super::inode::File;
use super::waiting::Was;
use crate::meta::unexpected;
use crate::namespace::{ChangeLog, Requests};
use crate::to_the_end::to_the_end;
use crate::types::{Attr, ModeList, SetAttr, SetTime};
use std::sync::Arc;
use tokio::time::Instant;
use weft_proto::mode::mode_after;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

impl File {
    /// Changes attributes in order with what was written: a new size cuts what lies beyond, a new
    /// time is not overwritten by data that was written before. What is no size waits with the
    /// data.
    pub async fn set_attr(self: &Arc<Self>, change: SetAttr) -> Result<Attr> {
        self.set_attr_while(change, || true).await
    }

    /// [`Self::set_attr`]; a change of the size only if it is `permitted` when all that comes
    /// before it is told. Errors: `Interrupted`.
    pub async fn set_attr_while(
        self: &Arc<Self>,
        change: SetAttr,
        permitted: impl Fn() -> bool + Send + 'static,
    ) -> Result<Attr> {
        let file = self.clone();
        to_the_end(async move { file.set_attr_in_order(change, permitted).await }).await
    }

    /// Sets the permission bits that a list stands for. `None`, with nothing changed, where only
    /// the group can.
    pub async fn set_list(self: &Arc<Self>, list: ModeList) -> Result<Option<Attr>> {
        let file = self.clone();
        to_the_end(async move {
            let kept = {
                let _whole = file.begin_whole().await?;
                let known = file.context.leases.has_no_lists(file.ino);
                known.then(|| file.keep(&SetAttr::default(), Some(list))).flatten()
            };
            match kept {
                Some(attr) => file.defer_or_commit(attr).await.map(Some),
                None => Ok(None),
            }
        })
        .await
    }

    async fn defer_or_commit(self: &Arc<Self>, attr: Attr) -> Result<Attr> {
        if !self.defer() {
            self.write_back().await?;
        }
        Ok(attr)
    }

    async fn set_attr_in_order(
        self: &Arc<Self>,
        change: SetAttr,
        permitted: impl Fn() -> bool,
    ) -> Result<Attr> {
        let kept = {
            let _whole = self.begin_whole().await?;
            self.keep(&change, None)
        };
        if let Some(attr) = kept {
            return self.defer_or_commit(attr).await;
        }
        self.context.log.settle_all().await?;
        let _whole = self.begin_whole().await?;
        let (append, more) = {
            let state = self.state.lock();
            (state.dirty.append, state.waiting.is_more())
        };
        let mut seen = self.failures();
        let timed = change.mtime.is_some() || change.atime.is_some();
        let appended = append && change.size.is_some();
        if timed || more || appended || self.owes_ranges() {
            self.flush_in_order(None).await;
        }
        self.failure_since(&mut seen)?;
        if change.size.is_some() && !permitted() {
            let what = "nobody waits for the change of the size any more, or others may write";
            return Err(Error::new(ErrorKind::Interrupted, what));
        }
        let op = Op::SetAttr(set_attr_op(self.ino, change));
        let attr = attr_of(self.context.requests.change_in_order(op).await?)?;
        let mut state = self.state.lock();
        if let Some(size) = change.size {
            state.dirty.cut(size..u64::MAX);
            // What stays is committed later, and was written before.
            let waiting = &mut state.waiting;
            waiting.mtime_ns = waiting.mtime_ns.map(|written| written.max(attr.mtime_ns));
            state.forget_times();
            state.settled();
            state.changed(&self.context.pages, attr, |e| e.resize(attr.data_version, size));
        }
        state.adopt(attr);
        Ok(self.view(&state))
    }

    /// Changes attributes here, under a lease to write, for the next commit, and the mode as `list`
    /// says. `None`, with nothing
    /// changed, where there is none, and where only the group can say what the change does.
    fn keep(&self, change: &SetAttr, list: Option<ModeList>) -> Option<Attr> {
        let state = &mut *self.state.lock();
        let owner = [change.uid, change.gid];
        let simple = change.size.is_none() && !owner.contains(&Some(u32::MAX));
        // What the right came with this file need not have been told, or it is forgotten since.
        let newest = self.context.leases.attr_before_changes(self.ino);
        if let Some(newest) = newest {
            state.adopt(newest);
        }
        let mode = state.waiting.mode.unwrap_or(state.attr.mode);
        let set = list.map(|list| list.mode_after(mode)).or(change.mode);
        // A mode changes the list, and an owner nothing of it; who has a list is rare.
        let listed = state.attr.acls && (set.is_some() || owner != [None, None]);
        let nothing = list.is_none() && *change == SetAttr::default();
        let counted = owner != [None, None] && self.context.leases.quotas.have_owners();
        // As in `put_in`: nothing that is kept is missed by a recall.
        let right = self.context.leases.right_to_write(self.ino);
        let alike = !state.is_dirty() || state.buffered_under.right == right;
        let ending = self.context.is_closing();
        let asks = listed || counted || nothing;
        let known = newest.is_some() && alike && right.is_some();
        if !simple || asks || state.dirty.append || !known || ending {
            return None;
        }
        state.keeps_under(self.context.sessions.current().id, right);
        let now = (self.context.clock)();
        let time = |time: SetTime| match time {
            SetTime::At(ns) => ns,
            SetTime::Now => now,
        };
        let was = Was::from(&state.attr);
        let waiting = &mut state.waiting;
        let chowned = owner != [None, None];
        if set.is_some() || chowned {
            waiting.mode = Some(mode_after(mode, false, set, chowned));
        }
        waiting.uid = change.uid.or(waiting.uid);
        waiting.gid = change.gid.or(waiting.gid);
        waiting.atime_ns = change.atime.map(time).or(waiting.atime_ns);
        waiting.mtime_ns = change.mtime.map(time).or(waiting.mtime_ns);
        waiting.timed |= change.mtime.is_some();
        waiting.since.get_or_insert_with(Instant::now);
        waiting.was.get_or_insert(was);
        waiting.changed_ns = waiting.changed_ns.max(Some(now));
        Some(state.view())
    }
}

/// Changes attributes of what is not open here, except where only its file can.
pub(crate) async fn set_attr(
    requests: &Requests,
    log: &ChangeLog,
    ino: InodeId,
    change: SetAttr,
    now: i64,
) -> Result<Attr> {
    let op = set_attr_op(ino, change);
    if change != SetAttr::default()
        && let Some(attr) = log.set_attr(op, None, now)
    {
        return Ok(attr);
    }
    attr_of(requests.change(Op::SetAttr(op)).await?)
}

fn set_attr_op(ino: InodeId, change: SetAttr) -> v1::SetAttrOp {
    let at = |t: Option<SetTime>| match t {
        Some(SetTime::At(ns)) => Some(ns),
        _ => None,
    };
    v1::SetAttrOp {
        ino: ino.0,
        mode: change.mode,
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime_ns: at(change.atime),
        mtime_ns: at(change.mtime),
        atime_now: change.atime == Some(SetTime::Now),
        mtime_now: change.mtime == Some(SetTime::Now),
    }
}

fn attr_of(reply: Reply) -> Result<Attr> {
    match reply {
        Reply::Attr(attr) => attr.try_into(),
        _ => Err(unexpected("setting attributes")),
    }
}
