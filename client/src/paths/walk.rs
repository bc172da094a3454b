//! Walks paths, as path_resolution(7) says.

use super::caller::Caller;
use crate::access::Access;
use crate::types::{Attr, FileKind};
use bytes::Bytes;
use weft_proto::{Error, ErrorKind, Result};

/// Longest path, in bytes: Linux's `PATH_MAX` less the closing NUL.
const MAX_PATH: usize = 4095;
/// Most symbolic links that one path follows.
const MAX_LINKS: u32 = 40;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Links {
    Follow,
    /// Only if a slash comes after it.
    Stay,
}

/// The end of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Name {
    /// There is none: the path is nothing but slashes.
    Root,
    Dot,
    DotDot,
    Normal(Bytes),
}

/// Where the last name of a path is looked for.
pub(super) struct Last {
    /// May be searched by the user.
    pub dir: Attr,
    pub name: Name,
    /// Slashes come after it: it means a directory.
    pub slash: bool,
}

impl Last {
    /// The name if it is one that can be made and removed, or else the kind of error that it is.
    pub fn normal(&self, or: ErrorKind) -> Result<&Bytes> {
        match &self.name {
            Name::Normal(name) => Ok(name),
            _ => Err(Error::new(or, "a path ends with `.`, `..` or the root")),
        }
    }
}

/// A path that is being walked.
pub(super) struct Walk<'a> {
    caller: &'a Caller,
    /// How far it got.
    at: Attr,
    /// What is left: of the path itself, or of symbolic links and what came after them.
    rest: Bytes,
    links: u32,
}

fn slashes(path: &[u8]) -> usize {
    path.iter().take_while(|byte| **byte == b'/').count()
}

impl<'a> Walk<'a> {
    /// Begins. Errors: `NotFound` of an empty path, `NameTooLong`, `Invalid` with a NUL in it.
    pub async fn begin(caller: &'a Caller, path: &[u8]) -> Result<Self> {
        if path.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "an empty path leads nowhere"));
        }
        if path.len() > MAX_PATH {
            let what = format!("a path of {} bytes is over {MAX_PATH}", path.len());
            return Err(Error::new(ErrorKind::NameTooLong, what));
        }
        if path.contains(&0) {
            return Err(Error::new(ErrorKind::Invalid, "a path cannot hold a NUL"));
        }
        let start = if path.starts_with(b"/") { caller.fs.root() } else { caller.start };
        let at = caller.fs.get_attr(start).await?;
        Ok(Self { caller, at, rest: Bytes::copy_from_slice(path), links: 0 })
    }

    /// Goes on to the last name, which is not looked up. Errors: `NotFound`, `NotDirectory`,
    /// `AccessDenied`, `NameTooLong`, `TooDeep` of too many symbolic links.
    pub async fn parent(&mut self) -> Result<Last> {
        loop {
            self.rest = self.rest.slice(slashes(&self.rest)..);
            if self.rest.is_empty() {
                return Ok(Last { dir: self.at, name: Name::Root, slash: false });
            }
            if !self.at.is_dir() {
                return Err(not_directory(&self.at));
            }
            self.caller.check(&self.at, Access::SEARCH).await?;
            let end = self.rest.iter().position(|byte| *byte == b'/').unwrap_or(self.rest.len());
            let (component, after) = (self.rest.slice(..end), self.rest.slice(end..));
            let name = match &component[..] {
                b"." => Name::Dot,
                b".." => Name::DotDot,
                _ => Name::Normal(component),
            };
            if slashes(&after) == after.len() {
                return Ok(Last { dir: self.at, name, slash: !after.is_empty() });
            }
            let found = self.look(&name).await?;
            match found.kind {
                FileKind::Symlink => self.follow(&found, &after).await?,
                _ => (self.at, self.rest) = (found, after),
            }
        }
    }

    /// What a name in the directory that the walk got to stands for. Errors: `NotFound`.
    pub async fn look(&self, name: &Name) -> Result<Attr> {
        match name {
            Name::Root | Name::Dot => Ok(self.at),
            Name::DotDot => self.caller.fs.lookup(self.at.ino, b"..").await,
            Name::Normal(name) => self.caller.fs.lookup(self.at.ino, name).await,
        }
    }

    /// [`Self::look`], which may find nothing.
    pub async fn look_if_there(&self, name: &Name) -> Result<Option<Attr>> {
        match self.look(name).await {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Goes on where a symbolic link in the directory leads, and from there to what comes `after`.
    pub async fn follow(&mut self, link: &Attr, after: &[u8]) -> Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            let what = format!("a path leads over more than {MAX_LINKS} symbolic links");
            return Err(Error::new(ErrorKind::TooDeep, what));
        }
        let target = self.caller.fs.read_link(link.ino).await?;
        if target.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "a symbolic link leads nowhere"));
        }
        if target.starts_with(b"/") {
            self.at = self.caller.fs.get_attr(self.caller.fs.root()).await?;
        }
        self.rest = [&target, after].concat().into();
        Ok(())
    }

    /// Goes to the end: what the path stands for.
    pub async fn end(mut self, links: Links) -> Result<Attr> {
        loop {
            let last = self.parent().await?;
            let found = self.look(&last.name).await?;
            if found.kind == FileKind::Symlink && (links == Links::Follow || last.slash) {
                self.follow(&found, if last.slash { b"/" } else { b"" }).await?;
                continue;
            }
            if last.slash && !found.is_dir() {
                return Err(not_directory(&found));
            }
            return Ok(found);
        }
    }
}

pub(super) fn not_directory(attr: &Attr) -> Error {
    Error::new(ErrorKind::NotDirectory, format!("inode {} is not a directory", attr.ino))
}
