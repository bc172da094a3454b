//! The size of a volume is the quota of its folder.

use crate::cluster::Place;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_proto::v1::quota_key::Kind;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// How often it is looked whether all is counted, and for how long.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits a folder to so many bytes and inodes, and waits until that holds; what is `None` stays as
/// it is, and 0 is no limit. Errors: `Unavailable` if what lies there takes long to be counted.
pub async fn set(
    place: &Place,
    folder: InodeId,
    bytes: Option<u64>,
    inodes: Option<u64>,
    path: &str,
) -> Result<()> {
    let key = v1::QuotaKey { kind: Kind::Tree.into(), id: folder.0 };
    let path = path.to_owned().into();
    let op = v1::SetQuotaOp { key: Some(key), bytes, inodes, path, ..Default::default() };
    place.fs.set_quota(op).await?;
    let until = Instant::now() + COUNT_TIMEOUT;
    loop {
        let found = place.fs.quotas(folder, Some(key)).await?;
        if found.iter().all(|quota| !quota.counting) {
            return Ok(());
        }
        if Instant::now() > until {
            let what = "what lies in the volume is still being counted";
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        sleep(LOOK_INTERVAL).await;
    }
}
