//! The directory that the store of a state machine lives in.
//!
//! It holds `db-N` and the file `current`, which names the one that counts; installing a checkpoint
//! moves it beside the old one and then replaces `current`, so that a crash leaves either the old
//! store or the new one.

use super::read::{Read, StoreError, StoreResult};
use super::rocks::Rocks;
use parking_lot::RwLock;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_proto::planted::{self, Bug};

const CURRENT: &str = "current";
/// The first database of a store.
const FIRST: &str = "db-0";

/// The directory of a state machine's store, and the database in it that counts.
pub(crate) struct Home {
    dir: PathBuf,
    cache_bytes: usize,
    current: RwLock<Arc<Rocks>>,
}

impl Home {
    /// Opens the store in `dir`, creating both if they do not exist.
    pub(crate) fn open(dir: &Path, cache_bytes: usize) -> StoreResult<Self> {
        let failed = |e: std::io::Error| StoreError::io(format!("{}: {e}", dir.display()));
        fs::create_dir_all(dir).map_err(failed)?;
        let named = named(dir)?;
        // Only a directory that never had a store gets a new one: an empty store in place of a lost
        // one would pass for a state in which nothing ever happened.
        let (name, create) = named.map_or((FIRST.into(), true), |name| (name, false));
        let path = dir.join(&name);
        let lost = || {
            let dir = dir.display();
            let what = format!(
                "{dir}/{CURRENT}, which says which of the databases there counts, is lost; if it \
                 is known which, write its name there, without an end of the line"
            );
            StoreError::corrupt(what)
        };
        if create && !others(dir, &name).map_err(failed)?.is_empty() {
            return Err(lost());
        }
        if create
            && path.try_exists().map_err(failed)?
            && !path.join("CURRENT").try_exists().map_err(failed)?
        {
            // Of a first start that was cut short. Fails while it goes on.
            Rocks::destroy(&path)?;
        }
        // This locks the store. Another process may use it until then, and install a database.
        let rocks = Rocks::open(path, cache_bytes, create)?;
        // Nothing is written to the first before it counts.
        if create && !rocks.is_empty()? {
            return Err(lost());
        }
        if !create && self::named(dir)?.as_ref() != Some(&name) {
            return Err(StoreError::io(format!("another process uses {}", dir.display())));
        }
        remove_others(dir, &name).map_err(failed)?;
        if create {
            point_to(dir, &name).map_err(failed)?;
        }
        Ok(Self { dir: dir.to_path_buf(), cache_bytes, current: RwLock::new(Arc::new(rocks)) })
    }

    pub(crate) fn current(&self) -> Arc<Rocks> {
        self.current.read().clone()
    }

    /// Installs the checkpoint in `from`, on the same filesystem, which is moved here. On an error
    /// the old store stays.
    pub(crate) fn replace(
        &self,
        from: &Path,
        accept: &dyn Fn(&dyn Read) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let old = self.current();
        let next =
            old.path().file_name().and_then(|n| n.to_str()).and_then(number).unwrap_or(0) + 1;
        let name = format!("db-{next}");
        let path = self.dir.join(&name);
        let failed = |e: std::io::Error| {
            StoreError::io(format!("cannot install {} as {}: {e}", from.display(), path.display()))
        };
        for entry in fs::read_dir(from).map_err(failed)? {
            fs::File::open(entry.map_err(failed)?.path())
                .and_then(|f| f.sync_all())
                .map_err(failed)?;
        }
        fs::rename(from, &path).map_err(failed)?;
        let new = Rocks::open(path.clone(), self.cache_bytes, false).and_then(|new| {
            accept(&new)?;
            Ok(new)
        });
        let new = match new {
            Ok(new) => new,
            Err(e) => {
                let _ = fs::remove_dir_all(&path);
                return Err(e);
            }
        };
        point_to(&self.dir, &name).map_err(failed)?;
        *self.current.write() = Arc::new(new);
        old.retire();
        Ok(())
    }
}

/// The name of the database that counts, if there is one.
fn named(dir: &Path) -> StoreResult<Option<String>> {
    let file = dir.join(CURRENT);
    let at = file.display();
    match fs::read_to_string(&file) {
        Ok(name) if number(&name).is_some() => Ok(Some(name)),
        Ok(name) => Err(StoreError::corrupt(format!("{at} names {name:?}, not a database"))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StoreError::io(format!("{at}: {e}"))),
    }
}

/// Removes databases that do not count: what a crash left of an installation.
fn remove_others(dir: &Path, current: &str) -> std::io::Result<()> {
    others(dir, current)?.iter().try_for_each(fs::remove_dir_all)
}

/// Databases of a store but for one.
fn others(dir: &Path, one: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut others = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|n| number(n).is_some() && n != one) {
            others.push(entry.path());
        }
    }
    Ok(others)
}

/// The number of a database's directory name.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix("db-")?.parse().ok()
}

/// Makes `name` the database that counts, durably.
fn point_to(dir: &Path, name: &str) -> std::io::Result<()> {
    let temporary = dir.join("current.new");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(CURRENT))?;
    if planted::is(Bug::NameUnsynced) { Ok(()) } else { fs::File::open(dir)?.sync_all() }
}

#[cfg(test)]
mod tests;
