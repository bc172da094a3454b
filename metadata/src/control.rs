//! The gRPC service: status, map watch, registration and heartbeats of storage daemons.
//!
//! Errors cross as [`weft_control::to_status`] says.

mod decisions;

use crate::backup;
use crate::callers;
use crate::counted::Counts;
use crate::duties::{hold, repair};
use crate::events;
use crate::node::{Effect, Known, Node};
use crate::placement::survival;
use crate::registration;
use crate::soft::targets::Targets;
use crate::state::Unwanted;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};
use v1::control_server::Control;
use weft_control::to_status;
use weft_proto::{ChunkId, Error, ErrorKind, NodeId, Result, TargetId, Uuid, v1};

/// How long a call may wait for a leader.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A watcher that does not answer pings this often is gone.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Most events in one answer.
const MAX_EVENTS: usize = 1000;

/// Most chunks in one question.
const MAX_CHUNKS: usize = 16_384;

/// One server's gRPC answers, and its pages.
#[derive(Clone)]
pub struct ControlService {
    node: Arc<Node>,
    targets: Arc<Targets>,
    /// One backup at a time.
    backups: Arc<Semaphore>,
    /// One change of the rules of tenants at a time.
    rules: Arc<Semaphore>,
    counts: Counts,
}

impl ControlService {
    pub fn new(node: Arc<Node>, targets: Arc<Targets>) -> Self {
        let [backups, rules] = [(); 2].map(|()| Arc::new(Semaphore::new(1)));
        Self { node, targets, backups, rules, counts: Counts::default() }
    }

    fn check_cluster(&self, theirs: &[u8]) -> Result<Option<Uuid>> {
        let ours = self.node.cluster();
        if !theirs.is_empty() && ours.is_some_and(|c| c.0 != *theirs) {
            return Err(Error::new(
                ErrorKind::WrongCluster,
                "the storage daemon belongs to another cluster: its targets were formatted there",
            ));
        }
        Ok(ours)
    }

    async fn register(
        &self,
        request: v1::RegisterTargetRequest,
    ) -> Result<v1::RegisterTargetReply> {
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        self.check_cluster(&request.cluster)?;
        let none = || Error::new(ErrorKind::Invalid, "a registration without a target");
        let target = request.target.ok_or_else(none)?;
        let map = self.node.map();
        registration::check(&map, &target)?;
        // It is refused without an entry of the log: its daemon may ask for ever.
        if let Some(id) = self.node.state.forgotten(&target.uuid)? {
            return Err(registration::forgotten(id));
        }
        self.not_anothers(&target)?;
        let is_known = map.targets.iter().any(|t| t.uuid == target.uuid);
        let new = |t| events::event("target-new", format!("a new target: {}", events::place_of(t)));
        let events = (!is_known).then(|| new(&target)).into_iter().collect();
        let entry = v1::RegisterTargetEntry { target: Some(target) };
        let body = v1::log_entry::Body::RegisterTarget(entry);
        let reply = self.node.propose_telling(body, Effect::Nothing, events).await?;
        let Some(v1::meta_reply::Result::Target(v1::TargetInfo { id, .. })) = reply.result else {
            return Err(Error::new(ErrorKind::Internal, "a registration that answers no target"));
        };
        tracing::info!(target = id, "target registered");
        Ok(v1::RegisterTargetReply { id, cluster: self.node.map().cluster.clone() })
    }

    /// Leaves what a daemon tells of its own targets: one that has moved to another may still fail
    /// where it was, and silences no other. Answers those that it is to register. `NotFound`: it is
    /// to register all that it serves, and is of a version that does nothing else.
    fn only_own(&self, beat: &mut v1::HeartbeatRequest) -> Result<Vec<u32>> {
        let map = self.node.map();
        // In the order of their numbers, and there may be many: each daemon asks twice a second.
        let daemon = |id: u32| {
            let at = map.targets.binary_search_by_key(&id, |target| target.id).ok()?;
            Some(map.targets[at].daemon.as_str())
        };
        let mut unregistered = Vec::new();
        for id in beat.targets.iter().map(|stat| stat.target) {
            let serves = !beat.stopping && !beat.failed.contains(&id);
            let what = match daemon(id) {
                None => format!("target {} is not registered", TargetId(id)),
                Some(daemon) if serves && daemon != beat.daemon => {
                    format!("target {} is that of {daemon}, not of {}", TargetId(id), beat.daemon)
                }
                Some(_) => continue,
            };
            if !beat.registers_some {
                return Err(Error::new(ErrorKind::NotFound, what));
            }
            unregistered.push(id);
        }
        let is_own = |id: &u32| daemon(*id) == Some(beat.daemon.as_str());
        beat.targets.retain(|stat| is_own(&stat.target));
        beat.failed.retain(is_own);
        beat.damaged.retain(|chunk| is_own(&chunk.target));
        Ok(unregistered)
    }

    /// A target that another daemon serves stays there. Error: `NotPermitted`.
    fn not_anothers(&self, target: &v1::TargetInfo) -> Result<()> {
        let map = self.node.map();
        let served = |t: &&v1::TargetInfo| {
            let up = t.state() == v1::TargetState::Up;
            t.uuid == target.uuid && t.daemon != target.daemon && up
        };
        match map.targets.iter().find(served) {
            None => Ok(()),
            Some(t) => {
                let what = format!(
                    "target {} is served by {}: it can move to {} when that has stopped",
                    t.id, t.daemon, target.daemon
                );
                tracing::warn!("refused: {what}");
                Err(Error::new(ErrorKind::NotPermitted, what))
            }
        }
    }

    async fn beat(
        &self,
        mut request: v1::HeartbeatRequest,
        proved: bool,
    ) -> Result<v1::HeartbeatReply> {
        self.check_cluster(&request.cluster)?;
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        let unregistered = self.only_own(&mut request)?;
        let map = self.node.map();
        let qos = self.node.sharing.policy(&self.node.state)?;
        let qos = (qos.version != request.qos_version).then(|| (*qos).clone());
        if request.clock_s != 0 && map.targets.iter().any(|t| t.daemon == request.daemon) {
            let ours = self.node.env.clock.now_ns() / 1_000_000_000;
            self.targets.hear_daemon(Instant::now(), ours, &request);
        }
        self.node.sharing.hear(Instant::now(), std::mem::take(&mut request.tenants));
        self.targets.hear(Instant::now(), request);
        let members = self.node.membership();
        let metadata = members.members.iter().map(|m| m.address.clone()).collect();
        let full_percent = self.node.config.full_percent as u32;
        // Of no use where nobody proves who he is, and then anybody might hear it.
        let ticket_key = proved.then(|| self.node.ticket_key.to_wire());
        let is_up = |t: &&v1::TargetInfo| t.state() == v1::TargetState::Up;
        let targets_up = map.targets.iter().filter(is_up).count() as u32;
        let epoch = self.node.epoch().0;
        Ok(v1::HeartbeatReply {
            epoch,
            metadata,
            full_percent,
            ticket_key,
            qos,
            targets_up,
            unregistered,
        })
    }

    /// Which of these chunks have no business at the target, at one moment after the question.
    async fn unwanted(&self, request: v1::CheckChunksRequest) -> Result<v1::CheckChunksReply> {
        self.check_cluster(&request.cluster)?;
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        if request.chunks.len() > MAX_CHUNKS {
            let what = format!("{} chunks at a time, over {MAX_CHUNKS}", request.chunks.len());
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let chunks = request.chunks.into_iter().map(ChunkId::try_from);
        let chunks: Vec<ChunkId> = chunks.collect::<Result<_>>()?;
        if hold::holds(&self.node) {
            return Ok(v1::CheckChunksReply::default());
        }
        self.node.read_barrier().await?;
        let (state, target, asked) =
            (self.node.state.clone(), TargetId(request.target), chunks.clone());
        let Unwanted { dead, misplaced } =
            self.node.env.blocking(move || state.unwanted(target, asked)).await?;
        let unwanted: BTreeSet<ChunkId> =
            dead.into_iter().chain(misplaced.into_iter().map(|m| m.0)).collect();
        let positions = (0u32..).zip(&chunks).filter(|(_, chunk)| unwanted.contains(chunk));
        Ok(v1::CheckChunksReply { unwanted: positions.map(|(at, _)| at).collect() })
    }

    /// Which failure domains may fail now.
    async fn check_domains(&self) -> Result<v1::CheckDomainsReply> {
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        self.node.read_barrier().await?;
        let (state, map) = (self.node.state.clone(), self.node.map());
        let check = move || Ok(survival::check(&map, &state.groups_in_use()?));
        self.node.env.blocking(check).await
    }

    /// An admin wants another metadata server, or one less, or another leader.
    async fn set_member(&self, request: v1::SetMemberRequest) -> Result<v1::SetMemberReply> {
        use v1::set_member_request::Action::{Set, TransferTo};
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        let followers = self.node.followers();
        if let Some(old) = followers.iter().find(|f| f.active && f.old_version) {
            let what = format!(
                "server {} is of a version that knows no changes of the group: upgrade it first",
                old.id
            );
            return Err(Error::new(ErrorKind::NotSupported, what));
        }
        match request.action {
            Some(Set(entry)) => {
                tracing::info!(change = ?entry.change, "an admin decided");
                let events = vec![events::of_member(&entry)];
                let body = v1::log_entry::Body::SetServer(entry);
                self.node.propose_telling(body, Effect::Nothing, events).await?;
            }
            Some(TransferTo(to)) => {
                let to = Some(to).filter(|&to| to != 0).map(NodeId);
                let to = self.node.abdicate(to).await?;
                tracing::info!(%to, "an admin has the lead handed over");
            }
            None => return Err(Error::new(ErrorKind::Invalid, "an action of an unknown kind")),
        }
        Ok(v1::SetMemberReply { members: self.node.membership().members.clone() })
    }

    /// An admin decides what a tenant may have.
    async fn set_qos(&self, request: v1::SetQosRequest) -> Result<v1::SetQosReply> {
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        let none = || Error::new(ErrorKind::Invalid, "a change of the rules without a rule");
        let rule = request.rule.ok_or_else(none)?;
        rule.check()?;
        if !self.node.all_know(Known::Qos) {
            let what = "there are metadata servers of a version that knows no rules of tenants, or \
                        that have not answered yet: upgrade them, or try again";
            return Err(Error::new(ErrorKind::NotSupported, what));
        }
        // Who has made the rule of one that was there must not undo what another has changed since.
        // Only a leader changes any, and all that earlier ones have is in the state here.
        let _one = self.rules.acquire().await;
        let now = self.node.sharing.policy(&self.node.state)?.version;
        if request.version.is_some_and(|version| version != now) {
            let what = "the rules were changed meanwhile: look at them, and try again";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let events = vec![events::of_qos(&rule)];
        let body = v1::log_entry::Body::SetQos(v1::SetQosEntry { rule: Some(rule) });
        self.node.propose_telling(body, Effect::Nothing, events).await?;
        let policy = self.node.sharing.policy(&self.node.state)?;
        Ok(v1::SetQosReply { policy: Some((*policy).clone()) })
    }

    /// What tenants may have, and what they were given of late.
    async fn list_qos(&self) -> Result<v1::ListQosReply> {
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        self.node.read_barrier().await?;
        let policy = self.node.sharing.policy(&self.node.state)?;
        let (served, metadata) = self.node.sharing.served(Instant::now());
        Ok(v1::ListQosReply { policy: Some((*policy).clone()), served, metadata })
    }

    /// What has happened.
    async fn events(&self, request: v1::ListEventsRequest) -> Result<v1::ListEventsReply> {
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        self.node.read_barrier().await?;
        let limit = match request.limit as usize {
            0 => MAX_EVENTS,
            limit => limit.min(MAX_EVENTS),
        };
        let (state, newest) = (self.node.state.clone(), u64::from(request.newest));
        let list = move || state.events(request.after, limit, newest);
        let (events, more) = self.node.env.blocking(list).await?;
        Ok(v1::ListEventsReply { events, more })
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) async fn status_now(&self) -> Result<v1::StatusReply> {
        let counted = self.counts.get(&self.node).await?;
        // The whole map is copied: beside the loop, too.
        let this = self.clone();
        let all = move || {
            Ok(v1::StatusReply {
                garbage_segments: counted.garbage_segments,
                scattered_files: counted.scattered_files,
                lost_groups: counted.lost_groups,
                bare_groups: counted.bare_groups,
                ..this.status_uncounted()
            })
        };
        self.node.env.blocking(all).await
    }

    /// The same without what has to be counted in the state, which takes long.
    pub(crate) fn status_uncounted(&self) -> v1::StatusReply {
        let (node, view) = (&self.node, self.node.view());
        let sessions = node.soft.with(|s| s.show(Instant::now()));
        let compacted = node.compaction.stat(Instant::now());
        v1::StatusReply {
            id: node.config.id.0,
            leader: view.leader.map_or(0, |l| l.0),
            leader_address: view.leader.and_then(|l| node.address_of(l)).unwrap_or_default(),
            term: view.term,
            commit_index: node.commit_index(),
            applied_index: node.applied_index(),
            map: Some((*node.map()).clone()),
            targets: if view.ready { self.targets.told(Instant::now()) } else { Vec::new() },
            sessions: sessions
                .into_iter()
                .map(|s| v1::SessionStat {
                    session: s.id.0,
                    client: s.client,
                    owner: s.owner,
                    idle_ms: s.idle.as_millis() as u64,
                    opens: s.opens as u64,
                    open_files: s.open_files,
                    network: s.network,
                })
                .collect(),
            garbage_segments: 0,
            version: env!("CARGO_PKG_VERSION").into(),
            repair: view.ready.then(|| {
                let map = node.map();
                node.repair.stat(Instant::now(), map.epoch, repair::may_miss(&map))
            }),
            members: node.followers(),
            membership: if view.ready { node.waits() } else { String::new() },
            free_bytes: node.free_bytes(),
            held_until_ns: hold::until(node).unwrap_or_default(),
            low_on_room: node.low_on_room(),
            scattered_files: 0,
            compacted_bytes: compacted.bytes,
            compacted_bytes_per_s: compacted.bytes_per_s,
            compacted_files_per_hour: compacted.files_per_hour,
            clock_ns: node.env.clock.now_ns(),
            daemons: if view.ready { self.targets.daemons(Instant::now()) } else { Vec::new() },
            lost_groups: 0,
            bare_groups: 0,
            cannot_fetch: node.behind.why().unwrap_or_default(),
            damaged: node.damaged().unwrap_or_default(),
        }
    }
}

type MapStream = Pin<Box<dyn Stream<Item = Result<v1::ClusterMap, Status>> + Send>>;

#[tonic::async_trait]
impl Control for ControlService {
    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        let mut status = self.status_now().await.map_err(to_status)?;
        if callers::is_confined(&request) {
            status.sessions.clear();
        }
        Ok(Response::new(status))
    }

    type WatchMapStream = MapStream;

    async fn watch_map(
        &self,
        request: Request<v1::WatchMapRequest>,
    ) -> Result<Response<MapStream>, Status> {
        let request = request.into_inner();
        let (node, mut have) = (self.node.clone(), request.have_epoch);
        let news = WatchStream::new(self.node.watch_map()).filter_map(move |map| {
            if map.epoch <= have {
                return None;
            }
            let changes = || node.map_changes(have, request.dropped_targets);
            let told = request.changes.then(changes).flatten().unwrap_or_else(|| (*map).clone());
            have = told.epoch;
            Some(Ok(told))
        });
        Ok(Response::new(Box::pin(news)))
    }

    async fn register_target(
        &self,
        request: Request<v1::RegisterTargetRequest>,
    ) -> Result<Response<v1::RegisterTargetReply>, Status> {
        let daemon = request.get_ref().target.as_ref().map_or("", |target| &target.daemon);
        callers::speaks_for(&request, daemon).map_err(to_status)?;
        self.register(request.into_inner()).await.map(Response::new).map_err(to_status)
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatReply>, Status> {
        callers::speaks_for(&request, &request.get_ref().daemon).map_err(to_status)?;
        let proved = callers::is_proved(&request);
        self.beat(request.into_inner(), proved).await.map(Response::new).map_err(to_status)
    }

    async fn check_chunks(
        &self,
        request: Request<v1::CheckChunksRequest>,
    ) -> Result<Response<v1::CheckChunksReply>, Status> {
        self.unwanted(request.into_inner()).await.map(Response::new).map_err(to_status)
    }

    async fn set_target(
        &self,
        request: Request<v1::SetTargetRequest>,
    ) -> Result<Response<v1::SetTargetReply>, Status> {
        self.decide(request.into_inner()).await.map(Response::new).map_err(to_status)
    }

    async fn check_domains(
        &self,
        _: Request<v1::CheckDomainsRequest>,
    ) -> Result<Response<v1::CheckDomainsReply>, Status> {
        ControlService::check_domains(self).await.map(Response::new).map_err(to_status)
    }

    async fn set_member(
        &self,
        request: Request<v1::SetMemberRequest>,
    ) -> Result<Response<v1::SetMemberReply>, Status> {
        let decided = ControlService::set_member(self, request.into_inner()).await;
        decided.map(Response::new).map_err(to_status)
    }

    async fn set_qos(
        &self,
        request: Request<v1::SetQosRequest>,
    ) -> Result<Response<v1::SetQosReply>, Status> {
        let decided = ControlService::set_qos(self, request.into_inner()).await;
        decided.map(Response::new).map_err(to_status)
    }

    async fn list_qos(
        &self,
        _: Request<v1::ListQosRequest>,
    ) -> Result<Response<v1::ListQosReply>, Status> {
        ControlService::list_qos(self).await.map(Response::new).map_err(to_status)
    }

    type BackupStream = backup::Pieces;

    async fn backup(
        &self,
        asked: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        self.node.lead(Instant::now() + REQUEST_TIMEOUT).await.map_err(to_status)?;
        backup::tell(&self.node, &self.backups, asked).await.map_err(to_status)
    }

    async fn list_events(
        &self,
        request: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsReply>, Status> {
        self.events(request.into_inner()).await.map(Response::new).map_err(to_status)
    }
}

/// Serves gRPC on the connections that the listener recognised as HTTP/2, until shutdown.
pub async fn serve(
    service: ControlService,
    mut connections: mpsc::Receiver<weft_net::BoxStream>,
    mut shutdown: watch::Receiver<bool>,
) -> Result<()> {
    let service = v1::control_server::ControlServer::new(service);
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            // An error means that whoever could order the shutdown is gone.
            _ = shutdown.wait_for(|&stop| stop) => return Ok(()),
            Some(stream) = connections.recv() => {
                let service = service.clone();
                open.spawn(serve_connection(stream, service));
            }
            Some(_) = open.join_next() => {}
            else => return Ok(()),
        }
    }
}

async fn serve_connection(
    stream: weft_net::BoxStream,
    service: v1::control_server::ControlServer<ControlService>,
) {
    let subject = stream.subject().cloned();
    let service =
        hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            use tonic::codegen::Service as _;
            let refusal = callers::admit(subject.as_ref(), &mut request);
            let answer = service.clone().call(request.map(tonic::body::Body::new));
            async move {
                match refusal {
                    Some(refusal) => Ok(to_status(refusal).into_http()),
                    None => answer.await,
                }
            }
        });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(e) = connection.await {
        tracing::debug!("a gRPC connection ended: {e}");
    }
}
