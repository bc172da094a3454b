//! What is wrong on targets is found, mended where it can be, and said where it cannot.

// How long calls take in real time is part of what is shown.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::{Body, Identity, Peer, Peers};
use weft_proto::{ChunkId, SegmentId, SessionId, v1};
use weft_tests::{Cluster, data, path, weft_ok};

/// Where the chunks of the cluster are.
struct Drives(BTreeMap<u32, Arc<Peer>>);

impl Drives {
    /// As another daemon, which needs no tickets.
    fn connect(cluster: &Cluster) -> Result<Self> {
        let list = ["target", "list", "--cluster", &cluster.address()?, "--output", "json"];
        let list: Value = serde_json::from_str(&weft_ok(&list)?)?;
        let identity = Identity { name: "test".into(), cluster: None };
        let peers = Peers::new(cluster.transport_as("storage-1")?, identity);
        let peer = |target: &Value| {
            let (id, at) = (target["id"].as_u64()?, target["address"].as_str()?);
            Some((u32::try_from(id).ok()?, peers.peer(at)))
        };
        let all = list.as_array().context("a list")?.iter().map(peer);
        Ok(Self(all.collect::<Option<_>>().context("targets")?))
    }

    /// Chunks and their lengths.
    async fn list(&self, target: u32) -> Result<Vec<(ChunkId, u64)>> {
        let request = v1::ListRequest { target, limit: 10_000, ..Default::default() };
        let page = self.0[&target].call(&request, soon()).await?;
        let item = |item: v1::list_reply::Item| {
            Ok((ChunkId::try_from(item.chunk.context("no key")?)?, item.length))
        };
        page.items.into_iter().map(item).collect()
    }

    async fn delete(&self, target: u32, chunk: ChunkId) -> Result<()> {
        let request =
            v1::DeleteRequest { target, chunks: vec![chunk.into()], ..Default::default() };
        let deleted = self.0[&target].call(&request, soon()).await?.deleted;
        ensure!(deleted == 1, "{chunk} was not on target {target}");
        Ok(())
    }

    async fn put(&self, target: u32, chunk: ChunkId, length: usize) -> Result<()> {
        let bytes = Bytes::from(data::bytes(length as u64, length));
        let checksums = bytes.chunks(4096).map(crc).collect();
        let head =
            v1::PutRequest { target, chunk: Some(chunk.into()), checksums, ..Default::default() };
        let body = Body { send: vec![bytes], into: Vec::new() };
        Ok(self.0[&target].exchange(&head, body, soon()).await.map(drop)?)
    }
}

fn crc(block: &[u8]) -> u32 {
    weft_erasure::checksum_blocks(std::iter::once(block))[0]
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

fn kinds(findings: &Value) -> Vec<String> {
    let all = findings.as_array().into_iter().flatten();
    let mut kinds: Vec<_> = all.filter_map(|f| Some(f["kind"].as_str()?.to_owned())).collect();
    kinds.sort();
    kinds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_on_targets_is_mended_or_said() -> Result<()> {
    let cluster = Cluster::start()?;
    let (file, other) = (cluster.mnt().join("dir/a file"), cluster.mnt().join("other"));
    fs::create_dir(cluster.mnt().join("dir"))?;
    let bytes = data::bytes(7, 8 << 20);
    for file in [&file, &other] {
        fs::write(file, &bytes)?;
        fs::File::open(file)?.sync_all()?;
    }
    cluster.await_clean()?;
    let drives = Drives::connect(&cluster)?;

    // One is gone, one has another length, and one nobody knows of.
    let chunks = drives.list(1).await?;
    let (gone, wrong) = (chunks[0].0, chunks[1]);
    drives.delete(1, gone).await?;
    drives.delete(1, wrong.0).await?;
    drives.put(1, wrong.0, wrong.1 as usize + 4096).await?;
    let stray = SegmentId { session: SessionId(0x7fff), seq: 9 };
    drives.put(2, ChunkId { segment: stray, shard: 0 }, 8192).await?;
    let (clean, found) = cluster.fsck()?;
    ensure!(
        !clean && kinds(&found["findings"]) == ["leaked", "missing", "wrong_length"],
        "{found}"
    );
    let (clean, mended) = cluster.fsck_with(&["--repair"])?;
    ensure!(clean && kinds(&mended["mended"]) == kinds(&found["findings"]), "{mended}");
    ensure!(kinds(&mended["findings"]).is_empty() && mended["lost_files"] == serde_json::json!([]));
    cluster.remount()?;
    for file in [&file, &other] {
        let read = fs::read(file)?;
        let differs = read.iter().zip(&bytes).position(|(read, written)| read != written);
        let len = read.len();
        ensure!(read == bytes, "{} of {len} bytes differs at {differs:?}", file.display());
    }
    weft_ok(&["target", "scrub", "--cluster", &cluster.address()?])?;

    // Three of six shards: it cannot be made good, and is said of whom.
    let lost = drives.list(1).await?[0].0.segment;
    let mut deleted = 0;
    for target in 1..=6 {
        for (chunk, _) in drives.list(target).await? {
            if chunk.segment == lost && deleted < 3 {
                drives.delete(target, chunk).await?;
                deleted += 1;
            }
        }
    }
    ensure!(deleted == 3);
    let (clean, said) = cluster.fsck_with(&["--repair", "--patience", "3"])?;
    ensure!(!clean && kinds(&said["findings"]) == ["missing"; 3], "{said}");
    let files: Vec<_> = said["lost_files"].as_array().into_iter().flatten().collect();
    ensure!(files.len() == 1, "{said}");
    let damaged = cluster.mnt().join(files[0].as_str().context("a path")?.trim_start_matches('/'));
    cluster.remount()?;
    ensure!(fs::read(&damaged).is_err(), "{} reads", damaged.display());
    let sound = if damaged == file { &other } else { &file };
    ensure!(fs::read(sound)? == bytes);
    weft_ok(&["umount", path(cluster.mnt())]).map(drop)
}
