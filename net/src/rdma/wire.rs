//! What crosses a connection in messages: fragments, each with a short prefix, whose contents in a
//! row are frames. After its header a frame says where its payload is, and where that of its
//! answer goes.
//!
//! | bytes of a prefix | field |
//! |---|---|
//! | 0 | kind: 1 part of the frames, 2 nothing but credits, 3 part of the frames, and the last |
//! | 1 | 0 |
//! | 2..4 | credits: fragments with parts of frames that were taken since this was last said |
//! | 4..8 | 0 |
//!
//! | bytes after a header | field |
//! |---|---|
//! | 0 | the payload: 0 follows the head, 1 is to be read from the pieces, 2 was written |
//! | 1 | 0 |
//! | 2..4 | pieces of this payload |
//! | 4..6 | pieces of the memory that the answer's payload goes to |
//! | 6..8 | 0 |
//!
//! A piece is an address, a length and a key, 8 + 4 + 4 bytes. All numbers are little-endian.

use crate::frame::{Broken, MAX_PAYLOAD};

/// Bytes of a message, prefix included.
pub(super) const FRAGMENT: usize = 8 << 10;
/// Bytes of the prefix of a message.
pub(super) const PREFIX: usize = 8;
/// Bytes that follow a frame's header, before the pieces.
pub(super) const PLACES: usize = 8;
/// Bytes of a piece.
pub(super) const PIECE: usize = 16;
/// Most pieces of a payload, and of the memory for one. Where there would be more, the payload
/// follows the head.
pub(super) const MAX_PIECES: usize = 256;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Frames = 1,
    Credits = 2,
    Last = 3,
}

/// The beginning of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prefix {
    pub kind: Kind,
    pub credits: u16,
}

impl Prefix {
    pub fn encode(self) -> [u8; PREFIX] {
        let credits = self.credits.to_le_bytes();
        [self.kind as u8, 0, credits[0], credits[1], 0, 0, 0, 0]
    }

    /// Of a message. Error: `Garbage`.
    pub fn decode(message: &[u8]) -> Result<Self, Broken> {
        let Some(&[kind, _, low, high, ..]) = message.first_chunk::<PREFIX>() else {
            return Err(Broken::Garbage(format!("a message of {} bytes", message.len())));
        };
        let kind = match kind {
            1 => Kind::Frames,
            2 => Kind::Credits,
            3 => Kind::Last,
            _ => return Err(Broken::Garbage(format!("unknown kind of message {kind}"))),
        };
        Ok(Self { kind, credits: u16::from_le_bytes([low, high]) })
    }
}

/// Memory of the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub address: u64,
    pub len: u32,
    pub key: u32,
}

/// Where a frame's payload is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Payload {
    /// After the head.
    Follows = 0,
    /// In the memory of who sent the frame.
    ToBeRead = 1,
    /// In the memory of who receives it.
    Written = 2,
}

/// What stands between a frame's header and its pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Places {
    pub payload: Payload,
    pub sources: u16,
    pub landings: u16,
}

impl Places {
    pub fn encode(self) -> [u8; PLACES] {
        let (sources, landings) = (self.sources.to_le_bytes(), self.landings.to_le_bytes());
        [self.payload as u8, 0, sources[0], sources[1], landings[0], landings[1], 0, 0]
    }

    /// Error: `Garbage`.
    pub fn decode(bytes: [u8; PLACES]) -> Result<Self, Broken> {
        let [payload, _, s0, s1, l0, l1, _, _] = bytes;
        let payload = match payload {
            0 => Payload::Follows,
            1 => Payload::ToBeRead,
            2 => Payload::Written,
            _ => return Err(Broken::Garbage(format!("unknown place of a payload {payload}"))),
        };
        let (sources, landings) = (u16::from_le_bytes([s0, s1]), u16::from_le_bytes([l0, l1]));
        if usize::from(sources.max(landings)) > MAX_PIECES {
            return Err(Broken::Garbage(format!("{sources} and {landings} pieces of memory")));
        }
        if (payload == Payload::ToBeRead) != (sources > 0) {
            return Err(Broken::Garbage(format!("a payload at {payload:?} of {sources} pieces")));
        }
        Ok(Self { payload, sources, landings })
    }

    /// Bytes of all pieces.
    pub fn pieces_len(self) -> usize {
        PIECE * (usize::from(self.sources) + usize::from(self.landings))
    }
}

impl Piece {
    pub fn encode(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.address.to_le_bytes());
        to.extend_from_slice(&self.len.to_le_bytes());
        to.extend_from_slice(&self.key.to_le_bytes());
    }

    /// All that lie in `bytes`, which must be of one payload. Error: `Garbage`.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, Broken> {
        let (pieces, _) = bytes.as_chunks::<PIECE>();
        let pieces: Vec<Self> = pieces.iter().map(Self::decode).collect();
        let sum = pieces.iter().map(|piece| piece.len as usize).sum::<usize>();
        if sum > MAX_PAYLOAD || pieces.iter().any(Self::is_impossible) {
            return Err(Broken::Garbage(format!("pieces of memory with {sum} bytes")));
        }
        Ok(pieces)
    }

    fn decode(b: &[u8; PIECE]) -> Self {
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let address = u64::from(word(0)) | u64::from(word(4)) << 32;
        Self { address, len: word(8), key: word(12) }
    }

    fn is_impossible(&self) -> bool {
        self.len == 0 || self.address.checked_add(self.len.into()).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            credits: u16, key: u32, address in 0..u64::MAX / 2, len in 1..1u32 << 20,
            sources in 0..=MAX_PIECES as u16, landings in 0..=MAX_PIECES as u16, written: bool,
        ) {
            for kind in [Kind::Frames, Kind::Credits, Kind::Last] {
                let prefix = Prefix { kind, credits };
                prop_assert_eq!(Prefix::decode(&prefix.encode()).unwrap(), prefix);
            }
            let payload = match sources {
                0 if written => Payload::Written,
                0 => Payload::Follows,
                _ => Payload::ToBeRead,
            };
            let places = Places { payload, sources, landings };
            prop_assert_eq!(Places::decode(places.encode()).unwrap(), places);
            let piece = Piece { address, len, key };
            let mut bytes = Vec::new();
            piece.encode(&mut bytes);
            piece.encode(&mut bytes);
            prop_assert_eq!(Piece::decode_all(&bytes).unwrap(), vec![piece; 2]);
        }

        #[test]
        fn garbage_is_refused_or_bounded(message in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Prefix::decode(&message);
            if let Some(first) = message.first_chunk()
                && let Ok(places) = Places::decode(*first)
            {
                prop_assert!(places.pieces_len() <= 2 * MAX_PIECES * PIECE);
            }
            if let Ok(pieces) = Piece::decode_all(&message) {
                prop_assert!(pieces.iter().all(|p| p.address.checked_add(p.len.into()).is_some()));
            }
        }
    }
}
