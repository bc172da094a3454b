//! What the leader knows about sessions but does not replicate: when each last renewed, which
//! inodes it has open, its leases, the locks that it waits for, and how many it has at most.
//!
//! The table belongs to one term. A new leader starts it with every session of the replicated
//! state, gives each a full time to live, and learns what is open as the sessions declare it.
//! Invariants: an inode may be purged only while every session has declared its opens and none has
//! it open, and from then on it cannot be opened ([`Sessions::begin_purge`]); a session that is
//! being expired is not renewed (I5); it is expired a time to live after it was renewed last, when
//! its client believes in none of its leases any more, whatever else is held against it; one that
//! does not declare holds up the others for a bounded time.

mod kept;
mod owners;
mod seen;

pub use owners::Client;
pub use seen::Sight;

use crate::soft::leases::Leases;
use crate::soft::lock_counts::LockCounts;
use crate::soft::lock_waits::{Turn, Waits};
use kept::Kept;
use owners::Owners;
use seen::Seen;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Closes of a session that are remembered.
const CLOSES: usize = 4096;
/// A declaration that has begun, in pieces, may take so many times as long.
const SLOW: u32 = 4;
/// Most inodes that one session may have open.
const MAX_OPENS: usize = 1 << 20;

/// The table of one term.
#[derive(Default)]
pub struct Sessions {
    /// The term in which this server leads; 0: it does not.
    term: u64,
    /// When that began.
    began: Option<Instant>,
    sessions: BTreeMap<SessionId, Session>,
    owners: Owners,
    /// How many sessions have an inode open.
    open: HashMap<InodeId, usize>,
    /// Inodes whose removal is in the log.
    purging: BTreeSet<InodeId>,
    /// Sessions that have not declared what they hold.
    undeclared: usize,
    pub leases: Leases,
    pub locks: Waits,
    pub lock_counts: LockCounts,
}

/// What a session tells a new leader that it holds, or a piece of it.
#[derive(Default)]
pub struct Declaration {
    pub opens: Vec<(InodeId, u64)>,
    pub write_leases: Vec<InodeId>,
    /// Its number and that of the piece in it; pieces that do not come in order are of no use.
    pub piece: (u64, u32),
    /// More pieces follow.
    pub more: bool,
    pub maps: Vec<InodeId>,
    pub ranges: Vec<(InodeId, Range<u64>)>,
}

struct Session {
    client: Client,
    renewed: Instant,
    declared: bool,
    /// The piece of its declaration that is to come next.
    next_piece: Option<(u64, u32)>,
    /// It did not answer a recall, or declare, in time: it is not renewed any more.
    deaf: bool,
    expiring: bool,
    /// The newest open of each inode.
    opens: HashMap<InodeId, u64>,
    closed: Closed,
    /// How many inodes it has open, as it last said: those under its leases, too.
    open_files: Option<u64>,
    /// What its connections go over, as it last said.
    network: Option<v1::NetworkStat>,
    seen: Seen,
    kept: Kept,
}

/// The last closes of a session. A request that says that something is open, the declaration among
/// them, may arrive after the close: what is as old as that, or older, opens nothing.
#[derive(Default)]
struct Closed {
    newest: HashMap<InodeId, u64>,
    order: VecDeque<(InodeId, u64)>,
}

impl Closed {
    fn note(&mut self, ino: InodeId, seq: u64) {
        let newest = self.newest.entry(ino).or_default();
        *newest = seq.max(*newest);
        self.order.push_back((ino, seq));
        if self.order.len() > CLOSES
            && let Some((ino, seq)) = self.order.pop_front()
            && self.newest.get(&ino) == Some(&seq)
        {
            self.newest.remove(&ino);
        }
    }

    fn overtook(&self, ino: InodeId, seq: u64) -> bool {
        self.newest.get(&ino).is_some_and(|&newest| seq <= newest)
    }
}

/// A session as shown to people.
pub struct Shown {
    pub id: SessionId,
    pub client: String,
    /// Who was proved to have opened it.
    pub owner: String,
    pub idle: Duration,
    pub opens: usize,
    pub open_files: Option<u64>,
    pub network: Option<v1::NetworkStat>,
}

impl Sessions {
    /// Starts a term with the sessions of the replicated state.
    pub fn start(&mut self, now: Instant, term: u64, sessions: Vec<(SessionId, Client)>) {
        let (began, leases) = (Some(now), Leases::of_term(term));
        *self = Self { term, began, leases, ..Self::default() };
        for (id, client) in sessions {
            self.add(now, id, client, false);
        }
    }

    /// The term in which this server leads; 0: it does not, and nothing is known.
    pub fn term(&self) -> u64 {
        self.term
    }

    fn add(&mut self, renewed: Instant, id: SessionId, client: Client, declared: bool) {
        if self.sessions.contains_key(&id) {
            return;
        }
        self.owners.joined(&client);
        let session = Session {
            client,
            renewed,
            declared,
            next_piece: None,
            deaf: false,
            expiring: false,
            opens: HashMap::new(),
            closed: Closed::default(),
            open_files: None,
            network: None,
            seen: Seen::default(),
            kept: Kept::default(),
        };
        self.sessions.insert(id, session);
        self.undeclared += usize::from(!declared);
        self.leases.joined(id);
    }

    /// Whether every session but `me` has declared what it holds: until then, nobody else can be
    /// answered safely.
    pub fn others_declared(&self, me: SessionId) -> bool {
        match self.undeclared {
            0 => true,
            _ if planted::is(Bug::LeaseForgottenAtFailover) => true,
            1 => self.sessions.get(&me).is_some_and(|s| !s.declared),
            _ => false,
        }
    }

    /// Whether the session still has to declare what it holds.
    pub fn must_declare(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|s| !s.declared)
    }

    /// A session was opened in this term: it has nothing to declare.
    pub fn opened(&mut self, now: Instant, id: SessionId, client: Client) {
        self.add(now, id, client, true);
    }

    /// A session is no more.
    pub fn ended(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            self.owners.left(&session.client);
            self.undeclared -= usize::from(!session.declared);
            self.leases.ended(id);
            self.locks.ended(id);
            self.lock_counts.ended(id);
            for ino in session.opens.into_keys() {
                self.release(ino);
            }
        }
    }

    /// Notes a sign of life, with what the session has open if it declares that. Answers whether
    /// the session still has to declare. Error: `Invalid`, that is more than one may have.
    pub fn renew(
        &mut self,
        now: Instant,
        id: SessionId,
        declaration: Option<Declaration>,
    ) -> Result<bool> {
        let session = self.live(id)?;
        session.renewed = now;
        if let Some(declaration) = declaration {
            let (number, piece) = declaration.piece;
            if piece > 0 && session.next_piece != Some((number, piece)) {
                return Ok(!session.declared);
            }
            let opened = |ino: &InodeId| session.opens.contains_key(ino);
            let new = declaration.opens.iter().filter(|(ino, _)| !opened(ino)).count();
            let opens = session.opens.len() + new;
            let maps = declaration.maps.len();
            // One that begins anew says again what it has said.
            let ranges = self.leases.count_new(id, &declaration.ranges);
            let inos = declaration.write_leases.len();
            if opens > MAX_OPENS || !self.leases.have_room(id, inos, ranges, maps) {
                return Err(too_many(id));
            }
            let session = self.live(id)?;
            session.next_piece = declaration.more.then_some((number, piece.saturating_add(1)));
            if !session.declared {
                session.declared = !declaration.more;
                self.undeclared -= usize::from(!declaration.more);
                self.leases.declared(id, &declaration.write_leases);
                self.leases.declared_ranges(id, &declaration.ranges, ranges);
                self.leases.note_change();
            }
            for ino in declaration.maps {
                self.leases.declared_map(id, ino);
            }
            for (ino, seq) in declaration.opens {
                if !self.purging.contains(&ino) {
                    self.insert(id, ino, seq);
                }
            }
        }
        Ok(!self.live(id)?.declared)
    }

    /// Whether others wait for what this session holds. `None`: it is not known here.
    pub fn awaited(&self, id: SessionId) -> Option<bool> {
        Some(self.leases.awaited(id)? || self.locks.is_wanted_of(id))
    }

    /// Notes what a session says of itself for people: how many inodes it has open, and what its
    /// connections go over.
    pub fn hear(
        &mut self,
        id: SessionId,
        open_files: Option<u64>,
        network: Option<v1::NetworkStat>,
    ) {
        if let Ok(session) = self.live(id) {
            (session.open_files, session.network) = (open_files, network);
        }
    }

    /// Notes that a session does something, if it lives. All wait for one that has not declared:
    /// it is kept alive by what ends in a declaration, and nothing else.
    pub fn touch(&mut self, now: Instant, id: SessionId) {
        if let Ok(session) = self.live(id)
            && session.declared
        {
            session.renewed = now;
        }
    }

    /// Declares an inode open.
    pub fn open(&mut self, id: SessionId, ino: InodeId, seq: u64) -> Result<()> {
        let session = self.live(id)?;
        if session.opens.len() >= MAX_OPENS && !session.opens.contains_key(&ino) {
            return Err(too_many(id));
        }
        if self.purging.contains(&ino) {
            return Err(Error::new(ErrorKind::Stale, format!("inode {ino} was removed")));
        }
        self.insert(id, ino, seq);
        Ok(())
    }

    fn insert(&mut self, id: SessionId, ino: InodeId, seq: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.closed.overtook(ino, seq) {
            return;
        }
        match session.opens.get_mut(&ino) {
            Some(newest) => *newest = seq.max(*newest),
            None => {
                session.opens.insert(ino, seq);
                *self.open.entry(ino).or_default() += 1;
            }
        }
    }

    /// Ends an open, if `seq` is the session's newest of this inode.
    pub fn close(&mut self, id: SessionId, ino: InodeId, seq: u64) -> Result<()> {
        let session = self.live(id)?;
        session.closed.note(ino, seq);
        if session.opens.get(&ino).is_some_and(|&newest| seq >= newest) {
            session.opens.remove(&ino);
            self.release(ino);
        }
        Ok(())
    }

    fn release(&mut self, ino: InodeId) {
        if let Some(count) = self.open.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&ino);
            }
        }
    }

    /// A session waits for a lock; see [`Waits::wait`].
    pub fn wait_for_lock(
        &mut self,
        id: SessionId,
        ticket: u64,
        lock: &v1::Lock,
    ) -> Result<watch::Receiver<Turn>> {
        self.live(id)?;
        self.locks.wait(id, ticket, lock)
    }

    /// A session was found to hold so many locks. Of one that is not there nothing is kept.
    pub fn counted_locks(&mut self, id: SessionId, locks: usize) {
        if self.sessions.contains_key(&id) {
            self.lock_counts.counted(id, locks);
        }
    }

    fn live(&mut self, id: SessionId) -> Result<&mut Session> {
        match self.sessions.get_mut(&id) {
            Some(session) if !session.expiring && !session.deaf => Ok(session),
            Some(_) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("session {id} is being declared dead"),
            )),
            None => Err(Error::new(
                ErrorKind::SessionExpired,
                format!("session {id} is not known (any more); open a new one"),
            )),
        }
    }

    /// Sessions that were silent for longer than `ttl`: from now on they cannot renew; if declaring
    /// them dead fails, [`Sessions::spare`] them. Who did not answer a recall within `answer`, or
    /// has not declared what it holds so long after the term began ([`SLOW`] times as long, once it
    /// has begun to), is not renewed any more, and so falls silent.
    pub fn begin_expiry(
        &mut self,
        now: Instant,
        ttl: Duration,
        answer: Duration,
    ) -> Vec<SessionId> {
        for id in self.leases.deaf(now, answer) {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.deaf = true;
            }
        }
        let led = self.began.map_or(Duration::ZERO, |began| now.duration_since(began));
        for session in self.sessions.values_mut().filter(|session| !session.declared) {
            let begun = session.next_piece.is_some();
            session.deaf |= led > if begun { answer * SLOW } else { answer };
        }
        self.leases.sweep(now);
        let mut dead = Vec::new();
        let ttl = if planted::is(Bug::ExpiredEarly) { ttl / 5 } else { ttl };
        for (&id, session) in &mut self.sessions {
            if !session.expiring && now.duration_since(session.renewed) > ttl {
                session.expiring = true;
                dead.push(id);
            }
        }
        dead
    }

    /// This server stood still for so long, and could hear nobody.
    pub fn stalled(&mut self, now: Instant, by: Duration) {
        let later = |at: Instant| now.min(at + by);
        self.sessions.values_mut().for_each(|session| session.renewed = later(session.renewed));
        self.began = self.began.map(later);
        self.leases.stalled(now, by);
    }

    /// A session is going to be ended before its time is over. Answers whether it is not ended
    /// already, or about to be.
    pub fn begin_end(&mut self, id: SessionId) -> bool {
        let session = self.sessions.get_mut(&id).filter(|session| !session.expiring);
        session.map(|session| session.expiring = true).is_some()
    }

    /// Takes back [`Sessions::begin_expiry`] and [`Sessions::begin_end`] of this term: in a later
    /// one that session may be on its way to its end again.
    pub fn spare(&mut self, term: u64, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id).filter(|_| self.term == term) {
            session.expiring = false;
        }
    }

    /// Those of `inos` that no session is known to have open.
    pub fn not_open(&self, inos: &[InodeId]) -> Vec<InodeId> {
        let is_open =
            |ino: &InodeId| self.open.contains_key(ino) && !planted::is(Bug::OpenFilePurged);
        inos.iter().copied().filter(|ino| !is_open(ino)).collect()
    }

    /// Of these inodes without names, those that nobody has open; they cannot be opened until
    /// [`Sessions::end_purge`]. Empty while a session has not declared its opens.
    pub fn begin_purge(&mut self, orphans: &[InodeId]) -> Vec<InodeId> {
        if self.sessions.values().any(|s| !s.declared) {
            return Vec::new();
        }
        let free: Vec<_> = orphans
            .iter()
            .copied()
            .filter(|ino| !self.open.contains_key(ino) || planted::is(Bug::OpenFilePurged))
            .filter(|ino| !self.purging.contains(ino))
            .collect();
        self.purging.extend(&free);
        free
    }

    /// The removal of these inodes was applied, or failed.
    pub fn end_purge(&mut self, inos: &[InodeId]) {
        for ino in inos {
            self.purging.remove(ino);
            self.leases.forget_map(*ino);
        }
    }

    /// How many sessions there are.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// How many sessions there are of the owner of one like this.
    pub fn count_of(&self, client: &Client) -> usize {
        self.owners.count(client)
    }

    /// Whose session it is, in its own words.
    pub fn client_of(&self, id: SessionId) -> Option<String> {
        Some(self.sessions.get(&id)?.client.name.clone())
    }

    /// A session begins a change, whose answer is kept until it is acknowledged. Error:
    /// `Unavailable`, too much is kept, until some is acknowledged.
    pub fn begin_change(
        &mut self,
        now: Instant,
        id: SessionId,
        number: u64,
        acked_below: u64,
    ) -> Result<()> {
        self.touch(now, id);
        let (session, acked) = (self.sessions.get_mut(&id), acked_below.min(number));
        if session.is_none_or(|session| session.kept.has_room(number, acked)) {
            return Ok(());
        }
        let what = format!("session {id} has not acknowledged what it was answered: too much");
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// The answer to a change is kept.
    pub fn keep(&mut self, id: SessionId, number: u64, bytes: usize) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.kept.note(number, bytes);
        }
    }

    /// Why a confined session may use a file that is elsewhere by its record.
    pub fn see(&mut self, id: SessionId, ino: InodeId, by: Sight) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.seen.note(ino, by);
        }
    }

    /// What [`Sessions::see`] was told of it last.
    pub fn sight(&self, id: SessionId, ino: InodeId) -> Option<Sight> {
        self.sessions.get(&id)?.seen.of(ino)
    }

    /// Who was proved to have opened a session, if it is known here.
    pub fn owner_of(&self, id: SessionId) -> Option<&str> {
        Some(&self.sessions.get(&id)?.client.owner)
    }

    /// All sessions, for people.
    pub fn show(&self, now: Instant) -> Vec<Shown> {
        self.sessions
            .iter()
            .map(|(&id, s)| Shown {
                id,
                client: s.client.name.clone(),
                owner: s.client.owner.clone(),
                idle: now.duration_since(s.renewed),
                opens: s.opens.len(),
                open_files: s.open_files,
                network: s.network.clone(),
            })
            .collect()
    }
}

fn too_many(id: SessionId) -> Error {
    let what = format!("session {id} would hold, or have open, more inodes than one may");
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests;
