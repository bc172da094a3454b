//! Has storage daemons write those parts of files again that lie in pieces, or in segments that
//! hold much that nobody shows ([`crate::compaction`]), and shows the files from there: what was
//! overwritten gives its room back, and long runs are read at once.
//!
//! A file is left alone while it is changed, but not for long. What was written again is shown only
//! where the file has not changed meanwhile ([`crate::ops`], `move_extents`), so nobody waits for
//! this, and nobody else's change is lost.
//!
//! Invariant (I7): chunks are written in a session of this leader's own. It is ended when an order
//! failed of which something may be left, and by the next leader; what it has not committed is
//! swept then.

use super::propose::propose;
use crate::compaction::{Page, Part, Seats};
use crate::node::Node;
use crate::ops::MAX_COMPACTED;
use futures_util::StreamExt;
use futures_util::stream::iter;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use v1::compacted_entry::File;
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::move_extents_entry::Move;
use weft_net::Peers;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, TargetId, v1};
use weft_segments::{Segment, TargetClient};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A file that is changed all the time is compacted all the same, this often; or after three times
/// as long as others are to be left alone.
const BUSY_INTERVAL: Duration = Duration::from_secs(30);
/// A file is looked at again after this, when some was written again or could not be, and then
/// after twice as long each time.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// How long a storage daemon may take for one part.
const COMPACT_TIMEOUT: Duration = Duration::from_secs(180);
/// Chunks of which nobody has heard are found when a session ends: each does after this.
const WRITER_LIFETIME: Duration = Duration::from_secs(3600);
/// Files that are worked on at a time, and parts of each.
const MAX_FILES: usize = 2;
const MAX_PARTS: usize = 2;
/// Files of the list that are read at a time, no more of the time than one part in so many.
const MAX_LISTED: usize = 16_384;
const LOOK_SHARE: u32 = 20;
/// Numbers of segments for one order: each attempt takes one.
const NUMBERS: u64 = 1 << 16;

/// Compacts files for as long as this server leads.
pub async fn compact_files(node: &Arc<Node>, peers: &Arc<Peers>) {
    end_writers(node).await;
    let orders = Arc::new(Orders::new(node.clone(), peers.clone()));
    let mut files = Files::default();
    let mut seats = Room::default();
    let mut jobs: JoinSet<(InodeId, Pass)> = JoinSet::new();
    loop {
        // One that ends makes room for the next.
        match timeout(LOOK_INTERVAL, jobs.join_next()).await {
            Ok(Some(Ok((ino, pass)))) => files.ended(ino, pass),
            // Of a job that panicked nothing is known: its file is looked at again.
            Ok(Some(Err(_))) | Err(_) => {}
            Ok(None) => {
                files.working.clear();
                orders.settle().await;
                sleep(LOOK_INTERVAL).await;
            }
        }
        files.tell_compacted(node).await;
        // What is under way ends before the session does that it is written in.
        if orders.is_over() || node.has_room().is_err() || !node.may_move_extents() {
            continue;
        }
        let seats = seats.look(node);
        if let Err(error) = files.look(node, seats).await {
            tracing::error!("cannot read the list of files to compact: {error}");
        }
        while jobs.len() < MAX_FILES
            && let Some(ino) = files.due.pop_front()
        {
            files.working.insert(ino);
            let pass = files.begin(ino);
            let orders = orders.clone();
            jobs.spawn(async move { (ino, orders.compact(ino, pass, seats).await) });
        }
    }
}

/// For how many targets segments are cut.
#[derive(Default)]
struct Room {
    /// Since when fewer take data than there are.
    short: Option<Instant>,
}

impl Room {
    /// What is away is waited for until it would be given up.
    fn look(&mut self, node: &Node) -> Seats {
        let map = node.map();
        let takes =
            |t: &&v1::TargetInfo| t.state() == v1::TargetState::Up && !t.full && !t.draining;
        let takes: HashSet<u32> = map.targets.iter().filter(takes).map(|t| t.id).collect();
        let open = || map.groups().filter(|pg| !pg.retired);
        let now = open().map(|pg| pg.targets.iter().filter(|id| takes.contains(id)).count());
        let (now, all) =
            (now.max().unwrap_or(0), open().map(|pg| pg.targets.len()).max().unwrap_or(0));
        if now >= all {
            self.short = None;
            return Seats { now, all };
        }
        let short = self.short.get_or_insert_with(Instant::now).elapsed();
        match short < Duration::from_millis(node.config.target_out_ms) {
            true => Seats { now, all },
            false => Seats { now, all: now },
        }
    }
}

/// Ends what leaders before this one wrote in.
async fn end_writers(node: &Node) {
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

/// A look at a whole file, some of it at a time: others have their turn meanwhile.
#[derive(Default)]
struct Pass {
    /// Where it goes on; `None`: it came to the end.
    from: Option<u64>,
    /// Of the content that it began with.
    version: Option<u64>,
    /// Some was written again: the file is looked at once more.
    again: bool,
    /// Some waits for more targets than these.
    waits: Option<Seats>,
    failed: Option<Error>,
}

/// What is known of the files on the list.
#[derive(Default)]
struct Files {
    waiting: HashMap<InodeId, Waiting>,
    working: BTreeSet<InodeId>,
    /// To be worked on next.
    due: VecDeque<InodeId>,
    /// To be taken off the list, and when some were.
    compacted: Vec<File>,
    told: Option<Instant>,
    /// When the list was read, how long that took, and what the state counted then.
    looked: Option<(Instant, Duration, u64)>,
    /// So far it was read: the rest has its turn next.
    after: InodeId,
}

struct Waiting {
    /// It has been on the list since, or since it was looked at.
    since: Instant,
    /// It is left alone until then, and after that for so long.
    until: Instant,
    pause: Duration,
    /// It is left alone for as long as no more targets take data than these.
    seats: Option<Seats>,
    pass: Option<Pass>,
}

impl Waiting {
    fn new(now: Instant) -> Self {
        Self { since: now, until: now, pause: RETRY_INTERVAL, seats: None, pass: None }
    }
}

impl Files {
    /// The pass that a file is worked on in.
    fn begin(&mut self, ino: InodeId) -> Pass {
        let begun = self.waiting.get_mut(&ino).and_then(|waiting| waiting.pass.take());
        begun.unwrap_or(Pass { from: Some(0), ..Pass::default() })
    }

    /// A part of a pass has ended.
    fn ended(&mut self, ino: InodeId, pass: Pass) {
        self.working.remove(&ino);
        let now = Instant::now();
        let waiting = self.waiting.entry(ino).or_insert_with(|| Waiting::new(now));
        waiting.since = now;
        if pass.from.is_some() {
            waiting.pass = Some(pass);
            // Behind others, and at once if there are none.
            self.due.push_back(ino);
            return;
        }
        waiting.seats = pass.waits.filter(|_| pass.failed.is_none() && !pass.again);
        if let Some(error) = &pass.failed {
            tracing::warn!(%ino, "a file cannot be compacted yet: {error}");
        } else if waiting.seats.is_none() && !pass.again {
            self.waiting.remove(&ino);
            let data_version = pass.version.unwrap_or(0);
            self.compacted.push(File { ino: ino.0, data_version });
            return;
        }
        waiting.until = now + waiting.pause;
        waiting.pause = (waiting.pause * 2).min(MAX_RETRY_INTERVAL);
    }

    /// Takes files off the list, many at a time.
    async fn tell_compacted(&mut self, node: &Node) {
        let is_early = self.told.is_some_and(|at| at.elapsed() < LOOK_INTERVAL);
        if is_early && self.compacted.len() < MAX_COMPACTED {
            return;
        }
        while !self.compacted.is_empty() {
            let some = self.compacted.len().min(MAX_COMPACTED);
            let entry = v1::CompactedEntry { files: self.compacted[..some].to_vec() };
            if propose(node, "take files off a list", Body::Compacted(entry)).await.is_err() {
                break;
            }
            self.compacted.drain(..some);
        }
        self.told = Some(Instant::now());
    }

    /// Reads the list, unless that was done a moment ago, or cannot show anything new. Those that
    /// have waited longest are due first.
    async fn look(&mut self, node: &Arc<Node>, seats: Seats) -> Result<()> {
        let (begun, count) = (Instant::now(), node.state.scattered());
        let idle = self.waiting.is_empty() && self.working.is_empty() && self.compacted.is_empty();
        if let Some((at, took, seen)) = self.looked {
            let early = at.elapsed() < LOOK_INTERVAL.max(took * LOOK_SHARE);
            if early || (idle && seen == count) {
                return Ok(());
            }
        }
        let (state, now_ns, after) = (node.state.clone(), node.env.clock.now_ns(), self.after);
        let quiet = Duration::from_millis(node.config.compact_after_ms);
        let quiet_ns = i64::try_from(quiet.as_nanos()).unwrap_or(i64::MAX);
        let list = move || {
            let listed = state.to_compact(after, MAX_LISTED)?;
            let is_quiet = |ino| {
                let changed = state.attr(ino)?.map_or(i64::MIN, |attr| attr.ctime_ns);
                Ok((ino, now_ns.saturating_sub(changed) >= quiet_ns))
            };
            listed.into_iter().map(is_quiet).collect::<Result<Vec<_>>>()
        };
        let listed = node.env.blocking(list).await?;
        let now = Instant::now();
        self.looked = Some((now, now - begun, count));
        let known: HashSet<InodeId> = listed.iter().map(|(ino, _)| *ino).collect();
        let last = listed.last().filter(|_| listed.len() == MAX_LISTED).map(|(ino, _)| *ino);
        self.after = last.unwrap_or(InodeId(0));
        let was_read = |ino: &InodeId| *ino > after && last.is_none_or(|last| *ino <= last);
        self.waiting.retain(|ino, _| !was_read(ino) || known.contains(ino));
        let told: HashSet<u64> = self.compacted.iter().map(|file| file.ino).collect();
        let busy = BUSY_INTERVAL.max(quiet * 3);
        let mut due = Vec::new();
        for (ino, quiet) in listed {
            let waiting = self.waiting.entry(ino).or_insert_with(|| Waiting::new(now));
            let ready = quiet || waiting.pass.is_some() || now - waiting.since >= busy;
            let in_time = match waiting.seats {
                Some(before) => before != seats,
                None => waiting.until <= now,
            };
            let is_free = !told.contains(&ino.0) && !self.working.contains(&ino);
            if ready && in_time && is_free {
                due.push((waiting.since, ino));
            }
        }
        due.sort_unstable();
        self.due = due.into_iter().map(|(_, ino)| ino).collect();
        Ok(())
    }
}

/// Gives orders to the storage daemons.
struct Orders {
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
    fn new(node: Arc<Node>, peers: Arc<Peers>) -> Self {
        let (writer, next, opened, is_spoilt, turn) = Default::default();
        Self { node, peers, writer, next, opened, is_spoilt, turn }
    }

    /// Whether nothing more is to be written in the session: chunks may be left of it, or it is so
    /// old that some may be of which nobody has heard.
    fn is_over(&self) -> bool {
        let is_old = self.opened.lock().is_some_and(|at| at.elapsed() > WRITER_LIFETIME);
        is_old || self.is_spoilt.load(Ordering::Acquire)
    }

    /// No order is under way: ends the session if it is over.
    async fn settle(&self) {
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
    async fn compact(&self, ino: InodeId, mut pass: Pass, seats: Seats) -> Pass {
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
            pass.again = true;
            let parts = parts.into_iter().map(|part| self.write_again(ino, part, layout.into()));
            let mut written = iter(parts).buffer_unordered(MAX_PARTS);
            while let Some(written) = written.next().await {
                pass.failed = pass.failed.or(written.err());
            }
            break;
        }
        pass
    }

    async fn write_again(&self, ino: InodeId, part: Part, layout: v1::LayoutInfo) -> Result<()> {
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
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(()),
            written => written.map_err(spoils)?,
        };
        // It goes by what it knows of targets, which may have no room in one piece, or not all.
        let no_wider = || written.iter().any(|s| s.geometry.profile.width() <= part.width);
        let is_better = match part.scattered {
            true => written.len() as u64 * 2 <= part.places,
            false => !no_wider(),
        };
        if !part.frees && !is_better {
            let what = "targets have no room for it in longer pieces, or on as many";
            return Err(spoils(Error::new(ErrorKind::NoSpace, what)));
        }
        let entry = v1::MoveExtentsEntry {
            ino: ino.0,
            session: session.0,
            moves: moves(&order.extents, &written),
            segments: written.iter().map(Segment::to_wire).collect(),
        };
        let moved = propose(&self.node, "move extents", Body::MoveExtents(entry)).await;
        moved.map_err(spoils)?;
        tracing::debug!(%ino, part.bytes, pieces = order.extents.len(), "compacted");
        Ok(())
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
