//! Raft messages between servers: a bounded queue and a task per peer, batches over the framed
//! protocol, in order.
//!
//! Most batches want no answer: Raft's own messages answer them, and each frame costs a wake-up at
//! either end. Now and then one is a call, which notices a peer that does not take them.
//!
//! Raft tolerates loss, so nothing is retried here: what cannot be sent is dropped and reported,
//! and Raft sends anew what is still needed.

use crate::config::Member;
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};
use raft_prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use weft_net::Peer;
use weft_proto::{Error, ErrorKind, NodeId, Result, v1};

/// Messages that wait for one peer.
const QUEUE: usize = 4096;
/// Messages, and about how many bytes of them, in one batch.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1 << 20;
/// So many calls in the time of a deadline; the batches between them want no answer.
const CALLS: u32 = 8;

/// Who sends to another server.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// Who it is, and where it says that it is.
    pub member: Member,
    /// When it leads, it counts on who hears of it electing no other for so long; 0: on more than
    /// it says.
    pub least_silence: Duration,
}

/// What the event loop learns from the senders.
#[derive(Debug)]
pub struct Lost {
    pub peer: NodeId,
    /// A snapshot was among what was lost.
    pub snapshot: bool,
}

/// What the senders tell.
#[derive(Debug)]
pub enum Report {
    Lost(Lost),
    Answered {
        peer: NodeId,
        ack: v1::RaftAck,
    },
    /// The connection to it has ended, or none can be made: it may be gone.
    Ended(NodeId),
}

/// The queue to one peer.
pub struct Link {
    peer: NodeId,
    queue: mpsc::Sender<Message>,
    reports: mpsc::UnboundedSender<Report>,
}

impl Link {
    /// Starts the task that sends to `peer`. It ends when the link is dropped.
    pub fn start(
        from: Speaker,
        id: NodeId,
        peer: Arc<Peer>,
        deadline: Duration,
        cluster: impl Fn() -> Bytes + Send + 'static,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let report = reports.clone();
        tokio::spawn(async move {
            send_all(&from, id, &peer, deadline, cluster, waiting, &report).await;
        });
        Self { peer: id, queue, reports }
    }

    /// A link without a network: its messages come out of the receiver.
    #[cfg(test)]
    pub fn to(
        peer: NodeId,
        reports: mpsc::UnboundedSender<Report>,
    ) -> (Self, mpsc::Receiver<Message>) {
        let (queue, sent) = mpsc::channel(QUEUE);
        (Self { peer, queue, reports }, sent)
    }

    /// Queues a message, or drops it and reports so.
    pub fn send(&self, message: Message) {
        if let Err(e) = self.queue.try_send(message) {
            let snapshot = is_snapshot(&e.into_inner());
            let _ = self.reports.send(Report::Lost(Lost { peer: self.peer, snapshot }));
        }
    }
}

fn is_snapshot(message: &Message) -> bool {
    message.msg_type == MessageType::MsgSnapshot as i32
}

impl Speaker {
    fn batch(&self, messages: Vec<Bytes>, cluster: Bytes) -> v1::RaftBatch {
        v1::RaftBatch {
            from: self.member.id.0,
            messages,
            cluster,
            address: self.member.address.clone(),
            least_silence_ms: self.least_silence.as_millis() as u32,
        }
    }
}

/// The next message to `peer`; tells when the connection to it ends meanwhile.
async fn next(
    id: NodeId,
    peer: &Peer,
    connected: &mut bool,
    waiting: &mut mpsc::Receiver<Message>,
    reports: &mpsc::UnboundedSender<Report>,
) -> Option<Message> {
    loop {
        tokio::select! {
            biased;
            message = waiting.recv() => return message,
            () = peer.lost(), if *connected => {
                *connected = false;
                reports.send(Report::Ended(id)).ok()?;
            }
        }
    }
}

async fn send_all(
    from: &Speaker,
    id: NodeId,
    peer: &Peer,
    deadline: Duration,
    cluster: impl Fn() -> Bytes,
    mut waiting: mpsc::Receiver<Message>,
    reports: &mpsc::UnboundedSender<Report>,
) {
    let mut healthy = true;
    let mut called: Option<Instant> = None;
    // A connection was made, of which the end was not told.
    let mut connected = false;
    while let Some(first) = next(id, peer, &mut connected, &mut waiting, reports).await {
        let mut snapshot = is_snapshot(&first);
        let mut messages = vec![Bytes::from(first.encode_to_vec())];
        let mut bytes = messages[0].len();
        while messages.len() < BATCH && bytes < BATCH_BYTES {
            let Ok(next) = waiting.try_recv() else { break };
            snapshot |= is_snapshot(&next);
            messages.push(next.encode_to_vec().into());
            bytes += messages[messages.len() - 1].len();
        }
        let batch = from.batch(messages, cluster());
        let now = Instant::now();
        if called.is_some_and(|at| now < at + deadline / CALLS) && !snapshot && peer.tell(&batch) {
            continue;
        }
        let sent = peer.call(&batch, now + deadline).await;
        called = sent.is_ok().then_some(now);
        connected = sent.is_ok();
        if let Err(e) = &sent {
            if healthy {
                tracing::info!(
                    peer = id.0,
                    address = peer.address(),
                    "raft peer is unreachable: {e}"
                );
            }
            // What queued up meanwhile is out of date.
            while let Ok(stale) = waiting.try_recv() {
                snapshot |= is_snapshot(&stale);
            }
            if e.kind == ErrorKind::Unavailable && reports.send(Report::Ended(id)).is_err() {
                return;
            }
            if reports.send(Report::Lost(Lost { peer: id, snapshot })).is_err() {
                return;
            }
        } else if !healthy {
            tracing::info!(peer = id.0, address = peer.address(), "raft peer is reachable again");
        }
        healthy = sent.is_ok();
        // Also what was told before: it may have been forgotten meanwhile.
        if let Ok(ack) = sent
            && reports.send(Report::Answered { peer: id, ack }).is_err()
        {
            return;
        }
    }
}

/// Takes a batch apart: its sender speaks for itself, and to this server.
pub fn decode(batch: &v1::RaftBatch, me: NodeId) -> Result<Vec<Message>> {
    if batch.from == 0 || batch.from == me.0 {
        return Err(Error::new(
            ErrorKind::Protocol,
            format!("server {} is not another member of this group", batch.from),
        ));
    }
    batch
        .messages
        .iter()
        .map(|bytes| {
            let message = Message::decode(&bytes[..])
                .map_err(|e| Error::new(ErrorKind::Protocol, format!("raft message: {e}")))?;
            if message.from != batch.from || message.to != me.0 || !expected(&message) {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!(
                        "raft message of type {} from {} to {} in a batch from {} to {me}",
                        message.msg_type, message.from, message.to, batch.from
                    ),
                ));
            }
            Ok(message)
        })
        .collect()
}

/// The messages that servers of this group send each other. Proposals and reads are not forwarded:
/// clients go to the leader.
fn expected(message: &Message) -> bool {
    use MessageType::*;
    MessageType::from_i32(message.msg_type).is_some_and(|t| {
        matches!(
            t,
            MsgAppend
                | MsgAppendResponse
                | MsgRequestVote
                | MsgRequestVoteResponse
                | MsgSnapshot
                | MsgHeartbeat
                | MsgHeartbeatResponse
                | MsgRequestPreVote
                | MsgRequestPreVoteResponse
                | MsgTimeoutNow
        )
    })
}

/// Whether the entries of an append follow the position that it says, one by one, each from the
/// term of its leader or one before. Raft relies on it: a follower acknowledges by their number.
pub fn in_one_piece(append: &Message) -> bool {
    let mut before = (Some(append.index), append.log_term);
    append.entries.iter().all(|entry| {
        let next = before.0.and_then(|index| index.checked_add(1));
        let terms = before.1.max(1)..=append.term;
        before = (next, entry.term);
        next == Some(entry.index) && terms.contains(&entry.term)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_speak_and_only_for_themselves() {
        let message = |from, to, msg_type| Message { from, to, msg_type, ..Default::default() };
        let batch = |from, m: Message| v1::RaftBatch {
            from,
            messages: vec![m.encode_to_vec().into()],
            ..Default::default()
        };
        let heartbeat = MessageType::MsgHeartbeat as i32;
        let ask = |b| decode(&b, NodeId(1));
        assert_eq!(ask(batch(2, message(2, 1, heartbeat))).unwrap().len(), 1);
        for bad in [
            batch(1, message(1, 1, heartbeat)),
            batch(0, message(0, 1, heartbeat)),
            batch(2, message(3, 1, heartbeat)),
            batch(2, message(2, 3, heartbeat)),
            batch(2, message(2, 1, MessageType::MsgPropose as i32)),
            batch(2, message(2, 1, MessageType::MsgTransferLeader as i32)),
            batch(2, message(2, 1, 77)),
            v1::RaftBatch {
                from: 2,
                messages: vec![Bytes::from_static(b"\xff\xff\xff")],
                ..Default::default()
            },
        ] {
            assert_eq!(ask(bad).unwrap_err().kind, ErrorKind::Protocol);
        }
    }
}
