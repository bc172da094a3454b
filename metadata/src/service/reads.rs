//! What is read of the namespace, and the leases that come with the answers.

use super::context::{RequestContext, granted};
use crate::conflicts;
use crate::node::Node;
use crate::ops;
use crate::soft::leases::Mode;
use crate::state::StateMachine;
use prost::Message;
use std::collections::{HashMap, HashSet};
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Content that comes with a lookup: enough for a small file to be read without another request.
pub(super) const LOOKUP_INLINE: u64 = 16 << 10;

/// What asks for a long answer is no longer, in bytes.
pub(super) const ASKING: usize = 4 << 10;
/// Names that one request may look up.
const MAX_NAMES: usize = 256;

/// Answers a read.
pub(super) async fn answer(cx: &RequestContext<'_>, op: &Op) -> Result<v1::MetaReply> {
    match op {
        Op::Lookup(op) => lookup(cx, op).await,
        Op::ReadDir(op) => read_dir(cx, op).await,
        Op::StatFs(_) => stat_fs(cx).await,
        Op::Check(_) | Op::GetUsage(_) => {
            let request = cx.request.clone();
            beside(cx, move |state| state.read(&request)).await
        }
        Op::GetAttr(v1::GetAttrOp { ino }) | Op::GetExtents(v1::GetExtentsOp { ino, .. }) => {
            of_inode(cx, InodeId(*ino)).await
        }
        // Without a lease: that there is none is mostly the answer, with which none goes.
        Op::GetXattr(v1::GetXattrOp { ino, .. }) | Op::ListXattr(v1::ListXattrOp { ino }) => {
            cx.may_read(Some(InodeId(*ino))).await?;
            cx.read()
        }
        _ => plain(cx).await,
    }
}

/// What one record answers, under a lease on its inode if that can be granted.
async fn of_inode(cx: &RequestContext<'_>, ino: InodeId) -> Result<v1::MetaReply> {
    cx.may_read(Some(ino)).await?;
    let grant = cx.grant(ino, Mode::Read, false);
    let mut reply = cx.read()?;
    reply.grants.extend(grant);
    Ok(reply)
}

/// What the state answers, without a lease.
async fn plain(cx: &RequestContext<'_>) -> Result<v1::MetaReply> {
    cx.may_read(None).await?;
    let concerns: Vec<_> = cx.op()?.footprint().concerns().collect();
    for ino in concerns.into_iter().filter(|_| cx.session.0 != 0) {
        // Whoever made it may not have told of it yet.
        if cx.node.state.unheard_of(ino)?.is_some() {
            conflicts::readable(cx.node, cx.session, ino, cx.deadline).await?;
        }
    }
    cx.read()
}

/// Answers attributes, with the content of a small file; with leases on both the directory and
/// what was found there. That there is no such name is an answer of its own under a lease.
async fn lookup(cx: &RequestContext<'_>, op: &v1::LookupOp) -> Result<v1::MetaReply> {
    let parent = InodeId(op.parent);
    cx.may_read(Some(parent)).await?;
    if cx.session.0 == 0 {
        return cx.read();
    }
    let mut grants = Vec::from_iter(cx.grant(parent, Mode::Read, false));
    let Some(child) = cx.node.state.child(parent, &op.name)? else {
        // Says what is wrong, or that the name is missing.
        return match cx.read() {
            Err(e) if e.kind == ErrorKind::NotFound && !grants.is_empty() => {
                Ok(granted(Reply::Missing(v1::Empty {}), grants))
            }
            answer => answer,
        };
    };
    conflicts::readable(cx.node, cx.session, child, cx.deadline).await?;
    grants.extend(cx.grant(child, Mode::Read, false));
    let found = match cx.node.state.open_reply(child) {
        // It lost its name while its lease was waited for.
        Err(e) if e.kind == ErrorKind::Stale || e.kind == ErrorKind::NotFound => {
            return cx.read();
        }
        found => found?,
    };
    let small = found
        .attr
        .is_some_and(|a| a.kind == v1::FileKind::Regular as i32 && a.inline_bytes <= LOOKUP_INLINE);
    let whole = found.extents.as_ref().is_some_and(|e| !e.truncated && e.extents.len() <= 4);
    let result = match found.attr {
        Some(attr) if !(small && whole) => Reply::Attr(attr),
        _ => Reply::Open(found),
    };
    Ok(granted(result, grants))
}

/// Answers what many names lead to, as far as leases can be granted without asking anybody.
pub(super) async fn lookup_many(
    cx: &RequestContext<'_>,
    op: &v1::LookupManyOp,
) -> Result<v1::MetaReply> {
    // No longer than what is weighed by how long its answer may be.
    if op.items.len() > MAX_NAMES || cx.request.encoded_len() > ASKING {
        let what = format!(
            "{} names at once; at most {MAX_NAMES}, and {ASKING} bytes of them",
            op.items.len()
        );
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    cx.may_read(None).await?;
    let (state, mut grants, mut items) = (&cx.node.state, Vec::new(), Vec::new());
    let (mut parents, mut bytes) = (HashMap::new(), 0);
    for (at, item) in (0..).zip(&op.items) {
        let parent = InodeId(item.parent);
        // What is in it is to be read under its lease.
        let readable = match parents.get(&parent) {
            Some(readable) => *readable,
            None => {
                // Not on what its maker has not told of yet.
                let is_there = state.attr(parent)?.is_some();
                let grant = if is_there { cx.grant(parent, Mode::Read, false) } else { None };
                let readable = grant.is_some();
                grants.extend(grant);
                parents.insert(parent, readable);
                readable
            }
        };
        let child = if readable { state.child(parent, &item.name)? } else { None };
        let Some(child) = child else { continue };
        let Some(grant) = cx.grant(child, Mode::Read, false) else { continue };
        grants.push(grant);
        let found = match state.short_open_reply(child, LOOKUP_INLINE) {
            // It has lost its name since.
            Err(e) if e.kind == ErrorKind::Stale || e.kind == ErrorKind::NotFound => continue,
            found => found?,
        };
        bytes += found.encoded_len();
        items.push(v1::lookup_many_reply::Item { at, found: Some(found) });
        if bytes >= ops::BYTES_OF_MANY {
            break;
        }
    }
    Ok(granted(Reply::LookupMany(v1::LookupManyReply { items }), grants))
}

/// Answers names, with a lease on the directory; with attributes only of those inodes on which a
/// lease could be granted as well. Without a session: what is committed.
async fn read_dir(cx: &RequestContext<'_>, op: &v1::ReadDirOp) -> Result<v1::MetaReply> {
    cx.may_read(Some(InodeId(op.ino))).await?;
    if cx.session.0 == 0 {
        return cx.read();
    }
    let dir = cx.grant(InodeId(op.ino), Mode::Read, false);
    let names = Op::ReadDir(v1::ReadDirOp { attrs: false, ..*op });
    let names = v1::MetaRequest { op: Some(names), ..Default::default() };
    let mut reply = cx.node.state.read(&names)?;
    if let Some(Reply::ReadDir(page)) = reply.result.as_mut().filter(|_| op.attrs) {
        let inos = page.entries.iter().map(|entry| InodeId(entry.ino));
        let now = Instant::now();
        let grants: Vec<_> = cx.node.soft.with(|s| {
            inos.map(|ino| s.leases.grant(now, cx.session, ino, Mode::Read, false)).collect()
        });
        for (entry, grant) in page.entries.iter_mut().zip(grants) {
            if let Some(grant) = grant {
                entry.attr = cx.node.state.attr(InodeId(entry.ino))?;
                reply.grants.push(grant);
            }
        }
    }
    reply.grants.extend(dir);
    Ok(reply)
}

async fn stat_fs(cx: &RequestContext<'_>) -> Result<v1::MetaReply> {
    cx.lead().await?;
    cx.node.read_barrier().await?;
    let mut reply = cx.read()?;
    if let Some(Reply::StatFs(stat)) = &mut reply.result {
        let full_percent = cx.node.config.full_percent;
        let space = cx.targets.user_space(&cx.node.map(), full_percent);
        (stat.capacity_bytes, stat.free_bytes) = (space.capacity, space.free);
        stat.available_bytes = Some(cx.node.has_room().map_or(0, |()| space.available));
    }
    Ok(reply)
}

/// What looks at very many records, which takes seconds for a million: beside the event loop,
/// without which this server would lose its lead.
pub(super) async fn beside<T: Send + 'static>(
    cx: &RequestContext<'_>,
    read: impl FnOnce(&StateMachine) -> Result<T> + Send + 'static,
) -> Result<T> {
    cx.may_read(None).await?;
    // One that nobody waits for any more goes on to its end, and counts till then.
    let permit = cx.long_reads.enter(cx.deadline).await?;
    let state = cx.node.state.clone();
    let read = move || {
        let _permit = permit;
        read(&state)
    };
    if !cx.node.env.threads {
        return read();
    }
    let ended = tokio::task::spawn_blocking(read).await;
    ended.map_err(|error| Error::new(ErrorKind::Internal, format!("a long read: {error}")))?
}

/// Extended attributes that come unasked with one answer, in bytes.
pub(super) const UNASKED: usize = 256 << 10;

/// Adds the extended attributes of inodes that may have some and that the session is granted a
/// lease on: who lists a directory asks for those of each name.
pub(super) fn add_xattrs(node: &Node, reply: &mut v1::MetaReply) -> Result<()> {
    let with_some = |attr: &v1::Attr| (attr.acls || !attr.no_xattrs).then_some(attr.ino);
    let of_entry = |entry: &v1::DirEntry| entry.attr.as_ref().and_then(with_some);
    let inos = match &reply.result {
        Some(Reply::Attr(attr)) => Vec::from_iter(with_some(attr)),
        Some(Reply::Open(found)) => Vec::from_iter(found.attr.as_ref().and_then(with_some)),
        Some(Reply::ReadDir(page)) => page.entries.iter().filter_map(of_entry).collect(),
        Some(Reply::LookupMany(found)) => {
            let attrs = found.items.iter().filter_map(|item| item.found.as_ref()?.attr.as_ref());
            attrs.filter_map(with_some).collect()
        }
        _ => Vec::new(),
    };
    if inos.is_empty() {
        return Ok(());
    }
    let granted: HashSet<u64> = reply.grants.iter().map(|grant| grant.ino).collect();
    let mut bytes = 0;
    for ino in inos.into_iter().filter(|ino| granted.contains(ino)) {
        if bytes < UNASKED
            && let Some(xattrs) = node.state.short_xattrs(InodeId(ino))?
        {
            bytes += xattrs.encoded_len();
            reply.xattrs.push(xattrs);
        }
    }
    Ok(())
}
