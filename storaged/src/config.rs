//! Configuration of a storage daemon, one TOML file.

use crate::engine::{KeySource, TargetOptions, Tuning};
use crate::location::Location;
use crate::nvmeof::{Options, Roots};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::PathBuf;
use weft_proto::{Error, ErrorKind, Result};

/// A few of the largest requests at once.
const MIN_MEMORY: u64 = 4 * weft_proto::layout::MAX_CHUNK;

/// Ten years, in seconds.
const MAX_SCRUB_PERIOD: u64 = 3_653 * 86_400;

/// What a storage daemon needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of this daemon, unique in the cluster; for people, and the failure domain by default.
    pub name: String,
    /// `host:port` to listen on.
    pub listen: String,
    /// `host:port` at which clients reach this daemon, if not `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// `host:port` of the metadata servers.
    pub metadata: Vec<String>,
    /// Failure domain, such as `rack-1/node-3`, a path of what fails together: two shards of one
    /// segment avoid to share any part of it. Default: `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Most payload bytes that one connection may have in flight.
    #[serde(default = "default_in_flight", deserialize_with = "bytes")]
    pub max_in_flight: u64,
    /// Most bytes of requests and answers that the daemon holds at once, of all connections
    /// together.
    #[serde(default = "default_memory", deserialize_with = "bytes")]
    pub max_memory: u64,
    /// Most connections at once.
    #[serde(default = "default_connections")]
    pub max_connections: usize,
    /// Everything that a target holds is read and compared with its checksums once in this time:
    /// seconds, or such as `"14d"`, `"12h"`; 0: never.
    #[serde(default = "default_scrub_period", deserialize_with = "seconds")]
    pub scrub_period: u64,
    /// Repair, scrub and compaction pause as long as readers and writers suffer from them; but this
    /// percentage of the time of each target goes to them all the same, or more, as no pause is
    /// longer than a second. Waiting for other daemons, which pause likewise, is part of it. 1 to
    /// 100.
    #[serde(default = "default_background_share", skip_serializing_if = "is_default_share")]
    pub background_share: u32,
    /// Certificates of this daemon; without, those that its command line or its environment names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<weft_net::TlsFiles>,
    /// Serve other machines without certificates: only where the network keeps strangers out.
    #[serde(default)]
    pub insecure: bool,
    /// Serve over RDMA, too: not with certificates, since cards do not encrypt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<weft_net::RdmaOptions>,
    /// How drives behind a fabric are connected.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nvmeof: Options,
    /// The drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    /// Where this machine shows its devices.
    #[serde(skip)]
    pub roots: Roots,
    /// The wall clock, for the date of a scrub.
    #[serde(skip)]
    pub clock: Clock,
}

/// A wall clock: seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Clock(pub fn() -> u64);

impl Clock {
    pub(crate) fn now_s(self) -> u64 {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self(wall_clock)
    }
}

/// Which clock it is, is no difference of a configuration.
impl PartialEq for Clock {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Clock {}

#[expect(clippy::disallowed_methods, reason = "this is the seam: simulations set another clock")]
fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// One drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Block device (better by a name in `/dev/disk/by-id`), file, or namespace behind a fabric
    /// (`nvme-tcp://HOST:PORT/NQN?uuid=UUID`). `weft target add` has made a target of it.
    pub path: PathBuf,
    /// Size of the file as `weft target add` makes it: bytes, or such as `"64GiB"`. A daemon makes
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_bytes")]
    pub size: Option<u64>,
    /// The file takes the space of what is written to it only, and gives back what is
    /// freed. Other files can then fill its filesystem: writes to the target end with `NoSpace`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sparse: bool,
    /// Directory of the index, on a fast local drive. Default for a file: its path with `.index`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<PathBuf>,
    /// Whether puts are flushed to the device. Default: unless the kernel says that it has no
    /// volatile cache (`/sys/block/*/queue/write_cache`). False is for drives that keep what they
    /// were given through a power cut and do not say so; a file is flushed always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<bool>,
    /// Bytes a second of freed space to give back to the drive; 0: none. Default: 1 GiB on a device
    /// that takes discards and on a sparse file, 0 on another file.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_bytes")]
    pub discard_rate: Option<u64>,
    /// The key with which `weft target add` encrypts it, and without which it is not opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<KeySource>,
}

impl Config {
    /// A daemon with default limits.
    pub fn new(name: impl Into<String>, listen: impl Into<String>, metadata: Vec<String>) -> Self {
        Self {
            name: name.into(),
            listen: listen.into(),
            advertise: None,
            metadata,
            domain: None,
            max_in_flight: default_in_flight(),
            max_memory: default_memory(),
            max_connections: default_connections(),
            scrub_period: default_scrub_period(),
            background_share: default_background_share(),
            tls: None,
            insecure: false,
            rdma: None,
            nvmeof: Options::default(),
            targets: Vec::new(),
            roots: Roots::default(),
            clock: Clock::default(),
        }
    }

    /// The failure domain.
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(&self.name)
    }

    /// Refuses what cannot work, or gives a daemon nothing to do.
    pub fn validate_to_serve(&self) -> Result<()> {
        self.validate()?;
        if self.targets.is_empty() {
            let what = "the storage daemon has no [[targets]]; `weft target add` makes them";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(())
    }

    /// Refuses what cannot work.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        if self.name.is_empty() || self.listen.is_empty() {
            return bad("a storage daemon needs `name` and `listen`".into());
        }
        if self.metadata.is_empty() {
            return bad("`metadata` names no metadata server".into());
        }
        if self.max_memory < MIN_MEMORY {
            return bad(format!("max_memory: {} is not at least {MIN_MEMORY}", self.max_memory));
        }
        if self.max_connections < 16 {
            return bad(format!("max_connections: {} is not at least 16", self.max_connections));
        }
        if self.scrub_period > MAX_SCRUB_PERIOD {
            return bad(format!("scrub_period: {} s is over ten years", self.scrub_period));
        }
        if !(1..=100).contains(&self.background_share) {
            return bad(format!("background_share: {} is not 1 to 100", self.background_share));
        }
        self.nvmeof.validate()?;
        for (i, target) in self.targets.iter().enumerate() {
            let before = &self.targets[..i];
            if before.iter().any(|t| t.path == target.path) {
                return bad(format!("target {} is listed twice", target.path.display()));
            }
            let index = target.options().index_path();
            if let Some(other) = before.iter().find(|t| t.options().index_path() == index) {
                return bad(format!(
                    "targets {} and {} have the same index, {}: each has one of its own",
                    other.path.display(),
                    target.path.display(),
                    index.display()
                ));
            }
            target.encryption.as_ref().map_or(Ok(()), KeySource::validate).map_err(|e| {
                Error::new(e.kind, format!("target {}: {}", target.path.display(), e.message))
            })?;
            let Location::Fabric(remote) = target.location()? else { continue };
            if target.index.is_none() {
                return bad(format!("target {remote}: name a directory for its index"));
            }
            if remote.id.is_none() {
                return bad(format!(
                    "target {remote}: which namespace? add ?uuid=..., as `weft nvme list` shows it"
                ));
            }
        }
        Ok(())
    }
}

impl Target {
    /// A drive with defaults; `size` is for a file that is to be made, see [`Engine::format`].
    ///
    /// [`Engine::format`]: crate::engine::Engine::format
    pub fn new(path: impl Into<PathBuf>, size: Option<u64>) -> Self {
        Self {
            path: path.into(),
            size,
            sparse: false,
            index: None,
            flush: None,
            discard_rate: None,
            encryption: None,
        }
    }

    /// Where its drive is. Errors: `Invalid`.
    pub fn location(&self) -> Result<Location> {
        Location::parse(&self.path)
    }

    /// How its engine is opened, or made.
    pub fn options(&self) -> TargetOptions {
        let tuning = Tuning { flush: self.flush, discard: self.discard_rate };
        let Self { path, size, sparse, index, encryption, .. } = self.clone();
        TargetOptions { path, size, sparse, index, encryption, tuning }
    }
}

fn is_default(options: &Options) -> bool {
    *options == Options::default()
}

fn default_in_flight() -> u64 {
    256 << 20
}

fn default_memory() -> u64 {
    1 << 30
}

fn default_connections() -> usize {
    16_384
}

fn default_background_share() -> u32 {
    6
}

/// Daemons that do not know it refuse a file that says it.
fn is_default_share(share: &u32) -> bool {
    *share == default_background_share()
}

fn default_scrub_period() -> u64 {
    14 * 86_400
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    fn bytes<E: serde::de::Error>(self) -> Result<u64, E> {
        match self {
            Self::Bytes(n) => Ok(n),
            Self::Text(text) => parse_size(&text)
                .ok_or_else(|| E::custom(format!("{text:?} is no size such as 64GiB or 4096"))),
        }
    }
}

/// A number of bytes, with an optional unit KiB, MiB, GiB or TiB.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim() {
        "" | "B" => 0,
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        "TiB" | "T" => 40,
        _ => return None,
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A number of seconds, with an optional unit s, m, h or d.
fn parse_period(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(unit)
}

fn seconds<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    match Size::deserialize(d)? {
        Size::Bytes(seconds) => Ok(seconds),
        Size::Text(text) => parse_period(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no time such as \"14d\" or \"12h\""))
        }),
    }
}

fn bytes<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    Size::deserialize(d)?.bytes()
}

fn some_bytes<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    Size::deserialize(d)?.bytes().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_survives_its_file_and_mistakes_are_refused() {
        let text = r#"
            name = "s1"
            listen = "0.0.0.0:7100"
            metadata = ["m1:7000", "m2:7000"]
            [[targets]]
            path = "/data/t1"
            size = "64GiB"
            [[targets]]
            path = "/dev/disk/by-id/x"
            index = "/var/lib/weft/x"
            flush = false
            discard_rate = "1GiB"
            [targets.encryption]
            key_file = "/etc/weft/x.key"
        "#;
        let config: Config = toml::from_str(text).unwrap();
        config.validate().unwrap();
        assert_eq!(config.targets[0].size, Some(64 << 30));
        let tuning = Tuning { flush: Some(false), discard: Some(1 << 30) };
        assert_eq!(config.targets[1].options().tuning, tuning);
        assert_eq!(config.domain(), "s1");
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);

        let command = "key_command = [\"/usr/bin/kms\", \"get\", \"x\"]";
        let both = text.replace("key_file", &format!("{command}\n            key_file"));
        let both = toml::from_str::<Config>(&both).unwrap().validate().unwrap_err();
        assert!(both.message.contains("one of key_file"), "{both}");
        let other = text.replace("key_file = \"/etc/weft/x.key\"", command);
        toml::from_str::<Config>(&other).unwrap().validate().unwrap();

        let nameless = text.replace("/dev/disk/by-id/x", "nvme-tcp://h/nqn.a");
        let nameless = toml::from_str::<Config>(&nameless).unwrap().validate().unwrap_err();
        assert!(nameless.message.contains("which namespace?"), "{nameless}");
        let none = Config::new("s1", "0.0.0.0:7100", vec!["m1:7000".into()]);
        let none: Config = toml::from_str(&toml::to_string(&none).unwrap()).unwrap();
        none.validate().unwrap();
        let idle = none.validate_to_serve().unwrap_err();
        assert!(idle.message.contains("weft target add"), "{idle}");

        assert!(toml::from_str::<Config>(&text.replace("64GiB", "64 parsecs")).is_err());
        assert!(toml::from_str::<Config>(&text.replace("index", "idnex")).is_err());
        let twice: Config = toml::from_str(&text.replace("/dev/disk/by-id/x", "/data/t1")).unwrap();
        assert!(twice.validate().is_err());
        for index in ["/data/t1.index", "/data//t1.index/"] {
            let one = toml::from_str::<Config>(&text.replace("/var/lib/weft/x", index)).unwrap();
            let one = one.validate().unwrap_err();
            assert!(one.message.contains("same index"), "{one}");
        }
        assert_eq!(parse_size("12 MiB"), Some(12 << 20));
        assert_eq!(config.scrub_period, 14 * 86_400);
        let scrub = |period: &str| {
            let text = format!("scrub_period = {period}\n{text}");
            toml::from_str::<Config>(&text).ok().filter(|c| c.validate().is_ok())
        };
        for (period, seconds) in [("0", 0), ("\"90 m\"", 5400), ("\"2d\"", 172_800)] {
            assert_eq!(scrub(period).unwrap().scrub_period, seconds);
        }
        assert!(["-1", "\"2w\"", "\"400000d\""].iter().all(|period| scrub(period).is_none()));
        for (share, is_fine) in [(0, false), (1, true), (100, true), (101, false)] {
            let text = format!("background_share = {share}\n{text}");
            assert_eq!(toml::from_str::<Config>(&text).unwrap().validate().is_ok(), is_fine);
        }
        assert_eq!(parse_size("18446744073709551615T"), None);
    }
}
