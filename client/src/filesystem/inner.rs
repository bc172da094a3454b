//! What a mounted filesystem is made of, and how its parts know of each other.

use crate::Options;
use crate::budget::Budget;
use crate::cache::{AccessTimes, Pages};
use crate::file::{Context, Files};
use crate::locks::Locks;
use crate::meta::Group;
use crate::namespace::{ChangeLog, Opens, Requests};
use crate::tasks::atime::AtimePublisher;
use crate::tasks::keep_alive::KeepAlive;
use crate::tasks::{Releaser, Supervisor, lapse, publish, recalls, surplus, write_back};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use weft_hot::Hot;
use weft_net::Peers;
use weft_net::sync::Mutex;
use weft_proto::Uuid;
use weft_segments::{Rng, Segments};

pub(super) struct Inner {
    pub options: Options,
    pub group: Arc<Group>,
    pub requests: Arc<Requests>,
    pub log: Arc<ChangeLog>,
    pub opens: Arc<Opens>,
    pub locks: Arc<Locks>,
    pub pages: Arc<Pages>,
    pub files: Arc<Files>,
    pub segments: Arc<Segments>,
    pub hot: Arc<OnceLock<Arc<Hot>>>,
    pub atimes: Arc<AtimePublisher>,
    pub supervisor: Arc<Supervisor>,
    pub peers: Arc<Peers>,
    budget: Arc<Budget>,
    pub rng: Arc<Rng>,
    /// How long the session lives unless it is renewed, and of which cluster it is; once that is
    /// known.
    session: OnceLock<(Duration, Option<Uuid>)>,
    /// Shows signs of life while no other task runs.
    pub life: Mutex<Option<AbortHandle>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.supervisor.stop();
        self.end();
    }
}

impl Inner {
    pub fn new(
        options: Options,
        peers: Arc<Peers>,
        group: Arc<Group>,
        segments: Arc<Segments>,
        rng: Arc<Rng>,
    ) -> Self {
        let (sessions, leases) = (group.sessions.clone(), group.leases.clone());
        let log = Arc::new(ChangeLog::new(group.clone(), options.publish_age));
        let requests = Arc::new(Requests::new(group.clone(), log.clone()));
        let opens = Arc::new(Opens::new(requests.clone(), sessions.clone()));
        let locks = Locks::new(group.clone(), requests.clone(), options.op_deadline);
        let pages: Arc<Pages> = Arc::default();
        let budget = Budget::new(options.write_buffer_bytes, options.op_deadline);
        let hot: Arc<OnceLock<Arc<Hot>>> = Arc::default();
        let context = Context {
            requests: requests.clone(),
            log: log.clone(),
            close_sync: options.close_sync,
            opens: opens.clone(),
            locks: locks.clone(),
            sessions,
            leases: leases.clone(),
            pages: pages.clone(),
            segments: segments.clone(),
            hot: hot.clone(),
            budget: budget.clone(),
            ahead: Arc::new(Semaphore::new(options.cache_bytes.min(Semaphore::MAX_PERMITS))),
            read_ahead_bytes: options.read_ahead_bytes,
            clock: options.clock,
            closing: AtomicBool::new(false),
        };
        let noted: Arc<AccessTimes> = Arc::default();
        let files = Files::new(Arc::new(context), noted.clone());
        let atimes = AtimePublisher {
            atimes: noted,
            requests: requests.clone(),
            leases,
            files: Arc::downgrade(&files),
        };
        let (atimes, supervisor) = (Arc::new(atimes), Arc::default());
        Self {
            options,
            group,
            requests,
            log,
            opens,
            locks,
            pages,
            files,
            segments,
            hot,
            atimes,
            supervisor,
            peers,
            budget,
            rng,
            session: OnceLock::new(),
            life: Mutex::default(),
        }
    }

    /// There is a session, which lives for `ttl` unless it is renewed.
    pub fn has_session(&self, ttl: Duration, cluster: Option<Uuid>) {
        // It is told once.
        let _ = self.session.set((ttl, cluster));
    }

    /// How long the session lives unless it is renewed; not at all before there is one.
    pub fn ttl(&self) -> Duration {
        self.session.get().map_or(Duration::ZERO, |(ttl, _)| *ttl)
    }

    /// The cluster, if that is known.
    pub fn cluster(&self) -> Option<Uuid> {
        self.session.get().and_then(|(_, cluster)| *cluster)
    }

    /// Begins to watch the cluster map.
    pub fn watch_map(&self) {
        let (servers, transport) = (self.options.metadata.clone(), self.options.transport.clone());
        let map = self.segments.map().clone();
        self.supervisor.run(map.follow(servers, transport, self.rng.clone()));
    }

    /// Begins all else that the mount does on its own, once it has a session.
    pub fn start(&self) {
        let Some(&(ttl, cluster)) = self.session.get() else { return };
        if let (Some(options), Some(cluster)) = (&self.options.hot, cluster) {
            self.hot.get_or_init(|| Hot::start(options.clone(), cluster));
        }
        let leases = &self.group.leases;
        let files = || Arc::downgrade(&self.files);
        let keep_alive = KeepAlive {
            group: self.group.clone(),
            log: self.log.clone(),
            opens: self.opens.clone(),
            locks: self.locks.clone(),
            files: files(),
            client: self.options.client_name.clone(),
            cluster,
            transport: self.options.transport.clone(),
            rng: self.rng.clone(),
        };
        let releaser = Arc::new(Releaser {
            requests: self.requests.clone(),
            log: self.log.clone(),
            opens: self.opens.clone(),
            locks: self.locks.clone(),
            sessions: self.group.sessions.clone(),
            leases: leases.clone(),
        });
        let (budget, flush_age) = (self.budget.clone(), self.options.flush_age);
        self.supervisor.run(keep_alive.run(ttl));
        self.supervisor.run(write_back::run(budget, flush_age, files()));
        self.supervisor.run(publish::run(self.log.clone()));
        self.supervisor.run(self.atimes.clone().run());
        let (group, supervisor) = (self.group.clone(), self.supervisor.clone());
        self.supervisor.run(recalls::run(group, releaser.clone(), files(), supervisor.clone()));
        self.supervisor.run(surplus::run(releaser, files(), supervisor));
        self.supervisor.run(lapse::run(leases.clone(), files()));
    }

    /// The mount is gone: whoever waits for the cluster ends.
    pub fn end(&self) {
        self.group.sessions.end();
        self.log.end();
        self.budget.end();
    }
}
