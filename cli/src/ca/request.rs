//! What a certificate is to say: who its holder is, and what a client is confined to.
//!
//! Invariant: all of it ends in one URI, `weft://ROLE/NAME[?subtree=PATH&access=ro&squash=root]`,
//! which servers and clients read; so nothing gets into it that they would read otherwise.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// Longest path of a subtree and of a part of it, in bytes, as the filesystem has them.
const MAX_PATH: usize = 4096;
const MAX_PART: usize = 255;

/// Which part the holder of a certificate plays in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Commands that change the cluster
    Admin,
    /// A storage daemon
    Storage,
    /// A metadata server
    Metadata,
    /// A mount, or a program with the library
    Client,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Admin, Self::Storage, Self::Metadata, Self::Client];

    /// Whether others connect to it.
    pub fn serves(self) -> bool {
        matches!(self, Self::Storage | Self::Metadata)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admin => "admin",
            Self::Storage => "storage",
            Self::Metadata => "metadata",
            Self::Client => "client",
        })
    }
}

/// A certificate that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub role: Role,
    /// Of a metadata server its number, of a storage daemon its name.
    pub name: String,
    /// Names and addresses at which a server is reached.
    pub hosts: Vec<String>,
    /// The directory that is a client's root.
    pub subtree: Option<String>,
    /// A client that changes nothing.
    pub read_only: bool,
    /// A client whose root user is nobody in particular.
    pub squash_root: bool,
    /// How long it is valid; by default a year, and never longer than the authority.
    pub days: Option<u32>,
}

impl Request {
    pub fn new(role: Role, name: impl Into<String>) -> Self {
        Self {
            role,
            name: name.into(),
            hosts: Vec::new(),
            subtree: None,
            read_only: false,
            squash_root: false,
            days: None,
        }
    }

    /// Refuses what no certificate can say.
    pub fn check(&self) -> Result<()> {
        let Self { role, name, .. } = self;
        check_name(*role, name)?;
        match (role.serves(), self.hosts.is_empty()) {
            (true, true) => bail!(
                "who connects to a {role} server compares its address with its certificate: name \
                 each host name and IP address at which it is reached with --host"
            ),
            (false, false) => bail!("nobody connects to a {role}: leave --host out"),
            _ => self.hosts.iter().try_for_each(|host| check_host(host))?,
        }
        let confined = self.subtree.is_some() || self.read_only || self.squash_root;
        ensure!(
            !confined || *role == Role::Client,
            "only a client can be confined to a subtree, to reading, or lose the rights of root"
        );
        self.subtree.as_deref().map_or(Ok(()), check_subtree)
    }

    /// The one name that Weft reads.
    pub fn uri(&self) -> String {
        let subtree = self.subtree.as_deref().map(|path| format!("subtree={}", encoded(path)));
        let limits: Vec<_> = subtree
            .into_iter()
            .chain(self.read_only.then(|| "access=ro".into()))
            .chain(self.squash_root.then(|| "squash=root".into()))
            .collect();
        let query =
            if limits.is_empty() { String::new() } else { format!("?{}", limits.join("&")) };
        format!("weft://{}/{}{query}", self.role, self.name)
    }
}

fn check_name(role: Role, name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    ensure!(
        (1..=64).contains(&name.len()) && name.bytes().all(plain),
        "{name:?} is no name: 1 to 64 of the characters A-Z a-z 0-9 . _ -"
    );
    let number = name.parse().ok().filter(|number: &u64| *number > 0);
    ensure!(
        role != Role::Metadata || number.is_some_and(|number| number.to_string() == name),
        "{name:?}: a metadata server is named by its number, such as 1 (its --id)"
    );
    Ok(())
}

/// A host name without wildcards, or an IP address.
fn check_host(host: &str) -> Result<()> {
    if host.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let label = |label: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        (1..=63).contains(&label.len())
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // Digits and dots alone would be an address that was mistyped.
    let named = host.bytes().any(|b| !b.is_ascii_digit() && b != b'.');
    ensure!(
        host.len() <= 253 && named && host.split('.').all(label),
        "{host:?} is neither a host name nor an IP address (without a port or a wildcard)"
    );
    Ok(())
}

fn check_subtree(path: &str) -> Result<()> {
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.len() > MAX_PART;
    ensure!(
        path.len() <= MAX_PATH
            && !path.contains('\0')
            && path.strip_prefix('/').is_some_and(|rest| !rest.split('/').any(bad)),
        "{path:?} is no directory of the filesystem to be confined to: /team/a, seen from its root"
    );
    Ok(())
}

/// Everything but letters, digits, `-._~` and `/` as `%XX`.
fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_its_holder_in_one_uri() {
        let mut wanted = Request::new(Role::Client, "team-a");
        assert_eq!(wanted.uri(), "weft://client/team-a");
        wanted.subtree = Some("/team/a & b?/ü%".into());
        wanted.check().unwrap();
        let uri = "weft://client/team-a?subtree=/team/a%20%26%20b%3F/%C3%BC%25";
        assert_eq!(wanted.uri(), uri);
        wanted.read_only = true;
        wanted.squash_root = true;
        assert_eq!(wanted.uri(), format!("{uri}&access=ro&squash=root"));
    }

    #[test]
    fn what_no_certificate_can_say_is_refused() {
        let check = |role, name: &str, hosts: &[&str]| {
            let hosts = hosts.iter().map(|h| h.to_string()).collect();
            Request { hosts, ..Request::new(role, name) }.check().is_ok()
        };
        assert!(check(Role::Metadata, "1", &["m1", "10.0.0.1", "fd00::1", "m1.example.com"]));
        for name in ["0", "01", "+1", "m1", "-1", "18446744073709551616"] {
            assert!(!check(Role::Metadata, name, &["m1"]), "{name}");
        }
        for name in ["", "a/b", "a?b", "a b", "ü", "a%2fb", &"x".repeat(65)] {
            assert!(!check(Role::Client, name, &[]), "{name}");
        }
        for host in ["", "10.0.0", "10.0.0.1:7000", "*.example.com", "-a", "a..b", "[::1]", "a/b"] {
            assert!(!check(Role::Storage, "s1", &[host]), "{host}");
        }
        assert!(!check(Role::Storage, "s1", &[]) && !check(Role::Admin, "a", &["a"]));

        let subtree = |path: &str| {
            let subtree = Some(path.to_string());
            Request { subtree, ..Request::new(Role::Client, "a") }.check().is_ok()
        };
        assert!(subtree("/a/b c"));
        let long = format!("/{}", "x".repeat(256));
        for path in ["", "a", "/", "/a/", "/a//b", "/a/../b", "/a/.", "/a\0b", &long] {
            assert!(!subtree(path), "{path:?}");
        }
        let confined = Request { read_only: true, ..Request::new(Role::Admin, "a") };
        assert!(confined.check().is_err());
    }
}
