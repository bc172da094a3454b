//! Lists directories by paths.

use super::caller::Caller;
use super::walk::not_directory;
use crate::access::Access;
use crate::types::{Attr, DirPage};
use weft_proto::Result;

impl Caller {
    /// Up to `limit` names with cookies greater than `cookie` (0: from the start); if `attrs`, with
    /// the attributes of those that no other client is changing, if the directory may be searched,
    /// too. Errors: `AccessDenied`, `NotDirectory`.
    pub async fn read_dir(
        &self,
        path: &[u8],
        cookie: u64,
        limit: u32,
        attrs: bool,
    ) -> Result<DirPage> {
        let dir = self.stat(path).await?;
        if !dir.is_dir() {
            return Err(not_directory(&dir));
        }
        self.check(&dir, if attrs { Access::READ | Access::SEARCH } else { Access::READ }).await?;
        self.fs.read_dir(dir.ino, cookie, limit, attrs).await
    }

    /// A directory that the user may list, for the calls by inodes. Errors: `AccessDenied`,
    /// `NotDirectory`.
    pub async fn find_dir(&self, path: &[u8]) -> Result<Attr> {
        let dir = self.stat(path).await?;
        if !dir.is_dir() {
            return Err(not_directory(&dir));
        }
        self.check(&dir, Access::READ).await?;
        Ok(dir)
    }

    /// What `fsync(2)` of a directory does: [`Filesystem::sync_dir`]. Errors: `AccessDenied` to who
    /// may not read it, `NotDirectory`.
    ///
    /// [`Filesystem::sync_dir`]: crate::Filesystem::sync_dir
    pub async fn sync_dir(&self, path: &[u8]) -> Result<()> {
        let dir = self.find_dir(path).await?;
        self.fs.sync_dir(dir.ino).await
    }
}
