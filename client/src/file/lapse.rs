//! The end of leases, or of their time: what is cached above of all files.

use super::table::Files;
use futures_util::future::join_all;
use std::time::Duration;
use tokio::time::timeout;

/// A declaration waits so long for what is cached above to be forgotten: it may be that a read
/// there waits for a leader that waits for the declaration.
const FORGET_TIMEOUT: Duration = Duration::from_secs(1);

impl Files {
    /// The session is over, and with it all leases: what is stored above is not written back any
    /// more.
    pub async fn lose_content(&self) {
        self.all().iter().for_each(|file| file.above.lose());
        self.forget_content().await;
    }

    /// The time of all leases is over.
    pub async fn lapse(&self) {
        self.all().iter().for_each(|file| file.lapsed());
        self.forget_content().await;
    }

    /// The leases turn out to have lasted. What was kept in doubt is committed now, since others
    /// may use its file; a failure is noted for its handles.
    pub fn revive(&self) {
        let files = self.all();
        files.iter().for_each(|file| file.revived());
        for file in files.into_iter().filter(|file| file.is_in_doubt()) {
            tokio::spawn(async move { file.flush().await });
        }
    }

    /// All leases to read are gone: what is cached above may be old. Does not wait for long, and
    /// what is left then is forgotten later.
    pub async fn forget_content(&self) {
        let leases = &self.context.leases;
        let files = self.all().into_iter().filter(|file| !leases.may_buffer(file.ino));
        let forgotten = files.map(|file| tokio::spawn(async move { drop(file.take_back().await) }));
        let _ = timeout(FORGET_TIMEOUT, join_all(forgotten)).await;
    }
}
