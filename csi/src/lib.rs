//! The driver by which Kubernetes, and other orchestrators that speak the Container Storage
//! Interface, have volumes of Weft.
//!
//! - [`Controller`]: volumes of the whole cluster, a folder with a quota each.
//! - [`Node`]: volumes on one machine, each mounted by a `weft mount` of its own.
//! - [`listen()`], [`serve()`]: both, and who the driver is, on one socket.
//!
//! What holds here:
//! - Whatever is asked for twice is done once; a call that nobody waits for any more is finished.
//! - One call at a time is at work on a volume, others are answered `ABORTED`.
//! - Nothing that comes from outside leads out of the folder of all volumes, but the path that the
//!   context or the handle of a volume names, which are an administrator's to set.
//! - What is mounted is noted before, in files that outlive this process.
#![warn(missing_docs)]

mod busy;
mod calls;
mod capability;
mod cluster;
mod controller;
mod endpoint;
mod failure;
mod identity;
mod node;
mod serve;
mod volume_id;
pub mod wire;

pub use cluster::Cluster;
pub use controller::Controller;
pub use endpoint::{listen, parse as parse_endpoint};
pub use node::{Node, NodeOptions};
pub use volume_id::check_path;

use std::io;
use tokio::net::UnixListener;
use tokio::sync::watch;
use wire::controller_server::ControllerServer;
use wire::identity_server::IdentityServer;
use wire::node_server::NodeServer;

/// What one process serves.
pub struct Driver {
    /// Its name, in domain notation.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The half that makes volumes, with its way to the cluster.
    pub controller: Option<(Controller, Cluster)>,
    /// The half that mounts them here.
    pub node: Option<Node>,
}

/// Serves until it is told to stop; what is mounted stays, and is durable as far as there was time.
pub async fn serve(
    driver: Driver,
    listener: UnixListener,
    shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let Driver { name, version, controller, node } = driver;
    let mut tasks = tokio::task::JoinSet::new();
    if let Some((controller, _)) = &controller {
        let controller = controller.clone();
        tasks.spawn(async move { controller.begin().await });
    }
    if let Some(node) = &node {
        tasks.spawn(node.clone().watch());
    }
    let cluster = controller.as_ref().map(|(_, cluster)| cluster.clone());
    let identity =
        identity::Identity { name, version, cluster: cluster.clone(), mounts: node.is_some() };
    let services = serve::Services {
        identity: IdentityServer::new(identity),
        controller: controller.map(|(controller, _)| ControllerServer::new(controller)),
        node: node.clone().map(NodeServer::new),
    };
    let served = serve::serve(listener, services, shutdown).await;
    tasks.shutdown().await;
    if let Some(node) = node {
        node.leave().await;
    }
    if let Some(cluster) = cluster {
        cluster.leave().await;
    }
    served
}
