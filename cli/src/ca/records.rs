//! What an authority has issued and revoked: `issued.toml` in its folder.
//!
//! Invariants: a certificate is on record before anybody has it, so that it can be revoked; who
//! changes the records holds the lock from before reading them until they are durable.

use super::request::{Request, Role};
use crate::durable;
use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

const FILE: &str = "issued.toml";
const LOCK: &str = "lock";

/// What is signed is valid for so many days, if nothing else was said.
pub const YEAR: u32 = 365;
/// Clocks of machines differ: what is signed is valid from so many seconds ago on.
pub const SKEW: u64 = 3600;

/// The end of the year 9999: certificates know no later one.
const LAST: u64 = 253_402_300_799;

/// A moment: seconds since 1970, in files as RFC 3339 has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(pub u64);

impl Moment {
    pub fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    pub fn plus_days(self, days: u32) -> Self {
        Self(self.0 + u64::from(days) * 86_400)
    }

    pub fn minus(self, seconds: u64) -> Self {
        Self(self.0.saturating_sub(seconds))
    }

    /// As certificates have it.
    pub fn date(self) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + Duration::from_secs(self.0)
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = UNIX_EPOCH + Duration::from_secs(self.0);
        humantime::format_rfc3339_seconds(time).fmt(f)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let time = humantime::parse_rfc3339(&text).map_err(de::Error::custom)?;
        let since = time.duration_since(UNIX_EPOCH).map_err(de::Error::custom)?;
        match since.as_secs() {
            seconds if seconds <= LAST => Ok(Self(seconds)),
            _ => Err(de::Error::custom("a year that certificates cannot say")),
        }
    }
}

/// All that an authority keeps beside its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Records {
    /// Name of the authority.
    pub name: String,
    pub until: Moment,
    /// Number of the last list of what was revoked, and when the next is due.
    pub crl_number: u64,
    pub crl_until: Moment,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<Record>,
}

/// A certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// In hexadecimal, as other tools show it.
    pub serial: String,
    pub role: Role,
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The name that Weft reads, with what its holder is confined to.
    pub uri: String,
    pub issued: Moment,
    pub until: Moment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Moment>,
}

impl Record {
    pub fn new(serial: &[u8], request: &Request, issued: Moment, until: Moment) -> Self {
        Self {
            serial: hex(serial),
            role: request.role,
            name: request.name.clone(),
            hosts: request.hosts.clone(),
            uri: request.uri(),
            issued,
            until,
            revoked: None,
        }
    }

    /// The serial number as it stands in the certificate.
    pub fn number(&self) -> Result<Vec<u8>> {
        unhex(&self.serial)
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a number in hexadecimal, with or without colons, as other tools write it.
pub fn unhex(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b':').collect();
    ensure!(
        !digits.is_empty()
            && digits.len() <= 40
            && digits.len().is_multiple_of(2)
            && digits.iter().all(u8::is_ascii_hexdigit),
        "{text:?} is no serial number: pairs of hexadecimal digits"
    );
    let digit = |d: u8| char::from(d).to_digit(16).unwrap_or_default() as u8;
    Ok(digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect())
}

impl Records {
    /// As they are now.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!("cannot read {} (weft ca init makes an authority)", path.display())
        })?;
        let records: Self =
            toml::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
        for record in &records.certificates {
            record.number().with_context(|| format!("{} is damaged", path.display()))?;
        }
        Ok(records)
    }

    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = toml::to_string(self)?;
        durable::replace(&path, text.as_bytes(), Some(Permissions::from_mode(0o600)))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The records, for who may change them.
pub struct Locked {
    pub records: Records,
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Locked {
    /// Waits until nobody else changes them.
    pub fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        let what = || format!("cannot lock {}", path.display());
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(what)?;
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| std::io::Error::from(errno))
            .with_context(what)?;
        Ok(Self { records: Records::read(dir)?, dir: dir.into(), _lock: lock })
    }

    pub fn write(&self) -> Result<()> {
        self.records.write(&self.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_from_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let until = Moment(4_000_000_000);
        let mut records = Records {
            name: "an authority".into(),
            until,
            crl_number: 1,
            crl_until: until,
            certificates: Vec::new(),
        };
        records.write(dir.path()).unwrap();
        assert_eq!(Records::read(dir.path()).unwrap(), records);
        let request = Request::new(Role::Client, "a");
        let record = Record::new(&[0x4f, 0, 0xff], &request, Moment(1), until);
        assert_eq!((record.serial.as_str(), record.number().unwrap().len()), ("4f00ff", 3));
        let gone = Record { revoked: Some(Moment(2)), ..record.clone() };
        records.certificates = vec![record, gone];
        records.write(dir.path()).unwrap();
        assert_eq!(Records::read(dir.path()).unwrap(), records);

        assert_eq!(unhex("4F:00:ff").unwrap(), [0x4f, 0, 0xff]);
        for wrong in ["", "4", "4g", "0x4f", &"0".repeat(42)] {
            assert!(unhex(wrong).is_err(), "{wrong}");
        }
    }
}
