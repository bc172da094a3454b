//! Calls that are made again until they succeed.

use std::time::Duration;
use weft_client::{Creator, Filesystem, OpenFlags, Opened};
use weft_proto::{Error, ErrorKind, InodeId, Result as Answer};

/// Before the next attempt: an error may come at once, and time must pass.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// What is still wrong after so many looks, which are seconds apart, stays so.
pub const LOOKS: usize = 60;

/// Opens a file that all clients share, whoever makes it.
pub async fn shared(fs: &Filesystem, name: &str) -> Opened {
    loop {
        let made = fs
            .create(InodeId::ROOT, name.as_bytes(), 0, Creator::default(), OpenFlags::default())
            .await;
        if let Ok(opened) = made {
            return opened;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Whether it may succeed later.
pub fn is_transient(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unavailable | ErrorKind::NotLeader | ErrorKind::TimedOut)
}

/// Does it until it succeeds, or why it does not, with no fault any more.
pub async fn until<T>(mut call: impl AsyncFnMut() -> Answer<T>) -> Result<T, String> {
    let mut why = String::new();
    for _ in 0..LOOKS {
        match call().await {
            Ok(done) => return Ok(done),
            Err(error) => why = error.to_string(),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err(why)
}
