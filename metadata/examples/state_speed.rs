//! Measures the state machine alone, without Raft or network: durable-by-log creates in batches,
//! commits of one extent, lookups and getattrs, on RocksDB in a temporary directory.
//!
//! `cargo run --release -p weft-metadata --example state_speed [FILES]`

use tokio::time::Instant;
use v1::log_entry::Body;
use v1::meta_request::Op;
use weft_metadata::state::StateMachine;
use weft_proto::v1;

const BATCH: usize = 64;
const PER_DIRECTORY: u64 = 1000;

struct Driver {
    machine: StateMachine,
    index: u64,
    number: u64,
}

impl Driver {
    fn entry(&mut self, body: Body) -> (u64, v1::LogEntry) {
        self.index += 1;
        (
            self.index,
            v1::LogEntry { time_ns: self.index as i64, body: Some(body), ..Default::default() },
        )
    }

    fn client(&mut self, op: Op) -> (u64, v1::LogEntry) {
        self.number += 1;
        let (number, acked_below) = (self.number, self.number.saturating_sub(BATCH as u64));
        let request = v1::MetaRequest { session: 1, number, acked_below, op: Some(op) };
        self.entry(Body::Client(request))
    }

    /// Applies operations in batches; prints what one costs in wall and in CPU time.
    fn measure(&mut self, what: &str, batch: usize, ops: impl Iterator<Item = Op>) {
        let entries: Vec<_> = ops.map(|op| self.client(op)).collect();
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        for chunk in entries.chunks(batch) {
            let replies = self.machine.apply(chunk).expect("apply");
            assert!(replies.iter().all(|r| r.error == 0), "{:?}", replies.last());
        }
        report(what, entries.len(), wall, cpu);
    }

    fn read(&self, what: &str, n: u64, op: impl Fn(u64) -> Op) {
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        for i in 0..n {
            let request = v1::MetaRequest { op: Some(op(i)), ..Default::default() };
            self.machine.read(&request).expect("read");
        }
        report(what, n as usize, wall, cpu);
    }
}

fn report(what: &str, n: usize, wall: Instant, cpu: f64) {
    let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let each = 1e6 / n as f64;
    println!(
        "{what:34} {:9.0}/s   {:6.2} us wall   {:6.2} us CPU",
        n as f64 / wall,
        wall * each,
        cpu * each
    );
}

/// CPU time of all threads of this process, RocksDB's included.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // utime and stime, in ticks of 1/100 s.
    fields[11..13].iter().map(|t| t.parse::<f64>().expect("ticks")).sum::<f64>() / 100.0
}

/// Numbers in an order that caches do not like.
fn scattered(i: u64, n: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n
}

/// A cluster of three targets, and a session.
fn setup(profile: Option<v1::ProfileInfo>) -> Vec<Body> {
    let cluster = vec![1; 16].into();
    let target = |i| v1::TargetInfo { uuid: vec![i; 16].into(), ..Default::default() };
    let mut setup = vec![Body::InitCluster(v1::InitClusterEntry {
        cluster,
        profile,
        members: vec![],
        shard: 0,
    })];
    setup.extend(
        (1..=3).map(|i| Body::RegisterTarget(v1::RegisterTargetEntry { target: Some(target(i)) })),
    );
    let pgs =
        vec![v1::PgInfo { id: 1, targets: vec![1, 2, 3], retired: false, ..Default::default() }];
    let groups = v1::SetPgsEntry { pool: 1, pgs, based_on_epoch: 4, ..Default::default() };
    setup.push(Body::SetPgs(groups));
    let open = v1::OpenSessionOp {
        client: "speed".into(),
        nonce: vec![1; 16].into(),
        ..Default::default()
    };
    let op = Some(Op::OpenSession(open));
    setup.push(Body::Client(v1::MetaRequest { op, ..Default::default() }));
    setup
}

/// A commit of one segment.
fn commit(i: u64, ino: u64, profile: Option<v1::ProfileInfo>) -> Op {
    let id = Some(v1::SegmentKey { session: 1, seq: i });
    let seats = vec![0, 1, 2].into();
    let segment = v1::SegmentInfo { id, profile, unit: 131072, length: 1 << 20, pg: 1, seats };
    let source = Some(v1::extent::Source::Segment(v1::SegmentPart { id, off: 0 }));
    let extents = vec![v1::Extent { file_off: 0, len: 1 << 20, source }];
    let segments = vec![segment];
    Op::CommitExtents(v1::CommitExtentsOp { ino, extents, segments, ..Default::default() })
}

fn main() {
    let files: u64 = std::env::args().nth(1).map_or(400_000, |n| n.parse().expect("a number"));
    let dir = std::env::temp_dir().join(format!("weft-state-speed-{}", std::process::id()));
    let machine = StateMachine::open(&dir).expect("open");
    let mut driver = Driver { machine, index: 0, number: 0 };
    let profile = Some(v1::ProfileInfo { k: 2, m: 1 });
    let setup: Vec<_> = setup(profile).into_iter().map(|body| driver.entry(body)).collect();
    assert!(driver.machine.apply(&setup).expect("apply").iter().all(|r| r.error == 0));

    let dirs = files / PER_DIRECTORY;
    driver.measure(
        "mkdir",
        BATCH,
        (0..dirs).map(|i| {
            let name = format!("dir-{i}").into();
            Op::MkDir(v1::MkDirOp { parent: 1, name, mode: 0o755, ..Default::default() })
        }),
    );
    let parent = |i: u64| 2 + i % dirs;
    let name = |i: u64| bytes::Bytes::from(format!("file-{i:08}.bin"));
    let create = |i: u64| {
        Op::Create(v1::CreateOp {
            parent: parent(i),
            name: name(i),
            mode: 0o644,
            ..Default::default()
        })
    };
    let half = files / 2;
    driver.measure(
        "create, one directory in a batch",
        BATCH,
        (0..half).map(|i| {
            let parent = 2 + i / PER_DIRECTORY;
            Op::Create(v1::CreateOp { parent, name: name(i), mode: 0o644, ..Default::default() })
        }),
    );
    driver.measure("create, directories mixed", BATCH, (half..files).map(create));
    let ino = |i: u64| 2 + dirs + i;
    driver.measure("commit of one segment", BATCH, (0..half).map(|i| commit(i, ino(i), profile)));
    driver.measure("create, one at a time", 1, (files..files + 20_000).map(create));

    let n = 300_000;
    driver.read("getattr", n, |i| Op::GetAttr(v1::GetAttrOp { ino: ino(scattered(i, files)) }));
    driver.read("lookup", n, |i| {
        let i = half + scattered(i, files - half);
        Op::Lookup(v1::LookupOp { parent: parent(i), name: name(i) })
    });
    driver.read("extents", n, |i| {
        Op::GetExtents(v1::GetExtentsOp { ino: ino(scattered(i, half)), off: 0, len: u64::MAX })
    });
    driver.read("readdir with attributes, 1000", 500, |i| {
        let ino = 2 + scattered(i, dirs);
        Op::ReadDir(v1::ReadDirOp { ino, cookie: 0, limit: 1000, attrs: true })
    });
    let started = Instant::now();
    driver.read("check", 1, |_| Op::Check(v1::CheckOp {}));
    println!("  of {files} files: {:.1} s", started.elapsed().as_secs_f64());
    driver.measure(
        "unlink",
        BATCH,
        (half..files).map(|i| Op::Unlink(v1::UnlinkOp { parent: parent(i), name: name(i) })),
    );
    drop(driver);
    std::fs::remove_dir_all(&dir).expect("clean up");
}
