//! Leases of the sessions: who may use what it knows of an inode without asking, and who may
//! buffer.
//!
//! Soft state of the leader. A new leader grants nothing, and answers nobody, before every other
//! session has declared what it keeps ([`crate::soft::sessions`]); so a lease outlives its leader
//! safely.
//!
//! Invariants (I6): while a session holds a lease to write, no other holds any on that inode; while
//! one holds ranges, no other holds the same bytes, or a lease to read; a
//! change is carried out only after every other session's lease on what it touches was returned or
//! its session ended ([`Leases::claim`] keeps new ones from being granted meanwhile); a lease is
//! granted before the state is read for the answer that carries it. Grants and recalls are numbered
//! in one sequence, so that a return never takes away what was granted after it.
//!
//! Of a file that several sessions write, each holds byte ranges ([`ranges`]).
//! Who has to wait does so in line ([`line`]), and nothing is granted that stands against one who
//! came earlier.

mod line;
mod maps;
mod mode;
mod ranges;

pub use mode::{Mode, Use};

use line::Line;
use prometheus::IntCounter;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use weft_proto::planted::{self, Bug};
use weft_proto::{ByteRanges, InodeId, SessionId, v1};

/// After a recall nothing is granted for this long, unless it has to be, but for reading to
/// readers: inodes that several sessions change are cheaper without leases.
const COOL: Duration = Duration::from_millis(200);
/// Most leases of one session; beyond it nothing is granted, which costs speed only.
const MAX_LEASES: usize = 1 << 18;
/// Most with those that it cannot do without, declares, or has made; so many ranges it may declare.
const MAX_WITH_NEEDED: usize = 1 << 20;
/// Most files that one session has the right to map to write.
const MAX_MAPS: usize = 1 << 20;
/// Requests of one session that wait for recalls at a time; a newer one answers the oldest.
const MAX_READERS: u64 = 4;

static RECALLS: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Leases that were recalled from mounts and programs.";
    weft_net::metrics::registered(IntCounter::new("weft_lease_recalls_total", help))
});

struct Holder {
    session: SessionId,
    mode: Mode,
    /// What it may write without a lease to write all.
    ranges: ByteRanges,
    /// Of the newest grant.
    seq: u64,
    recall: Option<Recall>,
}

impl Holder {
    /// Whether it may have buffered something.
    fn buffers(&self) -> bool {
        self.mode == Mode::Write || !self.ranges.is_empty()
    }
}

#[derive(Clone, Copy)]
struct Recall {
    seq: u64,
    keep_read: bool,
    /// An earlier one that asked for less.
    weaker: Option<u64>,
}

/// A commit under way, of what only its session may write.
struct Writing {
    number: u64,
    by: SessionId,
    ranges: ByteRanges,
}

#[derive(Default)]
struct Lease {
    holders: Vec<Holder>,
    line: Line,
    /// Sessions that are changing the inode, one entry a change.
    claims: Vec<SessionId>,
    /// Sessions that are committing what only they may write of it, one entry a commit.
    writing: Vec<Writing>,
    /// Sessions that are locking it, one entry a request: another that may write would lock without
    /// asking.
    locking: Vec<SessionId>,
    /// Until then nothing is granted to write, or at all.
    cool: [Option<Instant>; 2],
}

impl Lease {
    fn is_idle(&self, now: Instant) -> bool {
        self.holders.is_empty()
            && self.line.is_empty()
            && self.claims.is_empty()
            && self.writing.is_empty()
            && self.locking.is_empty()
            && self.is_cool(now, Mode::Write)
    }

    fn is_cool(&self, now: Instant, mode: Mode) -> bool {
        let [write, all] = self.cool;
        let over = |until: Option<Instant>| until.is_none_or(|until| until <= now);
        over(all) && (mode == Mode::Read || over(write))
    }
}

/// One session's side.
struct Party {
    /// What it holds.
    inos: HashSet<InodeId>,
    /// Files that it may map to write.
    maps: usize,
    /// Ranges that it has declared.
    ranges: usize,
    /// Requests for its recalls so far.
    readers: u64,
    /// Recalls that were not returned yet, by number, and so by time.
    recalls: BTreeMap<u64, Sent>,
    news: watch::Sender<u64>,
}

struct Sent {
    recall: v1::recalls_reply::Recall,
    since: Instant,
}

/// Who may map a file to write, whether it holds a lease or not.
struct Mapper {
    session: SessionId,
    /// When it got that right.
    since: u64,
    /// The newest question whether it needs it to which it said yes.
    needs: u64,
}

/// A name in a directory that is being changed.
pub type Name = (InodeId, bytes::Bytes);

/// All leases of one term.
pub struct Leases {
    inodes: HashMap<InodeId, Lease>,
    /// Inodes that were recalled, in the order in which it will have been long enough ago: nobody
    /// may ever ask for them again.
    cooling: VecDeque<(Instant, InodeId)>,
    parties: HashMap<SessionId, Party>,
    mappers: HashMap<InodeId, Mapper>,
    names: HashSet<Name>,
    seq: u64,
    changed: watch::Sender<u64>,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            inodes: HashMap::new(),
            cooling: VecDeque::new(),
            parties: HashMap::new(),
            mappers: HashMap::new(),
            names: HashSet::new(),
            seq: 0,
            changed: watch::Sender::new(0),
        }
    }
}

impl Leases {
    /// The leases of a term. Numbers of a later term are greater.
    pub fn of_term(term: u64) -> Self {
        // Known from the beginning: nothing is missing before the first one.
        LazyLock::force(&RECALLS);
        Self { seq: term << 40, ..Self::default() }
    }

    /// Starts to wait for a lease to be returned or a name to be let go.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Wakes who waits.
    pub fn note_change(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    fn number(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// A session lives.
    pub fn joined(&mut self, id: SessionId) {
        self.parties.entry(id).or_insert_with(|| Party {
            inos: HashSet::new(),
            maps: 0,
            ranges: 0,
            readers: 0,
            recalls: BTreeMap::new(),
            news: watch::Sender::new(0),
        });
    }

    /// A session is no more, and holds nothing any more.
    pub fn ended(&mut self, id: SessionId) {
        if let Some(party) = self.parties.remove(&id) {
            let now = Instant::now();
            for ino in party.inos {
                if let Some(lease) = self.inodes.get_mut(&ino) {
                    lease.holders.retain(|h| h.session != id);
                }
                self.forget_idle(now, ino);
            }
            self.mappers.retain(|_, mapper| mapper.session != id);
            self.note_change();
        }
    }

    fn forget_idle(&mut self, now: Instant, ino: InodeId) {
        if self.inodes.get(&ino).is_some_and(|lease| lease.is_idle(now)) {
            self.inodes.remove(&ino);
        }
    }

    /// Forgets inodes that nobody has asked for since they were recalled.
    pub fn sweep(&mut self, now: Instant) {
        while self.cooling.front().is_some_and(|(until, _)| *until <= now)
            && let Some((_, ino)) = self.cooling.pop_front()
        {
            self.forget_idle(now, ino);
        }
    }

    /// A session declared to a new leader that it keeps these to write. Nobody else can have been
    /// granted any of them: grants wait until all have declared.
    pub fn declared(&mut self, id: SessionId, inos: &[InodeId]) {
        for &ino in inos {
            self.insert(id, ino, Mode::Write);
        }
    }

    /// Whether a session may hold so much more.
    pub fn have_room(&self, id: SessionId, inos: usize, ranges: usize, maps: usize) -> bool {
        let fits = |party: &Party| {
            party.inos.len() + inos <= MAX_WITH_NEEDED
                && party.ranges + ranges <= MAX_WITH_NEEDED
                && party.maps + maps <= MAX_MAPS
        };
        self.parties.get(&id).is_none_or(fits)
    }

    /// `None`: the session holds more than any does, or is not known.
    fn insert(&mut self, to: SessionId, ino: InodeId, mode: Mode) -> Option<(u64, Mode)> {
        let seq = self.number();
        let party = self.parties.get_mut(&to)?;
        if party.inos.len() >= MAX_WITH_NEEDED && !party.inos.contains(&ino) {
            return None;
        }
        let lease = self.inodes.entry(ino).or_default();
        match lease.holders.iter_mut().find(|h| h.session == to) {
            Some(holder) => {
                // The answer to a recall that is under way is as old as the recall.
                if holder.recall.is_none() {
                    holder.seq = seq;
                }
                holder.mode = holder.mode.max(mode);
                if holder.mode == Mode::Write {
                    holder.ranges = ByteRanges::default();
                }
                Some((holder.seq, holder.mode))
            }
            None => {
                party.inos.insert(ino);
                let ranges = ByteRanges::default();
                lease.holders.push(Holder { session: to, mode, ranges, seq, recall: None });
                Some((seq, mode))
            }
        }
    }

    /// Grants a lease if nothing stands against it. `must`: even if the inode was contended a
    /// moment ago. The state must be read after this.
    pub fn grant(
        &mut self,
        now: Instant,
        to: SessionId,
        ino: InodeId,
        mode: Mode,
        must: bool,
    ) -> Option<v1::Grant> {
        let party = self.parties.get(&to)?;
        if party.inos.len() >= MAX_LEASES && !must {
            return None;
        }
        if let Some(lease) = self.inodes.get(&ino) {
            let cool = must || lease.is_cool(now, mode);
            let writing = lease.writing.iter().map(|writing| &writing.by);
            let claimed = lease.claims.iter().chain(writing).any(|c| *c != to);
            let locking = mode == Mode::Write && lease.locking.iter().any(|l| *l != to);
            let barred = lease.holders.iter().any(|h| match h.session == to {
                true => h.recall.is_some(),
                false => (mode == Mode::Write || h.buffers()) && !planted::is(Bug::DoubleGrant),
            });
            if !cool || claimed || locking || barred || lease.line.has_earlier(to, mode) {
                return None;
            }
        }
        let (seq, mode) = self.insert(to, ino, mode)?;
        let write = mode == Mode::Write;
        let maps = write && self.mappers.get(&ino).is_none_or(|mapper| mapper.session == to);
        Some(v1::Grant { ino: ino.0, seq, write, maps, ..Default::default() })
    }

    /// Takes a place in line, until [`Leases::wait_no_more`] with the number that this answers.
    pub fn wait(&mut self, session: SessionId, ino: InodeId, mode: Mode) -> u64 {
        let number = self.number();
        self.inodes.entry(ino).or_default().line.join(number, session, mode);
        number
    }

    /// Leaves the line.
    pub fn wait_no_more(&mut self, ino: InodeId, number: u64) {
        let Some(lease) = self.inodes.get_mut(&ino) else { return };
        lease.line.leave(number);
        if lease.line.is_empty() {
            self.forget_idle(Instant::now(), ino);
        } else {
            self.note_change();
        }
    }

    /// Whether a session has to wait for others who came earlier. Not if it has to give back a
    /// lease first: they wait for that.
    pub fn has_earlier(&self, than: SessionId, ino: InodeId, mode: Mode) -> bool {
        let earlier = self.inodes.get(&ino).is_some_and(|lease| lease.line.has_earlier(than, mode));
        earlier && !self.owes(than, ino)
    }

    /// Grants what the asker cannot do without; recalls what stands against it when it is its turn.
    /// `None`: it has to wait. `Some(None)`: it has to give back an earlier lease first.
    pub fn serve(
        &mut self,
        now: Instant,
        to: SessionId,
        ino: InodeId,
        mode: Mode,
    ) -> Option<Option<v1::Grant>> {
        if self.owes(to, ino) {
            return Some(None);
        }
        let what = if mode == Mode::Write { Use::Change } else { Use::Read };
        if self.has_earlier(to, ino, mode) || !self.recall(now, to, ino, what) {
            return None;
        }
        self.grant(now, to, ino, mode, true).map(Some)
    }

    /// Whether the session holds a lease to write this inode, or is just giving it back.
    pub fn writes(&self, session: SessionId, ino: InodeId) -> bool {
        let holders = self.inodes.get(&ino).map_or(&[][..], |lease| &lease.holders);
        holders.iter().any(|h| h.session == session && h.mode == Mode::Write)
    }

    /// A session is making an inode on its own, which nobody else can know of: it holds that to
    /// write. Not if somebody does, for then the session is mistaken.
    pub fn enter_made(&mut self, to: SessionId, ino: InodeId) -> Option<v1::Grant> {
        if self.inodes.get(&ino).is_some_and(|l| l.holders.iter().any(|h| h.session != to)) {
            return None;
        }
        let (seq, _) = self.insert(to, ino, Mode::Write)?;
        let (ino, all) = (ino.0, true);
        Some(v1::Grant { ino, seq, write: all, locks: all, maps: all, ..Default::default() })
    }

    /// Whether a session has to answer a recall of this inode, or is not known.
    pub fn owes(&self, session: SessionId, ino: InodeId) -> bool {
        let holders = self.inodes.get(&ino).map_or(&[][..], |lease| &lease.holders);
        let recalled = holders.iter().any(|h| h.session == session && h.recall.is_some());
        recalled || !self.parties.contains_key(&session)
    }

    /// Recalls what others hold on `ino` that stands against `by` using it. Answers whether
    /// nothing does.
    pub fn recall(&mut self, now: Instant, by: SessionId, ino: InodeId, what: Use) -> bool {
        let to_read = what == Use::Read;
        self.recall_from(now, by, ino, to_read, |holder| match what {
            Use::Read => holder.buffers(),
            Use::Change => true,
        })
    }

    /// The same of those that `stands` says it of.
    fn recall_from(
        &mut self,
        now: Instant,
        by: SessionId,
        ino: InodeId,
        to_read: bool,
        stands: impl Fn(&Holder) -> bool,
    ) -> bool {
        let Some(lease) = self.inodes.get_mut(&ino) else { return true };
        let (mut clear, mut recalled) = (true, false);
        for holder in &mut lease.holders {
            if holder.session == by || !stands(holder) {
                continue;
            }
            clear = false;
            // Of ranges nothing is left to read with.
            let keep_read = to_read && holder.mode != Mode::Ranges;
            if holder.recall.is_some_and(|r| keep_read || !r.keep_read) {
                continue;
            }
            self.seq += 1;
            let seq = self.seq;
            let weaker = holder.recall.map(|r| r.seq);
            holder.recall = Some(Recall { seq, keep_read, weaker });
            lease.cool[usize::from(!to_read)] = Some(now + COOL);
            if let Some(party) = self.parties.get_mut(&holder.session) {
                let recall =
                    v1::recalls_reply::Recall { ino: ino.0, seq, keep_read, of_map: false };
                party.recalls.insert(seq, Sent { recall, since: now });
                party.news.send_replace(seq);
                RECALLS.inc();
            }
            recalled = true;
        }
        if recalled {
            self.cooling.push_back((now + COOL, ino));
            // Who has to give back a lease now waits for nobody who wants it.
            self.note_change();
        }
        clear
    }

    /// A session gives up what it was granted up to `seq`.
    pub fn returned(&mut self, by: SessionId, ino: InodeId, seq: u64, keep_read: bool) {
        let Some(lease) = self.inodes.get_mut(&ino) else { return };
        let Some(at) = lease.holders.iter().position(|h| h.session == by && h.seq <= seq) else {
            return;
        };
        let holder = &mut lease.holders[at];
        let Some(party) = self.parties.get_mut(&by) else { return };
        if let Some(recall) = holder.recall {
            let answered = |no: &u64| !keep_read || *no <= seq;
            for no in [Some(recall.seq), recall.weaker].into_iter().flatten().filter(answered) {
                party.recalls.remove(&no);
            }
            holder.recall.take_if(|r| answered(&r.seq));
        }
        if !holder.ranges.is_empty() {
            // Others write the file, too, and will come for it.
            lease.cool[0] = Some(Instant::now() + COOL);
            self.cooling.push_back((Instant::now() + COOL, ino));
        }
        if keep_read && holder.mode != Mode::Ranges {
            (holder.mode, holder.ranges) = (Mode::Read, ByteRanges::default());
        } else {
            party.inos.remove(&ino);
            lease.holders.swap_remove(at);
        }
        self.forget_idle(Instant::now(), ino);
        self.note_change();
    }

    /// One more request waits for recalls of this session. Answers its number.
    pub fn begin_mail(&mut self, of: SessionId) -> Option<u64> {
        let party = self.parties.get_mut(&of)?;
        party.readers += 1;
        // Who is to be answered looks.
        party.news.send_modify(|_| {});
        Some(party.readers)
    }

    /// Whether so many came after this one that it is to be answered, with whatever there is.
    pub fn is_overtaken(&self, of: SessionId, reader: u64) -> bool {
        self.parties
            .get(&of)
            .is_none_or(|party| party.readers.saturating_sub(reader) >= MAX_READERS)
    }

    /// Recalls newer than `seen` that wait for this session, and news of more.
    pub fn mail(
        &self,
        of: SessionId,
        seen: u64,
    ) -> Option<(Vec<v1::recalls_reply::Recall>, watch::Receiver<u64>)> {
        let party = self.parties.get(&of)?;
        let news = party.news.subscribe();
        let newer = party.recalls.range((Bound::Excluded(seen), Bound::Unbounded));
        Some((newer.map(|(_, sent)| sent.recall).collect(), news))
    }

    /// Whether others wait for this session to give something back.
    pub fn awaited(&self, of: SessionId) -> Option<bool> {
        self.parties.get(&of).map(|party| !party.recalls.is_empty())
    }

    /// Sessions with a recall that is unanswered for longer than `limit`.
    pub fn deaf(&self, now: Instant, limit: Duration) -> Vec<SessionId> {
        let late = |party: &Party| {
            let oldest = party.recalls.values().next();
            oldest.is_some_and(|sent| now.duration_since(sent.since) > limit)
        };
        self.parties.iter().filter(|(_, party)| late(party)).map(|(id, _)| *id).collect()
    }

    /// This server stood still for so long: answers to recalls may be waiting for it.
    pub fn stalled(&mut self, now: Instant, by: Duration) {
        let sent = self.parties.values_mut().flat_map(|party| party.recalls.values_mut());
        sent.for_each(|sent| sent.since = now.min(sent.since + by));
    }

    /// Takes names for one change. Answers whether all were free; takes none otherwise.
    pub fn take_names(&mut self, names: &[Name]) -> bool {
        if names.iter().any(|name| self.names.contains(name)) {
            return false;
        }
        self.names.extend(names.iter().cloned());
        true
    }

    /// Lets names go.
    pub fn free_names(&mut self, names: &[Name]) {
        names.iter().for_each(|name| {
            self.names.remove(name);
        });
        self.note_change();
    }

    /// `by` is about to change these: nobody else is granted a lease on them until
    /// [`Leases::unclaim`].
    pub fn claim(&mut self, by: SessionId, inos: &[InodeId]) {
        for ino in inos {
            self.inodes.entry(*ino).or_default().claims.push(by);
        }
    }

    /// `by` is about to lock: nobody else is granted a lease to write until [`Leases::locked`].
    pub fn begin_lock(&mut self, by: SessionId, ino: InodeId) {
        self.inodes.entry(ino).or_default().locking.push(by);
    }

    /// Ends what [`Leases::begin_lock`] began.
    pub fn locked(&mut self, by: SessionId, ino: InodeId) {
        let Some(lease) = self.inodes.get_mut(&ino) else { return };
        if let Some(at) = lease.locking.iter().position(|l| *l == by) {
            lease.locking.swap_remove(at);
        }
        self.forget_idle(Instant::now(), ino);
        self.note_change();
    }

    /// Ends a claim.
    pub fn unclaim(&mut self, by: SessionId, inos: &[InodeId]) {
        let now = Instant::now();
        for ino in inos {
            let Some(lease) = self.inodes.get_mut(ino) else { continue };
            if let Some(at) = lease.claims.iter().position(|c| *c == by) {
                lease.claims.swap_remove(at);
            }
            self.forget_idle(now, *ino);
        }
        self.note_change();
    }
}

#[cfg(test)]
mod tests;
