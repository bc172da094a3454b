//! What goes wrong in a simulated cluster, drawn by the seed: scripts of steps with pauses between
//! them.
//!
//! No script destroys more than the cluster promises to survive: [`SERVER_DISKS`] of the metadata
//! group and one target in a run, and no target while another one errs.

use super::clocks::{set_clock, set_fast};
use super::disks::{Disks, Left};
use super::history::{CONTENTS, LARGE, MODES, OPEN_MODES, Order, REGISTERS, Shared, Spotlight};
use super::hosts::{config, serve};
use super::names::{CLIENTS, DAEMONS, NEW_SERVER, NEW_SERVER_ID, SERVERS};
use super::storage::Host;
use anyhow::Result;
use rand::{Rng, rngs::SmallRng};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weft_proto::map::WEIGHT_OF_ONE;
use weft_proto::v1::set_target_request::Action;

/// Pause between two steps, and between two scripts, in milliseconds.
pub const PAUSE: Range<u64> = 200..4000;
/// Disks of the metadata group that are replaced in a run, at most: what a group of three survives.
const SERVER_DISKS: usize = 1;
/// An outage that outlives every deadline of the clients.
const LONG: Range<u64> = 25_000..60_000;

/// An outage that outlives a session.
pub const SESSION: Range<u64> = 10_000..25_000;
/// One after which a target is given up, and what it held is made elsewhere.
const GIVEN_UP: Range<u64> = 16_000..30_000;

/// What faults are done to.
pub struct World {
    pub storage: Vec<Arc<Host>>,
    dir: PathBuf,
    /// The metadata servers.
    pub servers: [&'static str; SERVERS.len()],
    pub disks: &'static dyn Disks,
    seed: u64,
    pub random: SmallRng,
    /// Disks that were replaced, so that no more are.
    wiped_servers: usize,
    wiped_target: bool,
    /// The drive that rots: all that does is on one, so that it can be mended.
    rotten: Option<usize>,
    /// One of the servers has made way for another.
    replaced_server: bool,
}

/// One thing that happens.
pub enum Step {
    Pause(Range<u64>),
    Crash(&'static str),
    Start(&'static str),
    Cut(&'static str, Vec<&'static str>),
    Join(&'static str, Vec<&'static str>),
    /// Nothing that the first sends reaches the others, or the other way round; until they join.
    CutSending(&'static str, Vec<&'static str>),
    CutHearing(&'static str, Vec<&'static str>),
    Hold(&'static str, Vec<&'static str>),
    Deliver(&'static str, Vec<&'static str>),
    /// Of a metadata server that is down: its folder is empty.
    WipeServer(usize),
    /// Of a metadata server: its power goes before so many more syncs, in the midst of what it
    /// does.
    CutServerPowerAt(usize, u64, Left),
    /// And now, unless it has. The server goes down.
    CutServerPower(usize, Left),
    /// Of a daemon that is down: what was not flushed is gone; with `true` the index is.
    CutPower(usize, bool),
    FailReads(usize, u32),
    ReplaceTarget(usize),
    /// Some of what its drive holds is other bytes now.
    Rot(usize),
    /// An admin restarts a daemon whose target has failed.
    RestartFailed(usize),
    /// Of a daemon: its drive answers nothing, or does again; has no room, or has.
    Hang(usize, bool),
    Fill(usize, bool),
    Spotlight(Option<Spotlight>),
    /// A clock is wrong by so many nanoseconds.
    SetClock(usize, i64),
    /// Time passes faster on a server, or as elsewhere.
    SetFast(usize, bool),
    Order(Order),
    /// A new server is started, in whose place the group is to have it.
    StartNew(usize),
}

/// The rest of a fault.
pub struct Script {
    pub steps: VecDeque<Step>,
    /// Time passes, and that is all.
    pub does_nothing: bool,
    /// When the next step comes, in simulated time.
    pub next: Duration,
}

impl World {
    pub fn new(
        storage: Vec<Arc<Host>>,
        dir: &Path,
        disks: &'static dyn Disks,
        seed: u64,
        random: SmallRng,
    ) -> Self {
        Self {
            storage,
            dir: dir.to_owned(),
            servers: SERVERS,
            disks,
            seed,
            random,
            wiped_servers: 0,
            wiped_target: false,
            rotten: None,
            replaced_server: false,
        }
    }

    /// Where a metadata server has what it knows.
    pub fn folder(&self, server: usize) -> PathBuf {
        self.dir.join(self.servers[server])
    }

    /// A pause that is not part of a script.
    pub fn pause(&mut self) -> Duration {
        Duration::from_millis(self.random.random_range(PAUSE))
    }

    /// Draws a fault. Answers what it is called.
    pub fn draw(&mut self, now: Duration) -> (String, Script) {
        let server = self.random.random_range(0..SERVERS.len());
        let name = self.servers[server];
        let servers: Vec<_> = self.servers.into_iter().filter(|other| *other != name).collect();
        let others: Vec<_> = servers.iter().copied().chain(CLIENTS).chain(DAEMONS).collect();
        let pause = || Step::Pause(PAUSE);
        let (what, steps) = match self.random.random_range(0..36) {
            0 => (format!("crash {name}"), vec![Step::Crash(name), pause(), Step::Start(name)]),
            1 => (
                format!("cut off {name}"),
                vec![Step::Cut(name, others.clone()), pause(), Step::Join(name, others)],
            ),
            // From the servers only: clients still reach it, a deposed leader perhaps.
            2 => (
                format!("cut {name} off the group"),
                vec![Step::Cut(name, servers.clone()), pause(), Step::Join(name, servers)],
            ),
            3 => (
                format!("hold messages of {name}"),
                vec![Step::Hold(name, others.clone()), pause(), Step::Deliver(name, others)],
            ),
            4 | 5 => self.cut_off_client(PAUSE, ""),
            6 => self.outage(),
            7 if self.wiped_servers < SERVER_DISKS => self.wipe_server(server),
            8 if !self.wiped_target && self.rotten.is_none() => self.replace_target(),
            9 => self.power_cut(),
            19 | 20 => self.server_power_cut(),
            21 | 22 => self.wrong_clock(now),
            10 => self.late_puts(),
            23 | 24 => self.cut_one_way(),
            25 => self.cut_off_daemon(),
            26 => self.stopped_client(),
            27 | 28 => self.kill_clients(),
            // More than parity makes good, perhaps.
            29 | 30 => self.strike_drives("hang", Step::Hang, LONG),
            32 | 33 => self.decide(),
            34 => {
                let steps = vec![Step::Order(Order::TransferLeader), pause()];
                ("another server is to lead".into(), steps)
            }
            35 if !self.replaced_server => self.replace_server(server),
            31 => self.strike_drives("are full", Step::Fill, SESSION),
            11 | 15 => self.cut_off_client(SESSION, " for long"),
            12 if !self.wiped_target => self.rot(),
            13 => {
                let daemon = DAEMONS[self.random.random_range(0..DAEMONS.len())];
                let steps = vec![Step::Crash(daemon), Step::Pause(GIVEN_UP), Step::Start(daemon)];
                (format!("{daemon} is down until it is given up"), steps)
            }
            14 => {
                let register = self.register();
                let spotlight = Spotlight { register, alone: None };
                let steps = vec![Step::Spotlight(Some(spotlight)), pause(), Step::Spotlight(None)];
                (format!("all turn to register {register}"), steps)
            }
            _ => {
                let daemon = DAEMONS[self.random.random_range(0..DAEMONS.len())];
                (format!("crash {daemon}"), vec![Step::Crash(daemon), pause(), Step::Start(daemon)])
            }
        };
        (what, Script { steps: steps.into(), does_nothing: false, next: now })
    }

    /// A register that may be known under a lease, or buffered.
    fn register(&mut self) -> usize {
        let kinds = [MODES..OPEN_MODES, OPEN_MODES..CONTENTS, CONTENTS..LARGE, LARGE..REGISTERS];
        let kind = self.random.random_range(0..kinds.len());
        self.random.random_range(kinds[kind].clone())
    }

    /// A client hears nothing of the group, and the group nothing of it, while the others turn to
    /// what it used last.
    fn cut_off_client(&mut self, pause: Range<u64>, how_long: &str) -> (String, Vec<Step>) {
        let (servers, register) = (self.servers.to_vec(), self.register());
        let any = self.random.random_range(0..CLIENTS.len());
        // Of these it must be the one that may keep what it changes.
        let client = (OPEN_MODES..CONTENTS).position(|r| r == register).unwrap_or(any);
        let spotlight = |alone| Step::Spotlight(Some(Spotlight { register, alone }));
        let (alone, client) = (spotlight(Some(client)), CLIENTS[client]);
        let steps = vec![
            alone,
            Step::Pause(300..2000),
            Step::Cut(client, servers.clone()),
            spotlight(None),
            Step::Pause(pause),
            // Nor is what comes late written over at once.
            Step::Spotlight(None),
            Step::Join(client, servers),
        ];
        (format!("cut off {client}{how_long}, while all turn to register {register}"), steps)
    }

    /// No majority of the metadata group for longer than anybody waits: it is cut apart, or down.
    fn outage(&mut self) -> (String, Vec<Step>) {
        let (a, b) = self.two_servers();
        let (a, b) = (self.servers[a], self.servers[b]);
        if self.random.random_bool(0.5) {
            let steps = vec![
                Step::Crash(a),
                Step::Crash(b),
                Step::Pause(LONG),
                Step::Start(a),
                Step::Pause(PAUSE),
                Step::Start(b),
            ];
            return (format!("{a} and {b} are down for long"), steps);
        }
        let of =
            |name| self.servers.into_iter().filter(move |other| *other != name).collect::<Vec<_>>();
        let steps = vec![
            Step::Cut(a, of(a)),
            Step::Cut(b, of(b)),
            Step::Pause(LONG),
            Step::Join(a, of(a)),
            Step::Join(b, of(b)),
        ];
        (format!("{a} and {b} are cut off the group for long"), steps)
    }

    /// The disk of one server is replaced, perhaps while another is behind and the third goes away:
    /// what the group acknowledged is on one disk then, and those that know nothing of it are two.
    fn wipe_server(&mut self, server: usize) -> (String, Vec<Step>) {
        self.wiped_servers += 1;
        let name = self.servers[server];
        if self.random.random_bool(0.5) {
            let mut what = format!("replace the disk of {name}");
            let mut steps = vec![Step::Crash(name), Step::WipeServer(server), Step::Pause(PAUSE)];
            if self.random.random_bool(0.5) {
                what += ", and cut its power as it starts";
                steps.extend(self.starts_for_a_moment(server));
            }
            steps.push(Step::Start(name));
            return (what, steps);
        }
        let others: Vec<_> = (0..SERVERS.len()).filter(|other| *other != server).collect();
        let behind = self.random.random_range(0..2);
        let (behind, knows) = (self.servers[others[behind]], self.servers[others[1 - behind]]);
        let all: Vec<_> = self
            .servers
            .into_iter()
            .filter(|o| *o != behind)
            .chain(CLIENTS)
            .chain(DAEMONS)
            .collect();
        let steps = vec![
            Step::Cut(behind, all.clone()),
            Step::Pause(PAUSE),
            Step::Crash(name),
            Step::Crash(knows),
            Step::WipeServer(server),
            Step::Join(behind, all),
            Step::Start(name),
            Step::Pause(4000..20_000),
            Step::Start(knows),
        ];
        (format!("replace the disk of {name} while {behind} is behind and {knows} is down"), steps)
    }

    fn replace_target(&mut self) -> (String, Vec<Step>) {
        self.wiped_target = true;
        let daemon = self.random.random_range(0..DAEMONS.len());
        let name = DAEMONS[daemon];
        let steps = vec![
            Step::Crash(name),
            Step::ReplaceTarget(daemon),
            Step::Pause(PAUSE),
            Step::Start(name),
        ];
        (format!("replace the drive of {name}"), steps)
    }

    /// A target is emptied, given up though it serves, or to hold more or less; and is taken back.
    fn decide(&mut self) -> (String, Vec<Step>) {
        let daemon = self.random.random_range(0..DAEMONS.len());
        let name = DAEMONS[daemon];
        let pause = if self.random.random_bool(0.5) { GIVEN_UP } else { PAUSE };
        let (what, begin, end) = match self.random.random_range(0..4) {
            0 => ("is given up", Action::GiveUp, Action::TakeBack),
            1 => ("is weighed", Action::Weigh, Action::Weigh),
            _ => ("is emptied", Action::Drain, Action::TakeBack),
        };
        let weight = self.random.random_range(1..=3 * WEIGHT_OF_ONE);
        let order = |action, weight| Step::Order(Order::Target { daemon, action, weight });
        let steps = vec![order(begin, weight), Step::Pause(pause), order(end, WEIGHT_OF_ONE)];
        (format!("{name} {what}"), steps)
    }

    /// A new server takes the place of one that serves, or of one that never comes back.
    fn replace_server(&mut self, server: usize) -> (String, Vec<Step>) {
        self.replaced_server = true;
        let old = self.servers[server];
        let order = Step::Order(Order::Replace { old: server as u64 + 1, new: NEW_SERVER_ID });
        let mut steps = vec![Step::StartNew(server), order, Step::Pause(PAUSE)];
        let is_down = self.wiped_servers < SERVER_DISKS && self.random.random_bool(0.3);
        if is_down {
            self.wiped_servers += 1;
            steps.insert(0, Step::Crash(old));
        }
        let what = if is_down { ", which is lost" } else { "" };
        (format!("{NEW_SERVER} takes the place of {old}{what}"), steps)
    }

    /// What a client sends to daemons arrives when its session is over.
    fn late_puts(&mut self) -> (String, Vec<Step>) {
        let client = CLIENTS[self.random.random_range(0..CLIENTS.len())];
        let (servers, daemons) = (self.servers.to_vec(), DAEMONS.to_vec());
        let steps = vec![
            Step::Cut(client, servers.clone()),
            Step::Pause(7000..9500),
            Step::Hold(client, daemons.clone()),
            Step::Pause(1500..5000),
            Step::Deliver(client, daemons),
            Step::Pause(PAUSE),
            Step::Join(client, servers),
        ];
        (format!("cut off {client}, and hold what it sends to the daemons"), steps)
    }

    /// A host is heard and hears nothing, or the other way round: what it asks is done, and it is
    /// never told.
    fn cut_one_way(&mut self) -> (String, Vec<Step>) {
        let all: Vec<_> = self.servers.into_iter().chain(DAEMONS).chain(CLIENTS).collect();
        let host = all[self.random.random_range(0..all.len())];
        let others: Vec<_> = all.into_iter().filter(|other| *other != host).collect();
        let pause = if self.random.random_bool(0.3) { SESSION } else { PAUSE };
        let (what, cut): (_, fn(_, _) -> _) = match self.random.random_bool(0.5) {
            true => ("is not heard", Step::CutSending),
            false => ("hears nothing", Step::CutHearing),
        };
        let steps = vec![cut(host, others.clone()), Step::Pause(pause), Step::Join(host, others)];
        (format!("{host} {what}"), steps)
    }

    /// A daemon that runs, and that nobody reaches, or nobody but the metadata servers; perhaps
    /// until it is given up.
    fn cut_off_daemon(&mut self) -> (String, Vec<Step>) {
        let daemon = DAEMONS[self.random.random_range(0..DAEMONS.len())];
        let others = DAEMONS.into_iter().filter(|other| *other != daemon).chain(CLIENTS);
        let whole = self.random.random_bool(0.5);
        let others: Vec<_> = others.chain(self.servers.into_iter().filter(|_| whole)).collect();
        let pause = if self.random.random_bool(0.3) { GIVEN_UP } else { PAUSE };
        let cut = Step::Cut(daemon, others.clone());
        let from = if whole { "all" } else { "all but the metadata servers" };
        let steps = vec![cut, Step::Pause(pause), Step::Join(daemon, others)];
        (format!("cut {daemon} off {from}"), steps)
    }

    /// What a client sends and is sent comes when its session is over, all at once: to the others
    /// it is a process that was stopped, and goes on.
    fn stopped_client(&mut self) -> (String, Vec<Step>) {
        let client = CLIENTS[self.random.random_range(0..CLIENTS.len())];
        let others: Vec<_> = self.servers.into_iter().chain(DAEMONS).collect();
        let steps = vec![
            Step::Hold(client, others.clone()),
            Step::Pause(SESSION),
            Step::Deliver(client, others),
        ];
        (format!("hold all messages of {client} for long"), steps)
    }

    /// The process of a client, or of all, is killed and started again, perhaps before its session
    /// is over.
    fn kill_clients(&mut self) -> (String, Vec<Step>) {
        let mut killed = CLIENTS.to_vec();
        if self.random.random_bool(0.7) {
            killed = vec![CLIENTS[self.random.random_range(0..CLIENTS.len())]];
        }
        let pause = if self.random.random_bool(0.3) { SESSION } else { PAUSE };
        let mut steps: Vec<_> = killed.iter().copied().map(Step::Crash).collect();
        steps.push(Step::Pause(pause));
        steps.extend(killed.iter().copied().map(Step::Start));
        (format!("kill {}", killed.join(" ")), steps)
    }

    /// Something is so with one drive, two or all, of daemons that live; perhaps for long.
    fn strike_drives(
        &mut self,
        what: &str,
        strike: fn(usize, bool) -> Step,
        long: Range<u64>,
    ) -> (String, Vec<Step>) {
        let mut drives: Vec<_> = (0..DAEMONS.len()).collect();
        drives.rotate_left(self.random.random_range(0..DAEMONS.len()));
        drives.truncate([1, 1, 2, DAEMONS.len()][self.random.random_range(0..4)]);
        let pause = if self.random.random_bool(0.3) { long } else { PAUSE };
        let mut steps: Vec<_> = drives.iter().map(|&drive| strike(drive, true)).collect();
        steps.push(Step::Pause(pause));
        steps.extend(drives.iter().map(|&drive| strike(drive, false)));
        let names: Vec<_> = drives.iter().map(|&drive| DAEMONS[drive]).collect();
        (format!("drives of {} {what}", names.join(" ")), steps)
    }

    fn rot(&mut self) -> (String, Vec<Step>) {
        let any = self.random.random_range(0..DAEMONS.len());
        let daemon = *self.rotten.get_or_insert(any);
        (format!("the drive of {} rots", DAEMONS[daemon]), vec![Step::Rot(daemon)])
    }

    fn start_new(&mut self, sim: &mut turmoil::Sim<'_>, server: usize) {
        self.servers[server] = NEW_SERVER;
        let config = config(NEW_SERVER_ID, NEW_SERVER, &self.dir);
        let (seed, disks) = (self.seed, self.disks);
        disks.watch(&config.data_dir);
        sim.host(NEW_SERVER, move || serve(config.clone(), server, seed, disks));
    }

    fn two_servers(&mut self) -> (usize, usize) {
        let a = self.random.random_range(0..SERVERS.len());
        (a, (a + self.random.random_range(1..SERVERS.len())) % SERVERS.len())
    }
}

impl Script {
    /// Does what is to be done now. Answers whether that was all.
    pub fn go_on(
        &mut self,
        sim: &mut turmoil::Sim<'_>,
        world: &mut World,
        history: &Shared,
    ) -> Result<bool> {
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Pause(range) => {
                    let pause = Duration::from_millis(world.random.random_range(range));
                    self.next = sim.elapsed() + pause;
                    return Ok(false);
                }
                _ if self.does_nothing => {}
                Step::Crash(host) => sim.crash(host),
                Step::Start(host) => sim.bounce(host),
                Step::Cut(host, from) => from.iter().for_each(|&o| sim.partition(host, o)),
                Step::CutSending(host, to) => {
                    to.iter().for_each(|&o| sim.partition_oneway(host, o));
                }
                Step::CutHearing(host, from) => {
                    from.iter().for_each(|&o| sim.partition_oneway(o, host));
                }
                Step::Join(host, with) => with.iter().for_each(|&o| sim.repair(host, o)),
                Step::Hold(host, from) => from.iter().for_each(|&o| sim.hold(host, o)),
                Step::Deliver(host, from) => from.iter().for_each(|&o| sim.release(host, o)),
                Step::WipeServer(server) => world.disks.replace(&world.folder(server))?,
                Step::CutServerPowerAt(server, syncs, left) => {
                    world.disks.cut_at(&world.folder(server), syncs, left);
                }
                Step::CutServerPower(server, left) => world.cut_server_power(sim, server, left)?,
                Step::CutPower(daemon, lost) => world.storage[daemon].cut_power(lost)?,
                Step::FailReads(daemon, every) => world.storage[daemon].fail_reads(every),
                Step::ReplaceTarget(daemon) => world.storage[daemon].replace()?,
                Step::Rot(daemon) => world.storage[daemon].rot(),
                Step::RestartFailed(daemon) if world.storage[daemon].has_failed() => {
                    sim.bounce(DAEMONS[daemon]);
                }
                Step::RestartFailed(_) => {}
                Step::Hang(daemon, hangs) => world.storage[daemon].hang(hangs),
                Step::Fill(daemon, full) => world.storage[daemon].fill(full),
                Step::Order(order) => history.borrow_mut().orders.push_back(order),
                Step::StartNew(server) => world.start_new(sim, server),
                Step::SetFast(server, fast) => set_fast(server, fast),
                Step::SetClock(clock, wrong_ns) => set_clock(clock, wrong_ns),
                Step::Spotlight(spotlight) => history.borrow_mut().spotlight = spotlight,
            }
        }
        Ok(true)
    }

    /// Pauses are short from now on: whoever waits for the end of the fault has waited enough.
    pub fn hurry(&mut self, now: Duration) {
        self.next = self.next.min(now + Duration::from_millis(100));
    }
}
