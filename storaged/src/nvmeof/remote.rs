//! A namespace behind a fabric, as an admin writes it:
//!
//! ```text
//! nvme-tcp://10.0.0.5:4420,10.1.0.5:4420/nqn.2025-01.com.example:box1?uuid=0b0c...&host_iface=eth2
//! ```
//!
//! One or more addresses of the subsystem (several are paths to the same drive), its NQN, and which
//! namespace. Parsing accepts what it can connect to and nothing else: neither a control character
//! nor a comma may reach the option string of the kernel.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::str::FromStr;
use weft_proto::{Error, ErrorKind, Result};

/// Port of I/O controllers, and of discovery over RDMA.
pub const DEFAULT_PORT: u16 = 4420;
/// Port of discovery over TCP.
pub const DISCOVERY_PORT: u16 = 8009;
/// Longest NQN, in bytes.
const MAX_NQN: usize = 223;
/// Most addresses of one subsystem.
const MAX_ADDRESSES: usize = 16;

/// What carries the commands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Transport {
    Tcp,
    /// RoCE, InfiniBand or iWARP.
    Rdma,
}

impl Transport {
    /// The kernel's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

impl FromStr for Transport {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "rdma" => Ok(Self::Rdma),
            _ => Err(invalid(format!("{text:?} is no transport; it is tcp or rdma"))),
        }
    }
}

/// Where a controller listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    pub transport: Transport,
    /// Name or IP address, without brackets.
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Reads `host`, `host:port`, `v6`, `[v6]` or `[v6]:port`.
    pub fn parse(transport: Transport, text: &str, default_port: u16) -> Result<Self> {
        let bad = || invalid(format!("{text:?} is no address; write host:port or [v6]:port"));
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or_else(bad)?;
                let port = if after.is_empty() {
                    None
                } else {
                    Some(after.strip_prefix(':').ok_or_else(bad)?)
                };
                (host, port)
            }
            None => match text.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => (text, None), // a bare IPv6 address
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let sound = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(sound) {
            return Err(bad());
        }
        let port = port.map_or(Ok(default_port), |p| p.parse().map_err(|_| bad()))?;
        if port == 0 {
            return Err(bad());
        }
        Ok(Self { transport, host: host.to_owned(), port })
    }

    /// The IP address that the kernel is given. Asks the resolver, so it blocks.
    pub fn resolve(&self) -> Result<IpAddr> {
        if let Ok(ip) = self.host.parse() {
            return Ok(ip);
        }
        let fail =
            |what: String| Error::new(ErrorKind::Unavailable, format!("address of {self}: {what}"));
        let mut found =
            (self.host.as_str(), self.port).to_socket_addrs().map_err(|e| fail(e.to_string()))?;
        found.next().map(|a| a.ip()).ok_or_else(|| fail("the name has none".into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The identity that a namespace keeps wherever it is attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamespaceId {
    Uuid(String),
    Nguid(String),
    Eui64(String),
}

impl NamespaceId {
    /// `kind` is `uuid`, `nguid` or `eui`; `None` for another. Keeps the hexadecimal digits only.
    fn parse(kind: &str, text: &str) -> Option<Result<Self>> {
        let (make, digits): (fn(String) -> Self, usize) = match kind {
            "uuid" => (Self::Uuid, 32),
            "nguid" => (Self::Nguid, 32),
            "eui" => (Self::Eui64, 16),
            _ => return None,
        };
        let hex = hex_digits(text).filter(|h| h.len() == digits);
        Some(
            hex.map(make).ok_or_else(|| {
                invalid(format!("{kind}={text:?}: it has {digits} hexadecimal digits"))
            }),
        )
    }
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(hex) => {
                write!(f, "uuid={}-{}-", &hex[..8], &hex[8..12])?;
                write!(f, "{}-{}-{}", &hex[12..16], &hex[16..20], &hex[20..])
            }
            Self::Nguid(hex) => write!(f, "nguid={hex}"),
            Self::Eui64(hex) => write!(f, "eui={hex}"),
        }
    }
}

/// Hexadecimal digits, lower case, without the separators that people and kernels put between.
pub(super) fn hex_digits(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| !matches!(c, '-' | ' ' | '.')).collect();
    digits.chars().all(|c| c.is_ascii_hexdigit()).then(|| digits.to_ascii_lowercase())
}

/// A namespace behind a fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Paths to the subsystem, one at least, all of one transport.
    pub addresses: Vec<Address>,
    /// Name of the subsystem.
    pub nqn: String,
    /// Which of its namespaces; `None` where that does not matter, as to connect.
    pub id: Option<NamespaceId>,
    /// Address of this host to connect from.
    pub host_traddr: Option<String>,
    /// Interface of this host to connect through (TCP).
    pub host_iface: Option<String>,
}

impl Remote {
    pub fn transport(&self) -> Transport {
        self.addresses[0].transport
    }
}

impl FromStr for Remote {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |what: &str| {
            invalid(format!("{text:?}: {what}; write nvme-tcp://HOST:PORT/NQN?uuid=UUID"))
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("no nvme-tcp://"))?;
        let transport = match scheme {
            "nvme-tcp" => Transport::Tcp,
            "nvme-rdma" => Transport::Rdma,
            _ => return Err(bad("it begins with neither nvme-tcp:// nor nvme-rdma://")),
        };
        let (hosts, rest) = rest.split_once('/').ok_or_else(|| bad("no NQN"))?;
        let (nqn, query) = rest.split_once('?').unwrap_or((rest, ""));
        check_nqn(nqn)?;
        let addresses = hosts
            .split(',')
            .take(MAX_ADDRESSES + 1)
            .map(|a| Address::parse(transport, a, DEFAULT_PORT))
            .collect::<Result<Vec<_>>>()?;
        if addresses.len() > MAX_ADDRESSES {
            return Err(bad("too many addresses"));
        }
        let mut it =
            Self { addresses, nqn: nqn.to_owned(), id: None, host_traddr: None, host_iface: None };
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            it.set(pair).map_err(|e| bad(&e.message))?;
        }
        Ok(it)
    }
}

impl Remote {
    /// Takes one `key=value` of the query.
    fn set(&mut self, pair: &str) -> Result<()> {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| invalid(format!("{pair:?} is not key=value")))?;
        let twice = || Err(invalid(format!("{key} is said twice")));
        if let Some(id) = NamespaceId::parse(key, value) {
            return if self.id.replace(id?).is_some() { twice() } else { Ok(()) };
        }
        let field = match key {
            "host_traddr" => &mut self.host_traddr,
            "host_iface" => &mut self.host_iface,
            _ => return Err(invalid(format!("{key:?} is not known"))),
        };
        check_value(key, value)?;
        if field.replace(value.to_owned()).is_some() { twice() } else { Ok(()) }
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.addresses.iter().map(Address::to_string).collect();
        write!(f, "nvme-{}://{}/{}", self.transport().name(), hosts.join(","), self.nqn)?;
        let id = self.id.iter().map(NamespaceId::to_string);
        let from = self.host_traddr.iter().map(|a| format!("host_traddr={a}"));
        let iface = self.host_iface.iter().map(|a| format!("host_iface={a}"));
        let query: Vec<_> = id.chain(from).chain(iface).collect();
        if query.is_empty() { Ok(()) } else { write!(f, "?{}", query.join("&")) }
    }
}

/// Refuses what is no NVMe qualified name.
pub(super) fn check_nqn(nqn: &str) -> Result<()> {
    if !nqn.starts_with("nqn.") || nqn.len() > MAX_NQN {
        return Err(invalid(format!(
            "{nqn:?} is no NQN: one begins with \"nqn.\" and has at most {MAX_NQN} bytes"
        )));
    }
    check_value("the NQN", nqn)
}

/// Refuses what would end one option of the kernel's string and begin another.
pub(super) fn check_value(what: &str, value: &str) -> Result<()> {
    let sound = !value.is_empty()
        && value.chars().all(|c| !c.is_control() && !c.is_whitespace() && c != ',');
    if sound {
        Ok(())
    } else {
        Err(invalid(format!("{what} {value:?} has a character that it may not have")))
    }
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests;
