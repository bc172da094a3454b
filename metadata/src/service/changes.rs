//! Changes of the replicated state: what stands against one is taken back first, then it is
//! proposed.

use super::context::{self, RequestContext, without};
use super::{accesses, locks, open_session, quotas};
use crate::conflicts::{self, Claim};
use crate::node::{Effect, Known, Node};
use crate::ops::MAX_STEPS;
use crate::soft::leases::Mode;
use crate::soft::sessions::Sessions;
use prost::Message;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::Instant;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_net::trace::carried;
use weft_proto::{Error, ErrorKind, Footprint, InodeId, Kind, Makes, Result, SessionId, v1};

/// Changes the replicated state.
pub(super) async fn change(mut cx: RequestContext<'_>) -> Result<v1::MetaReply> {
    let RequestContext { node, session, deadline, .. } = cx;
    let op = cx.op()?;
    let opens_session = matches!(op, Op::OpenSession(_));
    if !opens_session && (session.0 == 0 || cx.request.number == 0) {
        return Err(Error::new(
            ErrorKind::Protocol,
            "a change needs a session and a request number, so that a retry takes effect once",
        ));
    }
    if matches!(op, Op::Accessed(_)) && !accesses::keep_due(&mut cx).await? {
        return Ok(context::empty());
    }
    let op = cx.op()?;
    let locking = match op {
        Op::SetLock(op) => locks::may_lock(&cx, op).await?,
        _ => None,
    };
    let term = cx.lead().await?;
    if let Op::OpenSession(op) = op {
        open_session::may_open(node, op)?;
    }
    let mut footprint = op.footprint();
    let made = made_unasked(node, op, &mut footprint)?;
    if footprint.grows {
        node.has_room()?;
    }
    let (number, acked) = (cx.request.number, cx.request.acked_below);
    node.soft.with(|s| s.begin_change(Instant::now(), session, number, acked))?;
    // Nobody caches anything of sessions and locks; who locks without asking was asked before.
    if op.kind() != Kind::Session && !matches!(op, Op::SetLock(_)) {
        conflicts::all_declared(node, session, deadline).await?;
    }
    let (makes, dir) = (footprint.makes, footprint.names.first().map(|(dir, _)| *dir));
    let unasked = matches!(op, Op::MakeFiles(_) | Op::Batch(_)).then_some(&made);
    let claim = claim(&cx, term, op, footprint, unasked).await?;
    let entered = match op {
        Op::MakeFiles(op) => enter_made(&cx, op.files.iter().map(|file| file.ino)),
        Op::Batch(_) => enter_made(&cx, made.iter().map(|ino| ino.0)),
        _ => Vec::new(),
    };
    let there = match op {
        Op::Create(op) => open_if_there(&cx, op).await?,
        _ => None,
    };
    let is_batch = matches!(op, Op::Batch(_));
    let limits = matches!(op, Op::SetQuota(_));
    let removes = matches!(op, Op::Unlink(_) | Op::RmDir(_) | Op::Rename(_));
    if let Some(op) = &mut cx.request.op {
        say_what_all_know(node, op);
    }
    let (effect, body) = (Effect::of(&cx.request), Body::Client(std::mem::take(&mut cx.request)));
    let taken = (claim, locking);
    let (mut reply, (claim, _)) = match there {
        Some(reply) => (reply, taken),
        // The lock that is being set ends with the change.
        None => propose(node, body, Vec::new(), effect, taken).await?,
    };
    reply.touched = claim.inos.iter().map(|ino| ino.0).collect();
    reply.grants = entered;
    reply.low_on_room = is_batch && node.has_room().is_err();
    without(grant_made(&cx, makes, dir, &mut reply), "leases on what was made");
    // Who takes one name away takes more, and who sets a quota is to know of it.
    let limited = claim.inos.iter().copied().filter(|_| limits);
    for dir in claim.dirs().into_iter().filter(|_| removes).chain(limited) {
        let granted = cx.grant_to_make(dir).map(|grant| reply.grants.extend(grant));
        without(granted, "a lease on a directory");
    }
    // Of use to a session that keeps its lease, against which no other changes them.
    let after = |dir| node.state.attr(dir).ok().flatten();
    reply.dirs = claim.dirs().into_iter().filter_map(after).collect();
    drop(claim);
    if let Some(Reply::OpenSession(opened)) = &mut reply.result {
        opened.ttl_ms = node.config.session_ttl_ms;
    }
    Ok(reply)
}

/// A create of a file that is there opens it, and changes nothing: it is answered as an open is. In
/// the log its answer, with the content of a small file, would be kept for a retry on every server;
/// a retry of what was answered so looks again. `None`: the log decides.
async fn open_if_there(
    cx: &RequestContext<'_>,
    op: &v1::CreateOp,
) -> Result<Option<v1::MetaReply>> {
    let state = &cx.node.state;
    if op.exclusive || state.child(InodeId(op.parent), &op.name)?.is_none() {
        return Ok(None);
    }
    cx.node.read_barrier().await?;
    if state.is_done(&cx.request)? || !state.session_exists(cx.session)? {
        return Ok(None);
    }
    // The name is taken for this change: it leads there until this is answered.
    let Some(ino) = state.child(InodeId(op.parent), &op.name)? else { return Ok(None) };
    if state.attr(ino)?.is_none_or(|attr| attr.kind() != v1::FileKind::Regular) {
        return Ok(None);
    }
    cx.node.soft.with(|s| s.open(cx.session, ino, op.open_seq))?;
    Ok(Some(context::reply(Reply::Open(state.create_reply(ino)?))))
}

/// Answers a change that was carried out already as it was answered then. What the request is about
/// now is of no account: nothing of it is taken back, or granted, or put into the log.
pub(super) async fn answer_again(
    node: &Arc<Node>,
    mut request: v1::MetaRequest,
) -> Result<v1::MetaReply> {
    let effect = Effect::of(&request);
    request.op = Some(Op::Batch(v1::BatchOp::default()));
    let (reply, ()) = propose(node, Body::Client(request), Vec::new(), effect, ()).await?;
    Ok(reply)
}

/// Takes what a change touches: only bytes, if it is a commit of some to a file that several
/// sessions write.
async fn claim(
    cx: &RequestContext<'_>,
    term: u64,
    op: &Op,
    footprint: Footprint,
    unasked: Option<&BTreeSet<InodeId>>,
) -> Result<Claim> {
    let (node, by) = (cx.node, cx.session);
    match conflicts::claim_ranges(node, term, by, op, cx.deadline).await? {
        Some(claim) => Ok(claim),
        None => conflicts::claim(node, term, by, footprint, unasked, cx.deadline).await,
    }
}

/// What older versions do not know is done once all servers of the group know it.
fn say_what_all_know(node: &Node, op: &mut Op) {
    match op {
        Op::ReserveInodes(op) => {
            op.batches = node.all_know(Known::Batches);
            // Versions before that one keep no such level.
            let level = node.level();
            op.known = if level >= Known::Xattrs as u32 { level } else { 0 };
        }
        Op::Batch(op) => {
            op.guarded = node.all_know(Known::Guards);
            op.own_times = node.all_know(Known::OwnTimes);
            op.late = node.all_know(Known::Xattrs);
            op.steps.iter_mut().for_each(without_guard);
        }
        Op::CommitExtents(op) if !node.all_know(Known::GuardedAttributes) => op.attr_was = None,
        _ => {}
    }
}

/// A commit in a batch is of a session that lives.
fn without_guard(step: &mut v1::batch_op::Step) {
    if let Some(v1::batch_op::step::Op::Commit(op)) = &mut step.op {
        op.attr_was = None;
    }
}

/// What a batch makes that is not there yet. What is there already it changes only.
fn made_unasked(node: &Node, op: &Op, footprint: &mut Footprint) -> Result<BTreeSet<InodeId>> {
    let mut made = BTreeSet::new();
    match op {
        Op::SetQuota(_) => quotas::may_set(node)?,
        Op::Batch(op) => {
            may_batch(node, op)?;
            for ino in op.steps.iter().filter_map(made_by).map(InodeId) {
                match node.state.attr(ino)?.is_some() {
                    true => footprint.changes.push(ino),
                    false => drop(made.insert(ino)),
                }
            }
        }
        _ => {}
    }
    Ok(made)
}

/// Grants leases on what was just made: it is nobody else's yet. And on the directory, if nobody
/// else uses it; that is still claimed. What another session has changed since, is not for this one
/// to use.
fn grant_made(
    cx: &RequestContext<'_>,
    makes: Makes,
    dir: Option<InodeId>,
    reply: &mut v1::MetaReply,
) -> Result<()> {
    let made = match &reply.result {
        Some(Reply::Open(v1::OpenReply { attr: Some(attr), .. })) => *attr,
        Some(Reply::Attr(attr)) => *attr,
        _ => return Ok(()),
    };
    let ino = InodeId(made.ino);
    let mut grants = Vec::new();
    match makes {
        Makes::File => {
            grants.extend(cx.grant_to_write(ino)?);
            // Not if it was there already, and is opened only.
            if let Some(dir) = dir.filter(|_| !reply.touched.contains(&made.ino)) {
                reply.grants.extend(cx.grant_to_make(dir)?);
            }
        }
        Makes::Directory => grants.extend(cx.grant_to_make(ino)?),
        Makes::Nothing if made.kind == v1::FileKind::Directory as i32 => {
            reply.grants.extend(cx.grant(ino, Mode::Read, false));
        }
        Makes::Nothing => {}
    }
    if !grants.is_empty() && cx.node.state.attr(ino)? == Some(made) {
        reply.grants.append(&mut grants);
    }
    Ok(())
}

/// Whether every server knows what is in a batch, or did once: another would pass over it, and be
/// another than the others from then on. And whether there is room for what was done already.
fn may_batch(node: &Node, op: &v1::BatchOp) -> Result<()> {
    // A step may take much more memory than its bytes: here, and in each server that has the entry.
    if op.steps.len() > MAX_STEPS {
        let what = format!("{} steps in one request, over {MAX_STEPS}", op.steps.len());
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    let known = match op.steps.iter().any(changes_xattrs) {
        true => node.all_know(Known::Xattrs),
        false => node.all_know(Known::Batches) || node.state.knows_batches()?,
    };
    if !known {
        let what = "there are metadata servers of a version that does not know such batches, or \
                    that have not answered yet";
        return Err(Error::new(ErrorKind::Unavailable, what));
    }
    node.has_last_room()
}

/// The session holds what it made already, and shall do so here before anybody can see it.
fn enter_made(cx: &RequestContext<'_>, made: impl Iterator<Item = u64>) -> Vec<v1::Grant> {
    let enter = |s: &mut Sessions, ino| s.leases.enter_made(cx.session, InodeId(ino));
    cx.node.soft.with(|s| made.filter_map(|ino| enter(s, ino)).collect())
}

fn changes_xattrs(step: &v1::batch_op::Step) -> bool {
    use v1::batch_op::step::Op as Do;
    matches!(step.op, Some(Do::SetXattr(_) | Do::RemoveXattr(_)))
}

fn made_by(step: &v1::batch_op::Step) -> Option<u64> {
    match &step.op {
        Some(v1::batch_op::step::Op::Make(op)) => Some(op.ino),
        _ => None,
    }
}

/// Proposes an entry, and keeps what was taken for it until it was applied or can be no more. What
/// is in the log may take effect long after the deadline of who asked, and after he has gone.
pub(super) async fn propose<T: Send + 'static>(
    node: &Arc<Node>,
    body: Body,
    events: Vec<v1::Event>,
    effect: Effect,
    taken: T,
) -> Result<(v1::MetaReply, T)> {
    let node = node.clone();
    let request = match &body {
        Body::Client(request) => Some((SessionId(request.session), request.number)),
        _ => None,
    };
    let proposal = async move {
        let reply = node.propose_telling(body, effect, events).await;
        if let (Some((session, number)), Ok(reply)) = (request, &reply) {
            node.soft.with(|s| s.keep(session, number, reply.encoded_len()));
        }
        (reply, taken)
    };
    let proposal = tokio::spawn(carried(proposal));
    // It may be in the log.
    let ended = |error| Error::new(ErrorKind::Unavailable, format!("a change: {error}"));
    let (reply, taken) = proposal.await.map_err(ended)?;
    Ok((reply?, taken))
}
