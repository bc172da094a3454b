//! What a client gets when it opens an inode: all that it needs to read a small file at once.

use super::get_extents;
use crate::operation::Fault;
use crate::store::Read;
use crate::tables::inodes;
use v1::FileKind;
use weft_proto::{InodeId, v1};

/// Most extents that come with an open.
const FIRST_EXTENTS: usize = 512;

/// Bytes that what [`open_reply`] answers is no longer than.
pub(super) const LONGEST: usize = get_extents::longest(FIRST_EXTENTS);

/// Extents of one of many that are opened at once.
const FEW_EXTENTS: usize = 4;
/// Once an answer of many has so many bytes, no more is added to it.
pub(crate) const BYTES_OF_MANY: usize = 256 << 10;
/// Bytes that an answer of many is no longer than.
pub(super) const LONGEST_OF_MANY: usize = BYTES_OF_MANY + get_extents::longest(FEW_EXTENTS);

/// Attributes, effective layout and the first extents. That the session has the inode open is soft
/// state of the leader and not recorded here.
pub(crate) fn open_reply(state: &dyn Read, ino: InodeId) -> Result<v1::OpenReply, Fault> {
    reply(state, ino, FIRST_EXTENTS)
}

/// As [`open_reply`], with at most `limit` extents.
pub(super) fn reply(state: &dyn Read, ino: InodeId, limit: usize) -> Result<v1::OpenReply, Fault> {
    let inode = inodes::existing(state, ino.0)?;
    let extents = match inode.kind() {
        FileKind::Regular => get_extents::extents(state, &inode, 0, u64::MAX, limit)?,
        _ => v1::ExtentsReply { attr: Some(inode.attr), ..Default::default() },
    };
    Ok(v1::OpenReply {
        attr: Some(inode.attr),
        layout: inode.layout,
        extents: Some(extents),
        owes: false,
    })
}

/// As [`open_reply`], without extents.
pub(crate) fn bare_open_reply(state: &dyn Read, ino: InodeId) -> Result<v1::OpenReply, Fault> {
    let inode = inodes::existing(state, ino.0)?;
    Ok(v1::OpenReply { attr: Some(inode.attr), layout: inode.layout, extents: None, owes: false })
}

/// As [`open_reply`], of one of many: without extents if there are many, or much inline content.
pub(crate) fn short_open_reply(
    state: &dyn Read,
    ino: InodeId,
    inline: u64,
) -> Result<v1::OpenReply, Fault> {
    let inode = inodes::existing(state, ino.0)?;
    let short = inode.kind() == FileKind::Regular && inode.attr.inline_bytes <= inline;
    let found = if short { reply(state, ino, FEW_EXTENTS)? } else { v1::OpenReply::default() };
    let extents = found.extents.filter(|extents| !extents.truncated);
    Ok(v1::OpenReply { attr: Some(inode.attr), layout: inode.layout, extents, owes: false })
}
