//! Orders to storage daemons, and the session that they write in.

use super::pass::Pass;
use crate::compaction::{Page, Part, Seats};
use crate::duties::propose::{LOOK_INTERVAL, propose};
use crate::node::Node;
use futures_util::StreamExt;
use futures_util::stream::iter;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::move_extents_entry::Move;
use weft_net::Peers;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, TargetId, v1};
use weft_segments::{Segment, TargetClient};

/// How long a storage daemon may take for one part.
const COMPACT_TIMEOUT: Duration = Duration::from_secs(180);
/// Parts of a file that are worked on at a time.
const MAX_PARTS: usize = 2;
/// Numbers of segments for one order: each attempt takes one.
const NUMBERS: u64 = 1 << 16;
/// Chunks of which nobody has heard are found when a session ends: each does after this.
const WRITER_LIFETIME: Duration = Duration::from_secs(3600);

/// Ends what leaders before this one wrote in.
pub(super) async fn end_writers(node: &Node) {
    let writers = node.state.writers().unwrap_or_else(|error| {
        tracing::error!("cannot read the list of sessions: {error}");
        Vec::new()
    });
    for session in writers {
        end_writer(node, session).await;
    }
}

async fn end_writer(node: &Node, session: SessionId) {
    let entry = v1::ExpireSessionEntry { session: session.0 };
    while propose(node, "end a session of the leader's own", Body::ExpireSession(entry))
        .await
        .is_err()
    {
        sleep(LOOK_INTERVAL).await;
    }
}

/// Gives orders to the storage daemons.
pub(super) struct Orders {
    node: Arc<Node>,
    peers: Arc<Peers>,
    /// The session that they write in, once there is one, and the next number in it.
    writer: tokio::sync::Mutex<Option<SessionId>>,
    next: AtomicU64,
    opened: Mutex<Option<Instant>>,
    /// Chunks may be left of an order that failed.
    is_spoilt: AtomicBool,
    /// Daemons take turns.
    turn: AtomicUsize,
}

impl Orders {
    pub fn new(node: Arc<Node>, peers: Arc<Peers>) -> Self {
        let (writer, next, opened, is_spoilt, turn) = Default::default();
        Self { node, peers, writer, next, opened, is_spoilt, turn }
    }

    /// Whether nothing more is to be written in the session: chunks may be left of it, or it is so
    /// old that some may be of which nobody has heard.
    pub fn is_over(&self) -> bool {
        let is_old = self.opened.lock().is_some_and(|at| at.elapsed() > WRITER_LIFETIME);
        is_old || self.is_spoilt.load(Ordering::Acquire)
    }

    /// No order is under way: ends the session if it is over.
    pub async fn settle(&self) {
        if !self.is_over() {
            return;
        }
        if let Some(session) = self.writer.lock().await.take() {
            end_writer(&self.node, session).await;
        }
        *self.opened.lock() = None;
        self.is_spoilt.store(false, Ordering::Release);
    }

    async fn session(&self) -> Result<SessionId> {
        let mut writer = self.writer.lock().await;
        if let Some(session) = *writer {
            return Ok(session);
        }
        let entry = Body::OpenWriter(v1::OpenWriterEntry {});
        let reply = propose(&self.node, "open a session of the leader's own", entry).await?;
        let Some(Reply::OpenSession(opened)) = reply.result else {
            return Err(Error::new(ErrorKind::Internal, "a session that is none"));
        };
        *self.opened.lock() = Some(Instant::now());
        Ok(*writer.insert(SessionId(opened.session)))
    }

    /// Goes on with a look at a file, and has written again what is worth it, until some was.
    pub async fn compact(&self, ino: InodeId, mut pass: Pass, seats: Seats) -> Pass {
        while let Some(from) = pass.from.take() {
            let state = self.node.state.clone();
            let look = move || state.compaction(ino, from, seats);
            let page = match self.node.env.blocking(look).await {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(error) => {
                    pass.failed = Some(error);
                    break;
                }
            };
            let Page { data_version, parts, layout, next, waits } = page;
            pass.version.get_or_insert(data_version);
            pass.from = next;
            pass.waits = pass.waits.or(Some(seats).filter(|_| waits));
            if parts.is_empty() {
                continue;
            }
            let parts = parts.into_iter().map(|part| self.write_again(ino, part, layout.into()));
            let mut written = iter(parts).buffer_unordered(MAX_PARTS);
            while let Some(written) = written.next().await {
                match written {
                    Ok(true) => pass.again = true,
                    Ok(false) => pass.waits = Some(seats),
                    Err(error) => pass.failed = pass.failed.or(Some(error)),
                }
            }
            break;
        }
        pass
    }

    /// Answers false if it would lie no better where it was written.
    async fn write_again(&self, ino: InodeId, part: Part, layout: v1::LayoutInfo) -> Result<bool> {
        let begun = Instant::now();
        let session = self.session().await?;
        let map = self.node.map();
        let order = v1::CompactRequest {
            extents: part.extents,
            segments: part.segments,
            layout: Some(layout),
            epoch: map.epoch,
            session: session.0,
            first_seq: self.next.fetch_add(NUMBERS, Ordering::Relaxed) + 1,
            cluster: map.cluster.clone(),
        };
        let written = self.daemon(&map)?.compact(&order, Instant::now() + COMPACT_TIMEOUT).await;
        let spoils = |error| {
            self.is_spoilt.store(true, Ordering::Release);
            error
        };
        let written = match written {
            // The file was changed meanwhile: nothing was written of what is no more.
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(true),
            written => written.map_err(spoils)?,
        };
        // It goes by what it knows of targets, which may have no room in one piece, or not all.
        let no_wider = || written.iter().any(|s| s.geometry.profile.width() <= part.width);
        let is_better = match part.scattered {
            true => written.len() as u64 * 2 <= part.places,
            false => !no_wider(),
        };
        let is_of_use = part.frees || is_better;
        // Of no use, all that was written is known, and becomes garbage at once.
        let moves = if is_of_use { moves(&order.extents, &written) } else { Vec::new() };
        let entry = v1::MoveExtentsEntry {
            ino: ino.0,
            session: session.0,
            moves,
            segments: written.iter().map(Segment::to_wire).collect(),
        };
        let moved = propose(&self.node, "move extents", Body::MoveExtents(entry)).await;
        moved.map_err(spoils)?;
        match is_of_use {
            true => {
                self.node.compaction.note_bytes(begun, part.bytes);
                tracing::debug!(%ino, part.bytes, pieces = order.extents.len(), "compacted");
            }
            false => tracing::info!(
                %ino, part.bytes,
                "not compacted: targets have no room for it in longer pieces, or on as many"
            ),
        }
        Ok(is_of_use)
    }

    /// The storage daemon whose turn it is.
    fn daemon(&self, map: &v1::ClusterMap) -> Result<TargetClient> {
        let up = map.targets.iter().filter(|t| t.state() == v1::TargetState::Up);
        let mut daemons: Vec<(&str, u32)> = up.map(|t| (t.address.as_str(), t.id)).collect();
        daemons.sort_unstable();
        daemons.dedup_by_key(|(address, _)| *address);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let none = || Error::new(ErrorKind::Unavailable, "no storage daemon is up");
        let (address, id) = daemons.get(turn % daemons.len().max(1)).ok_or_else(none)?;
        Ok(TargetClient::new(&self.peers, TargetId(*id), address))
    }
}

/// Where the bytes of these extents, one after the other, are in `written`.
fn moves(extents: &[v1::Extent], written: &[Segment]) -> Vec<Move> {
    let mut moves = Vec::with_capacity(extents.len());
    let mut segments = written.iter();
    let (mut to, mut at) = (segments.next(), 0);
    for e in extents {
        let Some(Source::Segment(source)) = &e.source else { continue };
        let mut done = 0;
        while let Some(segment) = to.filter(|_| done < e.len) {
            let len = (e.len - done).min(segment.geometry.length - at);
            if len == 0 {
                (to, at) = (segments.next(), 0);
                continue;
            }
            moves.push(Move {
                file_off: e.file_off + done,
                len,
                from: Some(v1::SegmentPart { id: source.id, off: source.off + done }),
                to: Some(v1::SegmentPart { id: Some(segment.id.into()), off: at }),
            });
            (done, at) = (done + len, at + len);
        }
    }
    moves
}
