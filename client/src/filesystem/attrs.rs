//! Attributes, layouts, and room in the filesystem.

use super::facade::Filesystem;
use crate::file;
use crate::meta::unexpected;
use crate::to_the_end::to_the_end;
use crate::types::{Attr, HandleId, SetAttr, StatFs};
use std::time::Duration;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, Layout, Result, v1};

impl Filesystem {
    /// Attributes as this mount sees them.
    pub async fn get_attr(&self, ino: InodeId) -> Result<Attr> {
        if let Some(attr) = self.get_attr_now(ino) {
            return Ok(attr);
        }
        // Boxed: most are answered by leases.
        Box::pin(async {
            loop {
                if let Some(file) = self.inner.files.get(ino) {
                    file.settle_doubt().await?;
                    file.settle().await;
                }
                let asked = Op::GetAttr(v1::GetAttrOp { ino: ino.0 });
                let Reply::Attr(attr) = self.inner.requests.ask(asked).await? else {
                    return Err(unexpected("a request for attributes"));
                };
                // It may be in doubt since it was asked.
                if let Some(attr) = self.inner.files.view_now(attr.try_into()?) {
                    return Ok(attr);
                }
            }
        })
        .await
    }

    /// [`Self::get_attr`] if a lease answers it.
    pub fn get_attr_now(&self, ino: InodeId) -> Option<Attr> {
        self.inner.files.view_now(self.inner.group.leases.attr(ino)?)
    }

    /// Size of an open file, with what is not committed yet, as far as is known here.
    pub fn size_now(&self, handle: HandleId) -> Option<u64> {
        Some(self.inner.files.handle(handle).ok()?.file.size())
    }

    /// Whether a file was opened to append.
    pub fn is_append(&self, handle: HandleId) -> bool {
        self.inner.files.handle(handle).is_ok_and(|handle| handle.append)
    }

    /// Whether it is known that a file has no set-id bits, although its attributes are not: this
    /// mount may write ranges of it.
    pub fn has_no_set_ids(&self, ino: InodeId) -> bool {
        self.inner.group.leases.has_no_set_ids(ino)
    }

    /// Attributes that may be cached above ([`NameCache`](crate::NameCache)), once that knows of
    /// it, and for how long: a lease answers them, and nobody here is changing them.
    pub fn attr_to_cache(&self, ino: InodeId) -> Option<(Attr, Duration)> {
        let file = self.inner.files.get(ino);
        if file.is_some_and(|file| file.has_writers() || file.is_dirty()) {
            return None;
        }
        let (attr, left) = self.inner.group.leases.attr_to_cache(ino)?;
        Some((self.inner.files.view(attr), left))
    }

    /// Changes attributes, in order with what was written here. Errors: `Io` if the size is to be
    /// changed through a handle whose locks were lost.
    pub async fn set_attr(
        &self,
        ino: InodeId,
        handle: Option<HandleId>,
        change: SetAttr,
    ) -> Result<Attr> {
        self.set_attr_while(ino, handle, change, || true).await
    }

    /// [`Self::set_attr`] for a caller that may be answered without it, as one that is killed: the
    /// size of an open file is changed only if that is `permitted` when all that comes before it is
    /// told. Errors: `Interrupted`.
    pub async fn set_attr_while(
        &self,
        ino: InodeId,
        handle: Option<HandleId>,
        change: SetAttr,
        permitted: impl Fn() -> bool + Send + 'static,
    ) -> Result<Attr> {
        self.may_set(&change)?;
        if let Some(handle) = handle.filter(|_| change.size.is_some()) {
            self.inner.locks.hold(ino, handle)?;
        }
        if change.atime.is_some() {
            self.inner.atimes.atimes.forget(ino);
        }
        match self.inner.files.get(ino) {
            Some(file) => file.set_attr_while(change, permitted).await,
            None => {
                let inner = &self.inner;
                let now = (inner.options.clock)();
                let attr = file::set_attr(&inner.requests, &inner.log, ino, change, now).await?;
                Ok(inner.files.view(attr))
            }
        }
    }

    /// What lies under a directory, it included, as committed: what is still buffered on this mount
    /// or another is not counted. Looks at all of it, which takes seconds for a million inodes.
    /// Errors: `Stale`.
    pub async fn usage(&self, ino: InodeId) -> Result<v1::GetUsageReply> {
        let op = v1::GetUsageOp { ino: ino.0 };
        match self.inner.requests.ask_patiently(Op::GetUsage(op)).await? {
            Reply::Usage(usage) => Ok(usage),
            _ => Err(unexpected("a question for usage")),
        }
    }

    /// The attributes in an answer, as this mount sees them.
    pub(super) fn attr(&self, reply: Reply) -> Result<Attr> {
        match reply {
            Reply::Attr(attr) => Ok(self.inner.files.view(attr.try_into()?)),
            _ => Err(unexpected("a request for attributes")),
        }
    }

    /// How much room there is in the filesystem.
    pub async fn stat_fs(&self) -> Result<StatFs> {
        match self.inner.requests.ask(Op::StatFs(v1::StatFsOp {})).await? {
            Reply::StatFs(s) => Ok(StatFs {
                capacity_bytes: s.capacity_bytes,
                free_bytes: s.free_bytes,
                available_bytes: s.available_bytes.unwrap_or(s.free_bytes),
                inodes: s.inodes,
                free_inodes: None,
            }),
            _ => Err(unexpected("a request for room")),
        }
    }

    /// How new data of the file, or of files made in the directory, is laid out.
    pub async fn get_layout(&self, ino: InodeId) -> Result<Layout> {
        match self.inner.requests.ask(Op::GetLayout(v1::GetLayoutOp { ino: ino.0 })).await? {
            Reply::Layout(layout) => layout.try_into(),
            _ => Err(unexpected("a layout")),
        }
    }

    /// Sets how new data will be laid out; what is written already stays where it is.
    pub async fn set_layout(&self, ino: InodeId, layout: Layout) -> Result<()> {
        self.may_change()?;
        layout.validate()?;
        let (requests, file) = (self.inner.requests.clone(), self.inner.files.get(ino));
        to_the_end(async move {
            if let Some(file) = &file {
                file.flush().await?;
            }
            let op = v1::SetLayoutOp { ino: ino.0, layout: Some(layout.into()) };
            requests.change(Op::SetLayout(op)).await?;
            if let Some(file) = file {
                file.set_layout(layout);
            }
            Ok(())
        })
        .await
    }
}
