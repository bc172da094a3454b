//! Configuration of one metadata server: a TOML file, checked once, then a typed value.
//!
//! Invariant: whoever holds a [`Config`] holds one that passed [`Config::validate`]; unknown fields
//! are refused, so that a typing error is never silently a default.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_proto::{Error, ErrorKind, NodeId, Profile, Result};

/// One metadata server of the group, as all of them reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its number in the group, never 0.
    pub id: NodeId,
    /// `host:port` of its listener, as seen from the other servers, daemons and clients.
    pub address: String,
}

/// Settings of one metadata server. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// This server's number; one of `peers`.
    pub id: NodeId,
    /// `host:port` to listen on, for the framed protocol and gRPC alike.
    pub listen: String,
    /// The servers that a new group begins with, this one included: the same list on each. For one
    /// that joins a group, or comes back into it: itself, and one that it can ask at least. Who
    /// belongs to the group since, and where, is part of its state.
    pub peers: Vec<Member>,
    /// Folder for log, state and snapshots.
    pub data_dir: PathBuf,
    /// Redundancy of the first pool, such as `4+2` or `replica=3`; used when the cluster is made.
    #[serde(default = "default_profile")]
    pub profile: String,
    /// A follower that hears nothing from the leader for this long (to twice as long) stands for
    /// election.
    #[serde(default = "default_election_ms")]
    pub election_ms: u64,
    /// The leader's heartbeat.
    #[serde(default = "default_heartbeat_ms")]
    pub heartbeat_ms: u64,
    /// Log entries kept for followers that are behind; who is further behind gets a snapshot.
    #[serde(default = "default_log_entries")]
    pub log_entries: u64,
    /// Bytes of the log's entries from which on it is shortened although it has fewer.
    #[serde(default = "default_log_bytes")]
    pub log_bytes: u64,
    /// A session that does not renew for this long is declared dead.
    #[serde(default = "default_session_ttl_ms")]
    pub session_ttl_ms: u64,
    /// A target whose daemon is silent for this long is `down`.
    #[serde(default = "default_target_down_ms")]
    pub target_down_ms: u64,
    /// A target that is down for this long is given up (`out`): what it held is made at others.
    #[serde(default = "default_target_out_ms")]
    pub target_out_ms: u64,
    /// How long the set of targets must be unchanged before placement groups are made for it.
    #[serde(default = "default_placement_settle_ms")]
    pub placement_settle_ms: u64,
    /// How long a placement group is kept after it was retired, though no data is in it: some may
    /// be on its way.
    #[serde(default = "default_placement_keep_ms")]
    pub placement_keep_ms: u64,
    /// Data goes to targets that hold less than their share when targets and their groups have been
    /// the same for so long, and nothing else is to be moved.
    #[serde(default = "default_rebalance_after_ms")]
    pub rebalance_after_ms: u64,
    /// How often the targets are told to read one segment, drawn at random.
    #[serde(default = "default_sample_interval_ms")]
    pub sample_interval_ms: u64,
    /// A target fuller than this many percent takes no new chunks; it is taken back five below.
    #[serde(default = "default_full_percent")]
    pub full_percent: u64,
    /// Files that nobody has changed for so long are put together again, if they lie in pieces.
    #[serde(default = "default_compact_after_ms")]
    pub compact_after_ms: u64,
    /// How much of the disk of the data folder is to stay free, in percent of it and in bytes,
    /// whichever is less: with less, on any server of the group, the cluster takes nothing new.
    #[serde(default = "default_reserve_percent")]
    pub reserve_percent: u64,
    #[serde(default = "default_reserve_bytes")]
    pub reserve_bytes: u64,
    /// Memory for what is read of the state, in bytes: the larger the namespace is that is used at
    /// a time, the more of it pays. Other memory comes on top: some 200 MiB, and what requests
    /// take.
    #[serde(default = "default_cache_bytes")]
    pub cache_bytes: u64,
    /// Most connections at once, of clients (a mount has up to four), daemons and other servers.
    /// One owner may have twice as many sessions.
    #[serde(default = "default_max_connections")]
    pub max_connections: u64,
    /// Certificates of this daemon; without, those that its command line or its environment names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<weft_net::TlsFiles>,
    /// Serve other machines without certificates: only where the network keeps strangers out.
    #[serde(default)]
    pub insecure: bool,
    /// Serve over RDMA, too: not with certificates, since cards do not encrypt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<weft_net::RdmaOptions>,
}

fn default_profile() -> String {
    "4+2".into()
}
fn default_election_ms() -> u64 {
    750
}
fn default_heartbeat_ms() -> u64 {
    75
}
fn default_log_entries() -> u64 {
    20_000
}
fn default_log_bytes() -> u64 {
    256 << 20
}
fn default_session_ttl_ms() -> u64 {
    10_000
}
fn default_target_down_ms() -> u64 {
    2_500
}
fn default_target_out_ms() -> u64 {
    600_000
}
fn default_placement_settle_ms() -> u64 {
    1_000
}
fn default_placement_keep_ms() -> u64 {
    600_000
}
fn default_rebalance_after_ms() -> u64 {
    10_000
}
fn default_sample_interval_ms() -> u64 {
    60_000
}
/// All that the store of a small disk has may be merged at once.
fn default_reserve_percent() -> u64 {
    50
}
/// Log and what is merged at once take less.
fn default_reserve_bytes() -> u64 {
    2 << 30
}
fn default_cache_bytes() -> u64 {
    128 << 20
}
fn default_full_percent() -> u64 {
    95
}
fn default_compact_after_ms() -> u64 {
    10_000
}
fn default_max_connections() -> u64 {
    16_384
}

impl Config {
    /// Settings with every default, for a server of the given group.
    pub fn new(id: NodeId, listen: String, peers: Vec<Member>, data_dir: PathBuf) -> Self {
        Self {
            id,
            listen,
            peers,
            data_dir,
            profile: default_profile(),
            election_ms: default_election_ms(),
            heartbeat_ms: default_heartbeat_ms(),
            log_entries: default_log_entries(),
            log_bytes: default_log_bytes(),
            session_ttl_ms: default_session_ttl_ms(),
            target_down_ms: default_target_down_ms(),
            target_out_ms: default_target_out_ms(),
            placement_settle_ms: default_placement_settle_ms(),
            placement_keep_ms: default_placement_keep_ms(),
            rebalance_after_ms: default_rebalance_after_ms(),
            sample_interval_ms: default_sample_interval_ms(),
            full_percent: default_full_percent(),
            cache_bytes: default_cache_bytes(),
            max_connections: default_max_connections(),
            tls: None,
            insecure: false,
            rdma: None,
            compact_after_ms: default_compact_after_ms(),
            reserve_percent: default_reserve_percent(),
            reserve_bytes: default_reserve_bytes(),
        }
    }

    /// Reads and checks a TOML file.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::new(ErrorKind::Invalid, format!("cannot read {}: {e}", path.display()))
        })?;
        Self::parse(&text)
            .map_err(|e| Error::new(e.kind, format!("{}: {}", path.display(), e.message)))
    }

    /// Reads and checks the text of a configuration file.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self =
            toml::from_str(text).map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    /// Refuses what cannot work, saying which field and why.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        let ids: BTreeSet<_> = self.peers.iter().map(|p| p.id).collect();
        let addresses: BTreeSet<_> = self.peers.iter().map(|p| p.address.as_str()).collect();
        if ids.len() != self.peers.len() || addresses.len() != self.peers.len() {
            return bad("peers: two of them share an id or an address".into());
        }
        if self.peers.is_empty() || self.peers.len() > 9 {
            return bad(format!("peers: 1 to 9 servers form a group, not {}", self.peers.len()));
        }
        if ids.contains(&NodeId(0)) {
            return bad("peers: id 0 is not a server; ids start at 1".into());
        }
        if !ids.contains(&self.id) {
            return bad(format!("id: server {} is not among the peers", self.id));
        }
        for (field, address) in std::iter::once(("listen", &self.listen))
            .chain(self.peers.iter().map(|p| ("peers", &p.address)))
        {
            if !is_address(address) {
                return bad(format!("{field}: {address:?} is not host:port"));
            }
        }
        if self.heartbeat_ms < 5 || self.election_ms < 5 * self.heartbeat_ms {
            return bad(format!(
                "election_ms ({}) must be at least five times heartbeat_ms ({}), which is at \
                 least 5",
                self.election_ms, self.heartbeat_ms
            ));
        }
        for (field, value, min) in [
            ("log_entries", self.log_entries, 16),
            ("log_bytes", self.log_bytes, 1 << 20),
            ("session_ttl_ms", self.session_ttl_ms, 100),
            ("target_down_ms", self.target_down_ms, 100),
            ("target_out_ms", self.target_out_ms, 100),
            ("placement_settle_ms", self.placement_settle_ms, 1),
            ("placement_keep_ms", self.placement_keep_ms, 1),
            ("rebalance_after_ms", self.rebalance_after_ms, 1),
            ("sample_interval_ms", self.sample_interval_ms, 1),
            ("compact_after_ms", self.compact_after_ms, 1),
            ("cache_bytes", self.cache_bytes, 1 << 20),
            ("max_connections", self.max_connections, 16),
        ] {
            if value < min || value > 1 << 40 {
                return bad(format!("{field}: {value} is not at least {min}"));
            }
        }
        if !(10..=100).contains(&self.full_percent) {
            return bad(format!("full_percent: {} is not 10 to 100", self.full_percent));
        }
        if self.reserve_percent > 100 {
            return bad(format!("reserve_percent: {} is not 0 to 100", self.reserve_percent));
        }
        self.pool_profile().map(|_| ())
    }

    /// Redundancy of the first pool.
    pub fn pool_profile(&self) -> Result<Profile> {
        self.profile.parse()
    }

    /// Length of one Raft tick, which is the heartbeat.
    pub fn tick(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// Least election timeout, in ticks.
    pub fn election_ticks(&self) -> usize {
        (self.election_ms / self.heartbeat_ms) as usize
    }

    /// Who heard of a leader helps to elect no other for so long, whatever it learns meanwhile. A
    /// leader's right to answer reads is a part of that.
    pub fn least_silence(&self) -> Duration {
        self.tick() * 4
    }

    /// Least time in which a follower that heard the leader helps to elect no other, unless its
    /// connection to that has ended.
    pub fn election_timeout(&self) -> Duration {
        self.tick() * self.election_ticks() as u32
    }

    /// Bytes that are to stay free on a disk of so many.
    pub fn reserve(&self, disk: u64) -> u64 {
        (disk / 100).saturating_mul(self.reserve_percent).min(self.reserve_bytes)
    }

    /// Time without renewal after which a session is dead.
    pub fn session_ttl(&self) -> Duration {
        Duration::from_millis(self.session_ttl_ms)
    }

    /// Silence after which a target is down.
    pub fn target_down_after(&self) -> Duration {
        Duration::from_millis(self.target_down_ms)
    }
}

/// Whether this is `host:port`.
pub(crate) fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        id = 2
        listen = "127.0.0.1:7002"
        data_dir = "/var/lib/weft/metadata"
        peers = [{ id = 1, address = "a:7001" }, { id = 2, address = "b:7002" },
            { id = 3, address = "[::1]:7003" }]
    "#;

    /// A daemon whose leader says nothing any more gets to the next one in time, and past another.
    #[test]
    fn who_is_not_heard_of_is_waited_for_longer_than_daemons_wait_for_who_is_gone() {
        let patience = <weft_proto::v1::HeartbeatRequest as weft_control::Question>::PATIENCE;
        let down_after = Duration::from_millis(default_target_down_ms());
        assert!(2 * patience < down_after, "{patience:?} and {down_after:?}");
    }

    #[test]
    fn a_small_file_is_enough_and_mistakes_are_named() {
        let c = Config::parse(GOOD).unwrap();
        assert_eq!((c.id, c.peers.len(), c.election_ticks()), (NodeId(2), 3, 10));
        for (from, to, names) in [
            ("id = 2\n", "id = 9\n", "id"),
            ("b:7002", "b:x", "peers"),
            ("b:7002", "a:7001", "peers"),
            ("listen", "profile = \"9\"\nlisten", "profile"),
            ("listen", "election_ms = 100\nlisten", "election_ms"),
            ("listen", "lisen = 1\nlisten", "lisen"),
            ("listen", "full_percent = 5\nlisten", "full_percent"),
            ("listen", "max_connections = 9\nlisten", "max_connections"),
            ("listen", "log_bytes = 1000\nlisten", "log_bytes"),
        ] {
            let e = Config::parse(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(
                e.kind == ErrorKind::Invalid && e.message.contains(names),
                "{from} -> {to}: {e}"
            );
        }
    }
}
