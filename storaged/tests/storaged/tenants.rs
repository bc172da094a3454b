//! Several tenants at one daemon: rates that are kept and told, and who comes first.

use crate::daemon::{CLUSTER, run, soon, stat};
use crate::metadata::Metadata;
use crate::support::{data, id, make};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::tempdir;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weft_net::{Body, Identity, Peer, Peers};
use weft_proto::layout::MAX_CHUNK;
use weft_proto::{ErrorKind, Result, v1};
use weft_storaged::{Config, Target};

const MIB: usize = 1 << 20;

fn config(dir: &Path, metadata: Vec<String>) -> Config {
    let mut config = Config::new("s1", "127.0.0.1:0", metadata);
    config.targets = vec![Target { sparse: true, ..Target::new(dir.join("a"), Some(2 << 30)) }];
    make(&config.targets[0].options());
    config
}

fn peer(address: &str, name: &str) -> Arc<Peer> {
    let identity = Identity { name: name.into(), cluster: Some(CLUSTER) };
    Peers::new(weft_net::tcp(), identity).peer(address)
}

async fn put(peer: &Peer, session: u64, seq: u64, bytes: usize) -> Result<()> {
    let chunk = id(session, seq, 0);
    let (bytes, checksums) = data(chunk, bytes / 4096, 0);
    let head =
        v1::PutRequest { target: 1, chunk: Some(chunk.into()), checksums, ..Default::default() };
    peer.exchange(&head, Body { send: vec![bytes], into: Vec::new() }, soon()).await.map(drop)
}

fn rule(tenant: &str, limits: v1::QosLimits) -> v1::QosRule {
    v1::QosRule { tenant: tenant.into(), limits: Some(limits) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_keeps_its_part_of_a_rate_and_tells_what_it_served() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    // One of two targets that are up is here.
    let limits = v1::QosLimits { bandwidth: Some(16 * MIB as u64), ..Default::default() };
    let rules = vec![rule("slow", limits)];
    *metadata.1.qos.lock() = v1::QosPolicy { version: 7, rules };
    let daemon = run(config(dir.path(), vec![metadata.serve().await])).await;
    let (slow, other) = (peer(&daemon.address, "slow:/mnt"), peer(&daemon.address, "other:/mnt"));
    stat(&other, 1).await;
    metadata.wait_for_beat(|beat| beat.qos_version == 7).await;
    let begun = Instant::now();
    // All at once: one after the other they could take so long that none has to wait.
    let mut puts = JoinSet::new();
    for seq in 0..16 {
        for (session, peer) in [(1, &slow), (2, &other)] {
            let peer = peer.clone();
            puts.spawn(async move { put(&peer, session, seq, MIB).await });
        }
    }
    puts.join_all().await.into_iter().for_each(|put| put.unwrap());
    let took = begun.elapsed().as_secs_f64();
    // 15 of them at 8 MiB/s, less the burst.
    assert!(took >= 15.0 / 8.0 - 0.2, "{took}");
    let told = |beats: &[v1::HeartbeatRequest], tenant: &str| {
        let of = beats.iter().flat_map(|beat| beat.tenants.iter());
        let of = of.filter(|stat| stat.tenant == tenant);
        of.fold((0, 0), |sum, stat| (sum.0 + stat.written_bytes, sum.1 + stat.paced_us))
    };
    let mut beats = metadata.1.beats.subscribe();
    let all = |beats: &Vec<_>| {
        [told(beats, "slow").0, told(beats, "other").0].iter().all(|n| *n == 16 * MIB as u64)
    };
    let beats = beats.wait_for(all).await.unwrap().clone();
    assert!(told(&beats, "slow").1 > 0, "it waited for its rate");
    assert_eq!(told(&beats, "other").1, 0);
    // A policy that takes the rule away is heard of, too.
    *metadata.1.qos.lock() = v1::QosPolicy { version: 8, rules: Vec::new() };
    metadata.wait_for_beat(|beat| beat.qos_version == 8).await;
    metadata.1.beats.send_modify(Vec::clear);
    put(&slow, 1, 99, 4 * MIB).await.unwrap();
    let beat = |beat: &v1::HeartbeatRequest| beat.tenants.iter().any(|t| t.tenant == "slow");
    let beat = metadata.wait_for_beat(beat).await;
    assert!(beat.tenants.iter().all(|stat| stat.paced_us == 0), "{:?}", beat.tenants);
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stores_little_does_not_stand_behind_who_stores_much() {
    const STORM: usize = 96;
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let daemon = run(config(dir.path(), vec![metadata.serve().await])).await;
    let victim = peer(&daemon.address, "victim:/mnt");
    stat(&victim, 1).await;
    let mut best = STORM;
    // Others use this machine, too: once is enough to show that there is another order.
    for round in 1..=5u64 {
        let done = Arc::new(AtomicUsize::new(0));
        let hog = peer(&daemon.address, "hog:/mnt");
        let mut storm = JoinSet::new();
        for seq in 0..STORM as u64 {
            let (hog, done) = (hog.clone(), done.clone());
            storm.spawn(async move {
                put(&hog, round, seq, 4 * MIB).await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        while done.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
        let before = done.load(Ordering::Relaxed);
        put(&victim, 1000, round, 4096).await.unwrap();
        best = best.min(done.load(Ordering::Relaxed) - before);
        while storm.join_next().await.transpose().unwrap().is_some() {}
    }
    assert!(best < STORM / 3, "{best} of {STORM} puts that were sent before came first");
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_absurd_length_is_refused_and_the_daemon_goes_on() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let limits = v1::QosLimits { bandwidth: Some(MIB as u64), ..Default::default() };
    *metadata.1.qos.lock() = v1::QosPolicy { version: 1, rules: vec![rule("paced", limits)] };
    let daemon = run(config(dir.path(), vec![metadata.serve().await])).await;
    for name in ["free:/mnt", "paced:/mnt"] {
        let peer = peer(&daemon.address, name);
        stat(&peer, 1).await;
        metadata.wait_for_beat(|beat| beat.qos_version == 1).await;
        let seq = name.len() as u64;
        put(&peer, 1, seq, 4096).await.unwrap();
        for background in [false, true] {
            for len in [MAX_CHUNK + 4096, u64::MAX - 4095, u64::MAX] {
                let chunk = Some(id(1, seq, 0).into());
                let q = v1::GetRequest { target: 1, chunk, len, background, ..Default::default() };
                let refused = peer.exchange(&q, Body::default(), soon()).await.map(drop);
                assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid, "{name}: {len}");
            }
        }
        // It owes nothing for what was refused.
        put(&peer, 1, seq + 100, 4096).await.unwrap();
    }
    daemon.stop().await.unwrap();
}
