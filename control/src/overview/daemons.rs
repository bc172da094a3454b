//! Storage daemons and their targets, as an overview shows them.

use super::load::{Load, add, is_fresh, weight};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use weft_proto::v1::{StatusReply, TargetInfo, TargetStat, TargetState};

/// Most daemons that are told of, and most targets, all daemons together.
const MAX_DAEMONS: usize = 128;
const MAX_TARGETS: usize = 512;

/// A storage daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Daemon {
    /// As its configuration says.
    pub name: String,
    /// host:port
    pub address: String,
    /// Its failure domain.
    pub domain: String,
    /// `up`; `down`: none of its targets serves; `partly`: some do not.
    pub state: String,
    /// Since its last heartbeat; absent: none has come to this leader.
    pub heard_ms: Option<u64>,
    /// All its targets together; without operations on metadata.
    pub load: Load,
    /// Bytes, of those that were not given up.
    pub used_bytes: u64,
    /// The same.
    pub total_bytes: u64,
    /// Its targets.
    pub targets: Vec<TargetLine>,
}

/// A drive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetLine {
    /// Its number.
    pub id: u32,
    /// `up`, `down` or `out`
    pub state: String,
    /// It takes nothing new.
    pub full: bool,
    /// It is being emptied.
    pub draining: bool,
    /// On its machine.
    pub path: String,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Bytes that it can hold.
    pub total_bytes: u64,
    /// Chunks that it holds.
    pub chunks: u64,
    /// What clients get of it.
    pub load: Load,
    /// Reads and writes that failed, and blocks that did not match, since it was opened.
    pub errors: u64,
    /// Its drive has not answered its oldest request for so long.
    pub stalled_ms: u64,
}

/// The daemons of a cluster, and how many are left out.
pub(super) fn daemons(status: &StatusReply) -> (Vec<Daemon>, usize) {
    let stats: HashMap<u32, &TargetStat> = status.targets.iter().map(|s| (s.target, s)).collect();
    let mut by_name: BTreeMap<(&str, &str), Daemon> = BTreeMap::new();
    for info in status.map.iter().flat_map(|map| &map.targets) {
        let stat = stats.get(&info.id).copied();
        // What was given up and has gone is of no daemon any more.
        let gone = stat.is_none_or(|s| !is_fresh(s.heard_ms));
        if info.state() == TargetState::Out && gone {
            continue;
        }
        let daemon = by_name.entry((&info.daemon, &info.address)).or_insert_with(|| Daemon {
            name: info.daemon.clone(),
            address: info.address.clone(),
            domain: info.domain.clone(),
            ..Daemon::default()
        });
        let line = line(info, stat);
        if info.state() != TargetState::Out {
            add(&mut daemon.used_bytes, line.used_bytes);
            add(&mut daemon.total_bytes, line.total_bytes);
        }
        let heard = stat.map(|s| s.heard_ms);
        daemon.heard_ms = daemon.heard_ms.into_iter().chain(heard).min();
        daemon.load = sum(daemon.load, line.load);
        daemon.targets.push(line);
    }
    let mut all: Vec<Daemon> = by_name.into_values().collect();
    for daemon in &mut all {
        let down = daemon.targets.iter().filter(|t| t.state == "down").count();
        daemon.state = match down {
            0 => "up",
            n if n == daemon.targets.len() => "down",
            _ => "partly",
        }
        .into();
    }
    let bytes = |l: &Load| l.read_bytes_per_s.saturating_add(l.written_bytes_per_s);
    // Few stay where they are, so that who looks finds them again.
    if all.len() > MAX_DAEMONS {
        all.sort_by_key(|d| (d.state == "up", Reverse(bytes(&d.load))));
    }
    let mut left = MAX_TARGETS;
    let told = all.iter().take(MAX_DAEMONS).take_while(|daemon| {
        let fits = daemon.targets.len() <= left;
        left = left.saturating_sub(daemon.targets.len());
        fits
    });
    let told = told.count();
    let left_out = all.len() - told;
    all.truncate(told);
    (all, left_out)
}

fn line(info: &TargetInfo, stat: Option<&TargetStat>) -> TargetLine {
    let known = stat.copied().unwrap_or_default();
    let fresh = stat.is_some_and(|s| is_fresh(s.heard_ms));
    let load = known.load.filter(|_| fresh).unwrap_or_default();
    TargetLine {
        id: info.id,
        state: match info.state() {
            TargetState::Up => "up",
            TargetState::Out => "out",
            TargetState::Down | TargetState::Unknown => "down",
        }
        .into(),
        full: info.full,
        draining: info.draining,
        path: info.path.clone(),
        used_bytes: known.used_bytes,
        total_bytes: info.capacity_bytes,
        chunks: known.chunks,
        load: Load {
            read_bytes_per_s: load.read_bytes_per_s,
            written_bytes_per_s: load.written_bytes_per_s,
            reads_per_s: load.reads_per_s,
            writes_per_s: load.writes_per_s,
            read_us: load.read_us,
            write_us: load.write_us,
            waiting: load.waiting,
            metadata_per_s: 0,
        },
        errors: known
            .read_errors
            .saturating_add(known.write_errors)
            .saturating_add(known.checksum_errors),
        stalled_ms: if fresh { known.stalled_ms } else { 0 },
    }
}

fn sum(a: Load, b: Load) -> Load {
    let both = |of: fn(&Load) -> u64| of(&a).saturating_add(of(&b));
    let mean = |us: fn(&Load) -> u64, of: fn(&Load) -> u64| {
        let told = [&a, &b].into_iter().filter(|l| us(l) > 0);
        let (mut sum, mut all) = (0, 0);
        for load in told {
            add(&mut sum, us(load).saturating_mul(weight(of(load))));
            add(&mut all, weight(of(load)));
        }
        sum.checked_div(all).unwrap_or(0)
    };
    Load {
        read_bytes_per_s: both(|l| l.read_bytes_per_s),
        written_bytes_per_s: both(|l| l.written_bytes_per_s),
        reads_per_s: both(|l| l.reads_per_s),
        writes_per_s: both(|l| l.writes_per_s),
        read_us: mean(|l| l.read_us, |l| l.reads_per_s),
        write_us: mean(|l| l.write_us, |l| l.writes_per_s),
        waiting: both(|l| l.waiting),
        metadata_per_s: 0,
    }
}
