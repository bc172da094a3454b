//! Reads directories.

use super::facade::Filesystem;
use crate::meta::unexpected;
use crate::types::{Attr, DirEntry, DirPage, FileKind, HandleId};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, Result, v1};

impl Filesystem {
    /// Up to `limit` entries with cookies greater than `cookie` (0: from the start); if `attrs`,
    /// with the attributes of those that no other mount is changing. The root is in itself.
    pub async fn read_dir(
        &self,
        ino: InodeId,
        cookie: u64,
        limit: u32,
        attrs: bool,
    ) -> Result<DirPage> {
        if cookie == 0 {
            self.note_access(|| self.inner.group.leases.attr(ino));
        }
        let parent = |found: InodeId| if ino == self.root() { ino } else { found };
        if !attrs && let Some(known) = self.inner.group.leases.page(ino, cookie, limit as usize) {
            return Ok(DirPage { parent: parent(known.parent), ..known });
        }
        let op = v1::ReadDirOp { ino: ino.0, cookie, limit, attrs };
        let Reply::ReadDir(page) = self.inner.requests.ask(Op::ReadDir(op)).await? else {
            return Err(unexpected("reading a directory"));
        };
        let entries = page.entries.into_iter().map(|entry| {
            // What was done to it here may not be told yet.
            let told = !self.inner.log.is_unpublished(InodeId(entry.ino));
            let attr = entry.attr.filter(|_| told).map(Attr::try_from).transpose()?;
            Ok(DirEntry {
                kind: FileKind::from_wire(entry.kind())?,
                name: entry.name,
                ino: InodeId(entry.ino),
                cookie: entry.cookie,
                attr: attr.map(|attr| self.inner.files.view(attr)),
            })
        });
        Ok(DirPage {
            entries: entries.collect::<Result<_>>()?,
            end: page.end,
            parent: parent(InodeId(page.parent)),
            next_cookie: page.next_cookie,
        })
    }

    /// [`Self::read_dir`] of an open directory, without attributes: names that were made since it
    /// was last read from the start are left out, so that reading it ends whatever is made or moved
    /// meanwhile.
    pub async fn read_open_dir(
        &self,
        handle: HandleId,
        cookie: u64,
        limit: u32,
    ) -> Result<DirPage> {
        let ino = self.inner.files.directory(handle)?;
        let mut page = self.read_dir(ino, cookie, limit, false).await?;
        page.end_at(self.inner.files.end_of(handle, cookie, page.next_cookie)?);
        Ok(page)
    }
}
