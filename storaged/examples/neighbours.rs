//! What one client's reads take while four others write as fast as they can: one storage daemon,
//! one target, nothing else.
//!
//! ```text
//! cargo run --release --workspace --example neighbours -- DIR|DEVICE [SECONDS [ROUNDS [unshared]]]
//! ```
//!
//! On a block device, what is on it is lost. In a directory it makes a target of 6 GiB, and removes
//! it again: a file all of which was written once, so that it behaves as a drive does, and not as
//! the filesystem that finds blocks for it and takes them back, with reads waiting meanwhile.
//!
//! `unshared`: victim and writers are one tenant, and wait in one line.
//!
//! The daemon, the victim and the writers have threads of their own. Each round measures the victim
//! alone, then beside the writers, in turns for each sort of request; medians of the rounds are
//! printed, and CPU time, to tell a busy drive from busy cores. They are to be had for it alone:
//! `chrt -r 20` before the program keeps others from them.
#![allow(clippy::disallowed_methods, reason = "it measures in real time")]

use bytes::Bytes;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use weft_net::{AlignedBuf, Body, Identity, Peer, Peers};
use weft_proto::{ChunkId, SegmentId, SessionId, TargetId, Uuid, v1};
use weft_storaged::engine::{Content, Engine, TargetOptions};
use weft_storaged::{Config, Daemon};

const CLUSTER: Uuid = Uuid([9; 16]);
const CHUNK: usize = 4 << 20;
/// Chunks that the victim reads.
const KEPT: u64 = 64;
const WRITERS: u64 = 4;
/// Puts in flight of each writer.
const DEPTH: u64 = 16;
const SIZE: u64 = 6 << 30;

/// What the victim does, one after the other.
#[derive(Clone, Copy)]
enum Case {
    Read(usize),
    Write(usize),
}

const CASES: [(&str, Case); 3] = [
    ("read 4 KiB", Case::Read(4 << 10)),
    ("read 128 KiB", Case::Read(128 << 10)),
    ("write 4 KiB, durable", Case::Write(4 << 10)),
];

/// Percentiles in microseconds, and what the writers did meanwhile.
#[derive(Clone, Copy, Default)]
struct Took {
    p50: f64,
    p99: f64,
    p999: f64,
    count: usize,
    mib_per_s: f64,
    cpus: f64,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.first().expect("DIR");
    let number = |at: usize, or: u64| args.get(at).map_or(or, |n| n.parse().expect("a number"));
    let (seconds, rounds) = (number(1, 4), number(2, 3));
    let given = Path::new(dir);
    let device = !given.is_dir();
    let path = if device { given.to_owned() } else { given.join("neighbours") };
    if !device {
        written(&path).expect("a file that is written");
    }
    let index = given.is_dir().then(|| path.with_extension("index"));
    let index = index.unwrap_or_else(|| std::env::temp_dir().join("neighbours.index"));
    let options = TargetOptions { index: Some(index.clone()), ..TargetOptions::new(&path, None) };
    Engine::format_and_take_index(&options, &Content::Blank).expect("a target");
    let engine = Engine::open(&options).expect("it opens");
    let (server, clients, victim) = (runtime(2), runtime(2), runtime(1));
    let (stop, stopped) = watch::channel(false);
    let (address, daemon) = server.block_on(serve(engine, stopped));
    let unshared = args.get(3).is_some_and(|word| word == "unshared");
    let bench = Arc::new(Bench::new(address, unshared));
    clients.block_on(bench.fill());
    let mut all = vec![[Vec::new(), Vec::new()]; CASES.len()];
    for _ in 0..rounds {
        for (at, (_, case)) in CASES.iter().enumerate() {
            for (storm, took) in all[at].iter_mut().enumerate() {
                let time = Duration::from_secs(seconds);
                let writers = (storm > 0).then(|| clients.handle().clone());
                let measured = victim.spawn(bench.clone().measure(*case, writers, time));
                took.push(victim.block_on(measured).expect("it is measured"));
            }
        }
    }
    println!(
        "{:24} {:>9} {:>9} {:>9} {:>8} {:>9} {:>5}",
        "", "p50 us", "p99 us", "p99.9 us", "requests", "MiB/s", "CPUs"
    );
    for ((name, _), took) in CASES.iter().zip(&all) {
        let [quiet, storm] = [median(&took[0]), median(&took[1])];
        for (how, t) in [("quiet", quiet), ("4 writers", storm)] {
            println!(
                "{:24} {:9.0} {:9.0} {:9.0} {:8} {:9.0} {:5.2}",
                format!("{name}, {how}"),
                t.p50,
                t.p99,
                t.p999,
                t.count,
                t.mib_per_s,
                t.cpus
            );
        }
        println!(
            "{:24} {:9.2} {:9.2} {:9.2}",
            "  times",
            storm.p50 / quiet.p50,
            storm.p99 / quiet.p99,
            storm.p999 / quiet.p999
        );
    }
    stop.send_replace(true);
    server.block_on(daemon).expect("the daemon ends").expect("it ended well");
    if !device {
        std::fs::remove_file(&path).expect("the target goes");
    }
    std::fs::remove_dir_all(index).expect("its index, too");
}

/// A file all of whose blocks are written.
fn written(path: &Path) -> std::io::Result<()> {
    let (mut file, zeros) = (std::fs::File::create(path)?, vec![0; 8 << 20]);
    for _ in 0..SIZE / zeros.len() as u64 {
        file.write_all(&zeros)?;
    }
    file.sync_all()
}

fn runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("threads")
}

async fn serve(
    engine: Engine,
    stopped: watch::Receiver<bool>,
) -> (String, tokio::task::JoinHandle<weft_proto::Result<()>>) {
    engine.join(CLUSTER, TargetId(1)).await.expect("it joins");
    let config = Config::new("bench", "127.0.0.1:0", vec!["127.0.0.1:1".into()]);
    let mut config = config;
    config.targets = vec![weft_storaged::Target::new("neighbours", None)];
    let daemon = Daemon::bind(config, weft_net::tcp()).await.expect("it listens");
    let address = daemon.address().to_owned();
    let engines = vec![(engine, "neighbours".to_owned())];
    (address, tokio::spawn(daemon.run_open(engines, |service| service, stopped)))
}

struct Bench {
    address: String,
    data: Bytes,
    sums: Vec<u32>,
    next: AtomicU64,
    unshared: bool,
    /// What the writers have stored.
    stored: AtomicU64,
}

impl Bench {
    fn new(address: String, unshared: bool) -> Self {
        let mut buffer = AlignedBuf::take(CHUNK);
        let mut state = 1u64;
        for word in buffer.as_mut_slice().as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *word = state.to_le_bytes();
        }
        let sums = weft_erasure::block_checksums(buffer.as_ref());
        let (next, stored) = (AtomicU64::new(KEPT), AtomicU64::new(0));
        Self { address, data: buffer.into(), sums, next, unshared, stored }
    }

    fn peer(&self, name: &str) -> Arc<Peer> {
        let identity = Identity { name: name.into(), cluster: Some(CLUSTER) };
        Peers::new(weft_net::tcp(), identity).peer(&self.address)
    }

    async fn fill(&self) {
        let peer = self.peer("filler:");
        for seq in 0..KEPT {
            self.put(&peer, seq, CHUNK).await;
        }
    }

    async fn put(&self, peer: &Peer, seq: u64, len: usize) {
        let sums = self.sums[..len / 4096].to_vec();
        let head = v1::PutRequest {
            target: 1,
            chunk: Some(id(seq).into()),
            checksums: sums,
            ..Default::default()
        };
        let body = Body { send: vec![self.data.slice(..len)], into: Vec::new() };
        peer.exchange(&head, body, soon()).await.expect("a put");
    }

    async fn delete(&self, peer: &Peer, seq: u64) {
        let chunks = vec![id(seq).into()];
        peer.call(&v1::DeleteRequest { target: 1, chunks, ..Default::default() }, soon())
            .await
            .expect("a delete");
    }

    async fn write_on(self: Arc<Self>, peer: Arc<Peer>, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            let seq = self.next.fetch_add(1, Ordering::Relaxed);
            self.put(&peer, seq, CHUNK).await;
            self.stored.fetch_add(CHUNK as u64, Ordering::Relaxed);
            self.delete(&peer, seq).await;
        }
    }

    async fn measure(self: Arc<Self>, case: Case, storm: Option<Handle>, time: Duration) -> Took {
        let (stop, mut writers) = (Arc::new(AtomicBool::new(false)), Vec::new());
        for (writer, storm) in (0..WRITERS).flat_map(|n| storm.iter().map(move |s| (n, s))) {
            let name = if self.unshared { "writer".into() } else { format!("writer-{writer}") };
            let peer = self.peer(&format!("{name}:/mnt"));
            for _ in 0..DEPTH {
                let (bench, peer, stop) = (self.clone(), peer.clone(), stop.clone());
                writers.push(storm.spawn(bench.write_on(peer, stop)));
            }
        }
        let victim = self.peer(if self.unshared { "writer:/mnt" } else { "victim:/mnt" });
        self.act(&victim, case).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (begun, before, cpu) = (Instant::now(), self.stored.load(Ordering::Relaxed), cpu());
        let mut took = Vec::new();
        while begun.elapsed() < time {
            let one = Instant::now();
            self.act(&victim, case).await;
            took.push(one.elapsed().as_secs_f64() * 1e6);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let stored = self.stored.load(Ordering::Relaxed) - before;
        let cpus = (self::cpu() - cpu) / seconds;
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.expect("a writer ends");
        }
        took.sort_by(f64::total_cmp);
        let at = |part: f64| took[((took.len() as f64 * part) as usize).min(took.len() - 1)];
        let mib_per_s = stored as f64 / f64::from(1 << 20) / seconds;
        Took { p50: at(0.5), p99: at(0.99), p999: at(0.999), count: took.len(), mib_per_s, cpus }
    }

    async fn act(&self, peer: &Peer, case: Case) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        match case {
            Case::Read(len) => {
                let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                let (chunk, off) = (random % KEPT, (random >> 8) % (CHUNK / len) as u64);
                let (off, len) = (off * len as u64, len as u64);
                let chunk = Some(id(chunk).into());
                let head = v1::GetRequest { target: 1, chunk, off, len, ..Default::default() };
                let answer = peer.exchange(&head, Body::default(), soon()).await.expect("a get");
                assert_eq!(answer.payload.concat().len() as u64, len);
            }
            Case::Write(len) => self.put(peer, number, len).await,
        }
    }
}

fn id(seq: u64) -> ChunkId {
    ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 }
}

fn soon() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(60)
}

/// CPU seconds of this process.
fn cpu() -> f64 {
    // SAFETY: all zeros are a valid rusage, and it is written by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn median(all: &[Took]) -> Took {
    let of = |value: fn(&Took) -> f64| {
        let mut values: Vec<f64> = all.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Took {
        p50: of(|t| t.p50),
        p99: of(|t| t.p99),
        p999: of(|t| t.p999),
        count: of(|t| t.count as f64) as usize,
        mib_per_s: of(|t| t.mib_per_s),
        cpus: of(|t| t.cpus),
    }
}
