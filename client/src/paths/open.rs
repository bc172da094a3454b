//! Opens and makes files by paths.

use super::caller::Caller;
use super::names::is_directory;
use super::open_file::OpenFile;
use super::walk::{Links, Name, Walk};
use crate::access::{self, Access};
use crate::types::{Attr, FileKind, OpenFlags, SetAttr};
use weft_proto::{Error, ErrorKind, Result};

/// How often what others made meanwhile is looked at anew.
const MAX_TRIES: u32 = 16;

/// What the flags of an open want to do.
fn wanted(flags: OpenFlags) -> Access {
    let read = if !flags.write || flags.both { Access::READ } else { Access::NONE };
    let write = if flags.write || flags.truncate { Access::WRITE } else { Access::NONE };
    read | write
}

impl Caller {
    /// Opens a file that there is. Errors: `AccessDenied`, `NotPermitted` for `flags.no_atime` to
    /// all but the owner, `TooDeep` for a symbolic link with `flags.no_follow`, `IsDirectory`,
    /// `NotSupported` of what is neither file nor directory.
    pub async fn open(&self, path: &[u8], flags: OpenFlags) -> Result<OpenFile> {
        let links = if flags.no_follow { Links::Stay } else { Links::Follow };
        let found = Walk::begin(self, path).await?.end(links).await?;
        self.open_found(&found, flags).await
    }

    /// Opens a file, and makes it if there is none: whoever makes it may read and write it this
    /// time, whatever its mode. Errors: those of [`Self::open`], and `Exists` with
    /// `flags.exclusive`.
    pub async fn create(&self, path: &[u8], mode: u32, flags: OpenFlags) -> Result<OpenFile> {
        let mut walk = Walk::begin(self, path).await?;
        let mut last = walk.parent().await?;
        let mut tries = 0;
        loop {
            let name = match &last.name {
                Name::Normal(name) if !last.slash => name,
                Name::Normal(_) => {
                    return Err(Error::new(ErrorKind::IsDirectory, "a file with a slash after it"));
                }
                _ if flags.exclusive => {
                    return Err(Error::new(ErrorKind::Exists, "the directory exists"));
                }
                _ => return Err(is_directory(&last.dir)),
            };
            let found = walk.look_if_there(&last.name).await?;
            let Some(found) = found else {
                self.check_change(&last.dir).await?;
                let mode = access::mode_of_new(&self.who, &last.dir, mode);
                // What another has made meanwhile has to be looked at.
                let new = OpenFlags { exclusive: true, ..flags };
                let made = self.fs.create(last.dir.ino, name, mode, self.creator(), new).await;
                match made {
                    // It may be gone again when it is looked for, but not for ever.
                    Err(e)
                        if e.kind == ErrorKind::Exists && !flags.exclusive && tries < MAX_TRIES =>
                    {
                        tries += 1;
                        continue;
                    }
                    made => return Ok(OpenFile::new(self, made?, flags)),
                }
            };
            if flags.exclusive {
                let what = format!("inode {} has that name", found.ino);
                return Err(Error::new(ErrorKind::Exists, what));
            }
            if found.kind == FileKind::Symlink && !flags.no_follow {
                walk.follow(&found, b"").await?;
                last = walk.parent().await?;
                continue;
            }
            if found.is_dir() {
                return Err(is_directory(&found));
            }
            access::check_create(&self.who, &last.dir, &found)?;
            return self.open_found(&found, flags).await;
        }
    }

    async fn open_found(&self, found: &Attr, flags: OpenFlags) -> Result<OpenFile> {
        let (ino, want) = (found.ino, wanted(flags));
        let refused = |kind, what| Err(Error::new(kind, format!("inode {ino} {what}")));
        match found.kind {
            FileKind::Symlink => return refused(ErrorKind::TooDeep, "is a symbolic link"),
            FileKind::Directory if want.contains(Access::WRITE) => return Err(is_directory(found)),
            _ => self.check(found, want).await?,
        }
        if flags.no_atime && !access::owns(&self.who, found) {
            return refused(ErrorKind::NotPermitted, "is another user's, who sees when it is read");
        }
        match found.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(is_directory(found)),
            _ => return refused(ErrorKind::NotSupported, "is opened by a kernel only"),
        }
        if let Some(mode) = access::kept_mode(&self.who, found).filter(|_| flags.truncate) {
            let change = SetAttr { mode: Some(mode), ..Default::default() };
            self.fs.set_attr(ino, None, change).await?;
        }
        Ok(OpenFile::new(self, self.fs.open(ino, flags).await?, flags))
    }
}
