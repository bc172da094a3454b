//! Volumes of the whole cluster: made, deleted, listed and extended. One folder each, below that
//! of all volumes, with a quota.

mod create;
mod delete;
mod list;
mod parameters;
mod quota;
mod record;
mod remove;

use self::create::{Wanted, volume};
use self::delete::Purge;
use self::record::Record;
use crate::busy::Busy;
use crate::capability::{self, missing};
use crate::cluster::Cluster;
use crate::failure::failed;
use crate::volume_id::{self, PATH};
use crate::wire::controller_get_volume_response::VolumeStatus;
use crate::wire::controller_service_capability::{Rpc, Type, rpc};
use crate::wire::validate_volume_capabilities_response::Confirmed;
use crate::wire::*;
use crate::{calls, cluster};
use tonic::{Request, Response, Status};
use weft_proto::ErrorKind;

/// What this driver can do, as the specification calls it.
const CAPABILITIES: [rpc::Type; 7] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::ListVolumes,
    rpc::Type::GetCapacity,
    rpc::Type::ExpandVolume,
    rpc::Type::GetVolume,
    rpc::Type::VolumeCondition,
    rpc::Type::SingleNodeMultiWriter,
];

/// The service; clones share it.
#[derive(Clone)]
pub struct Controller {
    cluster: Cluster,
    busy: Busy,
    purge: Purge,
}

impl Controller {
    /// Nothing is done yet.
    pub fn new(cluster: Cluster) -> Self {
        Self { busy: Busy::default(), purge: Purge::new(cluster.clone()), cluster }
    }

    /// Connects, and goes on with what was deleted and is not gone.
    pub async fn begin(&self) {
        self.purge.go_on().await;
    }

    async fn create(self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let wanted = Wanted::read(request)?;
        let _taken = self.busy.take(&wanted.id)?;
        let volume = Some(create::create(&self.cluster, &wanted).await?);
        Ok(CreateVolumeResponse { volume })
    }

    async fn delete(self, request: DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        let id = id_of(&request.volume_id)?;
        let _taken = self.busy.take(id)?;
        delete::delete(&self.purge, id).await?;
        Ok(DeleteVolumeResponse {})
    }

    async fn validate(
        self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let id = id_of(&request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(missing("the volume's capabilities"));
        }
        self.check_is_there(id, request.volume_context.get(PATH)).await?;
        if let Err(refused) = capability::check_all(&request.volume_capabilities) {
            let message = refused.message().to_owned();
            return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        }
        let confirmed = Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
        };
        let (confirmed, message) = (Some(confirmed), String::new());
        Ok(ValidateVolumeCapabilitiesResponse { confirmed, message })
    }

    /// Errors: `NOT_FOUND`.
    async fn check_is_there(&self, id: &str, context: Option<&String>) -> Result<(), Status> {
        let path = volume_id::path_of(self.cluster.root(), id, context)?;
        let place = self.cluster.place().await?;
        let mut at = place.fs.root();
        for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
            at = match place.fs.lookup(at, name.as_bytes()).await {
                Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                    return Err(Status::not_found(format!("there is no volume {id:?} at {path}")));
                }
                found => found.map_err(|e| failed(&format!("volume {id:?}"), e))?.ino,
            };
        }
        Ok(())
    }

    async fn capacity(self, request: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        parameters::read(&parameters::ours(&request.parameters))?;
        let can = |one: &VolumeCapability| capability::read(Some(one)).is_ok();
        if !request.volume_capabilities.iter().all(can) {
            return Ok(GetCapacityResponse::default());
        }
        let place = self.cluster.place().await?;
        let room = place.fs.stat_fs_at(place.volumes).await;
        let room = room.map_err(|e| failed("the room in the filesystem", e))?;
        let available_capacity = i64::try_from(room.available_bytes).unwrap_or(i64::MAX);
        Ok(GetCapacityResponse { available_capacity, ..Default::default() })
    }

    async fn expand(
        self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let id = id_of(&request.volume_id)?;
        if request.capacity_range.is_none() {
            return Err(missing("the capacity range"));
        }
        let (required, limit) = capability::wanted(request.capacity_range.as_ref())?;
        if let Some(of) = &request.volume_capability {
            capability::read(Some(of))?;
        }
        let _taken = self.busy.take(id)?;
        let (place, (folder, mut known)) = self.known(id).await?;
        let wanted = if required != 0 { required } else { limit };
        let grows = known.capacity != 0 && wanted > known.capacity;
        if limit != 0 && !grows && (known.capacity == 0 || known.capacity > limit) {
            let what = format!("volume {id:?} is larger than {limit} bytes, and never shrinks");
            return Err(Status::out_of_range(what));
        }
        if grows {
            known.capacity = wanted;
            let path = format!("{}/{id}", self.cluster.root());
            let fail = |e| failed(&format!("volume {id:?}"), e);
            quota::set(&place, folder, Some(wanted), None, &path).await.map_err(fail)?;
            known.save(&place, folder).await.map_err(fail)?;
            tracing::info!("volume {id:?} has {wanted} bytes now");
        }
        // One without a limit has room for all that was asked for.
        let capacity = if known.capacity == 0 { wanted } else { known.capacity };
        let capacity_bytes = i64::try_from(capacity).unwrap_or(i64::MAX);
        Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false })
    }

    /// Errors: `NOT_FOUND`.
    async fn known(
        &self,
        id: &str,
    ) -> Result<(cluster::Place, (weft_proto::InodeId, Record)), Status> {
        let gone = || Status::not_found(format!("there is no volume {id:?} of this driver"));
        if !volume_id::is_valid(id) {
            return Err(gone());
        }
        let place = self.cluster.place().await?;
        let found = Record::find(&place, id).await;
        let found = found.map_err(|e| failed(&format!("volume {id:?}"), e))?;
        Ok((place, found.ok_or_else(gone)?))
    }

    async fn get(
        self,
        request: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        let id = id_of(&request.volume_id)?;
        let (_, (_, known)) = self.known(id).await?;
        let volume_condition = Some(list::fine());
        Ok(ControllerGetVolumeResponse {
            volume: Some(volume(&self.cluster, id, known.capacity)),
            status: Some(VolumeStatus { published_node_ids: Vec::new(), volume_condition }),
        })
    }
}

/// Errors: `INVALID_ARGUMENT`.
fn id_of(id: &str) -> Result<&str, Status> {
    if id.is_empty() { Err(missing("the volume's id")) } else { Ok(id) }
}

/// What this driver does not do.
async fn absent<T: Send + 'static>(op: &'static str) -> Result<Response<T>, Status> {
    let what = format!("{op} is not needed: weft attaches nothing to nodes");
    calls::serve(op, async move { Err(Status::unimplemented(what)) }).await
}

#[tonic::async_trait]
impl controller_server::Controller for Controller {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        calls::serve("CreateVolume", self.clone().create(request.into_inner())).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        calls::serve("DeleteVolume", self.clone().delete(request.into_inner())).await
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        absent("ControllerPublishVolume").await
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        absent("ControllerUnpublishVolume").await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        calls::serve("ValidateVolumeCapabilities", self.clone().validate(request.into_inner()))
            .await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let (cluster, request) = (self.cluster.clone(), request.into_inner());
        calls::serve("ListVolumes", async move { list::list(&cluster, &request).await }).await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        calls::serve("GetCapacity", self.clone().capacity(request.into_inner())).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let all = CAPABILITIES.map(|of| Type::Rpc(Rpc { r#type: of.into() }));
        let all = all.map(|of| ControllerServiceCapability { r#type: Some(of) });
        let answer = ControllerGetCapabilitiesResponse { capabilities: all.into() };
        calls::serve("ControllerGetCapabilities", async { Ok(answer) }).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        calls::serve("ControllerExpandVolume", self.clone().expand(request.into_inner())).await
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        calls::serve("ControllerGetVolume", self.clone().get(request.into_inner())).await
    }
}
