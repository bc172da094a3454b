//! A group that a test can start, stop and restart server by server, and a client that finds the
//! leader and retries as a real one does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_metadata::{Config, Member};
use weft_net::Peers;
use weft_proto::{Error, ErrorKind, NodeId, Result, v1};

/// How long anything in these tests may take: it only ends what hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long one server is asked, before another is.
const ONE_ANSWER: Duration = Duration::from_secs(10);

/// Servers of one group.
pub struct Group {
    pub dir: TempDir,
    members: Vec<Member>,
    running: Vec<Option<Running>>,
    /// Where servers will be that are yet to come.
    spare: Vec<String>,
    tune: fn(&mut Config),
}

/// A server with a runtime of its own, so that a kill ends every task of it, and all have ended
/// when the kill returns: a connection that outlived its server would go on answering.
struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<()>>,
    runtime: Runtime,
}

impl Group {
    /// Starts a group of `n`. `tune` changes the settings of each server.
    pub async fn start(n: u64, tune: fn(&mut Config)) -> Self {
        // RUST_LOG=weft_metadata=debug shows what the servers do.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let mut addresses = free_addresses(n + 3);
        let spare = addresses.split_off(n as usize);
        let members = (1..=n).zip(addresses);
        let members = members.map(|(id, address)| Member { id: NodeId(id), address }).collect();
        let mut group = Self {
            dir: tempfile::tempdir().unwrap(),
            members,
            running: (0..n).map(|_| None).collect(),
            spare,
            tune,
        };
        for id in 1..=n {
            weft_metadata::bootstrap(&group.config(id)).unwrap();
            group.run(id);
        }
        group
    }

    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(|m| m.address.clone()).collect()
    }

    pub fn config(&self, id: u64) -> Config {
        let address = self.members[id as usize - 1].address.clone();
        let dir = self.dir.path().join(id.to_string());
        let mut config = Config::new(NodeId(id), address, self.members.clone(), dir);
        // Who is alive may be held up for seconds, by others on the machine or by its disk, and is
        // to keep its lead, its sessions and its targets. Who dies is followed at once, since its
        // connections end.
        config.heartbeat_ms = 50;
        config.election_ms = 2000;
        config.session_ttl_ms = 120_000;
        config.target_down_ms = 60_000;
        config.placement_settle_ms = 300;
        config.placement_keep_ms = 1;
        (self.tune)(&mut config);
        config
    }

    /// Starts a server with an empty folder that is to join the group, and answers its number.
    pub fn run_new(&mut self) -> u64 {
        let id = self.new_address();
        self.run(id);
        id
    }

    /// A place for one more server; answers its number.
    pub fn new_address(&mut self) -> u64 {
        let id = self.members.len() as u64 + 1;
        let address = self.spare.remove(0);
        self.members.push(Member { id: NodeId(id), address });
        self.running.push(None);
        id
    }

    /// Gives the first servers other addresses, as many as are spare.
    pub fn move_all(&mut self) {
        for (member, address) in self.members.iter_mut().zip(self.spare.drain(..)) {
            member.address = address;
        }
    }

    pub fn address(&self, id: u64) -> String {
        self.members[id as usize - 1].address.clone()
    }

    /// Waits until a server has ended by itself.
    pub async fn ended(&mut self, id: u64) -> Result<()> {
        let running = self.running[id as usize - 1].take().expect("the server runs");
        let result = tokio::time::timeout(PATIENCE, running.task).await.unwrap().unwrap();
        end(running.runtime).await;
        result
    }

    /// (Re)starts a server.
    pub fn run(&mut self, id: u64) {
        self.run_as(self.config(id));
    }

    /// As [`Self::run`], with these settings.
    pub fn run_as(&mut self, config: Config) {
        let (stop, stopped) = watch::channel(false);
        let id = config.id.0;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let task = runtime.spawn(weft_metadata::run(config, weft_net::tcp(), stopped));
        self.running[id as usize - 1] = Some(Running { stop, task, runtime });
    }

    /// Stops a server in order.
    pub async fn stop(&mut self, id: u64) {
        let running = self.running[id as usize - 1].take().expect("the server runs");
        running.stop.send(true).unwrap();
        tokio::time::timeout(PATIENCE, running.task).await.expect("it stops").unwrap().unwrap();
        end(running.runtime).await;
    }

    /// Hears of the stop of a server.
    pub fn stops(&self, id: u64) -> watch::Receiver<bool> {
        self.running[id as usize - 1].as_ref().expect("the server runs").stop.subscribe()
    }

    /// Ends a server in the middle of whatever it does.
    pub async fn kill(&mut self, id: u64) {
        let running = self.running[id as usize - 1].take().expect("the server runs");
        tokio::task::spawn_blocking(move || running.runtime.shutdown_timeout(PATIENCE))
            .await
            .unwrap();
    }

    /// Lets a server stand still for so long; returns when it goes on.
    #[allow(clippy::disallowed_methods)] // Its one thread is what is to be blocked.
    pub async fn stall(&self, id: u64, time: Duration) {
        let running = self.running[id as usize - 1].as_ref().expect("the server runs");
        running.runtime.spawn(async move { std::thread::sleep(time) }).await.unwrap();
    }

    /// Waits for a leader that answers, and says which it is.
    pub async fn leader(&self) -> u64 {
        let mut client = self.client();
        client.read(Op::GetAttr(v1::GetAttrOp { ino: 1 })).await.unwrap();
        self.members.iter().find(|m| m.address == client.leader).unwrap().id.0
    }

    pub fn client(&self) -> Client {
        Client {
            peers: Peers::new(
                weft_net::tcp(),
                weft_net::Identity { name: "test".into(), cluster: None },
            ),
            addresses: [self.addresses(), self.spare.clone()].concat(),
            leader: self.addresses()[0].clone(),
            session: 0,
            number: 0,
        }
    }

    pub fn path(&self, id: u64) -> std::path::PathBuf {
        self.dir.path().join(id.to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for running in self.running.iter_mut().filter_map(Option::take) {
            let _ = running.stop.send(true);
            // No thread may be left when the process ends: RocksDB's are not fit for that.
            let end = std::thread::spawn(move || running.runtime.shutdown_timeout(PATIENCE));
            let _ = end.join();
        }
    }
}

/// Ends what runs there, and waits until it has ended.
async fn end(runtime: Runtime) {
    tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE)).await.unwrap();
}

/// A session with the group.
pub struct Client {
    pub peers: Arc<Peers>,
    addresses: Vec<String>,
    pub leader: String,
    pub session: u64,
    pub number: u64,
}

impl Client {
    /// Sends one request to the leader, and keeps the leases that it grants.
    pub async fn keep(&self, request: &v1::MetaRequest) -> Result<v1::MetaReply> {
        self.peers.peer(&self.leader).call(request, Instant::now() + PATIENCE).await
    }

    /// Sends one request to one server. A lease that it grants is given back at once: this client
    /// caches nothing and answers no recall.
    pub async fn ask(
        &self,
        address: &str,
        request: &v1::MetaRequest,
        patience: Duration,
    ) -> Result<Reply> {
        let peer = self.peers.peer(address);
        let reply = peer.call(request, Instant::now() + patience).await?;
        if !reply.grants.is_empty() {
            let item = |g: &v1::Grant| v1::return_leases_op::Item {
                ino: g.ino,
                seq: g.seq,
                ..Default::default()
            };
            let items = reply.grants.iter().map(item).collect();
            let back = v1::MetaRequest {
                session: self.session,
                op: Some(Op::ReturnLeases(v1::ReturnLeasesOp { items })),
                ..Default::default()
            };
            // If the leader is gone, so are the leases.
            let _ = peer.call(&back, Instant::now() + patience).await;
        }
        reply.result.ok_or_else(|| Error::new(ErrorKind::Protocol, "an empty reply"))
    }

    /// Retries until a leader has answered.
    pub async fn retry(&mut self, request: &v1::MetaRequest) -> Result<Reply> {
        let deadline = Instant::now() + PATIENCE;
        let mut next = 0;
        loop {
            let answer = self.ask(&self.leader, request, ONE_ANSWER).await;
            match answer {
                Err(e)
                    if Instant::now() < deadline
                        && matches!(
                            e.kind,
                            ErrorKind::NotLeader | ErrorKind::Unavailable | ErrorKind::TimedOut
                        ) =>
                {
                    if e.hint.is_empty() {
                        self.leader = self.addresses[next % self.addresses.len()].clone();
                        next += 1;
                        sleep(Duration::from_millis(20)).await;
                    } else {
                        self.leader = e.hint;
                    }
                }
                answer => return answer,
            }
        }
    }

    pub async fn read(&mut self, op: Op) -> Result<Reply> {
        let request = v1::MetaRequest { session: self.session, op: Some(op), ..Default::default() };
        self.retry(&request).await
    }

    /// The next change of this session.
    pub fn change(&mut self, op: Op) -> v1::MetaRequest {
        self.number += 1;
        v1::MetaRequest {
            session: self.session,
            number: self.number,
            acked_below: self.number,
            op: Some(op),
        }
    }

    pub async fn write(&mut self, op: Op) -> Result<Reply> {
        let request = self.change(op);
        self.retry(&request).await
    }

    pub async fn open_session(&mut self) {
        static NONCE: AtomicU64 = AtomicU64::new(1);
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&NONCE.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let open = v1::OpenSessionOp {
            client: "test".into(),
            nonce: nonce.to_vec().into(),
            ..Default::default()
        };
        let request = v1::MetaRequest { op: Some(Op::OpenSession(open)), ..Default::default() };
        match self.retry(&request).await.unwrap() {
            Reply::OpenSession(opened) => self.session = opened.session,
            other => panic!("{other:?}"),
        }
    }

    pub async fn renew(&mut self, opens: Option<Vec<v1::OpenOp>>) -> Result<v1::RenewReply> {
        let renew = v1::RenewOp {
            declares: opens.is_some(),
            opens: opens.unwrap_or_default(),
            ..Default::default()
        };
        match self.read(Op::Renew(renew)).await? {
            Reply::Renew(renewed) => Ok(renewed),
            other => panic!("{other:?}"),
        }
    }

    pub async fn create(&mut self, name: &str) -> Result<v1::Attr> {
        let number = self.number + 1;
        match self.write(create(name, number)).await? {
            Reply::Open(open) => Ok(open.attr.unwrap()),
            other => panic!("{other:?}"),
        }
    }

    pub async fn unlink(&mut self, name: &str) -> Result<()> {
        self.write(Op::Unlink(v1::UnlinkOp { parent: 1, name: name.to_string().into() }))
            .await
            .map(|_| ())
    }

    pub async fn lookup(&mut self, name: &str) -> Result<v1::Attr> {
        match self
            .read(Op::Lookup(v1::LookupOp { parent: 1, name: name.to_string().into() }))
            .await?
        {
            Reply::Attr(attr) => Ok(attr),
            Reply::Open(open) => Ok(open.attr.unwrap()),
            Reply::Missing(_) => Err(Error::new(ErrorKind::NotFound, "no such name")),
            other => panic!("{other:?}"),
        }
    }

    pub async fn inodes(&mut self) -> u64 {
        match self.read(Op::StatFs(v1::StatFsOp {})).await.unwrap() {
            Reply::StatFs(stat) => stat.inodes,
            other => panic!("{other:?}"),
        }
    }
}

pub fn create(name: &str, open_seq: u64) -> Op {
    Op::Create(v1::CreateOp {
        parent: 1,
        name: name.to_string().into(),
        mode: 0o644,
        exclusive: true,
        open_seq,
        ..Default::default()
    })
}

pub fn close(ino: u64, open_seq: u64) -> v1::CloseOp {
    v1::CloseOp { items: vec![v1::close_op::Item { ino, open_seq }] }
}

/// Waits until the lease is recalled.
pub async fn recalled(client: &mut Client, ino: u64) -> u64 {
    loop {
        let recalls = client.read(Op::Recalls(v1::RecallsOp { seen: 0 })).await.unwrap();
        let Reply::Recalls(recalls) = recalls else { panic!("{recalls:?}") };
        if let Some(recall) = recalls.recalls.iter().find(|recall| recall.ino == ino) {
            return recall.seq;
        }
    }
}

pub async fn give_back(client: &mut Client, ino: u64, seq: u64) {
    let item = v1::return_leases_op::Item { ino, seq, ..Default::default() };
    client.read(Op::ReturnLeases(v1::ReturnLeasesOp { items: vec![item] })).await.unwrap();
}

/// Addresses that nobody listens on. All are held until the end, so that none is found twice.
/// They stay free while nobody listens there: each process that tests has a loopback address of its
/// own, and no connection comes from it.
fn free_addresses(count: u64) -> Vec<String> {
    let [.., a, b] = std::process::id().to_be_bytes();
    let host = std::net::Ipv4Addr::new(127, 77, a, b);
    let listen = |_| std::net::TcpListener::bind((host, 0)).unwrap();
    let held: Vec<_> = (0..count).map(listen).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// Bytes below a folder.
pub fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, |d| d.count())
}

/// Copies a folder.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}
