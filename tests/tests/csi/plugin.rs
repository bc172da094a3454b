//! A driver that runs beside a cluster, and the orchestrator's side of its socket.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, OpenOptions};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use weft_csi::wire::controller_client::ControllerClient;
use weft_csi::wire::identity_client::IdentityClient;
use weft_csi::wire::node_client::NodeClient;
use weft_csi::wire::volume_capability::access_mode::Mode;
use weft_csi::wire::volume_capability::{AccessMode, AccessType, MountVolume};
use weft_csi::wire::*;
use weft_tests::{Cluster, Shape, certificates, eventually, path, weft_binary};

pub const PATIENCE: Duration = Duration::from_secs(90);
pub const MIB: i64 = 1 << 20;

/// A small cluster.
pub fn small() -> Result<Cluster> {
    small_as(Shape::default().tls)
}

pub fn small_as(tls: bool) -> Result<Cluster> {
    let shape = Shape { metadata: 1, storage: 3, profile: "2+1", tls, ..Default::default() };
    Cluster::start_as(shape)
}

/// The driver; ended with the test.
pub struct Plugin {
    child: Child,
    channel: Channel,
    runtime: Runtime,
    pub folder: PathBuf,
}

impl Plugin {
    /// Starts it, and waits until it is ready.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        Self::start_with(cluster, &["--mode", "all"])
    }

    /// As [`Self::start`], with more arguments.
    pub fn start_with(cluster: &Cluster, more: &[&str]) -> Result<Self> {
        let folder = cluster.scratch("csi")?;
        let socket = folder.join("csi.sock");
        let log = cluster.dir().join("log").join("csi.log");
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let endpoint = format!("unix://{}", path(&socket));
        let (address, state) = (cluster.address()?, folder.join("state"));
        let mut command = Command::new(weft_binary());
        command.args(["csi", "--endpoint", endpoint.as_str(), "--node-id", "node-1", "--metadata"]);
        command.args([address.as_str(), "--state-dir", path(&state)]).args(more);
        if cluster.tls_dir().exists() {
            command.envs(certificates::environment(&cluster.tls_dir(), "admin"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().context("start the driver")?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let channel = {
            let _inside = runtime.enter();
            Endpoint::from_shared(endpoint)?.connect_lazy()
        };
        let plugin = Self { child, channel, runtime, folder };
        eventually(PATIENCE, "the driver is ready", || {
            let answer = plugin.wait(plugin.identity().probe(ProbeRequest {})).ok()?;
            (answer.ready == Some(true)).then_some(())
        })?;
        Ok(plugin)
    }

    pub fn identity(&self) -> Held<IdentityClient<Channel>> {
        Held(IdentityClient::new(self.channel.clone()))
    }

    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Waits for an answer.
    pub fn wait<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        self.runtime.block_on(call).map(Response::into_inner)
    }

    /// Waits for anything.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Kills it, without a word.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ends it as a service manager does.
    pub fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the driver ended with {status}");
        Ok(())
    }

    pub fn create(&self, name: &str, bytes: i64) -> Result<Volume, Status> {
        let mut controller = self.controller();
        let answer = self.wait(controller.create_volume(wanted(name, bytes)))?;
        Ok(answer.volume.expect("an answer has a volume"))
    }

    pub fn delete(&self, id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
        self.wait(self.controller().delete_volume(request)).map(drop)
    }

    pub fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), Status> {
        self.wait(self.node().node_stage_volume(request)).map(drop)
    }

    pub fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        self.wait(self.node().node_publish_volume(request)).map(drop)
    }

    pub fn unpublish(&self, id: &str, target: &Path) -> Result<(), Status> {
        let (volume_id, target_path) = (id.into(), path(target).into());
        let request = NodeUnpublishVolumeRequest { volume_id, target_path };
        self.wait(self.node().node_unpublish_volume(request)).map(drop)
    }

    pub fn unstage(&self, id: &str, staging: &Path) -> Result<(), Status> {
        let (volume_id, staging_target_path) = (id.into(), path(staging).into());
        let request = NodeUnstageVolumeRequest { volume_id, staging_target_path };
        self.wait(self.node().node_unstage_volume(request)).map(drop)
    }

    pub fn stats(&self, id: &str, at: &Path) -> Result<NodeGetVolumeStatsResponse, Status> {
        let (volume_id, volume_path) = (id.into(), path(at).into());
        let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        self.wait(self.node().node_get_volume_stats(request))
    }

    /// The process that serves the mount at a place, as it is noted in the driver's folder.
    pub fn mount_process(&self, staging: &Path) -> Result<i32> {
        for entry in fs::read_dir(self.folder.join("state/run/mounts"))? {
            let Ok(text) = fs::read(entry?.path()) else { continue };
            let Ok(record) = serde_json::from_slice::<serde_json::Value>(&text) else { continue };
            if record["path"].as_str().map(Path::new) == Some(staging) {
                let pid = record["process"]["pid"].as_i64().context("a record without a pid")?;
                return Ok(pid.try_into()?);
            }
        }
        anyhow::bail!("nothing is noted of {}", staging.display())
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client whose one call is made at once.
pub struct Held<T>(pub T);

impl Held<IdentityClient<Channel>> {
    pub async fn probe(mut self, request: ProbeRequest) -> Result<Response<ProbeResponse>, Status> {
        self.0.probe(request).await
    }
}

/// As a directory.
pub fn mounted(mode: Mode, flags: &[&str]) -> VolumeCapability {
    let mount_flags = flags.iter().map(|flag| flag.to_string()).collect();
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume { mount_flags, ..Default::default() })),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub fn shared() -> VolumeCapability {
    mounted(Mode::MultiNodeMultiWriter, &[])
}

pub fn wanted(name: &str, bytes: i64) -> CreateVolumeRequest {
    let range = CapacityRange { required_bytes: bytes, ..Default::default() };
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(range),
        volume_capabilities: vec![shared()],
        ..Default::default()
    }
}

pub fn staging_of(volume: &Volume, staging: &Path) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: path(staging).into(),
        volume_capability: Some(shared()),
        volume_context: volume.volume_context.clone(),
        ..Default::default()
    }
}

pub fn publishing_of(volume: &Volume, staging: &Path, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: path(staging).into(),
        target_path: path(target).into(),
        volume_capability: Some(shared()),
        volume_context: volume.volume_context.clone(),
        ..Default::default()
    }
}

/// Fails unless a call was refused with this code.
pub fn refused<T>(answer: Result<T, Status>, code: Code, what: &str) -> Result<()> {
    match answer {
        Ok(_) => anyhow::bail!("{what}: it was done, and not refused with {code:?}"),
        Err(status) => {
            ensure!(status.code() == code, "{what}: {status:?}, and not {code:?}");
            ensure!(!status.message().is_empty(), "{what}: refused without a word");
            Ok(())
        }
    }
}

/// Lines of the table of mounts that name a folder.
pub fn mounts_below(folder: &Path) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mounts")?;
    Ok(table.lines().filter(|line| line.contains(path(folder))).map(str::to_owned).collect())
}
