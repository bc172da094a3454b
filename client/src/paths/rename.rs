//! Moves names by paths.

use super::caller::Caller;
use super::names::{check_removal, is_directory};
use super::walk::{Last, Walk, not_directory};
use crate::access::Access;
use crate::types::Attr;
use weft_proto::rename::{EXCHANGE, NOREPLACE};
use weft_proto::{Error, ErrorKind, Result};

/// How often what others made meanwhile is looked at anew.
const MAX_TRIES: u32 = 16;

impl Caller {
    /// Moves a name. `flags` are those of `renameat2(2)`. Errors: `AccessDenied` if either
    /// directory must not be changed, or a directory that gets another parent; `NotPermitted` for
    /// what is another user's in a sticky directory. That a directory would get below itself
    /// (`Invalid`) is told after these, to who may move it.
    pub async fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        let (no_replace, exchange) = (flags & NOREPLACE != 0, flags & EXCHANGE != 0);
        if flags & !(NOREPLACE | EXCHANGE) != 0 || no_replace && exchange {
            return Err(Error::new(ErrorKind::Invalid, "flags of a rename that there are not"));
        }
        for _ in 0..MAX_TRIES {
            match self.rename_once(from, to, flags).await {
                // It was made since it was looked for, and may be what must not be replaced.
                Err(e) if e.kind == ErrorKind::Exists && !no_replace => {}
                done => return done,
            }
        }
        Err(Error::new(ErrorKind::Exists, "others make and remove the new name all the time"))
    }

    async fn rename_once(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        let (no_replace, exchange) = (flags & NOREPLACE != 0, flags & EXCHANGE != 0);
        let (mut from, mut to) = (Walk::begin(self, from).await?, Walk::begin(self, to).await?);
        let (old, new) = (from.parent().await?, to.parent().await?);
        let name = old.normal(ErrorKind::Busy)?;
        let in_use = if no_replace { ErrorKind::Exists } else { ErrorKind::Busy };
        let new_name = new.normal(in_use)?;
        let source = from.look(&old.name).await?;
        let target = to.look_if_there(&new.name).await?;
        if target.is_some() && no_replace {
            return Err(Error::new(ErrorKind::Exists, "the new name exists"));
        }
        if target.is_none() && exchange {
            return Err(Error::new(ErrorKind::NotFound, "the new name does not exist"));
        }
        check_slashes((&old, &source), (&new, target.as_ref()), exchange)?;
        if target.is_some_and(|target| target.ino == source.ino) {
            return Ok(());
        }
        self.check_move((&old.dir, &source), (&new.dir, target.as_ref()), exchange).await?;
        // What was not there when that was checked is not replaced.
        let flags = if target.is_none() { flags | NOREPLACE } else { flags };
        self.fs.rename(old.dir.ino, name, new.dir.ino, new_name, flags).await
    }

    async fn check_move(
        &self,
        (dir, source): (&Attr, &Attr),
        (new_dir, target): (&Attr, Option<&Attr>),
        exchange: bool,
    ) -> Result<()> {
        check_removal(self, dir, source).await?;
        match target {
            None => self.check_change(new_dir).await?,
            Some(target) => {
                check_removal(self, new_dir, target).await?;
                match (source.is_dir(), target.is_dir()) {
                    _ if exchange => {}
                    (true, false) => return Err(not_directory(target)),
                    (false, true) => return Err(is_directory(target)),
                    _ => {}
                }
            }
        }
        if dir.ino == new_dir.ino {
            return Ok(());
        }
        // Their `..` will lead elsewhere.
        let other = target.filter(|_| exchange);
        for moved in [Some(source), other].into_iter().flatten().filter(|moved| moved.is_dir()) {
            self.check(moved, Access::WRITE).await?;
        }
        Ok(())
    }
}

/// A slash after a name means a directory.
fn check_slashes(
    (old, source): (&Last, &Attr),
    (new, target): (&Last, Option<&Attr>),
    exchange: bool,
) -> Result<()> {
    if let Some(target) = target
        && exchange
        && new.slash
        && !target.is_dir()
    {
        return Err(not_directory(target));
    }
    if !source.is_dir() && (old.slash || !exchange && new.slash) {
        return Err(not_directory(source));
    }
    Ok(())
}
