//! The event loop that owns the Raft state: one task, no locks. It waits for anything to happen,
//! takes all that happened, lets Raft decide, and hands the outcome on: messages to the peers,
//! entries to the log's worker, committed entries to the applying worker, answers to who asked.
//!
//! The leader's messages leave before its own disk has the entries; a follower's answers leave
//! after. Disk, network and applying overlap.
//!
//! Invariants: readies are written in order and reported in order; a server that was restarted
//! helps to elect nobody for one election timeout, since it may have promised that to a leader's
//! lease before; Raft's timeouts come from the node's own seed.

use super::announced::Announced;
use super::apply::{self, Applied};
use super::group::{Changing, Links};
use super::outbox::Outbox;
use super::proposal::{Pending, Proposal};
use super::setup::{LogJob, log_writer, logger, open_log, raft_config};
use super::{Abdication, Node};
use crate::config::Config;
use crate::env::Env;
use crate::folder::MOVE_AWAY;
use crate::raftlog::{Append, LogDb, LogStorage, Position};
use crate::replication::{Report, Speaker, in_one_piece};
use crate::snapshot::{NewSnapshot, Snapshots};
use crate::state::StateMachine;
use crate::worker::Worker;
use raft::StateRole;
use raft::eraftpb::{Entry, EntryType, HardState, Message, MessageType};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use weft_net::Peers;
use weft_net::buggify::{self, Point};
use weft_proto::{Error, ErrorKind, NodeId, Result, planted};

/// Most proposals in the log that wait for their answer.
const MAX_PENDING: usize = 8192;
/// Most bytes of committed entries that wait to be applied.
const MAX_APPLYING: usize = 64 << 20;
/// So many entries are applied without the worker.
const APPLY_IN_PLACE: usize = 8;
/// Entries stepped or proposed between two looks at the rest.
const BURST: usize = 1024;

#[cfg(test)]
mod tests;

/// What connects a node to the other parts of the server.
pub struct Wiring {
    pub peers: Arc<Peers>,
    pub links: Links,
    /// From another server, each with where that says it is.
    pub inbox: mpsc::Receiver<(Speaker, Vec<Message>)>,
    pub reports: mpsc::UnboundedReceiver<Report>,
    pub snapshots: Arc<Snapshots>,
    /// The entry that admitted this server when its disk was lost; index 0: none. Before its log
    /// holds it, it stands for no election, and votes for who has it; without a term, for nobody.
    pub admitted: Position,
    pub shutdown: watch::Receiver<bool>,
}

/// Slow work that was done beside the loop.
pub(super) enum Side {
    Made(Result<NewSnapshot>),
    Fetched(Box<Message>, Result<PathBuf>),
    /// What was fetched and is of no use is removed.
    Forgotten,
    /// The state is durable up to this index.
    Synced(Result<u64>),
}

/// The event loop's state.
pub struct Driver {
    pub(super) node: Arc<Node>,
    pub(super) raw: raft::RawNode<LogStorage>,
    pub(super) log: Arc<LogDb>,
    pub(super) wiring: Wiring,
    proposals: mpsc::Receiver<Proposal>,
    barriers: mpsc::Receiver<oneshot::Sender<Result<()>>>,
    pub(super) writer: Worker<LogJob>,
    /// Changes of the log that this task itself is going to write.
    pub(super) in_place: Vec<LogJob>,
    /// Until then the worker writes: the disk was slow.
    pub(super) slow_until: Option<Instant>,
    pub(super) written: mpsc::UnboundedReceiver<Result<u64>>,
    /// When each change was given to the worker that it has not written yet.
    pub(super) unwritten: VecDeque<Instant>,
    applier: Worker<Vec<Entry>>,
    pub(super) applied: mpsc::UnboundedReceiver<Result<Applied>>,
    pub(super) applying: usize,
    side: mpsc::UnboundedReceiver<Side>,
    pub(super) side_done: mpsc::UnboundedSender<Side>,
    pub(super) outbox: Outbox,
    pub(super) pending: Pending,
    /// Read rounds under way: when each was sent.
    pub(super) rounds: BTreeMap<u64, Instant>,
    pub(super) round: u64,
    /// Readers, each with the first round that proves enough for it.
    pub(super) readers: Vec<(u64, oneshot::Sender<Result<()>>)>,
    rng: StdRng,
    /// Term and role for which the election timeout was drawn, and what it is.
    drawn: (u64, StateRole),
    timeout: usize,
    /// Until then no vote is given.
    pub(super) mute_until: Option<Instant>,
    /// The term that this server leads.
    pub(super) leads: Option<u64>,
    pub(super) ready: bool,
    last_time_ns: i64,
    pub(super) fetching: bool,
    pub(super) making: Option<u64>, // a snapshot, of no earlier index
    pub(super) syncing: bool,
    pub(super) announced: Announced,
    /// When each of the others was last heard of; by a leader, that it follows.
    pub(super) heard: BTreeMap<u64, Instant>,
    abdications: mpsc::Receiver<Abdication>,
    /// The newest hard state that no write has taken along.
    pub(super) unwritten_state: Option<HardState>,
    pub(super) group: Changing,
}

impl Driver {
    /// Opens the log and prepares the loop.
    pub fn open(
        config: Config,
        env: Env,
        state: Arc<StateMachine>,
        wiring: Wiring,
    ) -> Result<(Arc<Node>, Self)> {
        let applied_index = state.applied();
        let storage = open_log(&config, &state)?;
        let log = storage.db();
        let mute_until = storage.has_history().then(|| Instant::now() + config.election_timeout());
        let raw =
            raft::RawNode::new(&raft_config(&config, applied_index), storage, &logger(config.id))
                .map_err(raft_failed)?;
        let (written_tx, written) = mpsc::unbounded_channel();
        let (applied_tx, applied) = mpsc::unbounded_channel();
        let (side_done, side) = mpsc::unbounded_channel();
        let (proposals_tx, proposals) = mpsc::channel(BURST);
        let (barriers_tx, barriers) = mpsc::channel(BURST);
        let (abdications_tx, abdications) = mpsc::channel(1);
        let start =
            |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}"));
        let writer = Worker::start("raft-log", env.threads, log_writer(log.clone(), written_tx))
            .map_err(start)?;
        let applier =
            Worker::start("apply", env.threads, apply::applier(state.clone(), applied_tx))
                .map_err(start)?;
        let stop = wiring.shutdown.clone();
        let node = Node::new(config, env, state, proposals_tx, barriers_tx, abdications_tx, stop)?;
        let node = Arc::new(node);
        let rng = node.env.rng(node.config.id.0);
        let mut driver = Self {
            node: node.clone(),
            raw,
            log,
            wiring,
            proposals,
            barriers,
            writer,
            in_place: Vec::new(),
            slow_until: None,
            written,
            unwritten: VecDeque::new(),
            applier,
            applied,
            applying: 0,
            side,
            side_done,
            outbox: Outbox::default(),
            pending: Pending::default(),
            rounds: BTreeMap::new(),
            round: 0,
            readers: Vec::new(),
            rng,
            drawn: (u64::MAX, StateRole::Follower),
            timeout: 0,
            mute_until,
            leads: None,
            ready: false,
            last_time_ns: 0,
            fetching: false,
            making: None,
            syncing: false,
            announced: Announced::default(),
            heard: BTreeMap::new(),
            abdications,
            unwritten_state: None,
            group: Changing::default(),
        };
        driver.publish_members()?;
        Ok((node, driver))
    }

    /// Runs until shutdown, or until the disk fails.
    pub async fn run(mut self) -> Result<()> {
        let mut tick = tokio::time::interval(self.node.config.tick());
        // Never two ticks in quick succession: leases rely on ticks being no faster than time.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut proposals = Vec::with_capacity(BURST);
        let mut shutdown = self.wiring.shutdown.clone();
        self.draw_timeout();
        loop {
            let room = self.leads.is_none() || self.pending.len() < MAX_PENDING;
            let stands_at = self.stands_at();
            let stand = async {
                match stands_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = shutdown.wait_for(|&stop| stop) => {
                    self.pending.fail(super::stopping);
                    return Ok(());
                }
                _ = tick.tick() => self.on_tick()?,
                () = stand => self.stand(),
                written = self.written.recv() => {
                    self.on_written(written.ok_or_else(|| ended("log"))??);
                }
                applied = self.applied.recv() => {
                    self.on_applied(applied.ok_or_else(|| ended("applying"))??)?;
                }
                Some((from, messages)) = self.wiring.inbox.recv() => {
                    self.on_sender(from);
                    self.on_messages(messages)?;
                }
                _ = self.proposals.recv_many(&mut proposals, BURST), if room => {}
                Some(reader) = self.barriers.recv() => self.on_reader(reader),
                Some(report) = self.wiring.reports.recv() => self.on_report(report),
                Some(side) = self.side.recv() => self.on_side(side)?,
                Some(abdication) = self.abdications.recv() => self.on_abdication(abdication),
            }
            self.drain()?;
            if self.leads.is_none() || self.pending.len() < MAX_PENDING {
                while proposals.len() < BURST {
                    let Ok(next) = self.proposals.try_recv() else { break };
                    proposals.push(next);
                }
            }
            self.propose(&mut proposals);
            self.ask_for_readers();
            self.draw_timeout();
            self.on_readies().await?;
            while !self.in_place.is_empty() {
                self.write_in_place().await?;
                self.on_readies().await?;
            }
            self.publish()?;
        }
    }

    async fn on_readies(&mut self) -> Result<()> {
        while self.applying < MAX_APPLYING && self.raw.has_ready() {
            self.on_ready().await?;
        }
        Ok(())
    }

    /// Takes what else has happened, so that Raft sees it as one, and nothing waits for ever behind
    /// what there is always more of.
    fn drain(&mut self) -> Result<()> {
        while let Ok(written) = self.written.try_recv() {
            self.on_written(written?);
        }
        while let Ok(applied) = self.applied.try_recv() {
            self.on_applied(applied?)?;
        }
        for _ in 0..BURST {
            let Ok((from, messages)) = self.wiring.inbox.try_recv() else { break };
            self.on_sender(from);
            self.on_messages(messages)?;
        }
        for _ in 0..BURST {
            let Ok(reader) = self.barriers.try_recv() else { break };
            self.on_reader(reader);
        }
        for _ in 0..BURST {
            let Ok(report) = self.wiring.reports.try_recv() else { break };
            self.on_report(report);
        }
        while let Ok(side) = self.side.try_recv() {
            self.on_side(side)?;
        }
        while let Ok(abdication) = self.abdications.try_recv() {
            self.on_abdication(abdication);
        }
        Ok(())
    }

    /// Whether the log holds what this server may have acknowledged before its disk was lost.
    pub(super) fn caught_up(&self) -> bool {
        self.raw.raft.raft_log.last_index() >= self.wiring.admitted.index
    }

    fn on_tick(&mut self) -> Result<()> {
        if self.caught_up() {
            self.raw.tick();
        } else {
            // It follows, and knows how long it has not heard of a leader, but does not stand.
            let elapsed = &mut self.raw.raft.election_elapsed;
            *elapsed = (*elapsed + 1).min(self.node.config.election_ticks());
        }
        if self.leads.is_some() && (self.log_hangs() || buggify::fires(Point::StepDown)) {
            self.step_down();
        }
        if self.leads.is_some() && (self.node.lease.take_used() || !self.readers.is_empty()) {
            self.start_round();
        }
        self.hand_over();
        self.say_farewell();
        self.note_followers();
        self.care_for_snapshots();
        self.leave_as_damaged();
        self.compact();
        self.leave_to_others()
    }

    /// A leader whose state cannot be read ends, as one that cannot apply to it does, if the others
    /// go on without it: they have it whole. Otherwise only those fail that ask for what is
    /// damaged.
    fn leave_to_others(&self) -> Result<()> {
        let patience = self.node.config.election_timeout();
        let conf = self.raw.raft.prs().conf().voters();
        let answers = |id: u64| self.heard.get(&id).is_some_and(|at| at.elapsed() < patience);
        let (answer, voters) = conf
            .ids()
            .iter()
            .fold((0, 0), |(answer, voters), id| (answer + usize::from(answers(id)), voters + 1));
        let replaceable = self.leads.is_some() && 2 * answer > voters;
        self.node.replaceable.store(replaceable, Ordering::Relaxed);
        match self.node.state.failure() {
            Some(failure) if replaceable => {
                tracing::error!("this server leaves its lead to the others, and ends: {failure}");
                Err(failure)
            }
            _ => Ok(()),
        }
    }

    /// Whether the others commit what this server cannot write: it answers nobody, since it applies
    /// only what it has written itself, and one of them could.
    fn log_hangs(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        let patience = self.node.config.election_timeout();
        log.committed > log.persisted
            && self.unwritten.front().is_some_and(|s| s.elapsed() > patience)
    }

    fn step_down(&mut self) {
        tracing::error!(
            "the log's disk has written nothing for an election timeout: this server gives up its \
             lead"
        );
        let raft = &mut self.raw.raft;
        raft.become_follower(raft.term, raft::INVALID_ID);
    }

    fn on_messages(&mut self, messages: Vec<Message>) -> Result<()> {
        let now = Instant::now();
        for mut message in messages {
            let kind = MessageType::from_i32(message.msg_type);
            // Who asks a leader for a vote does not hear it.
            let stands =
                matches!(kind, Some(MessageType::MsgRequestVote | MessageType::MsgRequestPreVote));
            let follows = self.leads.is_none() || !stands;
            if follows && self.raw.raft.prs().get(message.from).is_some() {
                self.heard.insert(message.from, now);
            }
            match kind {
                Some(MessageType::MsgRequestVote | MessageType::MsgRequestPreVote) => {
                    if self.may_elect(&message) {
                        self.give_up_leader();
                        self.step(message);
                    }
                }
                Some(MessageType::MsgSnapshot) => self.fetch(message),
                Some(MessageType::MsgAppend) if !in_one_piece(&message) => {
                    tracing::warn!(from = message.from, "ignored an append that has a gap in it");
                }
                Some(MessageType::MsgHeartbeat)
                    if message.commit > self.raw.raft.raft_log.last_index() =>
                {
                    if self.caught_up() && !planted::is(planted::Bug::EmptyVoterVotes) {
                        return Err(self.lost_entries(message.commit)?);
                    }
                    // Counted before this server lost its disk.
                    message.commit = 0;
                    self.step(message);
                }
                _ => self.step(message),
            }
        }
        Ok(())
    }

    /// The leader counts on entries that this server acknowledged and does not have: it must not
    /// vote any more.
    fn lost_entries(&self, commit: u64) -> Result<Error> {
        self.log.condemn()?;
        let last = self.raw.raft.raft_log.last_index();
        Ok(Error::new(
            ErrorKind::Corrupt,
            format!(
                "the leader counts on log entries up to {commit} of this server, whose log ends at \
                 {last}: its disk lost what it had synced; {MOVE_AWAY}"
            ),
        ))
    }

    pub(super) fn step(&mut self, message: Message) {
        if let Err(e) = self.raw.step(message) {
            tracing::debug!("raft ignored a message: {e}");
        }
    }

    /// The term that this server leads, unless it was deposed a moment ago, which is not published
    /// yet: Raft would forward to the next leader what may only be asked of a leader.
    pub(super) fn leads_still(&self) -> Option<u64> {
        let raft = &self.raw.raft;
        self.leads.filter(|&term| raft.state == StateRole::Leader && raft.term == term)
    }

    fn propose(&mut self, proposals: &mut Vec<Proposal>) {
        if proposals.is_empty() {
            return;
        }
        let Some(term) = self.leads_still().filter(|_| self.ready) else {
            for refused in proposals.drain(..) {
                let _ = refused.reply.send(Err(self.not_leader()));
            }
            return;
        };
        // Commits of one batch have times of their own, so that change times order as the log does.
        let now = self.node.env.clock.now_ns();
        let mut message = Message { from: self.raw.raft.id, ..Default::default() };
        message.set_msg_type(MessageType::MsgPropose);
        let complete = self.node.all_know(crate::node::Known::Quotas);
        for proposal in proposals.iter_mut() {
            self.last_time_ns = now.max(self.last_time_ns.saturating_add(1));
            proposal.stamp(self.last_time_ns, complete);
            message.entries.push(proposal.entry());
        }
        let mut index = self.raw.raft.raft_log.last_index();
        match self.raw.step(message) {
            Ok(()) => {
                for proposal in proposals.drain(..) {
                    index += 1;
                    self.pending.push(index, term, proposal.effect, proposal.reply);
                }
            }
            Err(e) => {
                for refused in proposals.drain(..) {
                    let busy = format!("the metadata group is overloaded: {e}");
                    let _ = refused.reply.send(Err(Error::new(ErrorKind::Unavailable, busy)));
                }
            }
        }
    }

    fn on_written(&mut self, number: u64) {
        self.unwritten.pop_front();
        self.release(number);
    }

    /// Lets go what waited for the disk to write ready `number`.
    pub(super) fn release(&mut self, number: u64) {
        let (highest, messages) = self.outbox.release(number);
        self.send(messages);
        if let Some(highest) = highest {
            self.raw.on_persist_ready(highest);
            let durable = self.raw.raft.raft_log.persisted;
            self.raw.mut_store().evict(durable);
        }
    }

    fn on_applied(&mut self, applied: Applied) -> Result<()> {
        self.applying -= applied.bytes;
        self.last_time_ns = self.last_time_ns.max(applied.time_ns);
        self.on_members(&applied)?;
        self.raw.advance_apply_to(applied.last);
        if !applied.answers.is_empty() && self.pending.len() > 0 {
            self.node.soft.with(|sessions| {
                for (index, term, reply) in applied.answers {
                    self.pending.complete(index, term, reply, sessions);
                }
            });
        }
        if applied.map_changed {
            self.publish_map()?;
        }
        for server in applied.admitted {
            self.start_anew(server);
        }
        self.node.applied.send_replace(applied.last);
        Ok(())
    }

    /// A server has nothing any more of what it acknowledged: its log is sent from the beginning.
    fn start_anew(&mut self, server: u64) {
        let raft = &mut self.raw.raft;
        if raft.state != StateRole::Leader || server == raft.id {
            return;
        }
        if let Some(progress) = raft.mut_prs().get_mut(server) {
            progress.become_probe();
            (progress.matched, progress.next_idx) = (0, 1);
            self.announced.forget(server);
        }
    }

    /// Hands on one batch of Raft's decisions.
    async fn on_ready(&mut self) -> Result<()> {
        let mut ready = self.raw.ready();
        self.send(ready.take_messages());
        for read in ready.take_read_states() {
            self.on_round(&read.request_ctx);
        }
        if !ready.snapshot().is_empty() {
            return self.install(ready).await;
        }
        let committed = ready.take_committed_entries();
        if !committed.is_empty() {
            self.apply(committed)?;
        }
        let entries = ready.take_entries();
        let old_last = self.raw.mut_store().append(&entries);
        let writes = ready.must_sync();
        let messages = ready.take_persisted_messages();
        let number = ready.number();
        self.outbox.hold(number, writes, messages);
        // What need not be durable by itself goes with the next write: a log that holds a change of
        // the group must know that the one before is committed.
        self.unwritten_state = ready.hs().cloned().or(self.unwritten_state.take());
        if writes {
            let hard_state = self.unwritten_state.take();
            let append = Append { entries, hard_state, old_last, truncate: None, sync: true };
            self.write(LogJob { number, append })?;
        }
        self.raw.advance_append_async(ready);
        if !writes && self.unwritten.is_empty() && self.in_place.is_empty() {
            self.release(number);
        }
        Ok(())
    }

    /// Applies committed entries: a few in place, since handing them over costs more than they do;
    /// many on the worker, so that the loop goes on meanwhile.
    fn apply(&mut self, committed: Vec<Entry>) -> Result<()> {
        let of_group = |e: &Entry| e.entry_type != EntryType::EntryNormal as i32;
        // A change of the group is synced, and nobody waits for it.
        let idle = self.applying == 0 && !committed.iter().any(of_group);
        self.applying += committed.iter().map(apply::size).sum::<usize>();
        if idle && committed.len() <= APPLY_IN_PLACE {
            let applied = apply::apply(&self.node.state, committed.into_iter())?;
            return self.on_applied(applied);
        }
        if self.applier.submit(committed) { Ok(()) } else { Err(ended("applying")) }
    }

    fn draw_timeout(&mut self) {
        let raft = &mut self.raw.raft;
        let now = (raft.term, raft.state);
        if now != self.drawn {
            self.drawn = now;
            let least = self.node.config.election_ticks();
            self.timeout = self.rng.random_range(least..2 * least);
        }
        if raft.randomized_election_timeout() != self.timeout {
            raft.set_randomized_election_timeout(self.timeout);
        }
    }

    pub(super) fn not_leader(&self) -> Error {
        let leader = Some(NodeId(self.raw.raft.leader_id)).filter(|id| id.0 != 0);
        self.node.not_leader_but(leader)
    }
}

pub(super) fn raft_failed(e: raft::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("raft: {e}"))
}

pub(super) fn ended(worker: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the {worker} worker ended"))
}
