//! The frame header: 32 bytes, little-endian, its own CRC-32 at the end.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `WEFT` |
//! | 4 | version of the frame layout |
//! | 5 | kind (low nibble), flags (high nibble; 1: the head of a request begins with its place) |
//! | 6..8 | operation |
//! | 8..16 | request id; a request with 0 wants no answer, an answer with 0 belongs to no request |
//! | 16..20 | length of the head |
//! | 20..24 | length of the payload |
//! | 24..28 | milliseconds left to the deadline, 0 for none |
//! | 28..32 | CRC-32 of bytes 0..28 |
//!
//! The place of a request is where in a trace it belongs, 24 bytes ([`crate::trace`]). Only peers
//! are sent one that know of `Features::TRACES`.

use bytes::Bytes;
use std::fmt;
use std::io;
use tokio::time::Instant;

/// What every framed connection starts with.
pub(crate) const MAGIC: [u8; 4] = *b"WEFT";
/// Bytes of an encoded header.
pub(crate) const HEADER_LEN: usize = 32;
/// The layout of the header itself. The protocol's version is agreed on in the hello.
const FRAME_VERSION: u8 = 1;
/// Flag of a request that begins with its place in a trace.
const TRACED: u8 = 0x10;
/// Longest head, in bytes.
pub const MAX_HEAD: usize = 4 << 20;
/// Longest payload of an answer, and of a request where the server allows it, in bytes.
pub const MAX_PAYLOAD: usize = 64 << 20;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// From who calls to who serves.
    Request = 1,
    /// What a request was answered.
    Answer = 2,
    /// An answer whose head is an `ErrorHead`.
    Failure = 3,
}

/// What is known of a frame before its head and payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// The operation.
    pub op: u16,
    /// The number of the request. 0: a request that wants no answer, an answer to none.
    pub id: u64,
    /// Bytes of the head; filled in by [`Frame::new`].
    pub head_len: u32,
    /// Bytes of the payload; filled in by [`Frame::new`].
    pub payload_len: u32,
    /// Milliseconds until the caller stops to wait, 0 for ever.
    pub deadline_ms: u32,
    /// The head of this request begins with its place in a trace.
    pub traced: bool,
}

impl Header {
    /// Of a frame without lengths and deadline.
    pub(crate) fn new(kind: Kind, op: u16, id: u64) -> Self {
        Self { kind, op, id, head_len: 0, payload_len: 0, deadline_ms: 0, traced: false }
    }

    /// As it crosses the wire.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[..4].copy_from_slice(&MAGIC);
        b[4] = FRAME_VERSION;
        b[5] = self.kind as u8 | if self.traced { TRACED } else { 0 };
        b[6..8].copy_from_slice(&self.op.to_le_bytes());
        b[8..16].copy_from_slice(&self.id.to_le_bytes());
        b[16..20].copy_from_slice(&self.head_len.to_le_bytes());
        b[20..24].copy_from_slice(&self.payload_len.to_le_bytes());
        b[24..28].copy_from_slice(&self.deadline_ms.to_le_bytes());
        let crc = crc32fast::hash(&b[..28]);
        b[28..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Checks everything that can be checked without knowing who sent it. Error: `Garbage`.
    pub fn decode(b: &[u8; HEADER_LEN]) -> Result<Self, Broken> {
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        if b[..4] != MAGIC {
            return Err(Broken::Garbage(format!("frame starts with {:02x?}", &b[..4])));
        }
        if crc32fast::hash(&b[..28]) != u32_at(28) {
            return Err(Broken::Garbage("checksum of a frame header does not match".into()));
        }
        if b[4] != FRAME_VERSION {
            return Err(Broken::Garbage(format!(
                "frame layout {}, this build knows {FRAME_VERSION}: upgrade the older side",
                b[4]
            )));
        }
        let traced = b[5] & TRACED != 0;
        let kind = match b[5] & !TRACED {
            1 => Kind::Request,
            2 if !traced => Kind::Answer,
            3 if !traced => Kind::Failure,
            _ => return Err(Broken::Garbage(format!("unknown kind of frame {:#04x}", b[5]))),
        };
        let header = Self {
            kind,
            op: u16::from_le_bytes([b[6], b[7]]),
            id: u64::from_le_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
            head_len: u32_at(16),
            payload_len: u32_at(20),
            deadline_ms: u32_at(24),
            traced,
        };
        if header.head_len as usize > MAX_HEAD {
            return Err(Broken::Garbage(format!(
                "head of {} bytes, the limit is {MAX_HEAD}",
                header.head_len
            )));
        }
        Ok(header)
    }
}

/// What a header says of a deadline: rounded up, so that a short one does not read as none.
pub(crate) fn millis_left(until: Instant, now: Instant) -> u32 {
    let left = until.saturating_duration_since(now).as_nanos().div_ceil(1_000_000);
    u32::try_from(left.max(1)).unwrap_or(u32::MAX)
}

/// A frame to be sent.
pub struct Frame<'a> {
    /// What it says of itself; its lengths are those of the rest.
    pub header: Header,
    /// An encoded message, or one to be encoded.
    pub head: Head<'a>,
    /// Sent after the head, without a copy where the network can do that.
    pub payload: Vec<Bytes>,
    /// When who asks gives up, if ever: a request that has not begun to leave by then need not.
    pub until: Option<Instant>,
}

/// What a frame carries besides the payload.
pub enum Head<'a> {
    /// To be encoded.
    Message(&'a dyn Encode),
    /// Encoded.
    Bytes(Bytes),
}

/// A protobuf message of any kind.
pub trait Encode {
    /// Bytes that it encodes to.
    fn encoded_len(&self) -> usize;
    /// Appends it to `to`.
    fn encode(&self, to: &mut Vec<u8>);
}

impl<M: prost::Message> Encode for M {
    fn encoded_len(&self) -> usize {
        prost::Message::encoded_len(self)
    }

    fn encode(&self, to: &mut Vec<u8>) {
        self.encode_raw(to);
    }
}

impl<'a> Frame<'a> {
    /// A frame with the right lengths, which whoever makes it has found to be within the limits.
    pub(crate) fn new(mut header: Header, head: Head<'a>, payload: Vec<Bytes>) -> Self {
        header.head_len = match &head {
            Head::Message(message) => message.encoded_len() as u32,
            Head::Bytes(bytes) => bytes.len() as u32,
        };
        header.payload_len = payload.iter().map(Bytes::len).sum::<usize>() as u32;
        Self { header, head, payload, until: None }
    }

    /// A request of who gives up at a time, and says so.
    pub(crate) fn asked(
        mut header: Header,
        head: Head<'a>,
        payload: Vec<Bytes>,
        (now, until): (Instant, Instant),
    ) -> Self {
        header.deadline_ms = millis_left(until, now);
        Self { until: Some(until), ..Self::new(header, head, payload) }
    }

    /// A frame that is nothing but a header.
    pub(crate) fn bare(header: Header) -> Self {
        Self::new(header, Head::Bytes(Bytes::new()), Vec::new())
    }
}

/// Why a connection cannot go on.
#[derive(Debug)]
pub enum Broken {
    /// The other side closed between two frames.
    Closed,
    /// The network says so.
    Io(io::Error),
    /// The bytes are not the protocol.
    Garbage(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by the other side"),
            Self::Io(e) => e.fmt(f),
            Self::Garbage(what) => f.write_str(what),
        }
    }
}

impl From<io::Error> for Broken {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_survive_their_encoding(op: u16, id: u64, head_len in 0..=MAX_HEAD as u32,
                                          payload_len: u32, deadline_ms: u32, kind in 0..4usize) {
            let kinds = [Kind::Request, Kind::Answer, Kind::Failure, Kind::Request];
            let (kind, traced) = (kinds[kind], kind == 3);
            let header = Header { kind, op, id, head_len, payload_len, deadline_ms, traced };
            prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        }

        #[test]
        fn a_flipped_bit_is_noticed(id: u64, bit in 0..HEADER_LEN * 8) {
            let header = Header {
                head_len: 5,
                payload_len: 9,
                deadline_ms: 1,
                ..Header::new(Kind::Request, 7, id)
            };
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn garbage_is_refused(bytes: [u8; HEADER_LEN]) {
            prop_assert!(Header::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_head_over_the_limit_is_refused() {
        let header = Header {
            kind: Kind::Request,
            op: 1,
            id: 1,
            head_len: MAX_HEAD as u32 + 1,
            payload_len: 0,
            deadline_ms: 0,
            traced: false,
        };
        assert!(matches!(Header::decode(&header.encode()), Err(Broken::Garbage(_))));
    }
}
