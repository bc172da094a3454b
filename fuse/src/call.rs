//! A request that has to wait: who wakes it, where its answer goes, what a signal does to it.
//!
//! Invariants: a request is answered exactly once, also when its work panics or is dropped; work
//! that was begun ends; the wait for a lock is told of signals, and whoever takes a lock, or
//! writes, hears that its caller is let go before the kernel does.
//!
//! Nothing is woken when a request begins to wait. The thread that took the request has polled its
//! work; whoever wakes it then, mostly a thread of the runtime that has just read the answer of a
//! server, starts the rest as a task right there.

use crate::abi::{Answer, Errno, Header, opcode};
use crate::channel::Route;
use crate::handler::{Handler, Waiter, Work};
use crate::proc::{is_killed, is_killed_there, process_of};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// The kernel forgets the pages that they replace only when it is told that they succeeded, so they
/// are answered when they have ended and not before.
const REPLACE_PAGES: [u32; 3] =
    [opcode::FALLOCATE, opcode::COPY_FILE_RANGE, opcode::COPY_FILE_RANGE_64];
/// Of these the kernel may tell no signal: the closes of a process that ends, and reads and writes
/// past its pages, which it sends in the background.
const UNHEARD: [u32; 3] = [opcode::FLUSH, opcode::READ, opcode::WRITE];
/// How often a waiting request whose caller got a signal looks whether that was killed.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The close of a caller that is killed still waits this long, so that what it wrote is seen by all
/// when it is gone; longer only if the cluster does not answer.
const LAST_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How often is looked whether all work has ended, for another process to go on.
const REST_INTERVAL: Duration = Duration::from_millis(1);
/// Signals that were heard before their request was entered.
const EARLY: usize = 256;

/// A request that is to be served again, as it came.
pub struct Kept {
    pub bytes: Vec<u8>,
    pub route: Route,
}

/// The requests of a mount that wait.
pub struct Waiting {
    handler: Arc<dyn Handler>,
    /// Serves a request again.
    again: Box<dyn Fn(Kept) + Send + Sync>,
    table: Mutex<Table>,
}

/// What a request for a lock, or a write, has: it hears of its caller.
pub struct Heard {
    caller: Arc<Waiter>,
    /// As it came, if it is for a lock.
    bytes: Vec<u8>,
    /// The caller got a signal.
    came: AtomicBool,
}

impl Heard {
    pub fn new(caller: Arc<Waiter>, bytes: &[u8]) -> Self {
        let bytes = if caller.locks { bytes.to_owned() } else { Vec::new() };
        Self { caller, bytes, came: AtomicBool::new(false) }
    }
}

#[derive(Default)]
struct Table {
    calls: HashMap<u64, Arc<Call>>,
    /// Work that goes on, for those and for callers that are gone.
    works: usize,
    /// What waits for locks ends, and is kept to be served again, until this mount is resumed.
    resting: bool,
    kept: Vec<Kept>,
    early: VecDeque<u64>,
    /// Somebody looks after those that wait unheard.
    watched: bool,
    /// Nobody waits any more.
    over: bool,
}

impl Waiting {
    pub fn new(handler: Arc<dyn Handler>, again: Box<dyn Fn(Kept) + Send + Sync>) -> Self {
        Self { handler, again, table: Mutex::default() }
    }

    /// Polls `work`; what it answers, now or later, goes to `route`. What becomes of the caller is
    /// passed on to `heard`. Must be called inside `runtime`.
    pub fn start(
        self: &Arc<Self>,
        header: &Header,
        route: Route,
        mut work: Work,
        heard: Option<Heard>,
        runtime: &Handle,
    ) {
        let call = Arc::new(Call {
            header: *header,
            route,
            heard,
            runtime: runtime.clone(),
            waiting: Arc::downgrade(self),
            answered: AtomicBool::new(false),
            looked_at: AtomicBool::new(false),
            process: OnceLock::new(),
            work: Mutex::new(Progress::Begun { woken: false }),
        });
        let waker = Waker::from(call.clone());
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            // Nobody else knows of it yet.
            Poll::Ready(answer) => call.route.answer(call.header.unique, &answer),
            Poll::Pending => {
                self.enter(&call);
                call.park(work);
            }
        }
    }

    /// Answers `EIO` to all that wait, and to all that would from now on: the mount ends.
    pub fn abandon(&self) {
        let mut table = self.table.lock();
        table.over = true;
        let calls: Vec<_> = table.calls.values().cloned().collect();
        drop(table);
        calls.iter().for_each(|call| call.answer(&Err(Errno(libc::EIO))));
    }

    /// See [`Session::rest`](crate::session::Session::rest).
    pub async fn rest(&self, deadline: Instant) -> io::Result<()> {
        let wait: Vec<_> = {
            let mut table = self.table.lock();
            table.resting = true;
            table.calls.values().filter(|call| call.heard.is_some()).cloned().collect()
        };
        wait.iter().filter_map(|call| call.heard.as_ref()).for_each(|h| h.caller.signal());
        loop {
            let works = self.table.lock().works;
            if works == 0 && self.handler.rests() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = format!("{works} requests of programs go on");
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            tokio::time::sleep(REST_INTERVAL).await;
        }
    }

    /// See [`Session::kept`](crate::session::Session::kept).
    pub fn kept(&self) -> Vec<Vec<u8>> {
        self.table.lock().kept.iter().map(|kept| kept.bytes.clone()).collect()
    }

    /// See [`Session::keep`](crate::session::Session::keep).
    pub fn keep(&self, requests: Vec<Vec<u8>>, route: &Route) {
        let kept = requests.into_iter().map(|bytes| Kept { bytes, route: route.clone() });
        self.table.lock().kept.extend(kept);
    }

    /// See [`Session::resume`](crate::session::Session::resume).
    pub fn resume(&self) {
        let kept = {
            let mut table = self.table.lock();
            table.resting = false;
            std::mem::take(&mut table.kept)
        };
        kept.into_iter().for_each(&self.again);
    }

    fn enter(self: &Arc<Self>, call: &Arc<Call>) {
        let mut table = self.table.lock();
        table.works += 1;
        if table.over {
            drop(table);
            return call.answer(&Err(Errno(libc::EIO)));
        }
        table.calls.insert(call.header.unique, call.clone());
        if UNHEARD.contains(&call.header.opcode) && !std::mem::replace(&mut table.watched, true) {
            call.runtime.spawn(self.clone().watch());
        }
        if let Some(at) = table.early.iter().position(|unique| *unique == call.header.unique) {
            table.early.remove(at);
            call.clone().interrupt(table);
        }
    }

    /// Looks whether what waits for long, and unheard, is of who is killed, as long as any does.
    async fn watch(self: Arc<Self>) {
        let mut seen: Vec<Arc<Call>> = Vec::new();
        loop {
            tokio::time::sleep(LAST_FLUSH_TIMEOUT).await;
            let waiting = seen.iter().filter(|call| !call.answered.load(Ordering::Acquire));
            // One look that takes long does not put off the others.
            for call in waiting {
                let call = call.clone();
                tokio::spawn(async move { call.look().await });
            }
            let mut table = self.table.lock();
            seen = table
                .calls
                .values()
                .filter(|call| UNHEARD.contains(&call.header.opcode))
                .cloned()
                .collect();
            if seen.is_empty() {
                table.watched = false;
                return;
            }
            drop(table);
            let unknown = seen.iter().filter(|call| call.process.get().is_none());
            for call in unknown.map(Arc::clone).collect::<Vec<_>>() {
                tokio::spawn(async move { call.note_process().await });
            }
        }
    }

    /// The caller of a request got a signal. The request may be answered already, or not be entered
    /// yet: another thread took it.
    pub fn interrupt(&self, unique: u64) {
        let mut table = self.table.lock();
        match table.calls.get(&unique).cloned() {
            Some(call) => call.interrupt(table),
            None => {
                if table.early.len() == EARLY {
                    table.early.pop_front();
                }
                table.early.push_back(unique);
            }
        }
    }
}

/// Where the work is.
enum Progress {
    /// Being polled by the thread that took the request.
    Begun { woken: bool },
    /// Here, until it is woken.
    Parked(Work),
    /// A task of the runtime.
    Running,
}

/// One request that waits.
struct Call {
    header: Header,
    route: Route,
    /// It hears of the caller.
    heard: Option<Heard>,
    runtime: Handle,
    waiting: Weak<Waiting>,
    answered: AtomicBool,
    /// Somebody looks whether the caller was killed.
    looked_at: AtomicBool,
    /// The process of the thread that has made it, if it waits for long.
    process: OnceLock<u32>,
    work: Mutex<Progress>,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        let mut progress = self.work.lock();
        match std::mem::replace(&mut *progress, Progress::Running) {
            Progress::Parked(work) => self.run(work),
            Progress::Begun { .. } => *progress = Progress::Begun { woken: true },
            Progress::Running => {}
        }
    }
}

impl Call {
    /// The first poll did not end the work.
    fn park(self: &Arc<Self>, work: Work) {
        let mut progress = self.work.lock();
        if let Progress::Begun { woken: false } = *progress {
            *progress = Progress::Parked(work);
        } else {
            *progress = Progress::Running;
            self.run(work);
        }
    }

    fn run(self: &Arc<Self>, work: Work) {
        let owed = Owed(self.clone());
        self.runtime.spawn(async move {
            let answer = work.await;
            owed.0.answer(&answer);
        });
    }

    /// Answers, unless that was done.
    fn answer(&self, answer: &Answer) {
        let waiting = self.waiting.upgrade();
        if !self.answered.swap(true, Ordering::AcqRel) {
            if let Some(waiting) = waiting {
                let mut table = waiting.table.lock();
                table.calls.remove(&self.header.unique);
                if let Some(kept) = self.keep_if_unasked(answer) {
                    if table.resting {
                        return table.kept.push(kept);
                    }
                    // It was told to end for another process that did not take over.
                    drop(table);
                    return (waiting.again)(kept);
                }
            }
            return self.route.answer(self.header.unique, answer);
        }
        if let (Ok(reply), Some(waiting)) = (answer, waiting) {
            waiting.handler.unwanted(&self.header, reply);
        }
    }

    /// What is to be served again: it ends at signals, and ended although none came.
    fn keep_if_unasked(&self, answer: &Answer) -> Option<Kept> {
        let heard = self.heard.as_ref()?;
        let ended = heard.caller.locks && matches!(answer, Err(Errno(libc::EINTR)));
        (ended && !heard.came.load(Ordering::Acquire))
            .then(|| Kept { bytes: heard.bytes.clone(), route: self.route.clone() })
    }

    /// Lets go of a caller that was killed. One looks at a time.
    async fn look(&self) {
        if self.looked_at.swap(true, Ordering::AcqRel) {
            return;
        }
        let killed = match self.header.opcode {
            // Who has begun it may have ended in peace, and another waits.
            opcode::READ | opcode::WRITE => {
                is_killed_there(self.header.pid, self.process.get().copied()).await
            }
            _ => is_killed(self.header.pid).await,
        };
        if killed {
            self.let_go();
        }
        self.looked_at.store(false, Ordering::Release);
    }

    async fn note_process(&self) {
        if let Some(process) = process_of(self.header.pid).await {
            let _ = self.process.set(process);
        }
    }

    fn let_go(&self) {
        // Before the kernel hears of it, and closes what the caller had open: a lock that is taken
        // after that would never be released, and a write would come after whoever has the lock.
        if self.heard.as_ref().is_some_and(|heard| !heard.caller.let_go()) {
            return;
        }
        tracing::debug!(opcode = self.header.opcode, "a killed caller does not wait");
        self.answer(&Err(Errno(libc::EINTR)));
    }

    fn interrupt(self: Arc<Self>, table: MutexGuard<'_, Table>) {
        if let Some(heard) = &self.heard {
            // Under the lock: who answers it looks at this under the same.
            heard.came.store(true, Ordering::Release);
            drop(table);
            heard.caller.signal();
        }
        if REPLACE_PAGES.contains(&self.header.opcode) {
            return;
        }
        // Programs do not expect any other call on a file to end early; Linux ends it only for one
        // that is killed.
        let runtime = self.runtime.clone();
        runtime.spawn(async move {
            // What waits for a lock ends by itself.
            if matches!(self.header.opcode, opcode::FLUSH | opcode::SETLKW) {
                tokio::time::sleep(LAST_FLUSH_TIMEOUT).await;
            }
            while !self.answered.load(Ordering::Acquire) {
                self.look().await;
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        });
    }
}

/// Makes sure that the kernel gets an answer when a task ends without one.
struct Owed(Arc<Call>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.answer(&Err(Errno(libc::EIO)));
        if let Some(waiting) = self.0.waiting.upgrade() {
            waiting.table.lock().works -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
