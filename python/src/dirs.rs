//! Lists directories page by page. A listing is of one directory, wherever its path leads
//! meanwhile, and ends where that ended when it began, whatever is made or moved.

use crate::stats;
use pyo3::prelude::*;
use weft_client::{Access, Caller, DirPage, Filesystem};
use weft_proto::{Error, ErrorKind, InodeId, Result};

/// Where a listing goes on: in which directory, after which cookie, and at which it ends.
pub type Cursor = (u64, u64, u64);

/// A piece of a directory.
pub struct Page {
    page: DirPage,
    next: Cursor,
}

/// Up to `limit` names from a cursor on; without one, from the start of the directory at a path.
pub async fn page(
    fs: &Filesystem,
    caller: &Caller,
    path: &[u8],
    cursor: Option<Cursor>,
    limit: u32,
    attrs: bool,
) -> Result<Page> {
    let (dir, after, known) = match cursor {
        Some(cursor) => cursor,
        None => (find(caller, path, attrs).await?.0, 0, 0),
    };
    let mut page = fs.read_dir(InodeId(dir), after, limit, attrs).await.map_err(removed)?;
    // 0: an older server does not say.
    let end = match (known, page.next_cookie) {
        (0, 0) => u64::MAX,
        (0, next) => next,
        (known, _) => known,
    };
    page.end_at(end);
    let after = page.entries.last().map_or(after, |entry| entry.cookie);
    Ok(Page { page, next: (dir, after, end) })
}

/// The directory at a path, if the user may list it. Like one that is open, it is not asked again.
async fn find(caller: &Caller, path: &[u8], attrs: bool) -> Result<InodeId> {
    let dir = caller.find_dir(path).await?.ino;
    if attrs {
        caller.at(dir).access(b".", Access::SEARCH).await?;
    }
    Ok(dir)
}

/// To programs, which name directories by paths, one that is gone is not there.
fn removed(error: Error) -> Error {
    match error.kind {
        ErrorKind::Stale => Error { kind: ErrorKind::NotFound, ..error },
        _ => error,
    }
}

impl Page {
    /// As Python sees it: the names, the cursor to go on with, and whether nothing comes after.
    pub fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let entries = stats::entries(py, &self.page)?;
        let end = self.page.end || self.page.entries.is_empty();
        Ok((entries, self.next, end).into_pyobject(py)?.into_any())
    }
}
