//! Opens files, and makes them.

use super::lease::attr_and_layout;
use super::table::{Entered, Files};
use crate::cache::Mode;
use crate::meta::unexpected;
use crate::types::{Attr, HandleId, OpenFlags, SetAttr};
use std::sync::Arc;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

impl Files {
    /// Opens an inode. Answers whether what the caller has cached is good.
    pub async fn open(&self, ino: InodeId, flags: OpenFlags) -> Result<Entered> {
        let opens = &self.context.opens;
        opens.have_room()?;
        let number = opens.begin(ino);
        let entered = match self.known(ino, flags) {
            Some(content) => self.enter(&content, number, flags),
            None => {
                let told = opens.declare(ino, flags.write).await;
                told.and_then(|reply| self.enter(&reply, number, flags))
            }
        };
        match entered {
            Ok((id, attr, keep)) => self.cut_if_asked(id, attr, keep, flags).await,
            Err(error) => {
                opens.end(ino);
                Err(error)
            }
        }
    }

    /// What an open answers, if a lease says so.
    fn known(&self, ino: InodeId, flags: OpenFlags) -> Option<Arc<v1::OpenReply>> {
        let (content, mode) = self.context.leases.content(ino)?;
        let enough = !flags.truncate && (!flags.write || mode == Mode::Write);
        enough.then_some(content)
    }

    /// Makes a file and opens it, if a lease allows to do that without asking: `file` but for its
    /// number.
    pub fn make(&self, file: v1::MakeOp, flags: OpenFlags) -> Option<Result<Entered>> {
        let (opens, now) = (&self.context.opens, (self.context.clock)());
        let dir = InodeId(file.parent);
        if let Err(error) = opens.have_room() {
            return Some(Err(error));
        }
        let mut begun = (InodeId(0), 0);
        let mut open = |ino| begun = (ino, opens.begin(ino));
        let reply = self.context.log.make(file, now, Some(&mut open))?;
        let (ino, number) = begun;
        let entered = self.enter(&reply, number, flags).inspect_err(|_| opens.end(ino));
        self.was_made_in(ino, dir);
        Some(entered)
    }

    /// Makes a file, by the operation that `op` gives for the number of its open, and opens it.
    ///
    /// Others may take an empty file away before it is known here that it was made, and a new
    /// leader, who was not told that it is open, forgets it. What is open then is a file without a
    /// name. To say `Stale` would not do: the kernel begins anew at that, and made it twice.
    pub async fn create(&self, op: impl FnOnce(u64) -> Op, flags: OpenFlags) -> Result<Entered> {
        let opens = &self.context.opens;
        opens.have_room()?;
        let (mut number, mut declared) = (opens.number(), opens.declarations());
        let mut op = op(number);
        let dir = match &op {
            Op::Create(create) => Some(InodeId(create.parent)),
            _ => None,
        };
        let mut entered = self.create_once(op.clone(), number, flags).await?;
        while opens.declarations() != declared {
            let (id, attr, _) = entered;
            let Err(error) = opens.declare(attr.ino, false).await else { break };
            self.forget(id);
            // One with content was there before: nothing was made.
            if error.kind != ErrorKind::Stale || attr.size > 0 {
                return Err(error);
            }
            (number, declared) = (opens.number(), opens.declarations());
            op = without_name(op, number);
            let nameless = self.create_once(op.clone(), number, flags).await;
            entered = nameless.map_err(|error| match error.kind {
                ErrorKind::Stale | ErrorKind::NotFound => {
                    let what = "a new file was removed, with its directory, before it was open";
                    Error::new(ErrorKind::Io, what)
                }
                _ => error,
            })?;
        }
        let (id, attr, keep) = entered;
        if let Some(dir) = dir {
            self.was_made_in(attr.ino, dir);
        }
        self.cut_if_asked(id, attr, keep, flags).await
    }

    fn was_made_in(&self, ino: InodeId, dir: InodeId) {
        if let Some(file) = self.get(ino) {
            file.was_made_in(dir);
        }
    }

    async fn create_once(&self, op: Op, number: u64, flags: OpenFlags) -> Result<Entered> {
        let Reply::Open(reply) = self.context.requests.change(op).await? else {
            return Err(unexpected("a create"));
        };
        let (made, _) = attr_and_layout(&reply)?;
        let opens = &self.context.opens;
        opens.made(made.ino, number);
        self.enter(&reply, number, flags).inspect_err(|_| opens.end(made.ino))
    }

    async fn cut_if_asked(
        &self,
        id: HandleId,
        attr: Attr,
        keep: bool,
        flags: OpenFlags,
    ) -> Result<Entered> {
        let is_empty = attr.size == 0 && !self.handle(id)?.file.has_unwritten();
        if !flags.truncate || is_empty {
            return Ok((id, attr, keep));
        }
        let change = SetAttr { size: Some(0), ..Default::default() };
        match self.handle(id)?.file.set_attr(change).await {
            Ok(attr) => Ok((id, attr, false)),
            Err(error) => {
                // The failure to open is what counts.
                let _ = self.release(id).await;
                Err(error)
            }
        }
    }

    /// Opens a directory.
    pub async fn open_dir(&self, ino: InodeId) -> Result<HandleId> {
        let opens = &self.context.opens;
        opens.have_room()?;
        let id = HandleId(opens.begin(ino));
        if self.context.leases.mode(ino).is_none()
            && let Err(error) = opens.declare(ino, false).await
        {
            opens.end(ino);
            return Err(error);
        }
        self.directories.insert(id, ino, 0);
        Ok(id)
    }

    /// The inode of an open directory.
    pub fn directory(&self, id: HandleId) -> Result<InodeId> {
        self.directories.ino(id)
    }

    /// The cookie at which an open directory ends that is read after `cookie`.
    pub fn end_of(&self, id: HandleId, cookie: u64, next_cookie: u64) -> Result<u64> {
        self.directories.end_of(id, cookie, next_cookie)
    }

    /// The handle of a directory is gone.
    pub fn release_dir(&self, id: HandleId) -> Result<()> {
        self.closed(self.directories.remove(id)?);
        Ok(())
    }
}

/// What makes the same file without a name.
fn without_name(op: Op, open_seq: u64) -> Op {
    match op {
        Op::Create(v1::CreateOp { parent, mode, uid, gid, umask, .. }) => {
            Op::TmpFile(v1::TmpFileOp { parent, mode, uid, gid, open_seq, umask })
        }
        Op::TmpFile(op) => Op::TmpFile(v1::TmpFileOp { open_seq, ..op }),
        op => op,
    }
}
