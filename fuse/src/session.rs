//! One mount's conversation with the kernel: each request to the handler, each answer back.

use crate::abi::{self, Errno, Op, Request, opcode};
use crate::call::{Heard, Kept, Waiting};
use crate::channel::{Device, Route};
use crate::handler::{Handler, Outcome, Work};
use crate::mount_table::Connection;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::time::Instant;
use weft_client::trace::Span;

/// What the threads of a mount share.
pub struct Session {
    handler: Arc<dyn Handler>,
    runtime: Handle,
    waiting: Arc<Waiting>,
    connection: Option<Connection>,
}

impl Session {
    /// `connection`: what is aborted when it cannot be served any more.
    pub fn new(
        handler: Arc<dyn Handler>,
        runtime: Handle,
        connection: Option<Connection>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|session: &Weak<Self>| {
            let session = session.clone();
            let again = move |kept: Kept| {
                if let Some(session) = session.upgrade() {
                    session.serve_again(&kept);
                }
            };
            let waiting = Arc::new(Waiting::new(handler.clone(), Box::new(again)));
            Self { handler, runtime, waiting, connection }
        })
    }

    /// The runtime in which requests are handled; threads enter it once.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The kernel's side, where it is known.
    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// Answers everybody who waits with an error, from now on.
    pub fn abandon(&self) {
        self.waiting.abandon();
    }

    /// Serves requests until the connection is over. If that fails, or panics, requests would wait
    /// for ever that only this thread can take: the connection is aborted, and its callers get an
    /// error.
    pub fn guarded(&self, what: &str, serve: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let served = catch_unwind(AssertUnwindSafe(serve));
        let served = served.unwrap_or_else(|_| Err(io::Error::other("it panicked")));
        if let Err(error) = &served {
            tracing::error!("{what} has failed, and the mount with it: {error}");
            self.abandon();
            if let Some(connection) = &self.connection
                && let Err(error) = connection.abort()
            {
                tracing::error!("the connection cannot be aborted: {error}; unmount it");
            }
        }
        served
    }

    /// Serves one request. Does not block.
    /// `bytes`: as it came, if it came by `/dev/fuse`.
    pub fn serve(&self, request: &Request<'_>, route: Route, bytes: &[u8]) {
        let unique = request.header.unique;
        match request.op {
            Op::Forget { answers } => return self.handler.forgotten(request.header.node, answers),
            Op::ForgetMany(list) => {
                return list.for_each(|(ino, answers)| self.handler.forgotten(ino, answers));
            }
            Op::Interrupt { unique } => return self.waiting.interrupt(unique),
            Op::Unknown | Op::Init(_) => return route.answer(unique, &Err(Errno(libc::ENOSYS))),
            _ => {}
        }
        let owed = route.clone();
        let mut span = Span::root(opcode::name(request.header.opcode));
        if span.is_traced() {
            span.note("weft.inode", self.handler.root().swap(request.header.node));
        }
        let handle = || match span.within(|| self.handler.handle(request)) {
            Outcome::Done(answer) => {
                route.answer(unique, &answer);
                span.end(&answer);
            }
            Outcome::Working(work) => {
                let work = traced(span, work);
                self.waiting.start(&request.header, route, work, None, &self.runtime)
            }
            Outcome::Waiting(work, caller) => {
                let (work, heard) = (traced(span, work), Some(Heard::new(caller, bytes)));
                self.waiting.start(&request.header, route, work, heard, &self.runtime)
            }
        };
        let handled = catch_unwind(AssertUnwindSafe(handle));
        if handled.is_err() {
            tracing::error!("request {:?} panicked", request.header);
            owed.answer(unique, &Err(Errno(libc::EIO)));
        }
    }

    /// Waits until all work has ended; what waits for a lock is kept, to be served again. No thread
    /// may take requests meanwhile. Errors: `TimedOut` if some work goes on at `deadline`.
    pub async fn rest(&self, deadline: Instant) -> io::Result<()> {
        self.waiting.rest(deadline).await
    }

    /// The requests that were kept, as they came.
    pub fn kept(&self) -> Vec<Vec<u8>> {
        self.waiting.kept()
    }

    /// Keeps requests of another process, which came by this device.
    pub fn keep(&self, requests: Vec<Vec<u8>>, device: &Arc<Device>) {
        self.waiting.keep(requests, &Route::Device(device.clone()));
    }

    /// Serves what was kept, and keeps nothing any more.
    pub fn resume(&self) {
        self.waiting.resume();
    }

    fn serve_again(&self, Kept { bytes, route }: &Kept) {
        let _inside = self.runtime.enter();
        match abi::decode(bytes) {
            Ok(request) => self.serve(&request, route.clone(), bytes),
            Err(error) => self.refuse(error, bytes, route),
        }
    }

    /// What cannot be decoded is answered too, if it can be named.
    pub fn refuse(&self, error: abi::Malformed, head: &[u8], route: &Route) {
        tracing::error!("the kernel sent a request that cannot be understood: {error}");
        if let Some(unique) = head.get(8..16).and_then(|u| u.try_into().ok()) {
            route.answer(u64::from_ne_bytes(unique), &Err(Errno(libc::EIO)));
        }
    }
}

/// Work that belongs to a span, if there is one.
fn traced(span: Span, work: Work) -> Work {
    if span.is_traced() { Box::pin(span.around(work)) } else { work }
}
