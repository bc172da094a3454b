//! Traces, as OpenTelemetry has them: what one operation did, in which processes, and how long each
//! part of it took.
//!
//! An operation is traced if the process where it begins chooses so ([`Span::root`]). Its context
//! goes along with the futures that do its parts, and with their requests to peers that know of it
//! (`Features::TRACES`). What is not traced costs a look at a variable of the thread.
//!
//! Invariants: nothing waits for whoever collects spans; a span is collected once, when it ends,
//! also if its future is dropped. Spans name no file and hold nothing of any.

use crate::frame::{Broken, Encode};
use bytes::{Buf, Bytes};
use pin_project_lite::pin_project;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context as Task, Poll};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use weft_proto::{Error, ErrorKind};

/// Where in a trace something belongs. Neither number is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// The trace.
    pub trace: u128,
    /// The span.
    pub span: u64,
}

impl Context {
    /// Bytes that it has on the wire.
    pub(crate) const LEN: usize = 24;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.trace.to_be_bytes());
        bytes[16..].copy_from_slice(&self.span.to_be_bytes());
        bytes
    }

    /// Takes it from the beginning of `head`; zeros are none. Error: there are too few bytes.
    pub(crate) fn take(head: &mut Bytes) -> Result<Option<Self>, Broken> {
        if head.len() < Self::LEN {
            return Err(Broken::Garbage("a request without the place it says it has".into()));
        }
        let context = Self { trace: head.get_u128(), span: head.get_u64() };
        Ok((context.trace != 0 && context.span != 0).then_some(context))
    }
}

/// A message behind its place in a trace.
pub(crate) struct Placed<'a> {
    pub place: [u8; Context::LEN],
    pub message: &'a dyn Encode,
}

impl Encode for Placed<'_> {
    fn encoded_len(&self) -> usize {
        self.place.len() + self.message.encoded_len()
    }

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.place);
        self.message.encode(to);
    }
}

/// What a span is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Work of this process.
    Internal,
    /// A request to another.
    Client,
    /// A request of another.
    Server,
}

/// What is known of a span besides its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Of few words.
    Text(String),
    /// A count, or bytes.
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number.try_into().unwrap_or(i64::MAX))
    }
}

/// A span that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its place.
    pub context: Context,
    /// The span that it is a part of; `None`: the operation began with it.
    pub parent: Option<u64>,
    /// That one is of another process.
    pub remote: bool,
    /// What it is of.
    pub side: Side,
    /// What was done.
    pub name: &'static str,
    /// When it began, by the clock of the machine.
    pub begun: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// More about it, by the names of OpenTelemetry's conventions or `weft.…`.
    pub attributes: Vec<(&'static str, Value)>,
    /// What it failed with.
    pub error: Option<String>,
}

/// Takes a span that has ended. Does not wait.
type Collect = Box<dyn Fn(Ended) + Send + Sync>;

struct Collector {
    /// One operation in 2^64 that begins here is traced for each of these.
    share: u64,
    collect: Collect,
}

static COLLECTOR: OnceLock<Collector> = OnceLock::new();

/// From now on spans of this process are collected, and of the operations that begin here this
/// `ratio` is traced, 0 to 1. Said once in a process; more is ignored.
pub fn collect(ratio: f64, collect: impl Fn(Ended) + Send + Sync + 'static) {
    let share = (ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
    if COLLECTOR.set(Collector { share, collect: Box::new(collect) }).is_err() {
        tracing::error!("traces are collected already");
    }
}

thread_local! {
    /// Where what this thread does just now belongs.
    static CURRENT: Cell<Option<Context>> = const { Cell::new(None) };
}

/// Where what is done just now belongs, if it is traced.
pub(crate) fn current() -> Option<Context> {
    CURRENT.get()
}

/// What is done just now belongs here until this is dropped.
struct Within(Option<Context>);

impl Within {
    fn enter(context: Context) -> Self {
        Self(CURRENT.replace(Some(context)))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// A span that has begun; none if what it is of is not traced. Ends when it is dropped.
pub struct Span(Option<Box<Open>>);

struct Open {
    /// But for what is known at its end.
    ended: Ended,
    since: Instant,
    /// What is logged meanwhile names the trace.
    log: tracing::Span,
}

impl Span {
    /// An operation begins. It is traced if it is one of the share that [`collect`] says.
    pub fn root(name: &'static str) -> Self {
        let chosen = COLLECTOR.get().filter(|c| c.share > 0 && rand::random::<u64>() <= c.share);
        if chosen.is_none() {
            return Self(None);
        }
        let trace = rand::random::<u128>().max(1);
        Self::begin(Side::Internal, name, Context { trace, span: 0 }, false)
    }

    /// A part of what is done just now.
    pub fn part(name: &'static str) -> Self {
        Self::of(Side::Internal, name)
    }

    /// As [`Self::part`], on this side.
    pub(crate) fn of(side: Side, name: &'static str) -> Self {
        match CURRENT.get() {
            Some(parent) if COLLECTOR.get().is_some() => Self::begin(side, name, parent, false),
            _ => Self(None),
        }
    }

    /// A request of another process.
    pub(crate) fn served(name: &'static str, parent: Context) -> Self {
        match COLLECTOR.get() {
            Some(_) => Self::begin(Side::Server, name, parent, true),
            None => Self(None),
        }
    }

    #[allow(clippy::disallowed_methods)] // For people only: nothing is decided by it.
    fn begin(side: Side, name: &'static str, parent: Context, remote: bool) -> Self {
        let context = Context { trace: parent.trace, span: rand::random::<u64>().max(1) };
        let ended = Ended {
            context,
            parent: Some(parent.span).filter(|&span| span != 0),
            remote,
            side,
            name,
            begun: SystemTime::now(),
            took: Duration::ZERO,
            attributes: Vec::new(),
            error: None,
        };
        // Of the highest level, so that it is there wherever something is logged.
        let trace_id = format_args!("{:032x}", context.trace);
        let log = tracing::error_span!(parent: None, "traced", trace_id);
        Self(Some(Box::new(Open { ended, since: Instant::now(), log })))
    }

    /// Notes something about it, under a name of OpenTelemetry's conventions or `weft.…`.
    pub fn note(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(open) = &mut self.0 {
            open.ended.attributes.push((name, value.into()));
        }
    }

    /// It ends with this.
    pub fn end(mut self, outcome: &impl Outcome) {
        if self.is_traced() {
            self.conclude(outcome.error());
        }
    }

    /// Whether anything is recorded.
    pub fn is_traced(&self) -> bool {
        self.0.is_some()
    }

    /// Its place.
    pub(crate) fn context(&self) -> Option<Context> {
        self.0.as_ref().map(|open| open.ended.context)
    }

    /// Does `work` as a part of it.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(open) = &self.0 else { return work() };
        let _within = Within::enter(open.ended.context);
        open.log.in_scope(work)
    }

    /// A future that is a part of it, and ends it.
    pub fn around<F>(self, future: F) -> Traced<F>
    where
        F: Future,
        F::Output: Outcome,
    {
        Traced { context: self.context(), span: self, future }
    }

    /// As [`Self::around`], of the future that serves a request of `place`. Also a process that
    /// collects nothing passes that on.
    pub(crate) fn serves<F>(self, place: Context, future: F) -> Traced<F>
    where
        F: Future,
        F::Output: Outcome,
    {
        Traced { context: self.context().or(Some(place)), span: self, future }
    }

    fn conclude(&mut self, error: Option<String>) {
        let (Some(open), Some(collector)) = (self.0.take(), COLLECTOR.get()) else { return };
        (collector.collect)(Ended { took: open.since.elapsed(), error, ..open.ended });
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.conclude(Some("given up".into()));
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.context()).finish()
    }
}

/// What a part of an operation ends with.
pub trait Outcome {
    /// What it failed with.
    fn error(&self) -> Option<String>;
}

/// What parts of operations fail with.
pub trait Failure {
    /// What it is, without names of files. `None`: an answer like others.
    fn name(&self) -> Option<String>;
}

impl Failure for Error {
    fn name(&self) -> Option<String> {
        let is_answer = matches!(self.kind, ErrorKind::NotFound | ErrorKind::Exists);
        (!is_answer).then(|| self.kind.name().into())
    }
}

impl<T, E: Failure> Outcome for Result<T, E> {
    fn error(&self) -> Option<String> {
        self.as_ref().err().and_then(Failure::name)
    }
}

impl<T> Outcome for Option<T> {
    fn error(&self) -> Option<String> {
        None
    }
}

impl Outcome for () {
    fn error(&self) -> Option<String> {
        None
    }
}

pin_project! {
    /// A future that belongs to a trace, or does not.
    pub struct Traced<F> {
        // Dropped first: its parts end before it.
        #[pin]
        future: F,
        span: Span,
        context: Option<Context>,
    }
}

impl<F> Future for Traced<F>
where
    F: Future,
    F::Output: Outcome,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(context) = *this.context else { return this.future.poll(task) };
        let _within = Within::enter(context);
        let Some(open) = &this.span.0 else { return this.future.poll(task) };
        let polled = open.log.in_scope(|| this.future.poll(task));
        if let Poll::Ready(outcome) = &polled {
            this.span.conclude(outcome.error());
        }
        polled
    }
}

pin_project! {
    /// A future that goes on where it was begun, in another task.
    pub struct Carried<F> {
        context: Option<Context>,
        log: tracing::Span,
        #[pin]
        future: F,
    }
}

/// `future`, to be spawned, belongs to what is done just now.
pub fn carried<F: Future>(future: F) -> Carried<F> {
    here().carried(future)
}

/// Where what is done just now belongs.
#[derive(Clone)]
pub struct Here {
    context: Option<Context>,
    log: tracing::Span,
}

/// For what is begun now and spawned later.
pub fn here() -> Here {
    let context = CURRENT.get();
    let log = context.map_or_else(tracing::Span::none, |_| tracing::Span::current());
    Here { context, log }
}

impl Here {
    /// `future` belongs there.
    pub fn carried<F: Future>(self, future: F) -> Carried<F> {
        Carried { context: self.context, log: self.log, future }
    }
}

impl<F: Future> Future for Carried<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(context) = *this.context else { return this.future.poll(task) };
        let _within = Within::enter(context);
        this.log.in_scope(|| this.future.poll(task))
    }
}
