//! What a session has open.

use super::context::{RequestContext, empty, granted, reply};
use crate::conflicts;
use crate::soft::leases::Mode;
use crate::soft::sessions::Declaration;
use bytes::Bytes;
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use weft_net::bounded_network_stat;
use weft_proto::{InodeId, Result, v1};

/// Registers the open first and reads after, so that the inode cannot vanish in between; if
/// there is nothing to open, the registration is taken back.
pub(super) async fn open(cx: &RequestContext<'_>, open: &v1::OpenOp) -> Result<v1::MetaReply> {
    let ino = InodeId(open.ino);
    cx.may_read(Some(ino)).await?;
    cx.node.soft.with(|s| s.open(cx.session, ino, open.open_seq))?;
    let mut grants = Vec::new();
    if open.write {
        grants.extend(cx.grant_to_write(ino)?);
    }
    if grants.is_empty() {
        // Nothing of a directory is cached without a lease: who opens one that others change all
        // the time need not wait for them.
        let attr = cx.node.state.attr(ino)?;
        grants.extend(match attr.is_some_and(|a| a.kind() == v1::FileKind::Directory) {
            true => cx.grant(ino, Mode::Read, false),
            false => {
                conflicts::must_grant(cx.node, cx.session, ino, Mode::Read, cx.deadline).await?
            }
        });
    }
    match cx.node.state.open_reply(ino) {
        Ok(found) => Ok(granted(Reply::Open(found), grants)),
        Err(e) => {
            let _ = cx.node.soft.with(|s| s.close(cx.session, ino, open.open_seq));
            Err(e)
        }
    }
}

/// Ends opens.
pub(super) async fn close(cx: &RequestContext<'_>, close: &v1::CloseOp) -> Result<v1::MetaReply> {
    cx.lead().await?;
    cx.node.soft.with(|s| {
        let mut items = close.items.iter();
        items.try_for_each(|item| s.close(cx.session, InodeId(item.ino), item.open_seq))
    })?;
    Ok(empty())
}

/// Keeps a session alive, and takes in what it declares to hold.
pub(super) async fn renew(cx: &RequestContext<'_>, renew: &v1::RenewOp) -> Result<v1::MetaReply> {
    cx.lead().await?;
    cx.node.read_barrier().await?;
    // What another leader granted since it was gathered for that one is not in it.
    let term = cx.node.view().term;
    let for_another = renew.declares && renew.term != 0 && renew.term != term;
    let declaration = (renew.declares && !for_another).then(|| Declaration {
        opens: renew.opens.iter().map(|o| (InodeId(o.ino), o.open_seq)).collect(),
        write_leases: renew.write_leases.iter().map(|&ino| InodeId(ino)).collect(),
        piece: (renew.declaration, renew.piece),
        more: renew.more,
        maps: renew.maps.iter().map(|&ino| InodeId(ino)).collect(),
        ranges: renew.ranges.iter().map(|held| (InodeId(held.ino), held.start..held.end)).collect(),
    });
    let network = renew.network.clone().map(bounded_network_stat);
    let need_declare = cx.node.soft.with(|s| {
        s.hear(cx.session, renew.open_files, network);
        s.renew(Instant::now(), cx.session, declaration)
    })?;
    let need_declare = need_declare || for_another;
    let (ttl_ms, epoch) = (cx.node.config.session_ttl_ms, cx.node.epoch().0);
    let low_on_room = cx.node.has_room().is_err();
    let ticket = Bytes::new();
    let renewed = reply(Reply::Renew(v1::RenewReply { need_declare, ttl_ms, epoch, term, ticket }));
    Ok(v1::MetaReply { low_on_room, ..renewed })
}
