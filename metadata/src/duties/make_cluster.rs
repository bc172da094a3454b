//! Makes the cluster, when there is none yet.

use super::propose::{LOOK_INTERVAL, propose};
use crate::node::Node;
use rand::RngCore;
use tokio::time::sleep;
use v1::log_entry::Body;
use weft_proto::v1;

/// Makes the cluster and ends.
pub async fn make_cluster(node: &Node) {
    // The pool's profile was checked with the configuration.
    let Ok(profile) = node.config.pool_profile() else { return };
    while node.cluster().is_none() {
        let mut cluster = [0; 16];
        node.env.rng(0x636c_7573_7465_7200 ^ node.config.id.0).fill_bytes(&mut cluster);
        let members = node
            .config
            .peers
            .iter()
            .map(|p| v1::NodeInfo { id: p.id.0, address: p.address.clone(), ..Default::default() })
            .collect();
        let entry = v1::InitClusterEntry {
            cluster: cluster.to_vec().into(),
            profile: Some(profile.into()),
            members,
            // The whole namespace is one shard so far.
            shard: 0,
        };
        if propose(node, "make the cluster", Body::InitCluster(entry)).await.is_err() {
            sleep(LOOK_INTERVAL).await;
        }
    }
}
