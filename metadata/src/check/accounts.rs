//! What inodes account for, and what the other records say of that.

use super::extents::Extents;
use super::names::{MAX_COOKIE, Names};
use crate::schema::{FIRST_COOKIE, Inode};
use crate::tables::content;
use crate::tables::xattrs::Room;
use std::collections::{HashMap, HashSet};
use v1::FileKind;
use weft_proto::{InodeId, v1};

/// What the records say of inodes beside their own.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub names: &'a Names,
    pub extents: &'a Extents,
    pub xattrs: &'a HashMap<u64, Room>,
}

/// What was seen of all inodes.
#[derive(Default)]
pub(super) struct Seen {
    pub known: HashSet<u64>,
    pub contents: HashSet<u64>,
    /// Those whose names say another kind.
    pub odd: HashSet<u64>,
    /// Records that call themselves another.
    pub misnamed: Vec<(InodeId, Inode)>,
    pub last: u64,
}

/// Link count and entries.
pub(super) fn links(inode: &mut Inode, names: &Names, wrong: &mut Vec<String>) {
    let ino = inode.ino();
    let mut want = names.of.get(&ino.0).map_or(0, |named| named.count);
    if inode.is_dir() {
        let within = names.within.get(&ino.0).copied().unwrap_or_default();
        let alive = want > 0 || ino.is_root();
        want = if alive { within.subdirs.saturating_add(2) } else { 0 };
        if inode.entries != within.entries {
            wrong.push(format!("{} names, counts {}", within.entries, inode.entries));
            inode.entries = within.entries;
        }
        let free = FIRST_COOKIE.max(within.last_cookie + 1);
        if inode.next_cookie < free || inode.next_cookie > MAX_COOKIE {
            wrong.push(format!("next cookie {}, should be {free}", inode.next_cookie));
            inode.next_cookie = free;
        }
    }
    if inode.attr.nlink != want {
        wrong.push(format!("link count {}, should be {want}", inode.attr.nlink));
        inode.attr.nlink = want;
    }
}

/// Extended attributes.
pub(super) fn room(inode: &mut Inode, xattrs: &HashMap<u64, Room>, wrong: &mut Vec<String>) {
    let room = xattrs.get(&inode.ino().0).copied().unwrap_or_default();
    let accounted = Room::accounted(inode);
    if room != accounted || inode.attr.no_xattrs && room != Room::default() {
        wrong.push(format!("attributes take {room:?}, accounts for {accounted:?}"));
        room.account(inode);
    }
}

/// Size, blocks and inline bytes.
pub(super) fn sizes(inode: &mut Inode, extents: &Extents, wrong: &mut Vec<String>) {
    let (mut bytes, mut inline, mut end) = (0, 0, 0);
    if inode.kind() == FileKind::Regular {
        let sums = extents.of.get(&inode.content_id().0);
        (bytes, inline, end) = sums.copied().unwrap_or_default();
    }
    if inode.allocated != bytes || inode.attr.blocks != bytes.div_ceil(512) {
        wrong.push(format!(
            "{bytes} bytes in extents, accounts for {} and {} blocks",
            inode.allocated, inode.attr.blocks
        ));
        inode.set_allocated(bytes);
    }
    if inode.attr.inline_bytes != inline {
        wrong.push(format!("{inline} inline bytes, accounts for {}", inode.attr.inline_bytes));
        inode.attr.inline_bytes = inline;
    }
    let shown = end > inode.attr.size && end <= content::MAX_FILE;
    if shown && inode.cut.last().is_none_or(|span| span.to < end) {
        wrong.push(format!("extents to {end}, size {}", inode.attr.size));
        inode.attr.size = end;
        inode.attr.data_version = inode.attr.data_version.saturating_add(1);
    }
}
