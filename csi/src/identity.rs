//! Who the driver is, and whether it can be used.

use crate::calls;
use crate::cluster::Cluster;
use crate::wire::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use crate::wire::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use std::collections::HashMap;
use std::path::Path;
use tonic::{Request, Response, Status};

/// Without this no mount can be made.
const DEVICE: &str = "/dev/fuse";

/// The service.
#[derive(Clone)]
pub struct Identity {
    /// The name of the driver.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The way to the cluster, of the half that makes volumes.
    pub cluster: Option<Cluster>,
    /// Whether volumes are mounted here.
    pub mounts: bool,
}

#[tonic::async_trait]
impl crate::wire::identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let answer = GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: self.version.clone(),
            manifest: HashMap::new(),
        };
        calls::serve("GetPluginInfo", async { Ok(answer) }).await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let r#type = volume_expansion::Type::Online.into();
        let mut all = vec![Type::VolumeExpansion(VolumeExpansion { r#type })];
        if self.cluster.is_some() {
            let r#type = service::Type::ControllerService.into();
            all.push(Type::Service(Service { r#type }));
        }
        let capabilities = all.into_iter().map(|of| PluginCapability { r#type: Some(of) });
        let answer = GetPluginCapabilitiesResponse { capabilities: capabilities.collect() };
        calls::serve("GetPluginCapabilities", async { Ok(answer) }).await
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let this = self.clone();
        calls::serve("Probe", async move {
            if this.mounts && !Path::new(DEVICE).exists() {
                let what = format!("{DEVICE} is not there: give it to this container");
                return Err(Status::failed_precondition(what));
            }
            let ready = this.cluster.as_ref().is_none_or(Cluster::is_connected);
            Ok(ProbeResponse { ready: Some(ready) })
        })
        .await
    }
}
