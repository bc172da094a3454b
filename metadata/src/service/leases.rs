//! Leases: granted, recalled, given back.

use super::context::{RequestContext, empty, granted, reply};
use crate::conflicts;
use crate::node::Known;
use crate::soft::leases::Mode;
use crate::soft::sessions::Sessions;
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Inodes on which one request may ask for leases.
const MAX_AT_ONCE: usize = 256;

/// Grants a lease on a file to a session that has it open, with what an open answers.
pub(super) async fn lease(cx: &RequestContext<'_>, op: &v1::LeaseOp) -> Result<v1::MetaReply> {
    let ino = InodeId(op.ino);
    // Another leader would not hear of them.
    if let Some(records) = op.records.filter(|_| op.write && cx.node.all_know(Known::Ranges)) {
        return lease_ranges(cx, ino, &records).await;
    }
    cx.may_read(Some(ino)).await?;
    let mut grants = Vec::new();
    if op.write {
        grants.extend(cx.grant_to_write(ino)?);
    }
    if grants.is_empty() {
        let mode = if op.write && op.alone { Mode::Write } else { Mode::Read };
        grants.extend(conflicts::must_grant(cx.node, cx.session, ino, mode, cx.deadline).await?);
    }
    let found = cx.node.state.open_reply(ino)?;
    Ok(granted(Reply::Open(found), grants))
}

/// Grants a lease to write, if nobody else uses the file, else to write ranges of it.
async fn lease_ranges(
    cx: &RequestContext<'_>,
    ino: InodeId,
    records: &v1::Records,
) -> Result<v1::MetaReply> {
    let records = records.ranges()?;
    // What others write to other bytes of it stays where it is.
    cx.may_read(None).await?;
    conflicts::enter_unheard(cx.node, cx.session, ino)?;
    let mut grants = Vec::from_iter(cx.grant_to_write(ino)?);
    let mut owes = false;
    if grants.is_empty() {
        let granted;
        (granted, owes) =
            conflicts::must_grant_ranges(cx.node, cx.session, ino, &records, cx.deadline).await?;
        grants.extend(granted);
    }
    match cx.node.state.bare_open_reply(ino) {
        Ok(found) => Ok(granted(Reply::Open(v1::OpenReply { owes, ..found }), grants)),
        Err(error) => {
            // Of what is not there nothing is held.
            let newest = grants.iter().map(|grant| grant.seq).max().unwrap_or(0);
            cx.node.soft.with(|s| s.leases.returned(cx.session, ino, newest, false));
            Err(error)
        }
    }
}

/// Grants leases to write, on those of these inodes that nobody else uses.
pub(super) async fn lease_many(
    cx: &RequestContext<'_>,
    op: &v1::LeaseManyOp,
) -> Result<v1::MetaReply> {
    if op.inos.len() > MAX_AT_ONCE {
        let what = format!("leases on {} inodes at once; at most {MAX_AT_ONCE}", op.inos.len());
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    cx.may_read(None).await?;
    let (mut attrs, mut grants) = (Vec::new(), Vec::new());
    for ino in op.inos.iter().copied().map(InodeId) {
        let Some(found) = cx.node.state.attr(ino)? else { continue };
        let is_dir = found.kind == v1::FileKind::Directory as i32;
        let grant = if is_dir { cx.grant_to_make(ino)? } else { cx.grant_to_write(ino)? };
        if let Some(grant) = grant {
            grants.push(grant);
            // As it is under the lease.
            attrs.extend(cx.node.state.attr(ino)?);
        }
    }
    Ok(granted(Reply::LeaseMany(v1::LeaseManyReply { attrs }), grants))
}

pub(super) async fn map(cx: &RequestContext<'_>, ino: InodeId) -> Result<v1::MetaReply> {
    cx.may_read(None).await?;
    let granted = conflicts::may_map(cx.node, cx.session, ino, cx.deadline).await?;
    Ok(reply(Reply::Map(v1::MapReply { granted })))
}

pub(super) async fn return_leases(
    cx: &RequestContext<'_>,
    op: &v1::ReturnLeasesOp,
) -> Result<v1::MetaReply> {
    cx.lead().await?;
    cx.node.soft.with(|sessions| take_back(sessions, cx.session, op))?;
    Ok(empty())
}

fn take_back(sessions: &mut Sessions, session: SessionId, op: &v1::ReturnLeasesOp) -> Result<()> {
    for item in &op.items {
        let ino = InodeId(item.ino);
        if item.of_map {
            sessions.leases.map_answered(session, ino, item.seq, item.maps);
            continue;
        }
        if item.maps {
            sessions.leases.keeps_map(session, ino);
        }
        if item.open_seq != 0 {
            match sessions.open(session, ino, item.open_seq) {
                // It is being opened, and whoever does that is told that it is gone.
                Err(e) if e.kind == ErrorKind::Stale => {}
                // The lease is given back whatever is open: others wait for it.
                Err(e) if e.kind == ErrorKind::Invalid => {
                    tracing::warn!(session = session.0, ino = ino.0, "an open is not known: {e}");
                }
                opened => opened?,
            }
        }
        sessions.leases.returned(session, ino, item.seq, item.keep_read);
    }
    Ok(())
}

/// Answers recalls newer than `seen`, as soon as there are any, or others of this session have come
/// to wait for them: of a client that lost its connection nobody else says that it waits no more.
pub(super) async fn recalls(cx: &RequestContext<'_>, seen: u64) -> Result<v1::MetaReply> {
    let term = cx.lead().await?;
    let until = cx.wait_until();
    let mut views = cx.node.watch_view();
    let mut shutdown = cx.shutdown.clone();
    let session = cx.session;
    let reader = cx.node.soft.with(|s| s.leases.begin_mail(session)).unwrap_or_default();
    loop {
        let mail = cx.node.soft.with(|s| {
            let (recalls, news) = s.leases.mail(session, seen)?;
            let overtaken = s.leases.is_overtaken(session, reader);
            Some((recalls, overtaken, s.must_declare(session), news))
        });
        let expired = || {
            let what = format!("session {session} is not known (any more); open a new one");
            Error::new(ErrorKind::SessionExpired, what)
        };
        let (recalls, overtaken, need_declare, mut news) = mail.ok_or_else(expired)?;
        let over = overtaken || Instant::now() >= until;
        if over || need_declare || !recalls.is_empty() {
            return Ok(reply(Reply::Recalls(v1::RecallsReply { recalls, need_declare, term })));
        }
        tokio::select! {
            biased;
            _ = shutdown.wait_for(|&stop| stop) => return Err(cx.node.not_leader()),
            _ = views.wait_for(|v| !v.serving || v.term != term) => {
                return Err(cx.node.not_leader());
            }
            // The session ended, if this fails: the next look says so.
            _ = news.changed() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::leases::{Mode, Use};
    use crate::soft::sessions::{Client, Declaration};
    use v1::return_leases_op::Item;

    const HOLDER: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);

    /// One open that cannot be known, as there are too many, keeps no lease from others.
    #[test]
    fn leases_come_back_whatever_is_open() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let client = || Client::default();
        sessions.start(now, 1, vec![(HOLDER, client()), (OTHER, client())]);
        let opens = (0..1 << 20).map(|ino| (InodeId(1000 + ino), 1)).collect();
        let all = Declaration { opens, ..Default::default() };
        sessions.renew(now, HOLDER, Some(all)).unwrap();
        sessions.renew(now, OTHER, Some(Declaration::default())).unwrap();
        let inos = [InodeId(7), InodeId(8)];
        let items = inos.map(|ino| {
            let lease = sessions.leases.grant(now, HOLDER, ino, Mode::Write, true).unwrap();
            assert!(!sessions.leases.recall(now, OTHER, ino, Use::Change));
            Item { ino: ino.0, seq: lease.seq, open_seq: 1, ..Default::default() }
        });
        take_back(&mut sessions, HOLDER, &v1::ReturnLeasesOp { items: items.into() }).unwrap();
        for ino in inos {
            assert!(sessions.leases.recall(now, OTHER, ino, Use::Change), "{ino} is held");
        }
    }
}
