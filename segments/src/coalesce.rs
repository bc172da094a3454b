//! Small reads of one target that are begun together go in one request.
//!
//! Who reads much at once says so ([`coalesce`]): whenever it has begun all that it can for now,
//! what it began is sent, in a request for each target or for each [`MAX_PARTS`]. Nothing waits to
//! be sent in company.
//!
//! Invariants: each read is answered once, by its own bytes or its own error; what one of them
//! meets does not fail the others: they are asked for alone then. A request is left when nobody
//! waits for any of its reads any more.

use crate::target::{Part, TargetClient, passes_with_time};
use futures_util::future::join_all;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::task::coop::unconstrained;
use tokio::task_local;
use tokio::time::Instant;
use weft_net::Buffer;
use weft_net::sync::Mutex;
use weft_net::trace::{Here, here};
use weft_proto::{ChunkId, Error, ErrorKind, Result};

/// Reads of more bytes are worth a request of their own.
const MAX_SMALL: u64 = 256 << 10;
/// Most bytes and reads of one request, and bytes of what is shown for them.
const MAX_BYTES: u64 = 1 << 20;
const MAX_PARTS: usize = 64;
const MAX_TICKETS: usize = 32 << 10;

task_local! {
    static PENDING: Arc<Pending>;
}

/// A read that has not been sent.
struct Read {
    target: TargetClient,
    part: Part,
    deadline: Instant,
    /// Where in a trace it belongs.
    here: Here,
    answer: oneshot::Sender<Answer>,
}

/// What a read is answered.
pub(crate) struct Answer {
    pub read: Result<Vec<Buffer>>,
    /// Bytes of the request that it came with, if how long it took is to be told by this read.
    pub request_len: Option<u64>,
}

/// The reads of one task that have not been sent, and the requests that are under way.
#[derive(Default)]
struct Pending {
    reads: Mutex<Vec<Read>>,
    requests: Mutex<JoinSet<()>>,
}

/// Has small reads that `work` begins itself, and not in tasks of their own, go together. It should
/// begin no more than some hundred at once: it is not interrupted for the sake of other tasks, so
/// that what belongs together is not torn apart.
pub async fn coalesce<F: Future>(work: F) -> F::Output {
    let pending = Arc::<Pending>::default();
    let mut work = pin!(unconstrained(PENDING.scope(pending.clone(), work)));
    poll_fn(|cx| {
        let polled = work.as_mut().poll(cx);
        pending.send();
        polled
    })
    .await
}

/// [`TargetClient::get`], with others where that was asked for.
pub(crate) async fn get(target: TargetClient, part: Part, deadline: Instant) -> Answer {
    let len = part.len();
    let pending = PENDING.try_with(Arc::clone).ok();
    let Some(pending) = pending.filter(|_| len <= MAX_SMALL && target.serves_many()) else {
        let read = Box::pin(target.get(part.chunk, part.off, part.into, deadline)).await;
        return Answer { read, request_len: Some(len) };
    };
    let (answer, answered) = oneshot::channel();
    pending.reads.lock().push(Read { target, part, deadline, here: here(), answer });
    // Only who is gone himself has no answer.
    let gone = || Error::new(ErrorKind::Unavailable, "the read was given up");
    answered.await.unwrap_or_else(|_| Answer { read: Err(gone()), request_len: None })
}

/// Bytes of the request that a read of `len` bytes may go in, for who says how long it may take.
pub(crate) fn request_len(len: u64) -> u64 {
    let coalesced = len <= MAX_SMALL && PENDING.try_with(|_| ()).is_ok();
    if coalesced { MAX_BYTES } else { len }
}

impl Pending {
    /// Sends what has been begun.
    fn send(&self) {
        let mut reads = std::mem::take(&mut *self.reads.lock());
        reads.retain(|read| !read.answer.is_closed());
        if reads.is_empty() {
            return;
        }
        let mut requests = self.requests.lock();
        while requests.try_join_next().is_some() {}
        reads.sort_by_key(|read| read.target.id());
        let (mut request, mut bytes, mut shown): (Vec<Read>, _, _) = (Vec::new(), 0, 0);
        for read in reads {
            let (len, ticket) = (read.part.len(), read.target.ticket_len(read.part.chunk.segment));
            let fits = request.first().is_some_and(|first| first.target.is_same(&read.target))
                && bytes + len <= MAX_BYTES
                && shown + ticket <= MAX_TICKETS
                && request.len() < MAX_PARTS;
            if !fits {
                spawn(&mut requests, std::mem::take(&mut request));
                (bytes, shown) = (0, 0);
            }
            (bytes, shown) = (bytes + len, shown + ticket);
            request.push(read);
        }
        spawn(&mut requests, request);
    }
}

fn spawn(requests: &mut JoinSet<()>, reads: Vec<Read>) {
    let Some(first) = reads.first() else { return };
    requests.spawn(first.here.clone().carried(ask(reads)));
}

/// A read whose memory is part of a request.
struct Asked {
    target: TargetClient,
    /// Chunk, offset, and how much goes in each piece of memory.
    part: (ChunkId, u64, Vec<usize>),
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
}

impl Asked {
    /// By itself, unless nobody waits for it any more.
    async fn alone(mut self) {
        if self.answer.is_closed() {
            return;
        }
        let (chunk, off, lens) = self.part;
        let into = lens.into_iter().map(Buffer::take).collect();
        let read = tokio::select! {
            biased;
            () = self.answer.closed() => return,
            read = self.target.get(chunk, off, into, self.deadline) => read,
        };
        let _ = self.answer.send(Answer { read, request_len: None });
    }
}

/// Asks for reads of one target, and gives each its answer.
async fn ask(reads: Vec<Read>) {
    let Some(Read { target, .. }) = reads.first() else { return };
    let target = target.clone();
    let deadline = reads.iter().map(|read| read.deadline).min().unwrap_or_else(Instant::now);
    let (mut parts, mut asked) = (Vec::new(), Vec::new());
    for Read { target, part, deadline, answer, .. } in reads {
        let lens = part.into.iter().map(Buffer::len).collect();
        asked.push(Asked { target, part: (part.chunk, part.off, lens), deadline, answer });
        parts.push(part);
    }
    let mut request_len = Some(parts.iter().map(Part::len).sum());
    if let ([_], [_]) = (&parts[..], &asked[..]) {
        for (Part { chunk, off, into }, Asked { mut answer, .. }) in parts.into_iter().zip(asked) {
            let read = tokio::select! {
                biased;
                () = answer.closed() => return,
                read = target.get(chunk, off, into, deadline) => read,
            };
            let _ = answer.send(Answer { read, request_len });
        }
        return;
    }
    let read = tokio::select! {
        biased;
        () = given_up(&mut asked) => return,
        read = target.get_many(parts, deadline) => read,
    };
    let error = match read {
        Ok(read) => {
            for (asked, read) in asked.into_iter().zip(read) {
                let _ = asked.answer.send(Answer { read, request_len: request_len.take() });
            }
            return;
        }
        Err(error) => error,
    };
    if passes_with_time(&error) && error.kind != ErrorKind::NoTicket {
        for asked in asked {
            let _ = asked.answer.send(Answer { read: Err(error.clone()), request_len: None });
        }
        return;
    }
    // One of them is to blame.
    join_all(asked.into_iter().map(Asked::alone)).await;
}

/// Returns when nobody waits for any of these.
async fn given_up(asked: &mut [Asked]) {
    for asked in asked {
        asked.answer.closed().await;
    }
}
