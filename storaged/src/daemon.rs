//! The daemon: opens its targets, serves them, and keeps the metadata group informed.
//!
//! Invariants: a target that has an id is served without any metadata server, and no longer once
//! the metadata group says that another daemon serves it; a target that fails does not stop the
//! others; at the end the metadata group is told first, then requests end, then the targets are
//! closed.

use crate::config::{Config, Target};
use crate::engine::Engine;
use crate::keeper::{Keeper, Lost, Open};
use crate::lateness::Lateness;
use crate::metrics::Metrics;
use crate::rebuild::Rebuilder;
use crate::scrub;
use crate::service::{STALL, Targets};
use crate::tickets::Tickets;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use weft_control::Group;
use weft_net::{Identity, Listener, ServerOptions, Service, Transport, network_stat};
use weft_proto::{Error, ErrorKind, Result, TargetId, Uuid, layout, v1};

const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait for the last heartbeat at the end.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// A daemon that listens.
pub struct Daemon {
    config: Config,
    transport: Arc<dyn Transport>,
    listener: Box<dyn Listener>,
    address: String,
}

/// Serves until `shutdown` is true. Errors: the configuration cannot work, the address is taken, or
/// no target can be opened.
pub async fn run(
    config: Config,
    transport: Arc<dyn Transport>,
    shutdown: watch::Receiver<bool>,
) -> Result<()> {
    Daemon::bind(config, transport).await?.run(shutdown).await
}

impl Daemon {
    /// Checks the configuration and binds the address.
    pub async fn bind(config: Config, transport: Arc<dyn Transport>) -> Result<Self> {
        config.validate_to_serve()?;
        let listen = &config.listen;
        let fail = |e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot listen on {listen}: {e}"))
        };
        let at = listen.parse().map_err(fail)?;
        let listener = transport.bind(&at).await.map_err(fail)?;
        let address = match &config.advertise {
            Some(address) => address.clone(),
            None => listener.local_address().map_err(fail)?.to_string(),
        };
        Ok(Self { config, transport, listener, address })
    }

    /// Where clients reach this daemon.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Serves until `shutdown` is true.
    pub async fn run(self, shutdown: watch::Receiver<bool>) -> Result<()> {
        let targets = Arc::new(Targets::default());
        targets.opening.store(self.config.targets.len(), Ordering::Release);
        let open: Arc<Mutex<Vec<Open>>> = Arc::default();
        let keeper = |target: &Target| -> Result<Keeper> {
            Ok(Keeper {
                location: target.location()?,
                options: target.options(),
                fabric: self.config.nvmeof.clone(),
                roots: self.config.roots.clone(),
                transport: self.transport.clone(),
                metadata: self.config.metadata.clone(),
                open: open.clone(),
                targets: targets.clone(),
            })
        };
        let keepers = self.config.targets.iter().map(keeper).collect::<Result<_>>()?;
        let keepers = keep_all(keepers, open.clone());
        let service = targets.clone();
        self.serve(targets, open, service, keepers, shutdown).await
    }

    /// As [`Self::run`], for targets that the caller has opened, each with where its drive is.
    /// `around` makes of the chunk service what is served.
    pub async fn run_open(
        self,
        engines: Vec<(Engine, String)>,
        around: impl FnOnce(Arc<dyn Service>) -> Arc<dyn Service>,
        shutdown: watch::Receiver<bool>,
    ) -> Result<()> {
        let targets = Arc::new(Targets::default());
        let mut open = Vec::new();
        for (engine, location) in engines {
            if let Some(id) = engine.id() {
                targets.insert(id, engine.clone());
            }
            // Nobody opens it anew.
            open.push(Open { engine, location, refuse: Some(oneshot::channel().0) });
        }
        let service = around(targets.clone());
        let open = Arc::new(Mutex::new(open));
        self.serve(targets, open, service, std::future::pending(), shutdown).await
    }

    async fn serve(
        self,
        targets: Arc<Targets>,
        open: Arc<Mutex<Vec<Open>>>,
        service: Arc<dyn Service>,
        keepers: impl Future<Output = Result<()>>,
        mut shutdown: watch::Receiver<bool>,
    ) -> Result<()> {
        tracing::info!(name = %self.config.name, address = %self.address, "storage daemon listens");
        let (http1, pages) = mpsc::channel(16);
        let options = ServerOptions {
            http1: Some(http1),
            max_payload: layout::MAX_CHUNK as usize,
            max_in_flight: self.config.max_in_flight as usize,
            max_memory: self.config.max_memory as usize,
            max_connections: self.config.max_connections,
            ..ServerOptions::new(Identity { name: self.config.name.clone(), cluster: None })
        };
        let Config { name, metadata, background_share, .. } = &self.config;
        let rebuilder = Rebuilder::new(name, &self.transport, metadata, *background_share);
        // There is none before.
        let _ = targets.rebuilder.set(rebuilder);
        let _ = targets.tickets.set(Tickets::new(self.config.clock));
        let (stop, stopped) = watch::channel(false);
        let metrics = Arc::new(Metrics(targets.clone()));
        tokio::spawn(weft_control::serve_pages(metrics, pages, stopped.clone()));
        let server = tokio::spawn(weft_net::serve(self.listener, service, options, stopped));
        let period = Duration::from_secs(self.config.scrub_period);
        // What blocks there for a moment delays no heartbeat.
        let scrubs = tokio::spawn(scrub::run(targets.clone(), period, self.config.clock));
        // By itself: what else a task waits for does not make it late.
        let lateness = Arc::new(Lateness::default());
        let measures = tokio::spawn({
            let lateness = lateness.clone();
            async move { lateness.measure().await }
        });
        let membership = Membership {
            group: Group::new(self.transport.clone(), self.config.metadata.clone()),
            transport: self.transport,
            config: self.config,
            address: self.address,
            open: open.clone(),
            targets: targets.clone(),
            cluster: None,
            registered: Vec::new(),
            joining: HashMap::new(),
            last_error: None,
            lateness: lateness.clone(),
        };
        let result = tokio::select! {
            result = keepers => result,
            () = membership.run(&mut shutdown) => Ok(()),
        };
        measures.abort();
        scrubs.abort();
        let _ = scrubs.await;
        // A closed channel means that nobody is left to wait for; the server ends by itself then.
        let _ = stop.send(true);
        if let Some(rebuilder) = targets.rebuilder.get() {
            rebuilder.end();
        }
        let _ = server.await;
        let open = std::mem::take(&mut *open.lock());
        // At once: each may hang for a while.
        join_all(open.into_iter().map(close)).await;
        result
    }
}

async fn close(Open { engine, location, .. }: Open) {
    if let Err(e) = engine.close().await {
        tracing::error!("closing {location}: {e}");
    }
}

/// Attaches all targets at once and keeps them. Returns only if none is open and none may come to
/// be without an admin.
async fn keep_all(keepers: Vec<Keeper>, open: Arc<Mutex<Vec<Open>>>) -> Result<()> {
    let mut first_error = None;
    let mut waiting = false;
    let mut tasks = JoinSet::new();
    let mut starts = JoinSet::new();
    for keeper in keepers {
        let (started, start) = oneshot::channel();
        tasks.spawn(keeper.run(started));
        starts.spawn(start);
    }
    while let Some(start) = starts.join_next().await {
        match start {
            Ok(Ok(Ok(()))) => waiting = true,
            Ok(Ok(Err(e))) => {
                tracing::error!("target cannot be served: {e}");
                first_error.get_or_insert(e);
            }
            Ok(Err(_)) | Err(_) => tracing::error!("the task of a target died"),
        }
    }
    match first_error {
        Some(e) if !waiting && open.lock().is_empty() => Err(e),
        _ => std::future::pending().await,
    }
}

struct Membership {
    group: Group,
    transport: Arc<dyn Transport>,
    config: Config,
    address: String,
    open: Arc<Mutex<Vec<Open>>>,
    targets: Arc<Targets>,
    /// Of the targets, as soon as one of them told.
    cluster: Option<Uuid>,
    /// Targets that the metadata group knows with this address.
    registered: Vec<Uuid>,
    /// Targets whose id is being written down, which takes as long as their drives do.
    joining: HashMap<Uuid, BoxFuture<'static, Result<()>>>,
    /// To log a lasting trouble once.
    last_error: Option<String>,
    lateness: Arc<Lateness>,
}

impl Membership {
    /// Registers and beats until `shutdown`; then says goodbye.
    async fn run(mut self, shutdown: &mut watch::Receiver<bool>) {
        let mut ticks = interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stopped(shutdown) => break,
                () = async { ticks.tick().await; self.turn().await } => {}
            }
        }
        // Best effort: silence says the same, later.
        let _ = timeout(FAREWELL_TIMEOUT, self.beat(true)).await;
    }

    async fn turn(&mut self) {
        // Those that are served do not wait for one that cannot be registered.
        let served = self.registered.len();
        let mut result = if served > 0 { self.beat(false).await } else { Ok(()) };
        if result.is_ok() {
            result = self.register_new().await;
            if self.registered.len() > served || served == 0 && result.is_ok() {
                let heard = self.beat(false).await;
                result = result.and(heard);
            }
        }
        match result {
            Ok(()) => {
                if self.last_error.take().is_some() {
                    tracing::info!("the metadata group hears us again");
                }
            }
            Err(e) => {
                if e.kind == ErrorKind::NotFound {
                    self.registered.clear();
                }
                if self.last_error.as_ref() != Some(&e.message) {
                    tracing::warn!("metadata group: {e}");
                    self.last_error = Some(e.message);
                }
            }
        }
    }

    async fn register_new(&mut self) -> Result<()> {
        let new: Vec<_> = (self.open.lock().iter())
            .filter(|o| o.refuse.is_some() && !self.registered.contains(&o.engine.uuid()))
            .map(|o| (o.engine.clone(), o.location.clone()))
            .collect();
        // Of what was closed nothing is kept.
        self.joining.retain(|uuid, _| new.iter().any(|(engine, _)| engine.uuid() == *uuid));
        // A drive that hangs silences nobody else.
        let patience = Instant::now() + HEARTBEAT_INTERVAL;
        let mut result = Ok(());
        for (engine, location) in new {
            match self.register(&engine, location, patience).await {
                Ok(()) => self.registered.push(engine.uuid()),
                Err(e) => result = Err(e),
            }
        }
        result
    }

    async fn register(
        &mut self,
        engine: &Engine,
        location: String,
        patience: Instant,
    ) -> Result<()> {
        let mut join = match self.joining.remove(&engine.uuid()) {
            Some(join) => join,
            None => self.ask_for_place(engine, &location).await?,
        };
        match timeout_at(patience, &mut join).await {
            Ok(joined) => joined?,
            Err(_) => {
                self.joining.insert(engine.uuid(), join);
                let what = format!("the drive of {location} has not taken its id yet");
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
        }
        let id = engine.id().ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("{location} has joined and has no id"))
        })?;
        let open = self.open.lock();
        if !open.iter().any(|open| open.engine.is_same(engine)) {
            let what = format!("target {id} was taken out of service while it was registered");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        self.targets.insert(id, engine.clone());
        drop(open);
        tracing::info!(target = %id, location, "registered");
        Ok(())
    }

    /// Registers a target. What is answered writes down the id that it has got.
    async fn ask_for_place(
        &mut self,
        engine: &Engine,
        location: &str,
    ) -> Result<BoxFuture<'static, Result<()>>> {
        let cluster = engine.cluster().map(|c| c.0.to_vec()).unwrap_or_default();
        let info = v1::TargetInfo {
            id: engine.id().map_or(0, |id| id.0),
            uuid: engine.uuid().0.to_vec().into(),
            daemon: self.config.name.clone(),
            address: self.address.clone(),
            domain: self.config.domain().to_string(),
            state: v1::TargetState::Unknown.into(),
            capacity_bytes: engine.stat().capacity_bytes,
            full: false,
            path: location.to_owned(),
            ..Default::default()
        };
        let request = v1::RegisterTargetRequest { cluster: cluster.into(), target: Some(info) };
        let reply = match self.group.call(request.clone()).await {
            Err(why) if why.kind == ErrorKind::NotPermitted => {
                self.refuse(engine, request, &why);
                return Err(why);
            }
            reply => reply?,
        };
        let cluster =
            Uuid::from_slice(&reply.cluster).filter(|&c| c != Uuid::NIL).ok_or_else(|| {
                Error::new(ErrorKind::Protocol, "registration was answered without a cluster")
            })?;
        let engine = engine.clone();
        Ok(Box::pin(async move { engine.join(cluster, TargetId(reply.id)).await }))
    }

    /// Another daemon serves it and changes its drive, so that what is known of that here holds no
    /// longer; or it was forgotten.
    fn refuse(&self, engine: &Engine, request: v1::RegisterTargetRequest, why: &Error) {
        let mut open = self.open.lock();
        let found = open.iter_mut().find(|open| open.engine.is_same(engine));
        let Some(refuse) = found.and_then(|open| open.refuse.take()) else { return };
        if let Some(id) = engine.id() {
            self.targets.remove(id, why.message.clone());
        }
        let (engine, why) = (engine.clone(), why.message.clone());
        // Without a keeper it is closed at the end.
        let _ = refuse.send(Lost { engine, why, refused: Some(request) });
    }

    async fn beat(&mut self, stopping: bool) -> Result<()> {
        let engines: Vec<_> = (self.open.lock().iter())
            .map(|o| o.engine.clone())
            .filter(|e| e.id().is_some() && self.registered.contains(&e.uuid()))
            .collect();
        self.cluster = self.cluster.or_else(|| engines.iter().find_map(Engine::cluster));
        let Some(cluster) = self.cluster else { return Ok(()) };
        for engine in &engines {
            let engine = engine.clone();
            // Not waited for: its disk may hang, and the others are to be heard of.
            tokio::spawn(async move { engine.look_at_room().await });
        }
        let failing = |e: &&Engine| e.failure().is_some() || e.stalled() >= STALL;
        let sharing = &self.targets.sharing;
        let failed = engines.iter().filter(failing).map(|e| e.stat().target);
        let (load, now) = (&self.targets.load, Instant::now());
        let told = |stat: v1::TargetStat| {
            let load = load.tell(stat.target, now);
            v1::TargetStat { load, ..stat }
        };
        let request = v1::HeartbeatRequest {
            cluster: cluster.0.to_vec().into(),
            daemon: self.config.name.clone(),
            targets: engines.iter().map(Engine::stat).map(told).collect(),
            failed: failed.chain(self.targets.away()).collect(),
            stopping,
            damaged: self.targets.damaged(),
            qos_version: sharing.version(),
            tenants: sharing.report(),
            clock_s: self.config.clock.now_s(),
            late_ms: Some(self.lateness.ms()),
            network: Some(network_stat(true, &*self.transport)),
            registers_some: true,
        };
        let reply = self.group.call(request).await?;
        self.group.learn(reply.metadata);
        // They are registered anew, and refused then if they are not wanted here any more.
        let anew = engines.iter().filter(|e| reply.unregistered.contains(&e.stat().target));
        anew.for_each(|e| self.registered.retain(|known| *known != e.uuid()));
        if let (Some(key), Some(tickets)) = (&reply.ticket_key, self.targets.tickets.get()) {
            tickets.learn(key);
        }
        let up = engines.len() as u64;
        self.targets.sharing.learn(reply.qos, up, reply.targets_up.into());
        let spaces = engines.iter().map(Engine::space);
        self.targets.backpressure.learn(reply.full_percent, spaces);
        Ok(())
    }
}

/// Returns when `shutdown` is true or nobody is left who could say so.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|stop| *stop).await;
}
