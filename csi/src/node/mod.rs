//! Volumes on one machine: each is mounted once, by a `weft mount` of its own ([`stage`]), and
//! shown where workloads find it ([`publish`]). What has died is put back ([`watch`]), by what is
//! noted of it ([`state`]).

mod checks;
mod context;
mod mounts;
mod publish;
mod secrets;
mod served;
mod stage;
mod state;
mod stats;
mod volumes;
mod watch;
mod weft;

use self::context::Context;
use self::mounts::Looks;
use self::state::State;
use self::volumes::Volumes;
use self::weft::Weft;
use crate::busy::Busy;
use crate::calls;
use crate::wire::node_service_capability::{Rpc, Type, rpc};
use crate::wire::*;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use tonic::{Request, Response, Status};

/// What this driver can do, as the specification calls it.
const CAPABILITIES: [rpc::Type; 4] = [
    rpc::Type::StageUnstageVolume,
    rpc::Type::GetVolumeStats,
    rpc::Type::VolumeCondition,
    rpc::Type::SingleNodeMultiWriter,
];

/// How volumes are mounted on this machine.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// What the orchestrator calls this machine.
    pub node_id: String,
    /// Addresses of metadata servers, as mounts are given them.
    pub metadata: Vec<String>,
    /// The folder that volumes lie in.
    pub root: String,
    /// Where it is noted what is mounted; it outlives this process.
    pub state_dir: PathBuf,
    /// The program whose commands mount.
    pub program: PathBuf,
    /// What those have in their environment: how they reach the cluster.
    pub environment: Vec<(OsString, OsString)>,
}

/// The service; clones share it.
#[derive(Clone)]
pub struct Node(Context);

impl Node {
    /// Opens the folder with the state. Errors: it cannot be used.
    pub fn new(options: NodeOptions) -> io::Result<Self> {
        let NodeOptions { node_id, metadata, root, state_dir, program, environment } = options;
        let state = State::open(&std::path::absolute(state_dir)?)?;
        let weft = Weft::new(program, environment);
        let volumes = Volumes { state, looks: Looks::default(), weft, metadata, node_id, root };
        Ok(Self(Context { busy: Busy::default(), volumes }))
    }

    /// Looks after the mounts, for as long as this process lives.
    pub async fn watch(self) {
        watch::watch(self.0).await;
    }

    /// Makes durable what was written through the mounts, which stay: another process of this
    /// driver goes on with them.
    pub async fn leave(&self) {
        self.0.volumes.sync_all().await;
    }
}

#[tonic::async_trait]
impl node_server::Node for Node {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let staged = stage::stage(self.0.clone(), request.into_inner());
        let answer = async { staged.await.map(|()| NodeStageVolumeResponse {}) };
        calls::serve("NodeStageVolume", answer).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let unstaged = stage::unstage(self.0.clone(), request.into_inner());
        let answer = async { unstaged.await.map(|()| NodeUnstageVolumeResponse {}) };
        calls::serve("NodeUnstageVolume", answer).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let published = publish::publish(self.0.clone(), request.into_inner());
        let answer = async { published.await.map(|()| NodePublishVolumeResponse {}) };
        calls::serve("NodePublishVolume", answer).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let unpublished = publish::unpublish(self.0.clone(), request.into_inner());
        let answer = async { unpublished.await.map(|()| NodeUnpublishVolumeResponse {}) };
        calls::serve("NodeUnpublishVolume", answer).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let answer = stats::stats(self.0.clone(), request.into_inner());
        calls::serve("NodeGetVolumeStats", answer).await
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        calls::serve("NodeExpandVolume", async {
            let what = "a volume is extended by its quota: nothing is left to do here";
            Err(Status::unimplemented(what))
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let all = CAPABILITIES.map(|of| Type::Rpc(Rpc { r#type: of.into() }));
        let all = all.map(|of| NodeServiceCapability { r#type: Some(of) });
        let answer = NodeGetCapabilitiesResponse { capabilities: all.into() };
        calls::serve("NodeGetCapabilities", async { Ok(answer) }).await
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.0.volumes.node_id.clone();
        let answer = NodeGetInfoResponse { node_id, ..Default::default() };
        calls::serve("NodeGetInfo", async { Ok(answer) }).await
    }
}
