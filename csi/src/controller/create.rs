//! Makes volumes: a folder, its layout and its quota, and last what is known of it.

use super::delete::is_gone;
use super::parameters::{self, Parameters};
use super::quota;
use super::record::Record;
use crate::capability;
use crate::cluster::{self, Cluster, Place};
use crate::failure::failed;
use crate::volume_id::{self, PATH};
use crate::wire::{CreateVolumeRequest, Volume};
use std::collections::BTreeMap;
use tonic::Status;
use weft_client::SetAttr;
use weft_proto::{ErrorKind, InodeId};

/// Of a folder.
const LAYOUT: &[u8] = b"user.weft.layout";

/// What is asked for, checked.
pub struct Wanted {
    /// The volume's id.
    pub id: String,
    name: String,
    required: u64,
    limit: u64,
    all: BTreeMap<String, String>,
    parameters: Parameters,
}

impl Wanted {
    /// Errors: `INVALID_ARGUMENT`.
    pub fn read(request: CreateVolumeRequest) -> Result<Self, Status> {
        let id = volume_id::of_name(&request.name)?;
        capability::check_all(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            let what = "weft makes no volumes from snapshots or from other volumes";
            return Err(Status::invalid_argument(what));
        }
        if !request.mutable_parameters.is_empty() {
            let what = "weft has no parameters that can be changed";
            return Err(Status::invalid_argument(what));
        }
        let (required, limit) = capability::wanted(request.capacity_range.as_ref())?;
        let all = parameters::ours(&request.parameters);
        let parameters = parameters::read(&all)?;
        Ok(Self { id, name: request.name, required, limit, all, parameters })
    }

    /// Bytes that a new one gets; 0: no limit.
    fn capacity(&self) -> u64 {
        if self.required != 0 { self.required } else { self.limit }
    }

    /// Whether one that is there is the one that is asked for.
    fn is(&self, known: &Record) -> bool {
        let fits = match known.capacity {
            0 => self.limit == 0,
            capacity => self.required <= capacity && (self.limit == 0 || capacity <= self.limit),
        };
        known.name == self.name && known.parameters == self.all && fits
    }
}

/// The volume that is asked for, made if it is not there. Errors: `ALREADY_EXISTS` if there is
/// another of its name.
pub async fn create(cluster: &Cluster, wanted: &Wanted) -> Result<Volume, Status> {
    let mut place = cluster.place().await?;
    let what = format!("volume {:?}", wanted.id);
    let fail = |error| failed(&what, error);
    let id = wanted.id.as_bytes();
    let folder = match cluster::folder(&place.fs, place.volumes, id, 0o700).await {
        // The folder of all volumes is: it is made again.
        Err(e) if is_gone(e.kind) => {
            place = cluster.place_anew().await?;
            cluster::folder(&place.fs, place.volumes, id, 0o700).await
        }
        made => made,
    };
    let folder = folder.map_err(fail)?.ino;
    if let Some(known) = Record::of(&place, folder).await.map_err(fail)? {
        if !wanted.is(&known) {
            let what = format!(
                "{what} is there already, with {} bytes and the parameters {:?}",
                known.capacity, known.parameters
            );
            return Err(Status::already_exists(what));
        }
        // Who made it may have failed after that.
        place.fs.sync_dir(folder).await.map_err(fail)?;
        place.fs.sync_dir(place.volumes).await.map_err(fail)?;
        return Ok(volume(cluster, &wanted.id, known.capacity));
    }
    if !is_empty(&place, folder).await.map_err(fail)? {
        let what = format!("{what}: a folder of this name is there, and was not made for it");
        return Err(Status::already_exists(what));
    }
    if let Err(error) = furnish(cluster, &place, folder, wanted).await {
        // It may be asked for otherwise the next time, or never. What has a record is a volume:
        // another driver may have finished it meanwhile, and told of it.
        if let Ok(None) = Record::of(&place, folder).await {
            let _ = place.fs.rm_dir(place.volumes, wanted.id.as_bytes()).await;
        }
        return Err(match error.kind {
            ErrorKind::Invalid => Status::invalid_argument(format!("{what}: {error}")),
            _ => failed(&what, error),
        });
    }
    tracing::info!("made {what} of {} bytes", wanted.capacity());
    Ok(volume(cluster, &wanted.id, wanted.capacity()))
}

/// A folder that a try before has left behind is furnished anew.
async fn furnish(
    cluster: &Cluster,
    place: &Place,
    folder: InodeId,
    wanted: &Wanted,
) -> weft_proto::Result<()> {
    let Parameters { mode, uid, gid, inodes, layout } = &wanted.parameters;
    if let Some(layout) = layout {
        place.fs.set_xattr(folder, LAYOUT, layout.as_bytes(), 0, false).await?;
    }
    let (bytes, path) = (wanted.capacity(), format!("{}/{}", cluster.root(), wanted.id));
    if bytes != 0 || *inodes != 0 {
        quota::set(place, folder, Some(bytes), Some(*inodes), &path).await?;
    }
    let owner = SetAttr { uid: Some(*uid), gid: Some(*gid), ..Default::default() };
    if *uid != 0 || *gid != 0 {
        place.fs.set_attr(folder, None, owner).await?;
    }
    let mode = SetAttr { mode: Some(*mode), ..Default::default() };
    place.fs.set_attr(folder, None, mode).await?;
    let name = wanted.name.clone();
    let record = Record { name, capacity: bytes, parameters: wanted.all.clone() };
    record.save(place, folder).await?;
    place.fs.sync_dir(folder).await?;
    place.fs.sync_dir(place.volumes).await
}

async fn is_empty(place: &Place, folder: InodeId) -> weft_proto::Result<bool> {
    Ok(place.fs.read_dir(folder, 0, 1, false).await?.entries.is_empty())
}

/// A volume as the orchestrator hears of it.
pub fn volume(cluster: &Cluster, id: &str, capacity: u64) -> Volume {
    let path = format!("{}/{id}", cluster.root());
    Volume {
        capacity_bytes: i64::try_from(capacity).unwrap_or(i64::MAX),
        volume_id: id.to_owned(),
        volume_context: [(PATH.to_owned(), path)].into(),
        ..Default::default()
    }
}
