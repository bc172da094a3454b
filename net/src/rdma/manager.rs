//! Connections of the RDMA connection manager.

use super::connection::Side;
use super::id::{Channel, Id, last};
use super::memory::Domain;
use super::nic::QueuePair;
use super::verbs::{READS, queue_pair, reads};
use rdma_mummy_sys::*;
use socket2::SockAddr;
use std::io;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;
use weft_proto::Uuid;

/// How long the manager looks for a host and a way to it, in milliseconds. Who asks waits no longer
/// than it likes.
const RESOLVE_MS: i32 = 1000;
/// Requests to connect that wait.
const BACKLOG: i32 = 1024;
/// How often a card sends again what was not acknowledged: 0 to 7, and 7 for ever where the other
/// side has no memory for a message, which never happens.
const RETRIES: u8 = 7;
/// Queue pairs that are made at a time: the threads are those that wait for drives, too.
const MAKERS: usize = 8;
/// Bytes of what is said with a request to connect.
pub(super) const TOKEN: usize = 16;

/// What is told of one connection, or of those that come to one listener.
pub(super) struct Events(Arc<AsyncFd<Channel>>);

struct Event {
    kind: rdma_cm_event_type::Type,
    status: i32,
    /// Of a request: who asks, and what he says.
    request: Option<Request>,
}

/// Somebody wants to connect.
pub(super) struct Request {
    id: Id,
    /// Reads that either side may have under way.
    reads: (u8, u8),
    pub token: Option<Uuid>,
}

impl Events {
    fn new() -> io::Result<Self> {
        // SAFETY: the descriptor is the channel's as long as that is there.
        let channel = unsafe { AsyncFd::register(Channel::new()?) };
        Ok(Self(Arc::new(channel.map_err(io::Error::from)?)))
    }

    async fn next(&self) -> io::Result<Event> {
        loop {
            let mut ready = self.0.readable().await?;
            match self.take() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                taken => return taken,
            }
        }
    }

    fn take(&self) -> io::Result<Event> {
        let mut event = null_mut();
        // SAFETY: the channel does not block; what is told is copied before it is acknowledged.
        unsafe {
            if rdma_get_cm_event(self.0.get_ref().0, &raw mut event) != 0 {
                return Err(io::Error::last_os_error());
            }
            let rdma_cm_event { id, event: kind, status, .. } = *event;
            let request = (kind == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST).then(|| {
                let asked = (*event).param.conn;
                let said = match asked.private_data.is_null() {
                    true => &[],
                    false => {
                        let len = usize::from(asked.private_data_len);
                        std::slice::from_raw_parts(asked.private_data.cast::<u8>(), len)
                    }
                };
                // Some networks pad what is said.
                let token = said.get(..TOKEN).and_then(Uuid::from_slice);
                let reads = (asked.responder_resources, asked.initiator_depth);
                Request { id: Id { at: id, channel: self.0.clone() }, reads, token }
            });
            rdma_ack_cm_event(event);
            Ok(Event { kind, status, request })
        }
    }

    async fn wait(&self, wanted: rdma_cm_event_type::Type, what: &str) -> io::Result<()> {
        let event = self.next().await?;
        if event.kind == wanted {
            return Ok(());
        }
        let why = match event.status {
            status if status < 0 => io::Error::from_raw_os_error(-status).to_string(),
            status => format!("event {}, {status}", event.kind),
        };
        Err(io::Error::other(format!("{what}: {why}")))
    }

    /// Returns when the connection is over.
    pub async fn over(self) -> String {
        loop {
            match self.next().await {
                Ok(Event { kind: rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED, .. }) => {
                    return "disconnected by the other side".into();
                }
                Ok(Event { kind: rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL, .. }) => {
                    return "the RDMA device was removed".into();
                }
                Ok(_) => {}
                Err(error) => return format!("the connection manager: {error}"),
            }
        }
    }
}

fn check(what: &str, answer: i32) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(last(what)) }
}

fn id(events: &Events) -> io::Result<Id> {
    let mut id = null_mut();
    // SAFETY: it is given back when dropped.
    let answer = unsafe {
        let channel = events.0.get_ref().0;
        rdma_create_id(channel, &raw mut id, null_mut(), rdma_port_space::RDMA_PS_TCP)
    };
    check("the connection manager", answer)?;
    Ok(Id { at: id, channel: events.0.clone() })
}

/// A queue pair that is not connected yet, what is told of it, and the memory that its card knows.
pub(super) struct Made {
    pub queue_pair: Box<dyn QueuePair>,
    pub domain: Arc<Domain>,
    pub events: Events,
    pub connecting: Connecting,
}

/// What connects a queue pair, once memory for messages was posted to it.
pub(super) struct Connecting {
    id: Arc<Id>,
    step: Step,
}

enum Step {
    Connect(Uuid, u8),
    Accept(u8, u8),
}

/// Finds a host and makes a queue pair to it. The caller bounds the time.
pub(super) async fn reach(to: SocketAddr, token: Uuid, class: Option<u8>) -> io::Result<Made> {
    let events = Events::new()?;
    let id = id(&events)?;
    let address = SockAddr::from(to);
    // SAFETY: the address is read during the call.
    let answer = unsafe {
        rdma_resolve_addr(id.at, null_mut(), address.as_ptr().cast_mut().cast(), RESOLVE_MS)
    };
    check("looking for the host", answer)?;
    events.wait(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED, "no RDMA to this host").await?;
    if let Some(mut class) = class {
        // SAFETY: one byte is read.
        let answer = unsafe { rdma_set_option(id.at, 0, 0, (&raw mut class).cast(), 1) };
        check("the traffic class", answer)?;
    }
    // SAFETY: `id` is there.
    check("looking for a way", unsafe { rdma_resolve_route(id.at, RESOLVE_MS) })?;
    events.wait(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED, "no way to this host").await?;
    aside(move || {
        let id = Arc::new(id);
        let (queue_pair, domain) = queue_pair(&id, Side::Caller, READS.into())?;
        let step = Step::Connect(token, reads(&id)?);
        Ok(Made { queue_pair, domain, events, connecting: Connecting { id, step } })
    })
    .await
}

/// Takes up a request and makes a queue pair for it.
pub(super) async fn take_up(request: Request) -> io::Result<Made> {
    aside(move || take_up_now(request)).await
}

/// Does what waits for the card on a thread of those for that, few at a time: to make a queue pair
/// takes milliseconds, and to register a region its time for each page. Who stops to wait before it
/// is his turn leaves nothing to be done. Ending a connection is not done so: its memory has to be
/// free of the card when the caller goes on.
pub(super) async fn aside<T: Send + 'static>(
    make: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    static TURNS: Semaphore = Semaphore::const_new(MAKERS);
    let turn = TURNS.acquire().await.map_err(io::Error::other)?;
    let made = tokio::task::spawn_blocking(move || {
        let made = make();
        drop(turn);
        made
    });
    made.await.map_err(io::Error::other)?
}

fn take_up_now(request: Request) -> io::Result<Made> {
    let Request { mut id, reads: (answered, asked), .. } = request;
    let events = Events::new()?;
    // SAFETY: what was told of it so far was acknowledged.
    check("taking up a request", unsafe { rdma_migrate_id(id.at, events.0.get_ref().0) })?;
    id.channel = events.0.clone();
    let id = Arc::new(id);
    let most = reads(&id)?;
    let (answered, asked) = (answered.min(most), asked.min(most));
    if asked == 0 {
        let what = "the other side lets nobody read its memory";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let (queue_pair, domain) = queue_pair(&id, Side::Server, asked.into())?;
    let step = Step::Accept(answered, asked);
    Ok(Made { queue_pair, domain, events, connecting: Connecting { id, step } })
}

impl Connecting {
    /// The caller bounds the time.
    pub async fn connect(self, events: &Events) -> io::Result<()> {
        self.begin()?;
        let established = rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED;
        events.wait(established, "the other side did not connect").await
    }

    fn begin(&self) -> io::Result<()> {
        // SAFETY: all of it is numbers and pointers.
        let mut asked: rdma_conn_param = unsafe { std::mem::zeroed() };
        asked.retry_count = RETRIES;
        asked.rnr_retry_count = RETRIES;
        // SAFETY: what is said is read during the call.
        let answer = unsafe {
            match &self.step {
                Step::Connect(token, reads) => {
                    asked.private_data = token.0.as_ptr().cast();
                    asked.private_data_len = TOKEN as u8;
                    (asked.responder_resources, asked.initiator_depth) = (*reads, *reads);
                    rdma_connect(self.id.at, &raw mut asked)
                }
                Step::Accept(answered, reads) => {
                    (asked.responder_resources, asked.initiator_depth) = (*answered, *reads);
                    rdma_accept(self.id.at, &raw mut asked)
                }
            }
        };
        check("connecting", answer)
    }
}

/// A port of the connection manager.
pub(super) struct Port {
    id: Id,
    events: Events,
}

impl Port {
    /// Listens; port 0 picks a free one.
    pub fn bind(at: SocketAddr) -> io::Result<Self> {
        let events = Events::new()?;
        let id = id(&events)?;
        let address = SockAddr::from(at);
        // SAFETY: the address is read during the call.
        let answer = unsafe { rdma_bind_addr(id.at, address.as_ptr().cast_mut().cast()) };
        check("binding an address", answer)?;
        // SAFETY: `id` is there.
        check("listening", unsafe { rdma_listen(id.at, BACKLOG) })?;
        Ok(Self { id, events })
    }

    pub fn number(&self) -> u16 {
        // SAFETY: both families have the port at the same place.
        u16::from_be(unsafe { (*self.id.at).route.addr.src_addr_union.src_sin.sin_port })
    }

    /// The next request to connect.
    pub async fn next(&self) -> io::Result<Request> {
        loop {
            let event = self.events.next().await?;
            if let Some(request) = event.request {
                return Ok(request);
            }
            if event.kind == rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL {
                return Err(io::Error::other("the RDMA device was removed"));
            }
        }
    }
}
