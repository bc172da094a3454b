//! A client that asks running daemons for whatever is drawn, in valid frames: nobody dies or
//! panics, all go on to answer, and the namespace stays consistent with itself.

use anyhow::{Context, Result, bail, ensure};
use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, skip_field};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_fuzz::asker::Asker;
use weft_fuzz::draw::{Source, drawn, encoded};
use weft_net::{Body, Identity, Peer, Peers, Transport};
use weft_proto::{ErrorKind, op, v1};
use weft_tests::{Cluster, Shape};

/// Requests of each client to the namespace, and to each daemon.
const REQUESTS: u32 = 600;
/// Clients at once.
const CLIENTS: u64 = 3;
/// Some requests wait for what never comes.
const PATIENCE: Duration = Duration::from_millis(150);
/// Before a client has had so many answers, and has had so much done to chunks of a daemon, it
/// waits for longer: where the machine is slow, something is done, too.
const LEAST: u64 = 20;
const LEAST_CHUNKS: u64 = 2;
const LONG_PATIENCE: Duration = Duration::from_secs(5);
/// All must answer what is sensible in this time.
const DEADLINE: Duration = Duration::from_secs(60);

/// Operations of a storage daemon, and the messages that ask for them.
const STORAGE: &[(u16, &str)] = &[
    (op::PUT, "PutRequest"),
    (op::GET, "GetRequest"),
    (op::DELETE, "DeleteRequest"),
    (op::LIST, "ListRequest"),
    (op::TARGET_STAT, "TargetStatRequest"),
    (op::REPORT_CORRUPT, "ReportCorruptRequest"),
    (op::VERIFY, "VerifyRequest"),
    (op::FENCE, "FenceRequest"),
    (op::REBUILD, "RebuildRequest"),
    (op::DISOWN, "DisownRequest"),
    (op::COMPACT, "CompactRequest"),
    (op::GET_MANY, "GetManyRequest"),
];

/// What only servers ask each other.
const SERVERS: &[(u16, &str)] = &[
    (op::RAFT, "RaftBatch"),
    (op::SNAPSHOT_PIECE, "SnapshotPieceRequest"),
    (op::JOIN, "JoinRequest"),
];

#[test]
fn daemons_answer_whatever_they_are_asked() -> Result<()> {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let cluster = Cluster::start_as(Shape { target_size: "64MiB", ..Shape::default() })?;
    fs::write(cluster.mnt().join("kept"), b"kept")?;
    let status = cluster.status()?;
    let of = |kind: &str| -> Vec<String> {
        let all = status[kind].as_array().into_iter().flatten();
        all.filter_map(|daemon| daemon["address"].as_str().map(Into::into)).collect()
    };
    let (servers, daemons) = (of("metadata"), of("storage"));
    ensure!(!servers.is_empty() && !daemons.is_empty(), "{status}");
    let pids = pids(&status);
    let transport = cluster.transport()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let servers = Servers::of(&transport, &servers);
            tasks.spawn(async move {
                anyhow::Ok([ask_for_changes(servers, seed ^ client << 56).await?, 0])
            });
        }
        for (number, daemon) in (0u64..).zip(&daemons) {
            let ask = ask(transport.clone(), daemon.clone(), STORAGE, seed ^ number << 48);
            tasks.spawn(async move { anyhow::Ok([0, ask.await?]) });
        }
        for (number, server) in (0u64..).zip(&servers) {
            let ask = ask(transport.clone(), server.clone(), SERVERS, seed ^ number << 40);
            tasks.spawn(async move { anyhow::Ok([0, ask.await?]) });
        }
        let mut done = [0, 0];
        while let Some(task) = tasks.join_next().await {
            let [changes, chunks] = task??;
            done = [done[0] + changes, done[1] + chunks];
        }
        anyhow::Ok(done)
    });
    let logs = cluster.logs();
    let panicked = logs.lines().find(|line| line.contains("panicked"));
    ensure!(panicked.is_none(), "seed {seed}: {panicked:?}");
    let [changes, chunks] = done.with_context(|| format!("seed {seed}"))?;
    println!("{changes} requests of the namespace, and {chunks} reads and writes were done");
    ensure!(changes > 50 && chunks > 10, "seed {seed}: {changes} and {chunks} were done");
    ensure!(self::pids(&cluster.status()?) == pids, "seed {seed}: a daemon has died");
    runtime
        .block_on(is_whole(Servers::of(&transport, &servers)))
        .with_context(|| format!("seed {seed}"))?;
    ensure!(fs::read_dir(cluster.mnt())?.count() > 0);
    Ok(())
}

fn pids(status: &serde_json::Value) -> Vec<Option<u64>> {
    let all = ["metadata", "storage"].iter().flat_map(|kind| status[*kind].as_array());
    all.flatten().map(|daemon| daemon["pid"].as_u64()).collect()
}

fn peers(transport: Arc<dyn Transport>) -> Arc<Peers> {
    Peers::new(transport, Identity { name: "stranger".into(), cluster: None })
}

/// A message that is encoded already.
#[derive(Clone, Default, Debug)]
struct Encoded(Vec<u8>);

impl prost::Message for Encoded {
    fn encode_raw(&self, to: &mut impl BufMut) {
        to.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        kind: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        skip_field(kind, tag, from, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Calls of the namespace, wherever the leader is.
struct Servers {
    all: Vec<Arc<Peer>>,
    leader: usize,
}

impl Servers {
    fn of(transport: &Arc<dyn Transport>, addresses: &[String]) -> Self {
        let peers = peers(transport.clone());
        Self { all: addresses.iter().map(|address| peers.peer(address)).collect(), leader: 0 }
    }

    async fn call(
        &mut self,
        request: &v1::MetaRequest,
        patience: Duration,
    ) -> weft_proto::Result<v1::MetaReply> {
        let answer = self.all[self.leader].call(request, Instant::now() + patience).await;
        if answer.as_ref().is_err_and(|error| error.kind == ErrorKind::NotLeader) {
            self.leader = (self.leader + 1) % self.all.len();
        }
        answer
    }

    /// What is sensible is answered in the end.
    async fn insist(&mut self, op: Op, number: u64) -> Result<Reply> {
        let request = v1::MetaRequest { op: Some(op), number, ..Default::default() };
        let end = Instant::now() + DEADLINE;
        loop {
            match self.call(&request, DEADLINE).await {
                Ok(reply) => return reply.result.context("a reply without a result"),
                Err(error) if Instant::now() > end => bail!("{error}"),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    async fn open_session(&mut self, nonce: u64) -> Result<Asker> {
        let nonce = nonce.to_le_bytes().repeat(2).into();
        let op = v1::OpenSessionOp { client: "stranger".into(), nonce, ..Default::default() };
        match self.insist(Op::OpenSession(op), 1).await? {
            Reply::OpenSession(reply) => Ok(Asker::of(reply.session)),
            other => bail!("a session answered {other:?}"),
        }
    }
}

/// Answers how many requests were done.
async fn ask_for_changes(mut servers: Servers, seed: u64) -> Result<u64> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut asker = servers.open_session(random.random()).await?;
    let mut done = 0;
    for _ in 0..REQUESTS {
        let mut bytes = vec![0; 400];
        random.fill_bytes(&mut bytes);
        let mut source = Source::new(&bytes);
        let request = match random.random_range(0..4) {
            0 => v1::MetaRequest { session: asker.session, ..drawn(&mut source) },
            _ => asker.ask(source.byte(), &mut source),
        };
        let patience = if done < LEAST { LONG_PATIENCE } else { PATIENCE };
        match servers.call(&request, patience).await {
            Ok(reply) => {
                done += 1;
                reply.result.iter().for_each(|told| asker.note(told));
            }
            Err(error) if error.kind == ErrorKind::SessionExpired => {
                asker = servers.open_session(random.random()).await?;
            }
            Err(_) => {}
        }
    }
    Ok(done)
}

/// What a client could ask of chunks, among so few that some are there, of any target.
fn plausible(payload: &[u8], random: &mut StdRng) -> (u16, Encoded) {
    let target = random.random_range(1..=6);
    let segment = v1::SegmentKey { session: 900, seq: random.random_range(0..3) };
    let chunk = Some(v1::ChunkKey { segment: Some(segment), shard: random.random_range(0..2) });
    if random.random() {
        let checksums = payload.chunks(4096).map(crc32fast::hash).collect();
        let put = v1::PutRequest { target, chunk, checksums, ..Default::default() };
        (op::PUT, Encoded(put.encode_to_vec()))
    } else {
        let get = v1::GetRequest { target, chunk, len: 4096, ..Default::default() };
        (op::GET, Encoded(get.encode_to_vec()))
    }
}

/// The same of other operations, with a payload now and then.
async fn ask(
    transport: Arc<dyn Transport>,
    daemon: String,
    operations: &'static [(u16, &str)],
    seed: u64,
) -> Result<u64> {
    let mut random = StdRng::seed_from_u64(seed);
    let peer = peers(transport).peer(&daemon);
    let mut done = 0;
    for _ in 0..REQUESTS {
        let mut bytes = vec![0; 300];
        random.fill_bytes(&mut bytes);
        let (operation, message) = operations[random.random_range(0..operations.len())];
        let drawn = Encoded(encoded(message, &mut Source::new(&bytes)));
        let payload = vec![7; random.random_range(0..3) * 4096];
        let of_chunks = operations.iter().any(|(code, _)| *code == op::PUT);
        let (operation, request) = match of_chunks && random.random() {
            true => plausible(&payload, &mut random),
            false => (operation, drawn),
        };
        let body = Body { send: vec![payload.into()], ..Body::default() };
        let is_long = of_chunks && done < LEAST_CHUNKS;
        let deadline = Instant::now() + if is_long { LONG_PATIENCE } else { PATIENCE };
        let answer = peer.exchange_op::<_, Encoded>(operation, &request, body, deadline).await;
        done += u64::from(answer.is_ok() && matches!(operation, op::PUT | op::GET));
    }
    // It answers what is sensible.
    let deadline = Instant::now() + DEADLINE;
    let nothing = Encoded::default();
    let ping = peer.call_op::<_, Encoded>(op::PING, &nothing, deadline).await;
    ping.with_context(|| format!("{daemon} answers no more"))?;
    Ok(done)
}

async fn is_whole(mut servers: Servers) -> Result<()> {
    match servers.insist(Op::Check(v1::CheckOp {}), 0).await? {
        Reply::Check(report) if report.problems.is_empty() => Ok(()),
        other => bail!("the check says {other:?}"),
    }
}
