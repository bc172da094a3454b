//! What a byte costs on its way through the client, beside the floors of this machine: copying it,
//! encoding and summing it, and the same chunks fetched in plain frames. The storage side runs in
//! this process and keeps chunks in memory, so CPU figures of whole transfers hold both sides and
//! loopback.
//!
//! `cargo bench -p weft-client`

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use fixture::{Cluster, pattern};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use weft_client::{Creator, Filesystem, OpenFlags};
use weft_net::{Body, Buffer, Identity, Peers, tcp};
use weft_proto::{Geometry, InodeId, Layout, Profile, v1};

const GIB: f64 = (1u64 << 30) as f64;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    floors();
    for profile in ["4+2", "replica=3"] {
        let profile: Profile = profile.parse().expect("a profile");
        transfers(profile).await;
    }
    small_files().await;
}

fn floors() {
    let data = pattern(16 << 20, 1);
    let mut to = vec![0u8; data.len()];
    report("copy 16 MiB", data.len(), 64, || {
        to.copy_from_slice(std::hint::black_box(&data));
        std::hint::black_box(&to);
    });
    let profile: Profile = "4+2".parse().expect("a profile");
    let geometry = Geometry { profile, unit: 128 << 10, length: data.len() as u64 };
    let mut parity = vec![vec![0u8; geometry.shard_len(4) as usize]; 2];
    report("encode 4+2", data.len(), 64, || {
        let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
        weft_erasure::encode_segment(&geometry, &data, &mut slices).expect("encodes");
    });
    report("checksums of data", data.len(), 64, || {
        std::hint::black_box(weft_erasure::block_checksums(&data));
    });
}

fn report(what: &str, bytes: usize, times: u32, mut work: impl FnMut()) {
    work();
    let begun = Instant::now();
    (0..times).for_each(|_| work());
    line(what, bytes as f64 * f64::from(times), begun.elapsed(), None);
}

fn line(what: &str, bytes: f64, time: Duration, cpu: Option<Duration>) {
    let gib = bytes / GIB;
    let cpu = cpu.map_or(String::new(), |c| format!("  {:.3} CPU-s/GiB", c.as_secs_f64() / gib));
    println!(
        "{what:32} {:8.2} GiB/s  {:.3} s/GiB{cpu}",
        gib / time.as_secs_f64(),
        time.as_secs_f64() / gib
    );
}

async fn transfers(profile: Profile) {
    let cluster = Cluster::start(usize::from(profile.width()), Layout::for_profile(profile)).await;
    let fs = cluster.client().await;
    let size = 256 << 20;
    let block = pattern(1 << 20, 2);
    // Keeping what was written costs this process fresh memory, which is no cost of the client.
    cluster.targets.iter().for_each(|t| t.forgets.store(true, Ordering::Relaxed));
    write(&fs, "warm", size, &block).await;
    let (begun, cpu) = (Instant::now(), cpu_time());
    for i in 0..4 {
        write(&fs, &format!("gone{i}"), size, &block).await;
    }
    let what = format!("write {profile}, 1 MiB, release");
    line(&what, (4 * size) as f64, begun.elapsed(), Some(cpu_time() - cpu));
    cluster.targets.iter().for_each(|t| t.forgets.store(false, Ordering::Relaxed));
    let mut files = Vec::new();
    for i in 0..4 {
        files.push(write(&fs, &format!("f{i}"), size, &block).await);
    }
    for round in 1..=5 {
        framed(&cluster, 4 * size, &format!("plain frames of 1 MiB, round {round}")).await;
        let what = format!("read {profile}, 1 MiB, round {round}");
        read(&fs, &files, size, 1 << 20, &what).await;
    }
    cluster.targets[0].set(fixture::storage::Fault::Refuse(weft_proto::ErrorKind::Io));
    read(&fs, &files, size, 1 << 20, &format!("read {profile}, a target lost")).await;
}

async fn write(fs: &Filesystem, name: &str, size: usize, block: &[u8]) -> InodeId {
    let opened = fs
        .create(InodeId::ROOT, name.as_bytes(), 0o644, Creator::default(), OpenFlags::default())
        .await
        .expect("create");
    for off in (0..size as u64).step_by(block.len()) {
        fs.write(opened.handle, off, block).await.expect("write");
    }
    fs.release(opened.handle).await.expect("release");
    opened.attr.ino
}

async fn read(fs: &Filesystem, files: &[InodeId], size: usize, step: usize, what: &str) {
    let (begun, cpu) = (Instant::now(), cpu_time());
    for ino in files {
        let handle = fs.open(*ino, OpenFlags::default()).await.expect("open").handle;
        for off in (0..size as u64).step_by(step) {
            assert_eq!(fs.read(handle, off, step).await.expect("read").len(), step);
        }
        fs.release(handle).await.expect("release");
    }
    line(what, (files.len() * size) as f64, begun.elapsed(), Some(cpu_time() - cpu));
}

/// The same chunks by nothing but frames: 8 requests of 1 MiB in flight, and nobody looks at what
/// comes.
async fn framed(cluster: &Cluster, bytes: usize, what: &str) {
    const PART: usize = 1 << 20;
    let peers = Peers::new(tcp(), Identity { name: "frames".into(), cluster: None });
    let targets = cluster.metadata.map.borrow().targets.clone();
    let mut parts = Vec::new();
    for (target, info) in cluster.targets.iter().zip(&targets) {
        let peer = peers.peer(&info.address);
        for (chunk, (data, _)) in target.chunks.lock().iter() {
            for off in (0..data.len() / PART * PART).step_by(PART) {
                let (chunk, off, len) = (Some((*chunk).into()), off as u64, PART as u64);
                let get = v1::GetRequest { target: info.id, chunk, off, len, ..Default::default() };
                parts.push((peer.clone(), get));
            }
        }
    }
    let parts: Vec<_> = parts.into_iter().cycle().take(bytes / PART).collect();
    let (begun, cpu) = (Instant::now(), cpu_time());
    let lanes: Vec<_> = (0..8)
        .map(|lane| {
            let mine: Vec<_> = parts.iter().skip(lane).step_by(8).cloned().collect();
            tokio::spawn(async move {
                let mut into = vec![Buffer::take(PART)];
                for (peer, get) in mine {
                    let deadline = Instant::now() + Duration::from_secs(30);
                    let body = Body { send: Vec::new(), into };
                    into = peer.exchange(&get, body, deadline).await.expect("an answer").payload;
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.expect("a lane");
    }
    line(what, bytes as f64, begun.elapsed(), Some(cpu_time() - cpu));
}

async fn small_files() {
    let cluster = Cluster::start(6, Layout::for_profile("4+2".parse().expect("a profile"))).await;
    let fs = cluster.client().await;
    for (what, len) in [("4 KiB, inline", 4096), ("64 KiB, three copies", 65_536)] {
        let (data, count) = (pattern(len, 3), 2000u32);
        let (begun, cpu) = (Instant::now(), cpu_time());
        for i in 0..count {
            let name = format!("{len}-{i}");
            let opened = fs
                .create(
                    InodeId::ROOT,
                    name.as_bytes(),
                    0o644,
                    Creator::default(),
                    OpenFlags::default(),
                )
                .await
                .expect("create");
            fs.write(opened.handle, 0, &data).await.expect("write");
            fs.release(opened.handle).await.expect("release");
        }
        let (time, cpu) = (begun.elapsed() / count, (cpu_time() - cpu) / count);
        println!("create, write, release {what:22} {time:8.1?} each, {cpu:.1?} CPU");
    }
}

/// Of this process.
fn cpu_time() -> Duration {
    // SAFETY: an all-zero rusage is a valid value of this plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a rusage that lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}
