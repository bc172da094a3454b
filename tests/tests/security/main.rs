//! A cluster in which everybody proves who he is: an attacker's list, and certificates that come
//! and go while the cluster is used.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

mod confined;
mod rotation;
mod strangers;

use anyhow::{Context, Result};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use v1::meta_request::Op;
use weft_client::{Filesystem, Options};
use weft_net::{Identity, Peer, Peers, Transport};
use weft_proto::v1;
use weft_tests::{Cluster, Shape, certificates, eventually, path, weft_ok};

/// A small cluster with certificates.
fn secured() -> Result<Cluster> {
    Cluster::start_as(Shape {
        metadata: 1,
        storage: 3,
        profile: "2+1",
        tls: true,
        ..Shape::default()
    })
}

/// Far enough that only a hang reaches it.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// A new certificate: the way to others for who shows it.
fn issue(cluster: &Cluster, role: &str, name: &str, more: &[&str]) -> Result<Arc<dyn Transport>> {
    certificates::transport(&cluster.tls_dir(), &issue_files(cluster, role, name, more)?)
}

/// As [`issue`]: what its files are called.
fn issue_files(cluster: &Cluster, role: &str, name: &str, more: &[&str]) -> Result<String> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let file = format!("{role}-{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let (dir, out) = (cluster.tls_dir(), cluster.tls_dir().join(&file));
    let args = ["ca", "issue", "--dir", path(&dir), "--role", role, "--name", name];
    weft_ok(&[&args[..], &["--out", path(&out)], more].concat())?;
    Ok(file)
}

fn peers(transport: Arc<dyn Transport>) -> Arc<Peers> {
    Peers::new(transport, Identity { name: "somebody".into(), cluster: None })
}

/// The metadata server, as who has this certificate reaches it.
fn metadata(cluster: &Cluster, transport: Arc<dyn Transport>) -> Result<Arc<Peer>> {
    Ok(peers(transport).peer(&cluster.address()?))
}

/// The storage daemon of a target, as who has this certificate reaches it.
fn storage(cluster: &Cluster, target: u64, transport: Arc<dyn Transport>) -> Result<Arc<Peer>> {
    let status = cluster.overview()?;
    let targets = status["targets"].as_array().context("targets")?;
    let found = targets.iter().find(|t| t["id"] == target).context("no such target")?;
    Ok(peers(transport).peer(found["address"].as_str().context("an address")?))
}

async fn meta(peer: &Peer, session: u64, number: u64, op: Op) -> weft_proto::Result<v1::MetaReply> {
    let request = v1::MetaRequest { session, number, acked_below: 0, op: Some(op) };
    peer.call(&request, soon()).await
}

/// A session of its own. Answers what the group said of it.
async fn open_session(peer: &Peer) -> Result<v1::OpenSessionReply> {
    let open = v1::OpenSessionOp {
        client: "somebody".into(),
        nonce: rand::random::<[u8; 16]>().to_vec().into(),
        ..Default::default()
    };
    match meta(peer, 0, 0, Op::OpenSession(open)).await?.result {
        Some(v1::meta_reply::Result::OpenSession(opened)) => Ok(opened),
        other => anyhow::bail!("{other:?}"),
    }
}

async fn connect(cluster: &Cluster, transport: Arc<dyn Transport>) -> Result<Filesystem> {
    let servers = cluster.address()?.split(',').map(str::to_owned).collect();
    let mut options = Options::new(servers, transport);
    options.op_deadline = Duration::from_secs(120);
    Ok(Filesystem::connect(options).await?)
}

/// The session of the cluster's mount.
fn session_of_mount(cluster: &Cluster) -> Result<u64> {
    eventually(Duration::from_secs(60), "the session of the mount", || {
        let status = cluster.overview().ok()?;
        let sessions = status["sessions"].as_array()?;
        let of_mount = |s: &&Value| s["client"].as_str().is_some_and(|name| name.contains(":/"));
        sessions.iter().find(of_mount)?["id"].as_u64()
    })
}
