//! Sessions of this mount: request numbers, segment ids, renewal.
//!
//! Invariants: numbers and segment ids are unique within a session; `acked_below` never passes a
//! request that may still be sent again. One task renews; when the cluster has declared the session
//! dead it opens another, declares what is open in it, and everyone who waits goes on with that.

use crate::files::Files;
use crate::meta::Meta;
use crate::mount::Mount;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, warn};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{
    Error, ErrorKind, InodeId, REQUEST_WINDOW, Result, SegmentId, SessionId, Uuid, v1,
};
use weft_segments::{Rng, Writer};

const RENEW: Duration = Duration::from_secs(1);
/// Most opens, and most leases, in one piece of a declaration: some 2 MiB, half of what a request may be.
const PIECE: usize = 1 << 16;

#[derive(Default)]
struct Numbers {
    next: u64,
    outstanding: BTreeSet<u64>,
}

/// One session and its counters.
#[derive(Default)]
pub(crate) struct Session {
    pub id: SessionId,
    numbers: Mutex<Numbers>,
    /// The lowest outstanding number is over.
    moved: Notify,
    segments: AtomicU64,
}

/// The number of one request; it counts as outstanding until this is dropped.
pub(crate) struct Number<'a> {
    session: &'a Session,
    number: u64,
    acked_below: u64,
}

impl Session {
    fn new(id: SessionId) -> Self {
        Self { id, ..Self::default() }
    }

    /// The next number, as soon as it is in the window of what may be outstanding: one request that waits
    /// for another mount holds up those far behind it. Error: `TimedOut`.
    pub async fn number(&self, deadline: Instant) -> Result<Number<'_>> {
        loop {
            let moved = self.moved.notified();
            if let Some(number) = self.number_now() {
                return Ok(number);
            }
            if timeout_at(deadline, moved).await.is_err() {
                let what =
                    "too many requests wait for one that the metadata group has not answered";
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
        }
    }

    fn number_now(&self) -> Option<Number<'_>> {
        let mut numbers = self.numbers.lock();
        let number = numbers.next + 1;
        let acked_below = numbers.outstanding.first().copied().unwrap_or(number);
        if number - acked_below >= REQUEST_WINDOW {
            return None;
        }
        numbers.next = number;
        numbers.outstanding.insert(number);
        Some(Number { session: self, number, acked_below })
    }

    pub fn next_segment(&self) -> SegmentId {
        SegmentId { session: self.id, seq: self.segments.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Number<'_> {
    pub fn get(&self) -> u64 {
        self.number
    }

    /// All requests with lower numbers are over.
    pub fn acked_below(&self) -> u64 {
        self.acked_below
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        let outstanding = &mut self.session.numbers.lock().outstanding;
        let was_first = outstanding.first() == Some(&self.number);
        outstanding.remove(&self.number);
        if was_first {
            self.session.moved.notify_waiters();
        }
    }
}

/// The session that this mount has now.
pub(crate) struct Sessions {
    current: watch::Sender<Arc<Session>>,
    dead: watch::Sender<SessionId>,
    /// There will be no other one: the mount is gone.
    ended: watch::Sender<bool>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            current: watch::Sender::new(Arc::default()),
            dead: watch::Sender::new(SessionId(0)),
            ended: watch::Sender::new(false),
        }
    }
}

impl Writer for Sessions {
    fn next_segment(&self) -> SegmentId {
        self.current().next_segment()
    }

    fn session(&self) -> SessionId {
        self.current().id
    }

    fn has_ended(&self) -> bool {
        self.have_ended()
    }
}

impl Sessions {
    pub fn current(&self) -> Arc<Session> {
        self.current.borrow().clone()
    }

    /// Whether the session is over, as far as is known here.
    pub fn is_over(&self, id: SessionId) -> bool {
        self.have_ended() || *self.dead.borrow() >= id || self.current.borrow().id != id
    }

    /// The mount is gone: nobody waits any more.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    pub fn have_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits for the session that replaces `dead`.
    pub async fn replacement(&self, dead: SessionId, deadline: Instant) -> Result<Arc<Session>> {
        self.dead.send_if_modified(|d| {
            let news = *d < dead;
            *d = dead.max(*d);
            news
        });
        let (mut current, mut ended) = (self.current.subscribe(), self.ended.subscribe());
        let session = tokio::select! {
            biased;
            session = current.wait_for(|s| s.id != dead) => session.ok().map(|s| s.clone()),
            _ = ended.wait_for(|ended| *ended) => None,
            () = sleep_until(deadline) => None,
        };
        match session {
            Some(session) => Ok(session),
            None => Err(Error::new(
                ErrorKind::SessionExpired,
                format!(
                    "the cluster declared session {dead} of this mount dead, and no new one could be opened"
                ),
            )),
        }
    }
}

/// Opens a session and makes it the current one. Answers its time to live and the cluster. Errors: `WrongCluster`
/// if that is not `of`, the one that was mounted.
pub(crate) async fn open(
    meta: &Meta,
    of: Option<Uuid>,
    client: &str,
    rng: &Rng,
    deadline: Instant,
) -> Result<(Duration, Option<Uuid>)> {
    let nonce = rng.nonce().to_vec().into();
    let op = Op::OpenSession(v1::OpenSessionOp { client: client.into(), nonce });
    let request = v1::MetaRequest { op: Some(op), ..Default::default() };
    let sent = Instant::now();
    match meta.send(&request, Duration::from_secs(5), deadline).await?.result()? {
        Reply::OpenSession(reply) if reply.session != 0 => {
            let cluster = Uuid::from_slice(&reply.cluster);
            if of.is_some() && cluster != of {
                let what =
                    "another cluster was made in place of the one that was mounted: mount it anew";
                return Err(Error::new(ErrorKind::WrongCluster, what));
            }
            // An earlier try may have opened it: its time runs from then.
            meta.leases.renewed(sent, Duration::from_millis(reply.ttl_ms));
            meta.sessions.current.send_replace(Arc::new(Session::new(SessionId(reply.session))));
            Ok((Duration::from_millis(reply.ttl_ms), cluster))
        }
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "the reply to opening a session is of another kind",
        )),
    }
}

/// Keeps the mount's session alive for ever.
pub(crate) async fn keep(
    mount: Arc<Mount>,
    files: Weak<Files>,
    client: String,
    rng: Arc<Rng>,
    (mut ttl, cluster): (Duration, Option<Uuid>),
) {
    let meta = mount.meta.clone();
    let sessions = meta.sessions.clone();
    let mut dead = sessions.dead.subscribe();
    let mut declares = false;
    loop {
        let session = sessions.current();
        if *dead.borrow_and_update() >= session.id {
            warn!(session = %session.id, "the cluster declared this mount dead; opening a new session");
            meta.leases.lost();
            meta.creates.lost();
            mount.opens.lose_rights_to_map();
            if let Some(files) = files.upgrade() {
                files.locks().lost_with(session.id);
                files.lose_content().await;
            }
            match open(&meta, cluster, &client, &rng, meta.deadline()).await {
                Ok((new, _)) => {
                    ttl = new;
                    meta.leases.lost();
                }
                Err(error) => {
                    warn!(%error, "cannot open a new session; trying on");
                    sleep(RENEW).await;
                }
            }
            declares = true;
            continue;
        }
        let write_leases = match declares {
            true => {
                let kept = meta.leases.keep_writes();
                forget_content(&files).await;
                kept
            }
            false => Vec::new(),
        };
        let sent = Instant::now();
        match renew(&mount, &session, declares, write_leases, ttl).await {
            Ok(reply) => {
                meta.leases.renewed(sent, Duration::from_millis(reply.ttl_ms));
                ttl = Duration::from_millis(reply.ttl_ms.max(1));
                if reply.need_declare && !declares {
                    declares = true;
                    continue;
                }
                declares = false;
            }
            Err(error) if error.kind == ErrorKind::SessionExpired => {
                sessions.dead.send_replace(session.id);
                continue;
            }
            Err(error) => debug!(%error, "cannot renew the session; trying on"),
        }
        let pause = RENEW.min(ttl / 4).max(Duration::from_millis(1));
        tokio::select! {
            biased;
            _ = dead.changed() => {}
            () = mount.opens.declare_now.notified() => declares = true,
            () = sleep(pause) => {}
        }
    }
}

/// What is cached above this library is of leases that are held no more.
async fn forget_content(files: &Weak<Files>) {
    if let Some(files) = files.upgrade() {
        files.forget_content().await;
    }
}

/// Renews the session; `declares`: and tells what it holds, in pieces that fit into a request.
async fn renew(
    mount: &Mount,
    session: &Session,
    declares: bool,
    write_leases: Vec<InodeId>,
    ttl: Duration,
) -> Result<v1::RenewReply> {
    let open_files = Some(mount.opens.count());
    if !declares {
        let op = v1::RenewOp { open_files, ..Default::default() };
        return renew_with(mount, session, op, ttl).await;
    }
    let declaration = mount.opens.begin_declaration();
    let mut leases = write_leases.chunks(PIECE);
    let maps = mount.opens.all_maps();
    let mut maps = maps.chunks(PIECE);
    let (mut after, mut piece) = (None, 0);
    loop {
        let opens = mount.opens.declare_some(after, PIECE);
        after = opens.last().map(|open| InodeId(open.ino)).or(after);
        let write_leases = leases.next().unwrap_or_default().iter().map(|ino| ino.0).collect();
        let maps_of = maps.next().unwrap_or_default().iter().map(|ino| ino.0).collect();
        let more = opens.len() == PIECE || leases.len() > 0 || maps.len() > 0;
        let op = v1::RenewOp {
            declares,
            opens,
            write_leases,
            open_files,
            declaration,
            piece,
            more,
            maps: maps_of,
        };
        let reply = renew_with(mount, session, op, ttl).await?;
        if !more {
            return Ok(reply);
        }
        piece += 1;
    }
}

async fn renew_with(
    mount: &Mount,
    session: &Session,
    op: v1::RenewOp,
    ttl: Duration,
) -> Result<v1::RenewReply> {
    let op = Some(Op::Renew(op));
    let request = v1::MetaRequest { session: session.id.0, op, ..Default::default() };
    let attempt = (ttl / 4).max(Duration::from_millis(200));
    match mount.meta.send(&request, attempt, Instant::now() + ttl).await?.result()? {
        Reply::Renew(reply) => Ok(reply),
        _ => Err(Error::new(ErrorKind::Protocol, "the reply to a renewal is of another kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acked_below_stops_at_the_oldest_outstanding_request() {
        let session = Session::new(SessionId(7));
        let number = || session.number_now().expect("in the window");
        let first = number();
        assert_eq!((first.get(), first.acked_below()), (1, 1));
        let second = number();
        assert_eq!((second.get(), second.acked_below()), (2, 1));
        drop(second);
        assert_eq!(number().acked_below(), 1);
        drop(first);
        let later = number();
        assert_eq!((later.get(), later.acked_below()), (4, 4));
        assert_eq!(session.next_segment(), SegmentId { session: SessionId(7), seq: 1 });
        assert_eq!(session.next_segment().seq, 2);
    }

    /// The group would refuse them for good, and what they carry would be given up.
    #[tokio::test(start_paused = true)]
    async fn numbers_beyond_the_window_wait_for_the_oldest_request() {
        let session = Session::new(SessionId(7));
        let oldest = session.number_now().expect("in the window");
        for _ in 1..REQUEST_WINDOW {
            session.number_now().expect("in the window");
        }
        let soon = Instant::now() + Duration::from_secs(1);
        let refused = session.number(soon).await.map(|number| number.get());
        assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::TimedOut));
        let late = soon + Duration::from_secs(1);
        let (number, ()) = tokio::join!(session.number(late), async { drop(oldest) });
        let number = number.expect("the oldest is over");
        assert_eq!((number.get(), number.acked_below()), (REQUEST_WINDOW + 1, REQUEST_WINDOW + 1));
    }
}
