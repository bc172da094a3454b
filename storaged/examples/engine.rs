//! The engine beside `fio` on the same drive, in turns, with the same sizes, depths and flushes,
//! and with registered buffers in both:
//!
//! ```text
//! cargo run --release -p weft-storaged --example engine -- PATH [GiB [INDEX [KEY]]]
//! ```
//!
//! PATH is a file that does not exist yet, or a blank device (with a folder for its INDEX); what is
//! on it is lost. With the file of a KEY the target is encrypted. Prints each round, then medians,
//! ratios and CPU time.

use bytes::Bytes;
use rand::Rng;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weft_net::AlignedBuf;
use weft_proto::{ChunkId, SegmentId, SessionId};
use weft_storaged::engine::{Content, Engine, KeySource, TargetOptions};

const ROUNDS: usize = 3;
const CHUNK: usize = 4 << 20;
const DEPTH: usize = 8;
const RANDOM: usize = 4096;
const RANDOM_DEPTH: usize = 64;
/// Time of a random run.
const SECONDS: u64 = 4;

/// What one run did.
#[derive(Clone, Copy)]
struct Ran {
    operations: f64,
    bytes: f64,
    seconds: f64,
    cpu: f64,
}

impl Ran {
    fn speed(&self) -> f64 {
        self.bytes / self.seconds
    }

    fn line(&self) -> String {
        format!(
            "{:8.0} op/s {:7.3} GiB/s {:7.3} CPU-s/GiB {:7.1} CPU-us/op",
            self.operations / self.seconds,
            self.speed() / f64::from(1 << 30),
            self.cpu / self.bytes * f64::from(1 << 30),
            self.cpu * 1e6 / self.operations
        )
    }
}

/// The cases, in the order in which a round runs them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Put,
    Get,
    Random,
}

impl Case {
    const ALL: [Self; 3] = [Self::Put, Self::Get, Self::Random];

    fn name(self) -> &'static str {
        match self {
            Self::Put => "put 4 MiB, 8 at once",
            Self::Get => "get 4 MiB, 8 at once",
            Self::Random => "get 4 KiB, 64 at once",
        }
    }

    fn wanted(self) -> f64 {
        if self == Self::Random { 0.7 } else { 0.85 }
    }
}

struct Bench {
    engine: Engine,
    /// What `fio` works on, and from which byte on.
    floor: (PathBuf, u64),
    chunks: u64,
    data: Bytes,
    sums: Vec<u32>,
}

impl Bench {
    async fn ours(&self, case: Case, round: u64) -> Ran {
        match case {
            Case::Put => self.puts(round).await,
            Case::Get => self.gets(round).await,
            Case::Random => self.random(round).await,
        }
    }

    async fn puts(&self, round: u64) -> Ran {
        let (engine, data, sums) = (self.engine.clone(), self.data.clone(), self.sums.clone());
        measure(DEPTH, CHUNK, self.chunks, Duration::MAX, move |n| {
            let (engine, data, sums) = (engine.clone(), data.clone(), sums.clone());
            async move { engine.put(id(round, n), data, sums).await.expect("put") }
        })
        .await
    }

    async fn gets(&self, round: u64) -> Ran {
        let engine = self.engine.clone();
        measure(DEPTH, CHUNK, self.chunks, Duration::MAX, move |n| {
            let engine = engine.clone();
            async move { drop(engine.get(id(round, n), 0, CHUNK as u64).await.expect("get")) }
        })
        .await
    }

    async fn random(&self, round: u64) -> Ran {
        let (engine, chunks) = (self.engine.clone(), self.chunks);
        let time = Duration::from_secs(SECONDS);
        measure(RANDOM_DEPTH, RANDOM, u64::MAX, time, move |_| {
            let engine = engine.clone();
            let (seq, block) = {
                let mut rng = rand::rng();
                (rng.random_range(0..chunks), rng.random_range(0..CHUNK / RANDOM))
            };
            let off = (block * RANDOM) as u64;
            async move {
                drop(engine.get(id(round, seq), off, RANDOM as u64).await.expect("get"));
            }
        })
        .await
    }

    /// `fio` doing the same; `flushes` in all, spread evenly.
    fn fio(&self, case: Case, flushes: u64) -> Ran {
        let (path, offset) = &self.floor;
        let (rw, block, depth) = match case {
            Case::Put => ("write", CHUNK, DEPTH),
            Case::Get => ("read", CHUNK, DEPTH),
            Case::Random => ("randread", RANDOM, RANDOM_DEPTH),
        };
        let mut fio = Command::new("fio");
        fio.args(["--name=floor", "--direct=1", "--ioengine=io_uring", "--output-format=json"])
            .args(["--norandommap", "--randrepeat=0", "--fixedbufs=1"])
            .arg(format!("--filename={}", path.display()))
            .arg(format!("--offset={offset}"))
            .arg(format!("--size={}", self.chunks * CHUNK as u64))
            .arg(format!("--rw={rw}"))
            .arg(format!("--bs={block}"))
            .arg(format!("--iodepth={depth}"));
        match case {
            Case::Put if flushes > 0 => {
                fio.arg(format!("--fdatasync={}", self.chunks.div_ceil(flushes)));
            }
            Case::Random => {
                fio.args(["--time_based", &format!("--runtime={SECONDS}")]);
            }
            _ => {}
        }
        let out = fio.output().expect("fio does not run; install it (Debian: fio)");
        assert!(out.status.success(), "fio: {}", String::from_utf8_lossy(&out.stderr));
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("fio's answer");
        let job = &json["jobs"][0];
        let side = &job[if case == Case::Put { "write" } else { "read" }];
        let number = |v: &serde_json::Value| v.as_f64().expect("a number in fio's answer");
        let seconds = number(&side["runtime"]) / 1e3;
        let percent = number(&job["usr_cpu"]) + number(&job["sys_cpu"]);
        Ran {
            operations: number(&side["total_ios"]),
            bytes: number(&side["io_bytes"]),
            seconds,
            cpu: percent / 100.0 * seconds,
        }
    }

    async fn forget(&self, round: u64) {
        let ids = (0..self.chunks).map(|n| id(round, n)).collect();
        self.engine.delete(ids).await.expect("delete");
    }
}

/// Runs operations 0, 1, … `depth` at once, until `count` or the time is over.
async fn measure<F: Future<Output = ()> + Send + 'static>(
    depth: usize,
    bytes: usize,
    count: u64,
    time: Duration,
    operation: impl Fn(u64) -> F + Send + Sync + 'static,
) -> Ran {
    let (next, operation) = (Arc::new(AtomicU64::new(0)), Arc::new(operation));
    let (start, before) = (Instant::now(), cpu());
    let mut tasks = JoinSet::new();
    for _ in 0..depth {
        let (next, operation) = (next.clone(), operation.clone());
        tasks.spawn(async move {
            let mut done = 0;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count || start.elapsed() >= time {
                    return done;
                }
                operation(n).await;
                done += 1;
            }
        });
    }
    let done: u64 = tasks.join_all().await.into_iter().sum();
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), (cpu() - before).as_secs_f64());
    Ran { operations: done as f64, bytes: done as f64 * bytes as f64, seconds, cpu }
}

fn id(session: u64, seq: u64) -> ChunkId {
    ChunkId { segment: SegmentId { session: SessionId(session), seq }, shard: 0 }
}

fn payload(len: usize) -> (Bytes, Vec<u32>) {
    let mut buffer = AlignedBuf::take(len);
    rand::rng().fill(buffer.as_mut_slice());
    let sums = weft_erasure::block_checksums(buffer.as_ref());
    (buffer.into(), sums)
}

/// CPU time of this process, user and system.
fn cpu() -> Duration {
    // SAFETY: the structure is plain data that the call fills.
    let usage = unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// A file beside the target, or the upper part of the device, which these few chunks do not reach.
fn floor(path: &Path, capacity: u64) -> (PathBuf, u64) {
    if path.is_file() {
        return (path.with_extension("fio"), 0);
    }
    (path.to_path_buf(), (capacity / 20 * 11).next_multiple_of(CHUNK as u64))
}

fn median(of: &[Ran]) -> Ran {
    let mut sorted = of.to_vec();
    sorted.sort_by(|a, b| a.speed().total_cmp(&b.speed()));
    sorted[sorted.len() / 2]
}

async fn rounds(bench: &Bench) {
    let mut ran: Vec<(Case, Ran, Ran)> = Vec::new();
    for round in 0..ROUNDS as u64 {
        for case in Case::ALL {
            let before = bench.engine.stat().commits;
            let ours = bench.ours(case, round + 1).await;
            let flushes = bench.engine.stat().commits - before;
            let fio = bench.fio(case, flushes);
            println!("round {round} {:22} engine {}", case.name(), ours.line());
            println!("        {:22} fio    {}", "", fio.line());
            ran.push((case, ours, fio));
        }
        bench.forget(round + 1).await;
    }
    println!();
    for case in Case::ALL {
        let of = |pick: fn(&(Case, Ran, Ran)) -> Ran| {
            median(&ran.iter().filter(|r| r.0 == case).map(pick).collect::<Vec<_>>())
        };
        let (ours, fio) = (of(|r| r.1), of(|r| r.2));
        println!("median  {:22} engine {}", case.name(), ours.line());
        println!("        {:22} fio    {}", "", fio.line());
        println!(
            "        {:22} {:.2} of fio (wanted: {})",
            "",
            ours.speed() / fio.speed(),
            case.wanted()
        );
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().expect("usage: engine PATH [GiB [INDEX [KEY]]]"));
    let gib: u64 = args.next().map_or(4, |g| g.parse().expect("GiB is a number"));
    let options = TargetOptions {
        index: args.next().map(PathBuf::from),
        encryption: args
            .next()
            .map(|key| KeySource { key_file: Some(key.into()), key_command: None }),
        ..TargetOptions::new(&path, Some(gib << 30))
    };
    Engine::format_and_take_index(&options, &Content::Blank).expect("format");
    let engine = Engine::open(&options).expect("open");
    let capacity = engine.stat().capacity_bytes;
    let (data, sums) = payload(CHUNK);
    // Two fifths of the target for the engine, two for fio.
    let chunks = capacity / 5 * 2 / CHUNK as u64;
    let bench = Bench { engine, floor: floor(&path, capacity), chunks, data, sums };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime");
    runtime.block_on(async {
        rounds(&bench).await;
        bench.engine.close().await.expect("close");
    });
}
