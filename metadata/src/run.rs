//! Starts one metadata server and runs it until shutdown.

use crate::config::{Config, Member};
use crate::control::{self, ControlService};
use crate::duties;
use crate::env::Env;
use crate::folder::{LOG, STATE};
use crate::identity::{Identity, Standing};
use crate::join;
use crate::node::{Driver, Links, Node, Wiring, cluster_of, room};
use crate::raftlog::{LogStorage, Position};
use crate::replication::{Link, Report, Speaker};
use crate::service::MetadataService;
use crate::serving;
use crate::snapshot::Snapshots;
use crate::soft::targets::Targets;
use crate::state::StateMachine;
use bytes::Bytes;
use parking_lot::Mutex;
use raft::eraftpb::HardState;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use weft_net::{Listener, Peers, Transport, Way};
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, NodeId, Result, Uuid};

/// Batches of Raft messages that wait for the event loop.
const INBOX: usize = 64;

/// Marks the empty data folder of a server as that of a group that has never run. Once for each
/// server of a new group: without, a server with an empty folder takes no part before a leader has
/// admitted it, since it may have lost its disk. Refused if the server has run.
pub fn bootstrap(config: &Config) -> Result<()> {
    config.validate()?;
    Identity::bootstrap(&config.data_dir, config.id, config.peers.iter().map(|p| p.id).collect())
}

/// Runs a metadata server in the real world, until `shutdown` becomes true; if it leads, another
/// does before it ends, if one can. An error means that it could not start, or could not go on: its
/// disk failed, or its data is another's.
pub async fn run(
    config: Config,
    transport: Arc<dyn Transport>,
    shutdown: watch::Receiver<bool>,
) -> Result<()> {
    run_in(config, transport, Env::real(), shutdown).await
}

/// As [`run`], in a world of the caller's making.
pub async fn run_in(
    config: Config,
    transport: Arc<dyn Transport>,
    env: Env,
    shutdown: watch::Receiver<bool>,
) -> Result<()> {
    config.validate()?;
    let mut identity =
        Identity::claim(&config.data_dir, config.id, config.peers.iter().map(|p| p.id).collect())?;
    let bind = async || {
        let listen = async { transport.bind(&config.listen.parse()?).await };
        listen.await.map_err(|e: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("cannot listen on {}: {e}", config.listen))
        })
    };
    match identity.standing() {
        Standing::Empty if !planted::is(Bug::EmptyVoterVotes) => {
            let (listener, stop) = (bind().await?, shutdown.clone());
            if !join::admitted(&config, &transport, &env, &mut identity, listener, stop).await? {
                return Ok(());
            }
        }
        Standing::New | Standing::Empty => {
            let voters = identity.members().iter().map(|m| m.0).collect();
            let log = config.data_dir.join(LOG);
            env.blocking(move || LogStorage::make(&log, voters, &HardState::default())).await?;
            identity.stand(Standing::Member, Position::default())?;
        }
        Standing::CatchingUp | Standing::Member | Standing::Removed => {}
    }
    let listener = bind().await?;
    let opening = config.data_dir.join(STATE);
    let cache = usize::try_from(config.cache_bytes).unwrap_or(usize::MAX);
    let opened = env.blocking(move || StateMachine::open_with_cache(&opening, cache));
    let state = Arc::new(opened.await?);
    Server::start(config, transport, env, identity, state, listener, shutdown)?.run().await
}

/// The tasks of a server. Dropping it ends them.
struct Server {
    node: Arc<Node>,
    identity: Identity,
    peers: Arc<Peers>,
    /// Sent with Raft messages, once it is known.
    cluster: Arc<Mutex<Bytes>>,
    /// The event loop. When it is told to stop it finishes its disk work, and ends by itself.
    raft: JoinSet<Result<()>>,
    /// The others, which need not.
    tasks: JoinSet<(&'static str, Result<()>)>,
    /// Tells all of them, and long work, to end.
    stop: watch::Sender<bool>,
    shutdown: watch::Receiver<bool>,
}

impl Server {
    fn start(
        config: Config,
        transport: Arc<dyn Transport>,
        env: Env,
        identity: Identity,
        state: Arc<StateMachine>,
        listener: Box<dyn Listener>,
        shutdown: watch::Receiver<bool>,
    ) -> Result<Self> {
        let name = format!("metadata {}", config.id);
        let me = weft_net::Identity { name, cluster: identity.cluster() };
        let peers = Peers::new(transport, me.clone());
        let cluster = Arc::new(Mutex::new(Bytes::new()));
        let (reports_tx, reports) = mpsc::unbounded_channel();
        let address = config.peers.iter().find(|p| p.id == config.id).map(|p| p.address.clone());
        let member = Member { id: config.id, address: address.unwrap_or_default() };
        let (stop, stopped) = watch::channel(false);
        let (own, dir) = (member.clone(), &config.data_dir);
        let snapshots = Snapshots::open(dir, own, env.clone(), state.clone(), stopped.clone());
        let snapshots = Arc::new(snapshots?);
        let from = Speaker { member, least_silence: config.least_silence() };
        let links =
            links(from, &config.peers, config.election_timeout(), &peers, &cluster, reports_tx);
        let (inbox_tx, inbox) = mpsc::channel(INBOX);
        let wiring = Wiring {
            peers: peers.clone(),
            links,
            inbox,
            reports,
            snapshots: snapshots.clone(),
            admitted: identity.admitted(),
            shutdown: stopped.clone(),
        };
        let max_connections = config.max_connections as usize;
        let (node, driver) = Driver::open(config, env, state, wiring)?;
        let targets = Arc::new(Targets::default());
        let (http2_tx, http2) = mpsc::channel(16);
        let (http1_tx, http1) = mpsc::channel(16);
        let options = serving::options(me, max_connections, Some(http2_tx), Some(http1_tx));
        let service = Arc::new(MetadataService::new(
            node.clone(),
            targets.clone(),
            snapshots,
            inbox_tx,
            stopped.clone(),
        ));
        let grpc = ControlService::new(node.clone(), targets.clone());

        let (mut raft, mut tasks) = (JoinSet::new(), JoinSet::new());
        raft.spawn(driver.run());
        let told = stopped.clone();
        tasks.spawn(async move {
            weft_net::serve(listener, service, options, told).await;
            ("listener", Ok(()))
        });
        let (told, pages) = (stopped.clone(), Arc::new(grpc.clone()));
        tasks.spawn(async move {
            weft_control::serve_pages(pages, http1, told).await;
            ("pages", Ok(()))
        });
        tasks.spawn(async move { ("control", control::serve(grpc, http2, stopped).await) });
        let watched = room::watch(node.clone());
        tasks.spawn(async move {
            watched.await;
            ("room", Ok(()))
        });
        let duties = duties::run(node.clone(), targets, peers.clone());
        tasks.spawn(async move {
            duties.await;
            ("leader", Ok(()))
        });
        Ok(Self { node, identity, peers, cluster, raft, tasks, stop, shutdown })
    }

    async fn run(mut self) -> Result<()> {
        let mut maps = self.node.watch_map();
        let mut named = false;
        let mut shutdown = self.shutdown.clone();
        let node = self.node.clone();
        let mut removed = node.watch_removed();
        let admitted = self.identity.admitted();
        loop {
            let behind = self.identity.standing() == Standing::CatchingUp;
            tokio::select! {
                biased;
                _ = shutdown.wait_for(|&stop| stop) => break,
                caught_up = node.settled(admitted.index), if behind => {
                    caught_up?;
                    tracing::info!("this server has caught up and stands for election");
                    self.identity.stand(Standing::Member, admitted)?;
                }
                Ok(_) = removed.wait_for(|&removed| removed) => break,
                cluster = async {
                    let map = maps.wait_for(|map| cluster_of(map).is_some()).await.ok()?;
                    cluster_of(&map)
                }, if !named => {
                    named = true;
                    self.learn(cluster)?;
                }
                Some(ended) = self.raft.join_next() => {
                    outcome("raft", ended)?;
                    return Err(ended_early("raft"));
                }
                Some(ended) = self.tasks.join_next() => {
                    let (name, ended) = outcome("a task", ended.map(Ok))?;
                    outcome(name, Ok(ended))?;
                    return Err(ended_early(name));
                }
            }
        }
        if *removed.borrow() {
            let server = node.config.id;
            tracing::warn!(%server, "this server has left its group for good, and ends");
            self.identity.stand(Standing::Removed, admitted)?;
            self.raft.shutdown().await;
            self.tasks.shutdown().await;
            return Ok(());
        }
        self.stop().await
    }

    /// The cluster's identity became known: it is noted for good.
    fn learn(&mut self, cluster: Option<Uuid>) -> Result<()> {
        if let Some(cluster) = cluster {
            self.identity.set_cluster(cluster)?;
            self.peers.set_cluster(cluster);
            *self.cluster.lock() = Bytes::copy_from_slice(&cluster.0);
        }
        Ok(())
    }

    async fn stop(mut self) -> Result<()> {
        leave_lead(&self.node).await;
        self.stop.send_replace(true);
        let raft = self.raft.join_next().await;
        self.tasks.shutdown().await;
        raft.map_or(Ok(()), |ended| outcome("raft", ended))
    }
}

/// Has another server lead, if this one does, so that nobody waits until it is known to be gone.
async fn leave_lead(node: &Node) {
    let mut views = node.watch_view();
    let others = |id: NodeId| id != node.config.id;
    let left = async {
        match node.abdicate(None).await {
            // It needs the vote of this server, perhaps.
            Ok(_) => drop(views.wait_for(|view| view.leader.is_some_and(others)).await),
            Err(e) => tracing::debug!("no lead is handed over: {e}"),
        }
    };
    if timeout(2 * node.config.election_timeout(), left).await.is_err() {
        tracing::warn!("this server ends before another leads");
    }
}

/// What the task of this name ended with.
fn outcome<T>(name: &str, ended: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    ended
        .map_err(|e| Error::new(ErrorKind::Internal, format!("{name} panicked: {e}")))?
        .map_err(|e| Error::new(e.kind, format!("{name}: {e}")))
}

fn ended_early(name: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the {name} task ended"))
}

/// What Raft messages to the others go through. `from`: this server.
fn links(
    from: Speaker,
    configured: &[Member],
    deadline: Duration,
    peers: &Arc<Peers>,
    cluster: &Arc<Mutex<Bytes>>,
    reports: mpsc::UnboundedSender<Report>,
) -> Links {
    let (peers, known) = (peers.clone(), cluster.clone());
    Links::new(
        configured,
        Box::new(move |to| {
            let known = known.clone();
            Link::start(
                from.clone(),
                to.id,
                // What clients wait for must not wait for the memory that they hold.
                peers.peer_on(&to.address, Way::Freeing),
                deadline,
                move || known.lock().clone(),
                reports.clone(),
            )
        }),
    )
}
