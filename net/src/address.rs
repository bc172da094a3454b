//! Where a server is: `host:port`, or `network://host:port` on a network of another kind.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Longest host, in bytes: that of a DNS name, and of an IPv6 address with a zone.
const MAX_HOST: usize = 253;
/// Longest name of a network, in bytes.
const MAX_NETWORK: usize = 16;

/// The address of a server or of a caller. A network name before `://` says which transport it is
/// for; without one it is for whichever the process has. An IPv6 host stands in brackets.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// As it is written.
    text: Box<str>,
    /// Where the host begins and ends in `text`.
    host: (usize, usize),
    port: u16,
}

impl Address {
    /// A host (a name, an IPv4 address, or an IPv6 address without brackets) and a port, of no
    /// network in particular. Error: `InvalidInput`, no address can have this host.
    pub fn of_host(host: &str, port: u16) -> io::Result<Self> {
        if host.contains(':') {
            return format!("[{host}]:{port}").parse();
        }
        format!("{host}:{port}").parse()
    }

    /// The name of the network that it is on, if it says so.
    pub fn network(&self) -> Option<&str> {
        self.text.split_once("://").map(|(network, _)| network)
    }

    /// The host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        &self.text[self.host.0..self.host.1]
    }

    /// The port; 0 asks a listener to pick one.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = io::Error;

    /// Error: `InvalidInput`, with what is wrong.
    fn from_str(text: &str) -> io::Result<Self> {
        let wrong = |what: &str| {
            let shown: String = text.chars().take(MAX_HOST).collect();
            let what = format!("{shown:?} is not an address: {what}; write host:port");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        let (network, rest) = match text.split_once("://") {
            Some((network, rest)) => (Some(network), rest),
            None => (None, text),
        };
        let names = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if let Some(name) = network
            && (name.is_empty() || name.len() > MAX_NETWORK || !name.bytes().all(names))
        {
            return Err(wrong("its network has no name that there can be"));
        }
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or_else(|| wrong("a wrong port"))?;
        let inner = host.strip_prefix('[').map(|h| h.strip_suffix(']').ok_or(()));
        let bracketed = inner.is_some();
        let host = inner.unwrap_or(Ok(host)).map_err(|()| wrong("a bracket is not closed"))?;
        // Without brackets, too, as the standard library takes it.
        let v6 = bracketed || host.parse::<Ipv6Addr>().is_ok();
        let fits = |c: char| {
            let plain = c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
            plain || (v6 && matches!(c, ':' | '%'))
        };
        if host.is_empty() || host.len() > MAX_HOST || !host.chars().all(fits) {
            return Err(wrong("its host is no name and no IP address"));
        }
        let start = network.map_or(0, |name| name.len() + 3) + usize::from(bracketed);
        Ok(Self { text: text.into(), host: (start, start + host.len()), port })
    }
}

impl From<SocketAddr> for Address {
    fn from(socket: SocketAddr) -> Self {
        let text = socket.to_string();
        let host = match socket {
            SocketAddr::V4(_) => (0, text.rfind(':').unwrap_or(text.len())),
            SocketAddr::V6(_) => (1, text.rfind(']').unwrap_or(text.len())),
        };
        Self { text: text.into(), host, port: socket.port() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_read_and_shown_as_they_are_written() {
        for (text, network, host, port) in [
            ("127.0.0.1:7000", None, "127.0.0.1", 7000),
            ("storage_1.example.org:65535", None, "storage_1.example.org", 65535),
            ("[::1]:0", None, "::1", 0),
            ("::1:7", None, "::1", 7),
            ("[fe80::1%eth0]:7", None, "fe80::1%eth0", 7),
            ("rdma://10.0.0.1:7000", Some("rdma"), "10.0.0.1", 7000),
            ("rdma://[fd00::1]:7000", Some("rdma"), "fd00::1", 7000),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.network(), address.host(), address.port()), (network, host, port));
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            ":",
            "host",
            "host:",
            ":1",
            "host:65536",
            "host:+1",
            "host:-1",
            "a b:1",
            "[::1:7",
            "::1]:7",
            "[]:7",
            "://a:1",
            "RDMA://a:1",
            "a://b://c:1",
            "rdma://",
            "a/b:1",
        ] {
            let refused = text.parse::<Address>().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{text}");
        }
        assert!(format!("{}:1", "h".repeat(MAX_HOST)).parse::<Address>().is_ok());
        assert!(format!("{}:1", "h".repeat(MAX_HOST + 1)).parse::<Address>().is_err());
        assert!(format!("{}://h:1", "n".repeat(MAX_NETWORK + 1)).parse::<Address>().is_err());
    }

    proptest! {
        #[test]
        fn sockets_are_addresses(ip: std::net::IpAddr, port: u16) {
            let socket = SocketAddr::new(ip, port);
            let address = Address::from(socket);
            prop_assert_eq!(&address, &socket.to_string().parse::<Address>().unwrap());
            prop_assert_eq!(&address, &Address::of_host(&ip.to_string(), port).unwrap());
            prop_assert_eq!(address.host(), ip.to_string());
        }

        #[test]
        fn whatever_is_read_is_bounded_and_shown_again(text in ".{0,400}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string(), text);
                prop_assert!(address.host().len() <= MAX_HOST);
            }
        }
    }
}
