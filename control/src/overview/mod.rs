//! A cluster at a glance, as its leader sees it: what the console shows, and `weft top`.
//!
//! Fields are only ever added: the page of one version reads the answers of another.

mod daemons;
mod load;

pub use daemons::{Daemon, TargetLine};
pub use load::Load;

use crate::problems::{Problem, health, problems};
use load::{add, is_fresh, weight};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use weft_proto::v1::{
    Event, ListQosReply, RepairStat, SessionStat, StatusReply, TargetInfo, TargetState, TenantStat,
};
use weft_proto::{Profile, Uuid};

/// Most sessions, tenants and events in one overview.
const MAX_ROWS: usize = 64;

/// What one reader may see of a cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Overview {
    /// Whether the server that answers leads. If not, nothing but this, `me` and `leader` is told.
    pub leads: bool,
    /// The number of the server that answers.
    pub me: u64,
    /// Where the leader is; empty: not known.
    pub leader: String,
    /// When this was made, by the server's clock: milliseconds since 1970.
    pub at_ms: i64,
    /// Of the server that answers.
    pub version: String,
    /// The cluster's identity.
    pub cluster: String,
    /// Of the map.
    pub epoch: u64,
    /// `ok`, `degraded` or `unknown`, as of `weft status`.
    pub health: String,
    /// The worst first.
    pub problems: Vec<Problem>,
    /// How full it is.
    pub capacity: Capacity,
    /// What clients get, of late.
    pub load: Load,
    /// What is made anew, and moves.
    pub repair: Repair,
    /// How far targets are with reading all that they hold.
    pub scrub: Scrub,
    /// The metadata group.
    pub servers: Vec<Server>,
    /// Storage daemons with their targets: those with trouble first, then the busiest.
    pub daemons: Vec<Daemon>,
    /// Daemons that are not told of.
    pub daemons_left_out: usize,
    /// The busiest tenants; absent: not for who reads this.
    pub tenants: Option<Vec<Tenant>>,
    /// Mounts and programs that are connected, those that were heard of last first.
    pub sessions: Vec<Session>,
    /// How many there are.
    pub sessions_total: usize,
    /// Directories with the most requests; absent: not for who reads this.
    pub directories: Option<Vec<Directory>>,
    /// The newest first; absent: not for who reads this.
    pub events: Option<Vec<Happened>>,
}

/// Room, in bytes of the drives: with 4+2, a byte of a file takes 1.5 of them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Capacity {
    /// Of targets that were not given up.
    pub total_bytes: u64,
    /// Of that, what is taken.
    pub used_bytes: u64,
    /// Of a byte on drives, the part that is a file's: k/(k+m) of the first pool.
    pub file_part: f64,
    /// Targets that were not given up, and those of them that serve.
    pub targets: usize,
    /// See `targets`.
    pub targets_up: usize,
}

/// As of `weft status`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Repair {
    /// Chunks of what is down or out.
    pub missing_chunks: u64,
    /// Chunks of what is drained, or holds more than its share.
    pub moving_chunks: u64,
    /// Missing ones for which there is no target.
    pub stuck_chunks: u64,
    /// Made since the leader leads.
    pub made_chunks: u64,
    /// Of late.
    pub chunks_per_s: u64,
    /// As it goes now; absent: it does not go on. 0: nothing is left.
    pub eta_s: Option<u64>,
}

/// Comparing all that is stored with its checksums.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Scrub {
    /// Bytes that are compared of those that targets hold, in this round.
    pub done_bytes: u64,
    /// What they hold.
    pub of_bytes: u64,
    /// When the target that is behind most was through, in seconds since 1970; 0: one never was.
    pub oldest_s: u64,
}

/// A metadata server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// Its number.
    pub id: u64,
    /// host:port
    pub address: String,
    /// `leader`, `follower` or `away`.
    pub state: String,
    /// Entries that it is behind the leader.
    pub lag: u64,
}

/// What a tenant was given a second, of late.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Bytes read.
    pub read_bytes_per_s: u64,
    /// Bytes written.
    pub written_bytes_per_s: u64,
    /// Requests for chunks.
    pub requests_per_s: u64,
    /// Operations at the metadata leader.
    pub metadata_per_s: u64,
    /// That a request waited on average: for others, and for its own rate.
    pub waited_us: u64,
}

/// A mount, or a program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Its number.
    pub id: u64,
    /// What it calls itself.
    pub client: String,
    /// What its certificate says.
    pub owner: String,
    /// Since it was last heard of.
    pub idle_ms: u64,
    /// Files that it has open.
    pub open_files: u64,
}

/// A directory that is asked for much.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Directory {
    /// From the root of the filesystem on, as far as it is known.
    pub path: String,
    /// Requests about names in it, a second, of late.
    pub requests_per_s: u64,
}

/// An event.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Happened {
    /// Milliseconds since 1970.
    pub at_ms: i64,
    /// An admin may have to do something about it.
    pub warning: bool,
    /// For scripts.
    pub kind: String,
    /// For people.
    pub text: String,
}

impl Overview {
    /// Of a leader's own status, and of what tenants were given. Names of tenants, directories and
    /// events are put in by who may show them.
    pub fn of(status: &StatusReply, served: &ListQosReply) -> Self {
        let leads = status.leader != 0 && status.leader == status.id;
        let mut this = Self {
            leads,
            me: status.id,
            leader: status.leader_address.clone(),
            at_ms: status.clock_ns / 1_000_000,
            version: status.version.clone(),
            ..Self::default()
        };
        if !leads {
            this.health = "unknown".into();
            return this;
        }
        let map = status.map.clone().unwrap_or_default();
        this.cluster = Uuid::from_slice(&map.cluster).map(|id| id.to_string()).unwrap_or_default();
        this.epoch = map.epoch;
        this.problems = problems(Some(status), None);
        this.health = health(Some(status), &this.problems).into();
        this.capacity = capacity(status);
        (this.daemons, this.daemons_left_out) = daemons::daemons(status);
        this.load = load(status, served);
        this.repair = status.repair.as_ref().map(Repair::from).unwrap_or_default();
        this.scrub = scrub(status);
        this.servers = servers(status);
        this.sessions_total = status.sessions.len();
        this.sessions = sessions(&status.sessions);
        this
    }

    /// With the tenants, for who may know of them.
    pub fn show_tenants(&mut self, served: &ListQosReply) {
        self.tenants = Some(tenants(served));
    }

    /// With what has happened, the newest of these first.
    pub fn show_events(&mut self, events: &[Event]) {
        let happened = |event: &Event| Happened {
            at_ms: event.time_ns / 1_000_000,
            warning: event.warning,
            kind: event.kind.clone(),
            text: event.text.clone(),
        };
        self.events = Some(events.iter().rev().take(MAX_ROWS).map(happened).collect());
    }
}

fn targets(status: &StatusReply) -> impl Iterator<Item = &TargetInfo> {
    status.map.iter().flat_map(|map| &map.targets)
}

fn capacity(status: &StatusReply) -> Capacity {
    let stats: HashMap<u32, u64> =
        status.targets.iter().map(|s| (s.target, s.used_bytes)).collect();
    let mut all = Capacity::default();
    for target in targets(status).filter(|t| t.state() != TargetState::Out) {
        add(&mut all.total_bytes, target.capacity_bytes);
        add(&mut all.used_bytes, stats.get(&target.id).copied().unwrap_or(0));
        all.targets += 1;
        all.targets_up += usize::from(target.state() == TargetState::Up);
    }
    let pool = status.map.iter().flat_map(|map| &map.pools).find_map(|pool| pool.profile);
    let profile = pool.and_then(|p| Profile::try_from(p).ok());
    all.file_part = profile.map_or(1.0, |p| f64::from(p.k()) / f64::from(p.width()));
    all
}

fn load(status: &StatusReply, served: &ListQosReply) -> Load {
    let mut all = Load::default();
    let (mut read_us, mut write_us, mut reads, mut writes) = (0, 0, 0, 0);
    for load in status.targets.iter().filter(|s| is_fresh(s.heard_ms)).filter_map(|s| s.load) {
        add(&mut all.read_bytes_per_s, load.read_bytes_per_s);
        add(&mut all.written_bytes_per_s, load.written_bytes_per_s);
        add(&mut all.reads_per_s, load.reads_per_s);
        add(&mut all.writes_per_s, load.writes_per_s);
        add(&mut all.waiting, load.waiting);
        add(&mut read_us, load.read_us.saturating_mul(weight(load.reads_per_s)));
        add(&mut reads, if load.read_us > 0 { weight(load.reads_per_s) } else { 0 });
        add(&mut writes, if load.write_us > 0 { weight(load.writes_per_s) } else { 0 });
        add(&mut write_us, load.write_us.saturating_mul(weight(load.writes_per_s)));
    }
    all.read_us = read_us.checked_div(reads).unwrap_or(0);
    all.write_us = write_us.checked_div(writes).unwrap_or(0);
    served.metadata.iter().for_each(|t| add(&mut all.metadata_per_s, t.requests));
    all
}

impl From<&RepairStat> for Repair {
    fn from(stat: &RepairStat) -> Self {
        let left = stat.missing_chunks.saturating_add(stat.moving_chunks);
        Self {
            missing_chunks: stat.missing_chunks,
            moving_chunks: stat.moving_chunks,
            stuck_chunks: stat.stuck_chunks,
            made_chunks: stat.made_chunks,
            chunks_per_s: stat.chunks_per_s,
            eta_s: match (left, stat.chunks_per_s) {
                (0, _) => Some(0),
                (left, rate) => (rate > 0).then(|| left.div_ceil(rate)),
            },
        }
    }
}

fn scrub(status: &StatusReply) -> Scrub {
    let mut all = Scrub { oldest_s: u64::MAX, ..Scrub::default() };
    for stat in &status.targets {
        let Some(scrub) = stat.scrub else { continue };
        add(&mut all.done_bytes, scrub.done_bytes.min(stat.used_bytes));
        add(&mut all.of_bytes, stat.used_bytes);
        all.oldest_s = all.oldest_s.min(scrub.last_s);
    }
    if all.oldest_s == u64::MAX {
        all.oldest_s = 0;
    }
    all
}

fn servers(status: &StatusReply) -> Vec<Server> {
    let members = status.map.iter().flat_map(|map| &map.members);
    let server = |member: &weft_proto::v1::NodeInfo| {
        let known = status.members.iter().find(|m| m.id == member.id);
        let state = match known {
            _ if member.id == status.id => "leader",
            Some(stat) if stat.active => "follower",
            _ => "away",
        };
        let lag = known.map_or(0, |m| status.commit_index.saturating_sub(m.matched_index));
        Server { id: member.id, address: member.address.clone(), state: state.into(), lag }
    };
    members.map(server).collect()
}

fn sessions(all: &[SessionStat]) -> Vec<Session> {
    let mut all: Vec<_> = all.iter().collect();
    all.sort_by_key(|s| (std::cmp::Reverse(s.open_files.unwrap_or(s.opens)), s.session));
    let session = |s: &&SessionStat| Session {
        id: s.session,
        client: s.client.clone(),
        owner: s.owner.clone(),
        idle_ms: s.idle_ms,
        open_files: s.open_files.unwrap_or(s.opens),
    };
    all.iter().take(MAX_ROWS).map(session).collect()
}

fn tenants(served: &ListQosReply) -> Vec<Tenant> {
    let mut all: BTreeMap<&str, Tenant> = BTreeMap::new();
    let named = |stat: &TenantStat| Tenant { name: stat.tenant.clone(), ..Tenant::default() };
    for stat in &served.served {
        let tenant = all.entry(&stat.tenant).or_insert_with(|| named(stat));
        tenant.read_bytes_per_s = stat.read_bytes;
        tenant.written_bytes_per_s = stat.written_bytes;
        tenant.requests_per_s = stat.requests;
        let waited = stat.shared_us.saturating_add(stat.paced_us);
        tenant.waited_us = waited.checked_div(stat.requests).unwrap_or(0);
    }
    for stat in &served.metadata {
        all.entry(&stat.tenant).or_insert_with(|| named(stat)).metadata_per_s = stat.requests;
    }
    let much = |t: &Tenant| {
        let bytes = t.read_bytes_per_s.saturating_add(t.written_bytes_per_s);
        (bytes, t.requests_per_s, t.metadata_per_s)
    };
    let mut all: Vec<_> = all.into_values().filter(|t| much(t) != (0, 0, 0)).collect();
    all.sort_by(|a, b| much(b).cmp(&much(a)).then_with(|| a.name.cmp(&b.name)));
    all.truncate(MAX_ROWS);
    all
}
