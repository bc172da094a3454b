//! What a mounted filesystem is made of, and how its parts know of each other.

use crate::Options;
use crate::budget::Budget;
use crate::cache::{AccessTimes, Pages};
use crate::file::{Context, Files};
use crate::locks::Locks;
use crate::meta::Group;
use crate::namespace::{Opens, Publisher, Requests};
use crate::tasks::atime::AtimePublisher;
use crate::tasks::keep_alive::KeepAlive;
use crate::tasks::{Releaser, Supervisor, lapse, publish, recalls, surplus, write_back};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use weft_proto::Uuid;
use weft_segments::{Rng, Segments};

pub(super) struct Inner {
    pub options: Options,
    pub group: Arc<Group>,
    pub requests: Arc<Requests>,
    pub creates: Arc<Publisher>,
    pub opens: Arc<Opens>,
    pub locks: Arc<Locks>,
    pub pages: Arc<Pages>,
    pub files: Arc<Files>,
    pub segments: Arc<Segments>,
    pub atimes: Arc<AtimePublisher>,
    pub supervisor: Arc<Supervisor>,
    budget: Arc<Budget>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.supervisor.stop();
        self.end();
    }
}

impl Inner {
    pub fn new(options: Options, group: Arc<Group>, segments: Arc<Segments>) -> Self {
        let (sessions, leases) = (group.sessions.clone(), group.leases.clone());
        let creates = Arc::new(Publisher::new(group.clone()));
        let requests = Arc::new(Requests::new(group.clone(), creates.clone()));
        let opens = Arc::new(Opens::new(requests.clone(), sessions.clone()));
        let locks = Locks::new(group.clone(), requests.clone(), options.op_deadline);
        let pages: Arc<Pages> = Arc::default();
        let budget = Budget::new(options.write_buffer_bytes, options.op_deadline);
        let context = Context {
            requests: requests.clone(),
            creates: creates.clone(),
            opens: opens.clone(),
            locks: locks.clone(),
            sessions,
            leases: leases.clone(),
            pages: pages.clone(),
            segments: segments.clone(),
            budget: budget.clone(),
            ahead: Arc::new(Semaphore::new(options.cache_bytes.min(Semaphore::MAX_PERMITS))),
            read_ahead_bytes: options.read_ahead_bytes,
            clock: options.clock,
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
            creates,
            opens,
            locks,
            pages,
            files,
            segments,
            atimes,
            supervisor,
            budget,
        }
    }

    /// Begins all that the mount does on its own, in a session that lives for `ttl`.
    pub fn start(&self, ttl: Duration, cluster: Option<Uuid>, rng: Arc<Rng>) {
        let leases = &self.group.leases;
        let files = || Arc::downgrade(&self.files);
        let keep_alive = KeepAlive {
            group: self.group.clone(),
            creates: self.creates.clone(),
            opens: self.opens.clone(),
            locks: self.locks.clone(),
            files: files(),
            client: self.options.client_name.clone(),
            cluster,
            rng,
        };
        let releaser = Arc::new(Releaser {
            requests: self.requests.clone(),
            creates: self.creates.clone(),
            opens: self.opens.clone(),
            locks: self.locks.clone(),
            sessions: self.group.sessions.clone(),
            leases: leases.clone(),
        });
        let (budget, flush_age) = (self.budget.clone(), self.options.flush_age);
        self.supervisor.run(keep_alive.run(ttl));
        self.supervisor.run(write_back::run(budget, flush_age, files()));
        self.supervisor.run(publish::run(self.creates.clone()));
        self.supervisor.run(self.atimes.clone().run());
        self.supervisor.run(recalls::run(self.group.clone(), releaser.clone(), files()));
        self.supervisor.run(surplus::run(releaser, files()));
        self.supervisor.run(lapse::run(leases.clone(), files()));
    }

    /// The mount is gone: whoever waits for the cluster ends.
    pub fn end(&self) {
        self.group.sessions.end();
        self.budget.end();
    }
}
