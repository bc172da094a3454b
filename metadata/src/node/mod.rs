//! The Raft node: what the rest of the server asks of it ([`Node`]), and the event loop behind
//! ([`driver`]).
//!
//! Invariants: a proposal is answered after it was applied here, or with an error that makes the
//! client retry it under the same number (I4); [`ErrorKind::NotLeader`] says that it is in no log,
//! and [`ErrorKind::Unavailable`] that it may be; a read that passed [`Node::read_barrier`] sees
//! all that was acknowledged before it began (I6).

mod admission;
mod announced;
pub(crate) mod apply;
mod compaction;
mod damaged;
mod disk;
mod driver;
mod group;
mod leading;
mod lease;
mod members;
mod messages;
mod outbox;
mod proposal;
mod purged;
pub mod room;
mod setup;
mod snapshots;
mod succession;
mod troubles;

pub use crate::known::Known;
pub use driver::{Driver, Wiring};
pub use group::Links;
pub use proposal::Effect;

use crate::config::Config;
use crate::env::Env;
use crate::events;
use crate::map_changes::MapChanges;
use crate::raftlog::Position;
use crate::sharing::Sharing;
use crate::soft::SoftState;
use crate::soft::compaction::Compaction;
use crate::soft::hot::Hot;
use crate::soft::repair::Progress;
use crate::state::StateMachine;
use crate::tables::members::Membership;
use bytes::Bytes;
use lease::Lease;
use parking_lot::Mutex;
use proposal::Proposal;
pub use purged::Looks;
use purged::Purged;
use rand::RngCore;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use troubles::{Behind, Damage};
use weft_net::trace::Span;
use weft_proto::{Error, ErrorKind, MapEpoch, NodeId, Result, Uuid, v1};
use weft_segments::TicketKey;

/// Bytes that are left on a disk that nobody has looked at yet.
const UNKNOWN: u64 = u64::MAX;

/// Who leads, as this server knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct View {
    pub term: u64,
    /// `None` while there is no leader, or none is known.
    pub leader: Option<NodeId>,
    /// This server leads, and its state holds all that earlier leaders acknowledged.
    pub ready: bool,
    /// It is ready, and the cluster has been made: it answers clients and daemons.
    pub serving: bool,
}

/// A handle to the node, shared by all tasks of the server.
pub struct Node {
    pub config: Config,
    pub env: Env,
    pub state: Arc<StateMachine>,
    /// Soft state of the term in which this server leads.
    pub soft: SoftState,
    /// How far the repair has come in this term.
    pub repair: Progress,
    view: watch::Sender<View>,
    applied: watch::Sender<u64>,
    map: watch::Sender<Arc<v1::ClusterMap>>,
    /// What led to it last.
    map_changes: Mutex<MapChanges>,
    commit: AtomicU64,
    lease: Lease,
    proposals: mpsc::Sender<Proposal>,
    barriers: mpsc::Sender<oneshot::Sender<Result<()>>>,
    /// The others, with the last request of each to be admitted and what that was told. Held while
    /// an entry is under way.
    admissions: Mutex<BTreeMap<NodeId, Admission>>,
    membership: Mutex<Arc<Membership>>,
    /// What the leader knows of the others.
    followers: Mutex<Vec<v1::MemberStat>>,
    /// What a change of the group waits for.
    waits: Mutex<String>,
    abdications: mpsc::Sender<Abdication>,
    /// This server has left the group.
    removed: watch::Sender<bool>,
    /// It stops: long work ends ([`goes_on`]).
    pub stop: watch::Receiver<bool>,
    /// This server leads, and a majority of the group answers without it.
    replaceable: AtomicBool,
    /// Bytes left on the disk of this server.
    free_bytes: AtomicU64,
    /// Bytes that are to stay free there.
    reserve_bytes: AtomicU64,
    low_on_room: AtomicBool,
    /// The other servers that are.
    others_low: Mutex<BTreeSet<NodeId>>,
    /// Whether this server cannot fetch the state that it needs.
    pub behind: Behind,
    /// What it could not read or copy of what it has, to give it to others.
    pub damage: Damage,
    pub compaction: Compaction,
    pub sharing: Sharing,
    /// Which directories clients ask for most.
    pub hot: Hot,
    /// Entries may carry events.
    tells: AtomicBool,
    /// Held by who mends the namespace.
    pub mending: Arc<tokio::sync::Mutex<()>>,
    /// How far orphans have been purged.
    pub purged: Purged,
    /// Which entries of the log other servers know, as [`Known`] numbers them.
    known_entries: Mutex<BTreeMap<NodeId, u32>>,
    /// What all have known once, as far as it was looked up.
    once_known: AtomicU32,
    /// Signs what clients show storage daemons while this server leads.
    pub ticket_key: TicketKey,
}

/// To whom the lead is to go (`None`: whoever is furthest), and who asks.
type Abdication = (Option<NodeId>, oneshot::Sender<Result<NodeId>>);

type Admission = Arc<tokio::sync::Mutex<Option<(Bytes, v1::JoinReply)>>>;

/// What a generator is for.
const TICKETS: u64 = 0x7163;

/// Longest log entry, in bytes: a commit with all that may travel inline stays well below.
const MAX_ENTRY: usize = 2 << 20;

impl Node {
    fn new(
        config: Config,
        env: Env,
        state: Arc<StateMachine>,
        proposals: mpsc::Sender<Proposal>,
        barriers: mpsc::Sender<oneshot::Sender<Result<()>>>,
        abdications: mpsc::Sender<Abdication>,
        stop: watch::Receiver<bool>,
    ) -> Result<Self> {
        let applied = state.applied();
        Ok(Self {
            lease: Lease::new(config.least_silence()),
            soft: SoftState::default(),
            repair: Progress::default(),
            view: watch::Sender::new(View::default()),
            applied: watch::Sender::new(applied),
            map: watch::Sender::new(Arc::new(map_of(&state)?)),
            map_changes: Mutex::default(),
            commit: AtomicU64::new(applied),
            proposals,
            barriers,
            admissions: Mutex::default(),
            membership: Mutex::new(Arc::new(membership_of(&state, &config)?)),
            followers: Mutex::default(),
            waits: Mutex::default(),
            abdications,
            removed: watch::Sender::new(false),
            stop,
            replaceable: AtomicBool::new(false),
            free_bytes: AtomicU64::new(UNKNOWN),
            reserve_bytes: AtomicU64::new(0),
            low_on_room: AtomicBool::new(false),
            others_low: Mutex::default(),
            behind: Behind::default(),
            damage: Damage::default(),
            compaction: Compaction::default(),
            sharing: Sharing::default(),
            hot: Hot::default(),
            tells: AtomicBool::new(false),
            mending: Arc::default(),
            purged: Purged::default(),
            known_entries: Mutex::default(),
            once_known: AtomicU32::new(0),
            ticket_key: TicketKey::new(env.rng(TICKETS).next_u64(), env.secret()),
            state,
            env,
            config,
        })
    }

    /// Another server says which entries it knows.
    fn note_known_entries(&self, server: NodeId, entries: u32) {
        self.known_entries.lock().insert(server, entries);
    }

    /// The connection to a server has ended: at its end may be another version from now on.
    fn forget_known_entries(&self, server: NodeId) {
        self.known_entries.lock().remove(&server);
    }

    /// Whether a server may be sent the log and the state: not before it has said that it knows
    /// what all have known once. One that passed over a part would be another than the others from
    /// then on.
    fn may_follow(&self, server: NodeId) -> bool {
        let once = self.once_known();
        let knows = |level: &u32| *level >= once;
        once == 0 || self.known_entries.lock().get(&server).is_some_and(knows)
    }

    /// Whether every server of the group knows these entries: one of an older version would pass
    /// over them, and be another than the others from then on.
    pub fn all_know(&self, entries: Known) -> bool {
        self.level() >= entries as u32
    }

    /// What every server of the group knows, as in [`Known`]. One that has not said so to this
    /// server since it started, as it may be down, knows what all have known once: no older version
    /// comes back.
    pub fn level(&self) -> u32 {
        let (mut told, mut silent) = (Known::NEWEST, false);
        {
            let known = self.known_entries.lock();
            let members = self.membership();
            for member in members.members.iter().filter(|m| m.id != self.config.id.0) {
                match known.get(&NodeId(member.id)) {
                    Some(level) => told = told.min(*level),
                    None => silent = true,
                }
            }
        }
        if silent { told.min(self.once_known()) } else { told }
    }

    /// What all have known once, as the state says.
    pub fn once_known(&self) -> u32 {
        let known = self.once_known.load(Ordering::Relaxed);
        if known >= Known::NEWEST {
            return known;
        }
        let known = self.state.known_level().unwrap_or(known).max(known);
        self.once_known.fetch_max(known, Ordering::Relaxed);
        known
    }

    /// Who leads.
    pub fn view(&self) -> View {
        *self.view.borrow()
    }

    /// Follows who leads.
    pub fn watch_view(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// The cluster map; its sender changes it whenever its epoch has grown.
    pub fn watch_map(&self) -> watch::Receiver<Arc<v1::ClusterMap>> {
        self.map.subscribe()
    }

    /// What has changed of the map since that of this epoch; `None` where only the whole map can
    /// tell, as it is of targets that are gone for who does not take `dropped_targets`.
    pub fn map_changes(&self, since: u64, dropped_targets: bool) -> Option<v1::ClusterMap> {
        self.map_changes.lock().since(since, dropped_targets)
    }

    /// The cluster map as last applied here.
    pub fn map(&self) -> Arc<v1::ClusterMap> {
        self.map.borrow().clone()
    }

    /// The cluster's identity, once the cluster was made.
    pub fn cluster(&self) -> Option<Uuid> {
        cluster_of(&self.map())
    }

    /// Epoch of [`Node::map`].
    pub fn epoch(&self) -> MapEpoch {
        MapEpoch(self.map.borrow().epoch)
    }

    /// Index of the last entry known to be committed.
    pub fn commit_index(&self) -> u64 {
        self.commit.load(Ordering::Relaxed)
    }

    /// Index of the last entry that was applied and whose effect on soft state is in place.
    pub fn applied_index(&self) -> u64 {
        *self.applied.borrow()
    }

    /// Waits until the effects of all entries up to `index` on soft state are in place.
    pub async fn settled(&self, index: u64) -> Result<()> {
        let mut applied = self.applied.subscribe();
        applied.wait_for(|&a| a >= index).await.map_err(|_| stopping())?;
        Ok(())
    }

    /// The error for who asks a server that does not lead.
    pub fn not_leader(&self) -> Error {
        self.not_leader_but(self.view().leader)
    }

    /// As [`Self::not_leader`], for who knows better who leads.
    fn not_leader_but(&self, leader: Option<NodeId>) -> Error {
        let me = self.config.id;
        let address =
            leader.filter(|&id| id != me).and_then(|id| self.address_of(id)).unwrap_or_default();
        let message = if address.is_empty() {
            format!("metadata server {me} does not lead and knows no leader now")
        } else {
            format!("metadata server {me} does not lead; {address} does")
        };
        Error { kind: ErrorKind::NotLeader, message, hint: address }
    }

    /// What to answer in place of an error: if this server cannot read its state, and another can
    /// take its lead, that is asked again.
    pub fn or_elsewhere(&self, error: Error) -> Error {
        let unreadable = error.kind == ErrorKind::Io && self.state.failure().is_some();
        if !unreadable || !self.replaceable.load(Ordering::Relaxed) {
            return error;
        }
        let what = format!("this metadata server leaves its lead to the others: {error}");
        Error::new(ErrorKind::Unavailable, what)
    }

    /// What of its log or its state this server could not read or copy, for people.
    pub fn damaged(&self) -> Option<String> {
        self.damage.what().or_else(|| self.state.failure().map(|e| e.message))
    }

    /// Waits until this server leads and may answer. Another leader, or none before the deadline,
    /// is an error at once or then.
    pub async fn lead(&self, deadline: Instant) -> Result<u64> {
        let me = self.config.id;
        let settled = |v: &View| v.serving || v.leader.is_some_and(|leader| leader != me);
        let view = self.view();
        let view = if settled(&view) {
            view
        } else {
            let mut watch = self.view.subscribe();
            tokio::time::timeout_at(deadline, watch.wait_for(settled))
                .await
                .map_err(|_| self.not_leader())?
                .map(|v| *v)
                .map_err(|_| stopping())?
        };
        if view.serving { Ok(view.term) } else { Err(self.not_leader()) }
    }

    /// Proposes an entry and answers what applying it answered.
    pub async fn propose(
        &self,
        body: v1::log_entry::Body,
        effect: Effect,
    ) -> Result<v1::MetaReply> {
        self.propose_telling(body, effect, Vec::new()).await
    }

    /// Whether entries may carry events: all servers know them, or did, which nothing undoes. Those
    /// that are away when a leader begins have told it nothing, and are the reason for some.
    pub fn tells_events(&self) -> bool {
        if !self.tells.load(Ordering::Relaxed) {
            let some = self.state.events(0, 1, 1).is_ok_and(|(kept, _)| !kept.is_empty());
            self.tells.store(some || self.all_know(Known::Mends), Ordering::Relaxed);
        }
        self.tells.load(Ordering::Relaxed)
    }

    /// As [`Self::propose`], with what it is to admins.
    pub async fn propose_telling(
        &self,
        body: v1::log_entry::Body,
        effect: Effect,
        events: Vec<v1::Event>,
    ) -> Result<v1::MetaReply> {
        Ok(self.propose_at(body, events, effect).await?.1)
    }

    /// Keeps something that has happened. A failure is logged.
    pub async fn tell(&self, event: v1::Event) {
        if self.tells_events()
            && let note = v1::log_entry::Body::Note(v1::NoteEntry {})
            && let Err(error) = self.propose_at(note, vec![event], Effect::Nothing).await
        {
            tracing::warn!("an event is not kept: {error}");
        }
    }

    /// As [`Self::propose`], with the entry's place in the log.
    async fn propose_at(
        &self,
        body: v1::log_entry::Body,
        mut events: Vec<v1::Event>,
        effect: Effect,
    ) -> Result<(Position, v1::MetaReply)> {
        // A server that does not know them would keep none.
        match self.tells_events() {
            true => events::bound(&mut events),
            false => events.clear(),
        }
        let (reply, answer) = oneshot::channel();
        let proposal = Proposal::new(body, events, effect, reply);
        let len = proposal.data.len();
        if len > MAX_ENTRY {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("a change of {len} bytes is over the limit of {MAX_ENTRY}: split it"),
            ));
        }
        self.proposals.send(proposal).await.map_err(|_| stopping())?;
        let committed = async { answer.await.map_err(|_| stopping())? };
        let (at, stored) = Span::part("commit").around(committed).await?;
        match stored.error {
            0 => Ok((at, stored.reply.unwrap_or_default())),
            code => Err(Error::new(ErrorKind::from_code(code), stored.message)),
        }
    }

    /// Returns when the state here holds all that was acknowledged before the call, anywhere.
    pub async fn read_barrier(&self) -> Result<()> {
        if self.lease.holds(Instant::now()) {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.barriers.send(reply).await.map_err(|_| stopping())?;
        let proved = async { answer.await.map_err(|_| stopping())? };
        Span::part("read index").around(proved).await
    }
}

/// The error for who asked for a change that is in the log of a server that has lost its lead: it
/// may take effect yet, or not. `not_leader` knows who leads.
fn in_doubt(not_leader: &Error) -> Error {
    let message = format!("{}; whether the change takes effect is not known", not_leader.message);
    Error { kind: ErrorKind::Unavailable, message, hint: not_leader.hint.clone() }
}

pub(crate) fn stopping() -> Error {
    Error::new(ErrorKind::Unavailable, "this metadata server is stopping")
}

/// For long work that is not to hold up the end of its server. Error: it stops, or nobody is left
/// who could say so.
pub(crate) fn goes_on(stop: &watch::Receiver<bool>) -> Result<()> {
    let stops = *stop.borrow() || stop.has_changed().is_err();
    if stops { Err(stopping()) } else { Ok(()) }
}

/// The cluster's identity in a map, once the cluster was made.
pub fn cluster_of(map: &v1::ClusterMap) -> Option<Uuid> {
    Uuid::from_slice(&map.cluster).filter(|c| *c != Uuid::NIL)
}

/// Who belongs to the group: as the state says, or, before the cluster is made, the configuration.
fn membership_of(state: &StateMachine, config: &Config) -> Result<Membership> {
    let peers = config.peers.iter().map(|p| v1::NodeInfo {
        id: p.id.0,
        address: p.address.clone(),
        ..Default::default()
    });
    let recorded = state.membership()?;
    Ok(recorded.unwrap_or_else(|| Membership::founded_by(peers.collect())))
}

/// The cluster map; an empty one before the cluster is made.
fn map_of(state: &StateMachine) -> Result<v1::ClusterMap> {
    match state.cluster_map() {
        Err(e) if e.kind == ErrorKind::Unavailable => Ok(v1::ClusterMap::default()),
        map => map,
    }
}
