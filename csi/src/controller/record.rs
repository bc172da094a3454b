//! What is known of a volume: an extended attribute of its folder, which only root sees.
//!
//! Invariant: it is written last when a volume is made. A folder without it is no volume, or one
//! that is not made yet.

use crate::cluster::Place;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weft_client::FileKind;
use weft_proto::{Error, ErrorKind, InodeId, Result};

const NAME: &[u8] = b"trusted.csi.volume";

/// What is known.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// As the orchestrator called it.
    pub name: String,
    /// Most bytes; 0: no limit.
    pub capacity: u64,
    /// Of its storage class.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
}

impl Record {
    /// Of a folder, if it is a volume.
    pub async fn of(place: &Place, folder: InodeId) -> Result<Option<Self>> {
        let value = match place.fs.get_xattr(folder, NAME).await {
            Err(e) if e.kind == ErrorKind::NoAttribute => return Ok(None),
            value => value?,
        };
        let damaged = |e| Error::new(ErrorKind::Corrupt, format!("what is known of it: {e}"));
        serde_json::from_slice(&value).map(Some).map_err(damaged)
    }

    /// The volume with this id, if there is one.
    pub async fn find(place: &Place, id: &str) -> Result<Option<(InodeId, Self)>> {
        let Some(found) = place.find(id).await? else { return Ok(None) };
        if found.kind != FileKind::Directory {
            return Ok(None);
        }
        Ok(Self::of(place, found.ino).await?.map(|record| (found.ino, record)))
    }

    /// Writes it.
    pub async fn save(&self, place: &Place, folder: InodeId) -> Result<()> {
        let value = serde_json::to_vec(self)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("what is known of it: {e}")))?;
        place.fs.set_xattr(folder, NAME, &value, 0, false).await
    }
}
