//! A backup of the metadata group, piece by piece.

use crate::dial::dial_and_ping;
use crate::wire::from_status;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Streaming;
use weft_net::Transport;
use weft_proto::v1::{BackupPiece, BackupRequest};
use weft_proto::{Error, ErrorKind, Result};

/// How long the leader may take to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(15);

/// What the leader tells of its backup.
pub struct Backup {
    address: String,
    pieces: Streaming<BackupPiece>,
}

/// Has the leader at `address` make a backup. Errors: `Unavailable`, `NotLeader`, `NotPermitted`;
/// `Busy` while it makes another; `TimedOut`.
pub async fn backup(transport: &Arc<dyn Transport>, address: &str) -> Result<Backup> {
    let mut client = dial_and_ping(transport, address).await?;
    let Ok(begun) = timeout(BEGIN_TIMEOUT, client.backup(BackupRequest {})).await else {
        let what = format!("metadata server {address} did not answer for {BEGIN_TIMEOUT:?}");
        return Err(Error::new(ErrorKind::TimedOut, what));
    };
    let pieces = begun.map_err(|status| from_status(&status))?;
    Ok(Backup { address: address.into(), pieces: pieces.into_inner() })
}

impl Backup {
    /// The next piece. Errors: those of the leader; `Protocol` when there is none; `TimedOut`.
    pub async fn next(&mut self, limit: Duration) -> Result<BackupPiece> {
        let address = &self.address;
        let Ok(piece) = timeout(limit, self.pieces.message()).await else {
            let what = format!("metadata server {address} told nothing for {limit:?}");
            return Err(Error::new(ErrorKind::TimedOut, what));
        };
        let ended = || Error::new(ErrorKind::Protocol, "the backup ended early: make it again");
        piece.map_err(|status| from_status(&status))?.ok_or_else(ended)
    }
}
