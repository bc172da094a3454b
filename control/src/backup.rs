//! A backup of the metadata group, piece by piece.

use crate::dial::dial_and_ping;
use crate::wire::from_status;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Streaming;
use weft_net::Transport;
use weft_proto::v1::{BackupPiece, BackupRequest};
use weft_proto::{Error, ErrorKind, Result};

/// How long the leader may take to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait for the first piece: a leader of an older version says nothing before it has copied
/// its state and read all of it.
const FIRST_TIMEOUT: Duration = Duration::from_secs(3600);
/// Longest wait for another piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(300);

/// What the leader tells of its backup.
pub struct Backup {
    address: String,
    pieces: Streaming<BackupPiece>,
}

/// Has the leader at `address` make a backup. Errors: `Unavailable`, `NotLeader`, `NotPermitted`;
/// `Busy` while it makes another; `TimedOut`.
pub async fn backup(transport: &Arc<dyn Transport>, address: &str) -> Result<Backup> {
    let mut client = dial_and_ping(transport, address).await?;
    let request = BackupRequest { says_read: true };
    let Ok(begun) = timeout(BEGIN_TIMEOUT, client.backup(request)).await else {
        let what = format!("metadata server {address} did not answer for {BEGIN_TIMEOUT:?}");
        return Err(Error::new(ErrorKind::TimedOut, what));
    };
    let pieces = begun.map_err(|status| from_status(&status))?;
    Ok(Backup { address: address.into(), pieces: pieces.into_inner() })
}

impl Backup {
    /// What names the files, when all of the state was read. Until then `heard` is told now and
    /// then how many bytes were read. Errors: those of the leader; `TimedOut` if it is silent.
    pub async fn manifest(&mut self, mut heard: impl FnMut(u64)) -> Result<String> {
        let mut limit = FIRST_TIMEOUT;
        loop {
            let piece = self.next(limit).await?;
            if piece.read == 0 {
                return Ok(piece.manifest);
            }
            heard(piece.read);
            limit = PIECE_TIMEOUT;
        }
    }

    /// The next bytes of the files. Errors: those of the leader; `Protocol` when there are none;
    /// `TimedOut`.
    pub async fn data(&mut self) -> Result<Bytes> {
        Ok(self.next(PIECE_TIMEOUT).await?.data)
    }

    async fn next(&mut self, limit: Duration) -> Result<BackupPiece> {
        let address = &self.address;
        let Ok(piece) = timeout(limit, self.pieces.message()).await else {
            let what = format!("metadata server {address} told nothing for {limit:?}");
            return Err(Error::new(ErrorKind::TimedOut, what));
        };
        let ended = || Error::new(ErrorKind::Protocol, "the backup ended early: make it again");
        piece.map_err(|status| from_status(&status))?.ok_or_else(ended)
    }
}
