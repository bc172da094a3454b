//! The whole group on a simulated network under one seed: servers crash, links are cut, and what
//! was acknowledged is there at the end. A failing seed replays: `WEFT_SEED=n`.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_metadata::{Clock, Config, Env, Member};
use weft_net::Peers;
use weft_proto::{ErrorKind, NodeId, op, v1};

/// The simulation's own time, as wall time.
struct SimClock;

impl Clock for SimClock {
    fn now_ns(&self) -> i64 {
        turmoil::since_epoch().map_or(0, |t| t.as_nanos() as i64)
    }
}

/// What happened, for comparing two runs of one seed.
type Trace = Arc<Mutex<Vec<String>>>;

fn name(id: u64) -> String {
    format!("mds{id}")
}

fn members() -> Vec<Member> {
    (1..=3).map(|id| Member { id: NodeId(id), address: format!("{}:7000", name(id)) }).collect()
}

async fn server(id: u64, seed: u64, dir: std::path::PathBuf) -> turmoil::Result {
    let mut config = Config::new(NodeId(id), "0.0.0.0:7000".into(), members(), dir);
    config.log_entries = 64;
    config.session_ttl_ms = 120_000;
    let env = Env { clock: Arc::new(SimClock), seed: seed * 10 + id, threads: false };
    let (_stop, stopped) = watch::channel(false);
    Ok(weft_metadata::run_in(config, weft_net::sim::transport(), env, stopped).await?)
}

struct Client {
    peers: Arc<Peers>,
    leader: String,
    next: usize,
}

impl Client {
    async fn retry(&mut self, request: &v1::MetaRequest) -> weft_proto::Result<Reply> {
        loop {
            let deadline = Instant::now() + Duration::from_secs(2);
            let answer = self
                .peers
                .peer(&self.leader)
                .call::<_, v1::MetaReply>(op::META, request, deadline)
                .await;
            match answer {
                Ok(reply) => return Ok(reply.result.unwrap()),
                Err(e)
                    if matches!(
                        e.kind,
                        ErrorKind::NotLeader | ErrorKind::Unavailable | ErrorKind::TimedOut
                    ) =>
                {
                    if e.hint.is_empty() {
                        self.next += 1;
                        self.leader = members()[self.next % 3].address.clone();
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    } else {
                        self.leader = e.hint;
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }
}

async fn workload(writes: u64, trace: Trace, done: Arc<Mutex<bool>>) -> turmoil::Result {
    let identity = weft_net::Identity { name: "client".into(), cluster: None };
    let peers = Peers::new(weft_net::sim::transport(), identity);
    let mut client = Client { peers, leader: members()[0].address.clone(), next: 0 };
    let open = v1::OpenSessionOp { client: "sim".into(), nonce: vec![7; 16].into() };
    let request = v1::MetaRequest { op: Some(Op::OpenSession(open)), ..Default::default() };
    let Reply::OpenSession(opened) = client.retry(&request).await? else { panic!("no session") };
    let mut files = BTreeMap::new();
    for number in 1..=writes {
        let create = v1::CreateOp {
            parent: 1,
            name: format!("f{number}").into(),
            exclusive: true,
            open_seq: number,
            ..Default::default()
        };
        let request = v1::MetaRequest {
            session: opened.session,
            number,
            acked_below: number,
            op: Some(Op::Create(create)),
        };
        let Reply::Open(created) = client.retry(&request).await? else { panic!("not created") };
        let ino = created.attr.unwrap().ino;
        trace.lock().unwrap().push(format!("{:?} f{number} is {ino}", turmoil::elapsed()));
        files.insert(number, ino);
        // Now and then an earlier one is read back, through whoever leads now.
        if number % 5 == 0 {
            let (&old, &ino) = files.iter().nth((number / 2) as usize % files.len()).unwrap();
            let lookup = Op::Lookup(v1::LookupOp { parent: 1, name: format!("f{old}").into() });
            let request =
                v1::MetaRequest { session: opened.session, op: Some(lookup), ..Default::default() };
            let Reply::Open(found) = client.retry(&request).await? else { panic!("not found") };
            assert_eq!(found.attr.unwrap().ino, ino);
        }
    }
    *done.lock().unwrap() = true;
    // The faults are over; all is there, once.
    let read = Op::ReadDir(v1::ReadDirOp { ino: 1, cookie: 0, limit: 10_000, attrs: false });
    let Reply::ReadDir(listed) =
        client.retry(&v1::MetaRequest { op: Some(read), ..Default::default() }).await?
    else {
        panic!("no entries")
    };
    let mut found: Vec<u64> = listed.entries.iter().map(|e| e.ino).collect();
    let mut expected: Vec<u64> = files.values().copied().collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    Ok(())
}

/// One run; answers what happened.
fn run(seed: u64, writes: u64) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(600))
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_micros(200))
        .max_message_latency(Duration::from_millis(20))
        .tcp_capacity(4096)
        .build();
    for id in 1..=3 {
        let data = dir.path().join(id.to_string());
        sim.host(name(id), move || server(id, seed, data.clone()));
    }
    let (trace, done) = (Trace::default(), Arc::new(Mutex::new(false)));
    sim.client("client", workload(writes, trace.clone(), done.clone()));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut next = Duration::from_secs(3);
    let mut heal: Option<(Duration, u64, bool)> = None;
    while !sim.step().unwrap_or_else(|e| panic!("seed {seed}: {e}")) {
        let now = sim.elapsed();
        if let Some((at, id, crashed)) = heal
            && (now >= at || *done.lock().unwrap())
        {
            let others = (1..=3).filter(|o| *o != id).map(name).chain(["client".to_string()]);
            if crashed {
                sim.bounce(name(id));
            } else {
                others.for_each(|other| sim.repair(name(id), other));
            }
            heal = None;
            next = now + Duration::from_millis(rng.random_range(500..4000));
        }
        if heal.is_none() && now >= next && !*done.lock().unwrap() {
            let (id, crash) = (rng.random_range(1..=3), rng.random_bool(0.5));
            trace
                .lock()
                .unwrap()
                .push(format!("{now:?} {} {id}", if crash { "crash" } else { "cut off" }));
            if crash {
                sim.crash(name(id));
            } else {
                let others = (1..=3).filter(|o| *o != id).map(name).chain(["client".to_string()]);
                others.for_each(|other| sim.partition(name(id), other));
            }
            heal = Some((now + Duration::from_millis(rng.random_range(200..6000)), id, crash));
        }
    }
    let trace = trace.lock().unwrap().clone();
    assert!(trace.len() as u64 >= writes, "seed {seed}: the client did not finish");
    trace
}

#[test]
fn acknowledged_changes_survive_crashes_and_partitions() {
    let seeds = match std::env::var("WEFT_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..4,
    };
    for seed in seeds {
        let trace = run(seed, 150);
        assert!(
            trace.iter().any(|t| t.contains("crash") || t.contains("cut")),
            "seed {seed}: too short for faults"
        );
    }
}

#[test]
fn a_seed_replays() {
    let (first, second) = (run(42, 60), run(42, 60));
    for (a, b) in first.iter().zip(&second) {
        assert_eq!(a, b);
    }
}
