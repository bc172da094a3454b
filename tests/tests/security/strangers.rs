//! Who has no certificate, or one for another part.

use crate::{
    connect, issue, issue_files, meta, metadata, open_session, secured, session_of_mount, soon,
    storage,
};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;
use tokio::runtime::Runtime;
use v1::meta_request::Op;
use weft_net::Body;
use weft_proto::{ChunkId, ErrorKind, SegmentId, SessionId, v1};
use weft_tests::{Cluster, certificates, data, eventually, path, weft_binary};

/// Runs `weft` and shows this certificate, or none.
fn weft_as(cluster: &Cluster, name: Option<&str>, args: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new(weft_binary());
    command.args(args).args(["--cluster", &cluster.address()?]);
    if let Some(name) = name {
        command.envs(certificates::environment(&cluster.tls_dir(), name));
    }
    let out = command.output()?;
    Ok((out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned()))
}

#[test]
fn commands_do_what_their_certificates_allow() -> Result<()> {
    let cluster = secured()?;
    let files = ["ca.pem", "client.pem", "client.key", "admin.pem", "admin.key"];
    for file in files.map(|file| cluster.tls_dir().join(file)) {
        let mode = fs::metadata(&file)?.permissions().mode() & 0o777;
        let secret = file.extension().is_some_and(|ending| ending == "key");
        ensure!(!secret || mode == 0o600, "{} has mode {mode:o}", file.display());
    }
    for (name, args, allowed) in [
        (None, &["status"][..], false),
        (Some("client"), &["status"], true),
        (Some("client"), &["fsck"], true),
        (Some("client"), &["target", "list"], true),
        (Some("client"), &["target", "drain", "1"], false),
        (Some("client"), &["metadata", "transfer"], false),
        (Some("storage-1"), &["target", "drain", "1"], false),
        (Some("metadata-1"), &["target", "drain", "1"], false),
        (Some("admin"), &["target", "drain", "1"], true),
        (Some("admin"), &["target", "in", "1"], true),
    ] {
        let (done, said) = weft_as(&cluster, name, args)?;
        ensure!(done == allowed, "{name:?} {args:?}: {said}");
        ensure!(done || !said.is_empty());
    }
    // A daemon does not start with somebody else's certificate.
    let config = cluster.dir().join("config/storage-1.toml");
    let text = fs::read_to_string(&config)?.replace("storage-1.pem", "client.pem");
    let other = cluster.scratch("other")?.join("storage.toml");
    fs::write(&other, text.replace("storage-1.key", "client.key"))?;
    let out = Command::new(weft_binary()).args(["storaged", "--config", path(&other)]).output()?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(!out.status.success() && said.contains("weft ca issue"), "{said}");
    Ok(())
}

#[test]
fn a_certificate_is_for_one_part() -> Result<()> {
    let cluster = secured()?;
    Runtime::new()?.block_on(async {
        let refused = |what: &str, outcome: weft_proto::Result<()>| -> Result<()> {
            let error = outcome.err().with_context(|| format!("{what} was done"))?;
            ensure!(error.kind == ErrorKind::NotPermitted, "{what}: {error:?}");
            Ok(())
        };
        let raft = v1::RaftBatch { from: 2, address: "127.0.0.1:1".into(), ..Default::default() };
        let piece = v1::SnapshotPieceRequest::default();
        let join = v1::JoinRequest { node: 2, nonce: Bytes::from_static(&[1; 16]) };
        for (role, name) in [("client", "eve"), ("storage", "storage-9"), ("admin", "eve")] {
            let peer = metadata(&cluster, issue(&cluster, role, name, hosts(role))?)?;
            refused("raft", peer.call(&raft, soon()).await.map(drop))?;
            refused("a snapshot", peer.call(&piece, soon()).await.map(drop))?;
            refused("joining", peer.call(&join, soon()).await.map(drop))?;
        }
        // A metadata server under another's number.
        let peer = metadata(&cluster, issue(&cluster, "metadata", "7", hosts("metadata"))?)?;
        refused("raft of another", peer.call(&raft, soon()).await.map(drop))?;
        refused("joining as another", peer.call(&join, soon()).await.map(drop))?;
        for role in ["client", "admin", "storage"] {
            let name = format!("{role}-9");
            let peer = storage(&cluster, 1, issue(&cluster, role, &name, hosts(role))?)?;
            let (fence, disown) = (v1::FenceRequest::default(), v1::DisownRequest::default());
            let (rebuild, compact) = (v1::RebuildRequest::default(), v1::CompactRequest::default());
            refused("fencing", peer.call(&fence, soon()).await.map(drop))?;
            refused("disowning", peer.call(&disown, soon()).await.map(drop))?;
            refused("rebuilding", peer.call(&rebuild, soon()).await.map(drop))?;
            refused("compacting", peer.call(&compact, soon()).await.map(drop))?;
        }
        // Heartbeats of a daemon come from that daemon.
        for (role, name) in [("client", "eve"), ("storage", "storage-9")] {
            let way = issue(&cluster, role, name, hosts(role))?;
            let beat = v1::HeartbeatRequest { daemon: "storage-1".into(), ..Default::default() };
            let mut group = weft_control::Group::new(way, vec![cluster.address()?]);
            refused("a heartbeat", group.call(beat).await.map(drop))?;
        }
        // And of its own targets, which nobody else takes over while they are served.
        let way = issue(&cluster, "storage", "storage-9", hosts("storage"))?;
        let mut group = weft_control::Group::new(way.clone(), vec![cluster.address()?]);
        let daemon = "storage-9".to_owned();
        let beat = v1::HeartbeatRequest {
            daemon: daemon.clone(),
            failed: vec![1, 2, 3],
            ..Default::default()
        };
        group.call(beat).await?;
        let answers = weft_control::statuses(&way, &[cluster.address()?]).await;
        let status = weft_control::leader_of(&way, &answers).await?;
        let failed = status.targets.iter().find(|stat| stat.refused);
        ensure!(failed.is_none(), "another's target failed: {failed:?}");
        let watch = connect(&cluster, cluster.transport()?).await?;
        let target = watch.cluster_map().targets.first().cloned();
        watch.shutdown().await?;
        let target = target.map(|target| v1::TargetInfo { daemon, ..target });
        let takes = v1::RegisterTargetRequest { target, ..Default::default() };
        refused("another's target", group.call(takes).await.map(drop))?;
        Ok(())
    })
}

fn hosts(role: &str) -> &'static [&'static str] {
    if matches!(role, "storage" | "metadata") { &["--host", "127.0.0.1"] } else { &[] }
}

#[test]
fn a_session_is_its_owners() -> Result<()> {
    let cluster = secured()?;
    fs::write(cluster.mnt().join("f"), data::bytes(1, 1 << 20))?;
    fs::File::open(cluster.mnt().join("f"))?.sync_all()?;
    let victim = session_of_mount(&cluster)?;
    Runtime::new()?.block_on(async {
        let eve = metadata(&cluster, issue(&cluster, "client", "eve", &[])?)?;
        let attempts = [
            Op::CloseSession(v1::CloseSessionOp {}),
            Op::Renew(v1::RenewOp { declares: true, ..Default::default() }),
            Op::Recalls(v1::RecallsOp::default()),
            Op::Unlink(v1::UnlinkOp { parent: 1, name: "f".into() }),
            Op::ReturnLeases(v1::ReturnLeasesOp::default()),
            Op::GetAttr(v1::GetAttrOp { ino: 1 }),
        ];
        for op in attempts {
            let refused = meta(&eve, victim, 1 << 40, op).await.err().context("was done")?;
            ensure!(refused.kind == ErrorKind::NotPermitted, "{refused:?}");
        }
        anyhow::Ok(())
    })?;
    ensure!(session_of_mount(&cluster)? == victim);
    ensure!(fs::read(cluster.mnt().join("f"))? == data::bytes(1, 1 << 20));
    Ok(())
}

/// The chunks of a file of the mount: target and chunk.
async fn chunks(cluster: &Cluster) -> Result<Vec<(u64, ChunkId)>> {
    let mut all = Vec::new();
    for target in 1..=3 {
        let peer = storage(cluster, target, cluster.transport_as("admin")?)?;
        let list = v1::ListRequest { target: target as u32, limit: 100, ..Default::default() };
        for item in peer.call(&list, soon()).await?.items {
            all.push((target, ChunkId::try_from(item.chunk.context("no chunk")?)?));
        }
    }
    Ok(all)
}

#[test]
fn what_a_session_has_stored_only_its_client_changes() -> Result<()> {
    let cluster = secured()?;
    let content = data::bytes(7, 3 << 20);
    fs::write(cluster.mnt().join("f"), &content)?;
    fs::File::open(cluster.mnt().join("f"))?.sync_all()?;
    Runtime::new()?.block_on(async {
        let stored = chunks(&cluster).await?;
        ensure!(!stored.is_empty());
        let eve = issue(&cluster, "client", "eve", &[])?;
        let own = open_session(&*metadata(&cluster, eve.clone())?).await?;
        ensure!(!own.ticket.is_empty(), "a session comes with a ticket");
        // Somebody else's ticket of the session that wrote them, replayed.
        let mallory = issue(&cluster, "client", "mallory", &[])?;
        let other = open_session(&*metadata(&cluster, mallory)?).await?;
        for (target, chunk) in &stored {
            let peer = storage(&cluster, *target, eve.clone())?;
            for ticket in [Bytes::new(), own.ticket.clone(), other.ticket.clone()] {
                let delete = v1::DeleteRequest {
                    target: *target as u32,
                    chunks: vec![(*chunk).into()],
                    ticket: ticket.clone(),
                };
                let refused = peer.call(&delete, soon()).await.err().context("deleted")?;
                ensure!(refused.kind == ErrorKind::NoTicket, "{refused:?}");
            }
        }
        // Nor does anybody store where a session is about to: it would find its place taken.
        let next = SegmentId { session: stored[0].1.segment.session, seq: 1 << 20 };
        let free = SegmentId { session: SessionId(own.session), seq: 1 };
        let block = Bytes::from(vec![0; 4096]);
        for (segment, ticket, stored) in
            [(next, &own.ticket, false), (free, &other.ticket, false), (free, &own.ticket, true)]
        {
            let put = v1::PutRequest {
                target: 1,
                chunk: Some(ChunkId { segment, shard: 0 }.into()),
                checksums: vec![crc32fast::hash(&block)],
                ticket: ticket.clone(),
            };
            let body = Body { send: vec![block.clone()], into: Vec::new() };
            let outcome = storage(&cluster, 1, eve.clone())?.exchange(&put, body, soon()).await;
            ensure!(outcome.is_ok() == stored, "{segment}: {outcome:?}");
        }
        anyhow::Ok(())
    })?;
    cluster.remount()?;
    ensure!(fs::read(cluster.mnt().join("f"))? == content);
    Ok(())
}

/// What comes before anybody has proved who he is costs little, and stops nobody.
#[test]
fn noise_on_every_port_stops_nobody() -> Result<()> {
    let cluster = secured()?;
    let status = cluster.overview()?;
    let mut ports = vec![cluster.address()?];
    for target in status["targets"].as_array().context("targets")? {
        ports.push(target["address"].as_str().context("an address")?.to_owned());
    }
    let mut idle = Vec::new();
    for port in &ports {
        // Garbage, half of a handshake, a frame and gRPC in the clear, and silence.
        let mut long = vec![0x16, 3, 1, 0x40, 0];
        long.extend(vec![0xff; 0x4000]);
        let half = vec![0x16, 3, 1, 2, 0, 1, 0];
        let frame = b"WEFT\x01\x00\x10\x00aaaaaaaaaaaaaaaaaaaaaaaa".to_vec();
        let grpc = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for noise in [data::bytes(3, 1 << 16), long, frame, grpc] {
            let mut stream = TcpStream::connect(port)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            // It may be closed before all was said.
            let _ = stream.write_all(&noise);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            ensure!(answer.len() < 100, "{port} answers {} bytes to noise", answer.len());
        }
        for _ in 0..200 {
            let mut stream = TcpStream::connect(port)?;
            stream.write_all(&half)?;
            idle.push(stream);
        }
    }
    for n in 0..20 {
        fs::write(cluster.mnt().join(format!("f{n}")), data::bytes(n, 100_000))?;
    }
    ensure!(fs::read(cluster.mnt().join("f7"))? == data::bytes(7, 100_000));
    // Who proves nothing is let go.
    eventually(Duration::from_secs(60), "silent connections are closed", || {
        let stream = idle.last_mut()?;
        stream.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
        let mut bytes = [0; 64];
        match stream.read(&mut bytes) {
            Ok(0) => Some(()),
            // An alert, that it took too long.
            Ok(_) => None,
            Err(e) => (e.kind() != std::io::ErrorKind::WouldBlock).then_some(()),
        }
    })?;
    eventually(Duration::from_secs(60), "all is well", || {
        (cluster.overview().ok()?["health"] == "ok").then_some(())
    })
}

#[test]
fn the_library_reads_what_a_mount_wrote() -> Result<()> {
    let cluster = secured()?;
    fs::write(cluster.mnt().join("f"), data::bytes(5, 2 << 20))?;
    let _ = issue_files(&cluster, "client", "other", &[])?;
    Runtime::new()?.block_on(async {
        let other = connect(&cluster, issue(&cluster, "client", "reader", &[])?).await?;
        let root = other.as_user(weft_client::Credentials::root());
        let file = root.open(b"/f", weft_client::OpenFlags::default()).await?;
        let bytes = file.read(0, 2 << 20).await?.parts().concat();
        ensure!(bytes == data::bytes(5, 2 << 20));
        file.close().await?;
        Ok(other.shutdown().await?)
    })
}
