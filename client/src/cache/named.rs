//! What answers teach that asked by names: lookups, and a listing.

use super::listing::Listing;
use super::table::{Mode, Start, Table};
use weft_proto::{InodeId, v1};

/// What is behind a name.
#[derive(Clone, Copy)]
pub(super) enum Named<'a> {
    Attr(&'a v1::Attr),
    Content(&'a v1::OpenReply),
}

impl Table {
    /// What was asked by a name, which says nothing of what was done to the inode here and is not
    /// told.
    pub(super) fn learn_named(&mut self, start: Start, found: Named<'_>) {
        let attr = match found {
            Named::Attr(attr) => Some(attr),
            Named::Content(reply) => reply.attr.as_ref(),
        };
        let writes = |ino| self.inodes.get(&ino).is_some_and(|held| held.mode == Mode::Write);
        match found {
            _ if attr.is_none_or(|attr| writes(InodeId(attr.ino))) => {}
            Named::Attr(attr) => self.learn_attr(start, Some(attr)),
            Named::Content(reply) => self.learn_content(start, reply),
        }
    }

    pub(super) fn learn_many(
        &mut self,
        start: Start,
        op: &v1::LookupManyOp,
        reply: &v1::LookupManyReply,
    ) {
        for item in &reply.items {
            let asked = usize::try_from(item.at).ok().and_then(|at| op.items.get(at));
            let (Some(asked), Some(found)) = (asked, &item.found) else { continue };
            let Some(attr) = &found.attr else { continue };
            self.learn_named(
                start,
                match found.extents {
                    Some(_) => Named::Content(found),
                    None => Named::Attr(attr),
                },
            );
            self.learn_name(start, asked.parent, &asked.name, Some(InodeId(attr.ino)));
        }
    }

    pub(super) fn learn_page(&mut self, start: Start, op: &v1::ReadDirOp, page: &v1::ReadDirReply) {
        let ino = InodeId(op.ino);
        if !self.holds_since(start, ino) {
            return;
        }
        for entry in &page.entries {
            if let Some(attr) = &entry.attr {
                self.learn_named(start, Named::Attr(attr));
            }
            self.learn_name(start, op.ino, &entry.name, Some(InodeId(entry.ino)));
        }
        // With attributes, it is a piece of what is known already.
        if let Some(held) = self.inodes.get_mut(&ino).filter(|_| !op.attrs) {
            held.listing = match (op.cookie, held.listing.take()) {
                (0, None) => Listing::begin(page),
                (_, Some(begun)) => begun.extend(op.cookie, page),
                (_, None) => None,
            };
            held.complete |= held.listing.as_ref().is_some_and(Listing::is_whole);
        }
    }
}
