//! Looks names up.

use super::facade::Filesystem;
use super::names::name_of;
use crate::meta::unexpected;
use crate::types::Attr;
use bytes::Bytes;
use futures_util::future::join_all;
use std::time::Duration;
use tokio::time::timeout;
use weft_net::trace::carried;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// Longest name, in bytes. No longer one exists, which under a lease nobody else is asked.
const MAX_NAME: usize = 255;
/// Names that one request asks for ahead.
const MAX_AHEAD: usize = 128;
/// Bytes of such a request, so that its server sees how long the answer may be.
const MAX_ASKED: usize = 4000;
/// Bytes beside a name there, at most.
const ASKED_BESIDE: usize = 20;
/// Who looks ahead does without the answer after this long.
const AHEAD_TIMEOUT: Duration = Duration::from_secs(2);

impl Filesystem {
    /// The name `.` leads to any inode, whatever it is, that has a name; `..` to the directory that
    /// a directory is in, and at the root to itself. Errors: `NotFound`, `NotDirectory`; `Stale` of
    /// what has no name any more.
    pub async fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        match name {
            b"." => return self.named(parent).await,
            b".." => return self.named(self.parent_of(parent).await?).await,
            _ => {}
        }
        if let Some(known) = self.lookup_now(parent, name) {
            return known;
        }
        let leases = &self.inner.group.leases;
        // For a guess nothing is told sooner.
        if !self.inner.log.is_unpublished(parent)
            && let Some(names) = leases.names_ahead(parent, name)
        {
            self.seek_behind(parent, names);
        }
        if let Some(ahead) = leases.attrs_ahead(parent, name)
            && self.inner.requests.ask(Op::ReadDir(ahead)).await.is_ok()
            && let Some(known) = self.lookup_now(parent, name)
        {
            return known;
        }
        let op = v1::LookupOp { parent: parent.0, name: name_of(name) };
        let start = leases.start();
        match self.inner.requests.ask(Op::Lookup(op)).await? {
            Reply::Missing(_) => Err(Error::new(ErrorKind::NotFound, "no such name")),
            Reply::Attr(attr) | Reply::Open(v1::OpenReply { attr: Some(attr), .. }) => {
                let ino = InodeId(attr.ino);
                let file = self.inner.files.get(ino).filter(|file| file.is_dirty());
                // What was done to it here may not be told yet, nor known any more; or it was told
                // after this was answered.
                let (writes, unpublished) =
                    (leases.writes(ino), self.inner.log.is_unpublished(ino));
                match file.is_some() || writes || unpublished || !leases.keeps_since(start, ino) {
                    true => self.get_attr(ino).await,
                    false => match self.inner.files.view_now(attr.try_into()?) {
                        Some(attr) => Ok(attr),
                        None => self.get_attr(ino).await,
                    },
                }
            }
            _ => Err(unexpected("a lookup")),
        }
    }

    /// Asks for names of a directory; nobody waits for that, nor asks anew if it fails.
    fn seek_behind(&self, dir: InodeId, names: v1::ReadDirOp) {
        let inner = self.inner.clone();
        tokio::spawn(carried(async move {
            if inner.log.is_unpublished(dir) {
                return;
            }
            let asking = inner.requests.ask(Op::ReadDir(names));
            if let Ok(Ok(_)) = timeout(AHEAD_TIMEOUT, asking).await {
                inner.group.leases.note_sought(dir);
            }
        }));
    }

    /// Attributes of an inode that has a name.
    async fn named(&self, ino: InodeId) -> Result<Attr> {
        let attr = self.get_attr(ino).await?;
        match attr.nlink {
            0 => Err(Error::new(ErrorKind::Stale, format!("inode {ino} has no name any more"))),
            _ => Ok(attr),
        }
    }

    /// The directory that a directory is in; the root is in itself.
    async fn parent_of(&self, dir: InodeId) -> Result<InodeId> {
        if dir == self.root() {
            return Ok(dir);
        }
        // What follows the last name is known or asked for, and tells it too.
        if let Some(page) = self.inner.group.leases.page(dir, u64::MAX, 1) {
            return Ok(page.parent);
        }
        let op = v1::ReadDirOp { ino: dir.0, cookie: u64::MAX, limit: 1, attrs: true };
        match self.inner.requests.ask(Op::ReadDir(op)).await? {
            Reply::ReadDir(page) => Ok(InodeId(page.parent)),
            _ => Err(unexpected("a lookup")),
        }
    }

    /// Asks at once what many names lead to that are about to be looked up and opened, unless a
    /// lease says it. What cannot be had without others waiting for it is left to who looks it up.
    pub async fn look_ahead(&self, names: impl IntoIterator<Item = (InodeId, Bytes)>) {
        let leases = &self.inner.group.leases;
        let mut items = Vec::new();
        let (mut requests, mut bytes) = (Vec::new(), 0);
        for (parent, name) in names {
            if name.len() > MAX_NAME || leases.has_content(parent, &name) {
                continue;
            }
            bytes += name.len() + ASKED_BESIDE;
            items.push(v1::lookup_many_op::Item { parent: parent.0, name });
            if items.len() == MAX_AHEAD || bytes + MAX_NAME + ASKED_BESIDE > MAX_ASKED {
                requests.push(std::mem::take(&mut items));
                bytes = 0;
            }
        }
        // One alone is looked up as well by itself.
        if items.len() > 1 {
            requests.push(items);
        }
        let requests = requests.into_iter().map(|items| {
            // Without an answer each is asked for when it is needed.
            timeout(
                AHEAD_TIMEOUT,
                self.inner.requests.ask(Op::LookupMany(v1::LookupManyOp { items })),
            )
        });
        join_all(requests).await;
    }

    /// Whether a lease says that a name leads to this inode, or to none: then it may be cached
    /// above ([`NameCache`](crate::NameCache)), once that knows of it.
    pub fn may_cache_name(&self, dir: InodeId, name: &[u8], ino: Option<InodeId>) -> bool {
        self.inner.group.leases.has_name(dir, name, ino)
    }

    /// [`Self::lookup`] of a name in a directory if a lease answers it.
    pub fn lookup_now(&self, parent: InodeId, name: &[u8]) -> Option<Result<Attr>> {
        if name.len() > MAX_NAME {
            let what = format!("a name of {} bytes is over {MAX_NAME}", name.len());
            return Some(Err(Error::new(ErrorKind::NameTooLong, what)));
        }
        let known = self.inner.group.leases.lookup(parent, name)?;
        known.map(|attr| self.inner.files.view_now(attr)).transpose()
    }
}
