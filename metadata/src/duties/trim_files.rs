//! Deletes extents that are cut out of files.

use super::propose::{LOOK_INTERVAL, propose};
use crate::node::Node;
use tokio::time::sleep;
use v1::log_entry::Body;
use weft_proto::{InodeId, v1};

/// Files trimmed by one log entry.
const TRIM_BATCH: usize = 64;

/// Deletes what files do not show any more, step by step.
pub async fn trim_files(node: &Node) {
    let mut done = None;
    loop {
        let put = node.state.cut();
        if done == Some(put) {
            sleep(LOOK_INTERVAL).await;
            continue;
        }
        match node.state.to_trim(InodeId(0), TRIM_BATCH) {
            Ok(files) if files.is_empty() => done = Some(put),
            Ok(files) => {
                let entry = v1::TrimFilesEntry { inos: files.iter().map(|ino| ino.0).collect() };
                if propose(node, "trim files", Body::TrimFiles(entry)).await.is_err() {
                    sleep(LOOK_INTERVAL).await;
                }
            }
            Err(error) => {
                tracing::error!("cannot read the list of files to trim: {error}");
                sleep(LOOK_INTERVAL).await;
            }
        }
    }
}
