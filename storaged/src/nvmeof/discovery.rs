//! What a discovery controller offers: connect to its well-known name, read its log, leave.

use super::admin::read_discovery_log;
use super::connect::{self, Kept};
use super::options::Goal;
use super::remote::{Address, Transport};
use super::{Host, Options, Roots};
use std::io;
use weft_proto::{Error, ErrorKind, Result};

/// The name that every discovery controller has.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Header and each record of the log, in bytes.
const RECORD: usize = 1024;
/// Most records that are believed: memory is bounded by it.
const MAX_RECORDS: u64 = 4096;
/// Records in one command; every controller takes 4 KiB.
const BATCH: usize = 4;
/// The log is read anew when it changed meanwhile, this often.
const ATTEMPTS: usize = 5;

/// One subsystem, on one address.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Found {
    /// `tcp`, `rdma`, `fc`, `loop`, or the number of one that has no name.
    pub transport: String,
    /// `ipv4`, `ipv6`, `ib`, `fc`, or a number.
    pub family: String,
    /// `nvme`, `discovery referral`, `current discovery`, or a number.
    pub kind: String,
    pub address: String,
    pub port: String,
    pub nqn: String,
    /// The target demands a secure channel.
    pub secure_channel: bool,
    /// Port of the subsystem that the record stands for.
    pub port_id: u16,
}

impl Found {
    /// Whether `connect` can be given this record.
    pub fn is_subsystem(&self) -> bool {
        self.kind == "nvme" && ["tcp", "rdma"].contains(&&self.transport[..])
    }
}

/// A discovery log.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Log {
    /// Grows with every change of the log.
    pub generation: u64,
    pub records: Vec<Found>,
}

/// Asks the discovery controller at `address`. Blocks for as long as the connection takes. Errors:
/// as [`connect::connect`]; `Protocol` for a log that cannot be; `Unavailable` when it never stands
/// still.
pub fn discover(roots: &Roots, address: &Address, options: &Options) -> Result<Log> {
    let host = Host::of(options.host_nqn.as_ref(), options.host_id.as_ref(), roots);
    let goal =
        Goal { address, nqn: DISCOVERY_NQN, host_traddr: None, host_iface: None, discovery: true };
    let controller =
        Kept::new(roots, connect::open(roots, &options.connect_string(&goal, &host)?, &goal)?);
    let device = roots.dev.join(controller.name());
    let file = std::fs::File::options().read(true).write(true).open(&device).map_err(|e| {
        Error::new(ErrorKind::Io, format!("discovery controller {}: {e}", device.display()))
    })?;
    read(|offset, into| read_discovery_log(&file, offset, into))
        .map_err(|e| Error { message: format!("discovery log of {address}: {e}"), ..e })
}

/// Reads a whole log that did not change meanwhile.
fn read(mut page: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> Result<Log> {
    let io = |e: io::Error| Error::new(ErrorKind::Io, e.to_string());
    let mut header = [0; RECORD];
    for _ in 0..ATTEMPTS {
        page(0, &mut header).map_err(io)?;
        let (generation, count) = parse_header(&header)?;
        let mut records = Vec::new();
        let mut batch = vec![0; BATCH * RECORD];
        for first in (0..count).step_by(BATCH) {
            let some = &mut batch[..(count - first).min(BATCH) * RECORD];
            page((RECORD * (first + 1)) as u64, some).map_err(io)?;
            records.extend(some.as_chunks::<RECORD>().0.iter().map(parse_record));
        }
        page(0, &mut header).map_err(io)?;
        if parse_header(&header)?.0 == generation {
            return Ok(Log { generation, records });
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "it changes faster than it can be read; try again"))
}

/// Generation and number of records.
fn parse_header(header: &[u8; RECORD]) -> Result<(u64, usize)> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let (generation, count) = (word(0), word(8));
    let format = u16::from_le_bytes([header[16], header[17]]);
    let bad = |what: String| Err(Error::new(ErrorKind::Protocol, what));
    match count {
        _ if format != 0 => {
            bad(format!("it has record format {format}, of which nothing is known"))
        }
        count if count > MAX_RECORDS => bad(format!("{count} records are more than {MAX_RECORDS}")),
        count => Ok((generation, count as usize)),
    }
}

fn parse_record(record: &[u8; RECORD]) -> Found {
    let named = |value: u8, names: &[(u8, &str)]| {
        let name = names.iter().find(|(v, _)| *v == value).map(|(_, name)| (*name).to_owned());
        name.unwrap_or_else(|| value.to_string())
    };
    Found {
        transport: named(record[0], &[(1, "rdma"), (2, "fc"), (3, "tcp"), (254, "loop")]),
        family: named(record[1], &[(1, "ipv4"), (2, "ipv6"), (3, "ib"), (4, "fc"), (254, "loop")]),
        kind: named(record[2], &[(1, "discovery referral"), (2, "nvme"), (3, "current discovery")]),
        secure_channel: record[3] & 3 == 1,
        port_id: u16::from_le_bytes([record[4], record[5]]),
        port: text(&record[32..64]),
        nqn: text(&record[256..512]),
        address: text(&record[512..768]),
    }
}

/// A padded field as text that may be printed: what a target sends is not trusted on a terminal.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    let text = String::from_utf8_lossy(&field[..end]);
    text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

impl Transport {
    /// Ports where a discovery controller may listen, the likelier first.
    pub fn discovery_ports(self) -> &'static [u16] {
        match self {
            Self::Tcp => &[super::DISCOVERY_PORT, super::DEFAULT_PORT],
            Self::Rdma => &[super::DEFAULT_PORT],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A record as the specification (NVMe over Fabrics 1.1, figure 30) lays it out.
    fn record(transport: u8, subtype: u8, port: &str, nqn: &str, address: &str) -> Vec<u8> {
        let mut bytes = vec![0; RECORD];
        bytes[..8].copy_from_slice(&[transport, 1, subtype, 1, 7, 0, 0xff, 0xff]);
        bytes[8..10].copy_from_slice(&32u16.to_le_bytes());
        bytes[32..64].fill(b' ');
        bytes[32..32 + port.len()].copy_from_slice(port.as_bytes());
        bytes[256..256 + nqn.len()].copy_from_slice(nqn.as_bytes());
        bytes[512..768].fill(b' ');
        bytes[512..512 + address.len()].copy_from_slice(address.as_bytes());
        bytes
    }

    fn log(generation: u64, records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; RECORD];
        bytes[..8].copy_from_slice(&generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&(records.len() as u64).to_le_bytes());
        records.iter().for_each(|r| bytes.extend(r));
        bytes
    }

    fn serve(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) -> io::Result<()> {
        |offset, into| {
            let from = offset as usize;
            let page = bytes.get(from..from + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            into.copy_from_slice(page);
            Ok(())
        }
    }

    #[test]
    fn a_log_is_read_as_the_specification_lays_it_out() {
        let mut records = vec![
            record(3, 2, "4420", "nqn.2025-01.com.x:box", "10.0.0.5"),
            record(1, 1, "4420", DISCOVERY_NQN, "\x1b[2J"),
        ];
        records.extend((0..9).map(|i| record(9, 2, &i.to_string(), "nqn.n", "h")));
        let found = read(serve(&log(41, &records))).unwrap();
        assert_eq!((found.generation, found.records.len()), (41, 11));
        assert_eq!(
            found.records[0],
            Found {
                transport: "tcp".into(),
                family: "ipv4".into(),
                kind: "nvme".into(),
                address: "10.0.0.5".into(),
                port: "4420".into(),
                nqn: "nqn.2025-01.com.x:box".into(),
                secure_channel: true,
                port_id: 7,
            }
        );
        let referral = &found.records[1];
        assert_eq!((&referral.transport[..], &referral.kind[..]), ("rdma", "discovery referral"));
        assert_eq!(referral.address, "?[2J", "nothing drives the terminal");
        assert_eq!((&found.records[10].transport[..], &found.records[10].port[..]), ("9", "8"));
        assert!(found.records[0].is_subsystem() && !found.records[10].is_subsystem());
    }

    #[test]
    fn a_log_that_changes_is_read_again_and_one_that_cannot_be_is_refused() {
        let (old, new) = (
            log(1, &[record(3, 2, "1", "nqn.a", "h")]),
            log(2, &[record(3, 2, "2", "nqn.b", "h")]),
        );
        let mut calls = 0;
        let found = read(|offset, into| {
            calls += 1;
            if calls <= 2 { serve(&old)(offset, into) } else { serve(&new)(offset, into) }
        });
        assert_eq!(found.unwrap().records[0].nqn, "nqn.b");
        let mut generation = 0;
        let restless = read(|_, into| {
            generation += 1;
            into.copy_from_slice(&log(generation, &[])[..into.len()]);
            Ok(())
        });
        assert_eq!(restless.unwrap_err().kind, ErrorKind::Unavailable);

        let mut many = log(1, &[]);
        many[8..16].fill(0xff);
        assert_eq!(read(serve(&many)).unwrap_err().kind, ErrorKind::Protocol);
        let mut strange = log(1, &[]);
        strange[16] = 1;
        assert_eq!(read(serve(&strange)).unwrap_err().kind, ErrorKind::Protocol);
        let short = log(1, &[vec![]]);
        assert_eq!(read(serve(&short)).unwrap_err().kind, ErrorKind::Io);
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_never_drives_the_terminal(
            mut bytes in prop::collection::vec(any::<u8>(), RECORD * 3), count in 0u8..4) {
            bytes[8..18].copy_from_slice(&[count, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            if let Ok(log) = read(serve(&bytes)) {
                prop_assert_eq!(log.records.len(), usize::from(count));
                for r in log.records {
                    prop_assert!(!(r.nqn + &r.address + &r.port).contains(char::is_control));
                }
            }
        }
    }
}
