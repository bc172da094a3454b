//! The whole group on a simulated network under one seed: servers crash, lose their disks, links
//! are cut, and what was acknowledged is there at the end. A failing seed replays: `WEFT_SEED=n`.

mod lost_disk;
mod members;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_metadata::{Clock, Config, Env, Member};
use weft_net::Peers;
use weft_proto::{ErrorKind, NodeId, v1};

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

/// Settings of one server, with its data in `dir`.
fn config(id: u64, dir: &Path) -> Config {
    let data = dir.join(id.to_string());
    let mut config = Config::new(NodeId(id), "0.0.0.0:7000".into(), members(), data);
    config.log_entries = 64;
    config.session_ttl_ms = 120_000;
    config
}

/// Whether the server has all that it may be asked for: its disk was not lost, or it has caught up.
fn whole(id: u64, dir: &Path) -> bool {
    let identity = std::fs::read_to_string(dir.join(id.to_string()).join("identity"));
    identity.is_ok_and(|text| text.contains("standing = \"member\""))
}

/// Whether the server may be needed by an election: as [`whole`], or it is about to catch up.
fn admitted(id: u64, dir: &Path) -> bool {
    let identity = std::fs::read_to_string(dir.join(id.to_string()).join("identity"));
    identity.is_ok_and(|text| text.contains("standing = \"catching-up\"")) || whole(id, dir)
}

/// A network that is slow at times.
fn world(seed: u64) -> turmoil::Sim<'static> {
    turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(600))
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_micros(200))
        .max_message_latency(Duration::from_millis(20))
        .tcp_capacity(4096)
        .build()
}

/// A group that has never run.
fn group(seed: u64, dir: &Path) -> turmoil::Sim<'static> {
    // RUST_LOG=weft_metadata=debug shows what the servers do.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let mut sim = world(seed);
    for id in 1..=3 {
        let config = config(id, dir);
        weft_metadata::bootstrap(&config).unwrap();
        sim.host(name(id), move || server(id, seed, config.clone()));
    }
    sim
}

/// Ends a server, and its disk with it.
fn wipe(sim: &mut turmoil::Sim<'_>, id: u64, dir: &Path) {
    sim.crash(name(id));
    std::fs::remove_dir_all(dir.join(id.to_string())).unwrap();
}

async fn server(id: u64, seed: u64, config: Config) -> turmoil::Result {
    let env = Env { clock: Arc::new(SimClock), seed: seed * 10 + id, threads: false };
    let (_stop, stopped) = watch::channel(false);
    Ok(weft_metadata::run_in(config, weft_net::sim::transport(), env, stopped).await?)
}

struct Client {
    peers: Arc<Peers>,
    servers: Servers,
    leader: String,
    next: usize,
}

/// Addresses of the servers that there are.
type Servers = Arc<Mutex<Vec<String>>>;

fn servers() -> Servers {
    Arc::new(Mutex::new(members().into_iter().map(|m| m.address).collect()))
}

impl Client {
    async fn retry(&mut self, request: &v1::MetaRequest) -> weft_proto::Result<Reply> {
        loop {
            let deadline = Instant::now() + Duration::from_secs(2);
            let answer = self.peers.peer(&self.leader).call(request, deadline).await;
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
                        let servers = self.servers.lock().unwrap().clone();
                        self.leader = servers[self.next % servers.len()].clone();
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

async fn workload(
    writes: u64,
    servers: Servers,
    trace: Trace,
    done: Arc<Mutex<bool>>,
) -> turmoil::Result {
    let identity = weft_net::Identity { name: "client".into(), cluster: None };
    let peers = Peers::new(weft_net::sim::transport(), identity);
    let mut client = Client { peers, servers, leader: members()[0].address.clone(), next: 0 };
    let open =
        v1::OpenSessionOp { client: "sim".into(), nonce: vec![7; 16].into(), ..Default::default() };
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
    let mut sim = group(seed, dir.path());
    let (trace, done) = (Trace::default(), Arc::new(Mutex::new(false)));
    sim.client("client", workload(writes, servers(), trace.clone(), done.clone()));
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
            let (id, kind) = (rng.random_range(1..=3), rng.random_range(0..4));
            // Before one that lost its disk is admitted, a second loss would be that of a majority.
            let others_whole = (1..=3).filter(|o| *o != id).all(|o| admitted(o, dir.path()));
            let what = match kind {
                0 => {
                    let others =
                        (1..=3).filter(|o| *o != id).map(name).chain(["client".to_string()]);
                    others.for_each(|other| sim.partition(name(id), other));
                    "cut off"
                }
                1 | 2 if others_whole => {
                    wipe(&mut sim, id, dir.path());
                    "wipe"
                }
                _ => {
                    sim.crash(name(id));
                    "crash"
                }
            };
            trace.lock().unwrap().push(format!("{now:?} {what} {id}"));
            let until = now + Duration::from_millis(rng.random_range(200..6000));
            heal = Some((until, id, kind != 0));
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
        None => 1..6,
    };
    let mut wiped = 0;
    for seed in seeds.clone() {
        let trace = run(seed, 600);
        println!(
            "seed {seed}: {:?}",
            trace.iter().filter(|t| !t.contains(" is ")).collect::<Vec<_>>()
        );
        assert!(
            trace.iter().any(|t| t.contains("crash") || t.contains("cut") || t.contains("wipe")),
            "seed {seed}: too short for faults"
        );
        wiped += trace.iter().filter(|t| t.contains("wipe")).count();
    }
    assert!(wiped > 0 || seeds.count() == 1, "no disk was lost");
}

#[test]
fn a_seed_replays() {
    let (first, second) = (run(42, 60), run(42, 60));
    for (a, b) in first.iter().zip(&second) {
        assert_eq!(a, b);
    }
    assert_eq!(first.len(), second.len());
}

async fn call(
    peers: &Peers,
    leader: &str,
    request: v1::MetaRequest,
    ms: u64,
) -> weft_proto::Result<v1::MetaReply> {
    let deadline = Instant::now() + Duration::from_millis(ms);
    peers.peer(leader).call(&request, deadline).await
}

/// The log cannot be replicated for a while, shorter than would end the leader's lease to answer
/// reads. Meanwhile the deadline of a change passes, and another session asks for what it changes.
async fn a_change_outlives_its_asker() -> turmoil::Result {
    let identity = weft_net::Identity { name: "client".into(), cluster: None };
    let peers = Peers::new(weft_net::sim::transport(), identity);
    let leader = members()[0].address.clone();
    let mut client = Client { peers: peers.clone(), servers: servers(), leader, next: 0 };
    let mut sessions = [0, 0];
    for (at, session) in sessions.iter_mut().enumerate() {
        let open = v1::OpenSessionOp {
            client: "sim".into(),
            nonce: vec![at as u8; 16].into(),
            ..Default::default()
        };
        let request = v1::MetaRequest { op: Some(Op::OpenSession(open)), ..Default::default() };
        let Reply::OpenSession(opened) = client.retry(&request).await? else { panic!() };
        *session = opened.session;
    }
    let get = |session| {
        let op = Some(Op::GetAttr(v1::GetAttrOp { ino: 1 }));
        v1::MetaRequest { session, op, ..Default::default() }
    };
    // The leader has its lease to answer reads.
    client.retry(&get(0)).await?;
    let leader = client.leader.clone();
    let host = leader.split(':').next().unwrap().to_string();
    let others: Vec<_> = (1..=3).map(name).filter(|other| *other != host).collect();
    others.iter().for_each(|other| turmoil::hold(host.as_str(), other.as_str()));
    let set = v1::SetAttrOp { ino: 1, mode: Some(0o700), ..Default::default() };
    let change = v1::MetaRequest {
        session: sessions[0],
        number: 1,
        acked_below: 1,
        op: Some(Op::SetAttr(set)),
    };
    let late = call(&peers, &leader, change.clone(), 60).await.unwrap_err();
    assert_eq!(late.kind, ErrorKind::TimedOut, "{late}");
    tokio::time::sleep(Duration::from_millis(20)).await;
    // Whatever this is told, it is not to be believed in: it is about to change.
    let told = call(&peers, &leader, get(sessions[1]), 300).await?;
    assert_eq!(told.grants, [], "a lease on what is about to change");
    others.iter().for_each(|other| turmoil::release(host.as_str(), other.as_str()));
    client.retry(&change).await?;
    // And it is let go then.
    loop {
        let told = call(&peers, &client.leader, get(sessions[1]), 1000).await?;
        let Some(Reply::Attr(attr)) = told.result else { panic!("{told:?}") };
        assert_eq!(attr.mode, 0o700);
        if !told.grants.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn what_a_change_claims_is_held_until_it_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let mut sim = turmoil::Builder::new()
        .rng_seed(7)
        .simulation_duration(Duration::from_secs(60))
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_micros(200))
        .max_message_latency(Duration::from_millis(2))
        .tcp_capacity(4096)
        .build();
    for id in 1..=3 {
        let config = config(id, dir.path());
        weft_metadata::bootstrap(&config).unwrap();
        sim.host(name(id), move || server(id, 7, config.clone()));
    }
    sim.client("client", a_change_outlives_its_asker());
    sim.run().unwrap();
}
