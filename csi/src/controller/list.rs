//! Lists volumes, a page at a time.

use super::create::volume;
use super::record::Record;
use crate::cluster::{Cluster, Place};
use crate::failure::failed;
use crate::volume_id;
use crate::wire::list_volumes_response::{Entry, VolumeStatus};
use crate::wire::{ListVolumesRequest, ListVolumesResponse, VolumeCondition};
use futures_util::{StreamExt, stream};
use tonic::Status;
use weft_client::{DirEntry, FileKind};

/// Most entries of an answer.
const MAX_ENTRIES: usize = 1000;
/// Volumes that are looked at together.
const PARALLEL: usize = 16;

/// A page of them. Errors: `INVALID_ARGUMENT`; `ABORTED` of a token that is none.
pub async fn list(
    cluster: &Cluster,
    request: &ListVolumesRequest,
) -> Result<ListVolumesResponse, Status> {
    let most = usize::try_from(request.max_entries)
        .map_err(|_| Status::invalid_argument("fewer than no entries are asked for"))?;
    let most = if most == 0 { MAX_ENTRIES } else { most.min(MAX_ENTRIES) };
    let token = request.starting_token.as_str();
    // Where a name stands in the folder, which stays as it is while others come and go.
    let mut cookie = match token {
        "" => 0,
        token => token.parse().map_err(|_| {
            Status::aborted("the token is not one of this driver: begin without one")
        })?,
    };
    let place = cluster.place().await?;
    let mut entries = Vec::new();
    loop {
        let wanted = u32::try_from(most - entries.len()).unwrap_or(u32::MAX);
        let page = place.fs.read_dir(place.volumes, cookie, wanted, false).await;
        let page = page.map_err(|e| failed("the list of volumes", e))?;
        let Some(last) = page.entries.last() else { break };
        cookie = last.cookie;
        let end = page.end;
        let found = page.entries.into_iter().map(|entry| look(cluster, &place, entry));
        let found: Vec<_> = stream::iter(found).buffered(PARALLEL).collect().await;
        for entry in found {
            entries.extend(entry?);
        }
        if end {
            break;
        }
        if entries.len() >= most {
            let next_token = cookie.to_string();
            return Ok(ListVolumesResponse { entries, next_token });
        }
    }
    Ok(ListVolumesResponse { entries, next_token: String::new() })
}

/// One name of the folder, if it is that of a volume.
async fn look(cluster: &Cluster, place: &Place, entry: DirEntry) -> Result<Option<Entry>, Status> {
    let Ok(id) = std::str::from_utf8(&entry.name) else { return Ok(None) };
    if entry.kind != FileKind::Directory || !volume_id::is_valid(id) {
        return Ok(None);
    }
    let known = match Record::of(place, entry.ino).await {
        // It was deleted just now.
        Err(e) if e.kind == weft_proto::ErrorKind::Stale => return Ok(None),
        known => known.map_err(|e| failed(&format!("volume {id:?}"), e))?,
    };
    Ok(known.map(|known| Entry {
        volume: Some(volume(cluster, id, known.capacity)),
        status: Some(VolumeStatus {
            published_node_ids: Vec::new(),
            volume_condition: Some(fine()),
        }),
    }))
}

/// The condition of a volume that is there.
pub fn fine() -> VolumeCondition {
    VolumeCondition { abnormal: false, message: "the volume is there".into() }
}
