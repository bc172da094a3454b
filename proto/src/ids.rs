//! Newtypes for every identifier that crosses a boundary.
//!
//! Invariant: a bare integer never names a thing; two kinds of id cannot be mixed up in a call.
//! Wire and disk encodings are big-endian where order matters, so that byte order is id order.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize,
            serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map(Self)
            }
        }
    };
}

id! {
    /// A metadata server's number in its Raft group; never 0.
    NodeId(u64)
}
id! {
    /// A drive. Given out by the metadata group when the drive first registers; never reused.
    TargetId(u32)
}
id! {
    /// A placement group: an ordered list of targets. Never reused.
    PgId(u32)
}
id! {
    /// The version of the cluster map; it only grows.
    MapEpoch(u64)
}
id! {
    /// One mounted client. Given out by the metadata group; never reused; 0 is nobody.
    SessionId(u64)
}

/// An inode. The high 16 bits are the metadata shard that owns it, the low 48 bits a counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InodeId(pub u64);

impl InodeId {
    /// The root directory: shard 0, number 1 (also the node id that FUSE gives to the root).
    pub const ROOT: Self = Self(1);
    const NUMBER_BITS: u32 = 48;

    /// The root of the tree of a shard: of shard 0, that of the namespace.
    pub fn root_of(shard: u16) -> Self {
        Self::new(shard, Self::ROOT.number())
    }

    /// Whether this is the root of its shard's tree.
    pub fn is_root(self) -> bool {
        self.number() == Self::ROOT.number()
    }

    /// Composes an id; `number` must fit in 48 bits.
    pub fn new(shard: u16, number: u64) -> Self {
        assert!(number >> Self::NUMBER_BITS == 0, "inode number {number} exceeds 48 bits");
        Self(u64::from(shard) << Self::NUMBER_BITS | number)
    }

    /// The metadata shard that owns this inode.
    pub fn shard(self) -> u16 {
        (self.0 >> Self::NUMBER_BITS) as u16
    }

    /// The counter part, unique within the shard.
    pub fn number(self) -> u64 {
        self.0 & ((1 << Self::NUMBER_BITS) - 1)
    }
}

impl fmt::Debug for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InodeId({}:{})", self.shard(), self.number())
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A segment: the session that wrote it and that session's counter, so that what a dead session
/// left behind can be found.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize,
)]
pub struct SegmentId {
    /// Who wrote it.
    pub session: SessionId,
    /// Its number among those of the session.
    pub seq: u64,
}

impl SegmentId {
    /// Bytes of its encoding.
    pub const LEN: usize = 16;

    /// As in keys: the order of bytes is that of ids.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.session.0.to_be_bytes());
        b[8..].copy_from_slice(&self.seq.to_be_bytes());
        b
    }

    /// Reverses [`Self::to_bytes`].
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let v = u128::from_be_bytes(*b);
        Self { session: SessionId((v >> 64) as u64), seq: v as u64 }
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.seq)
    }
}

/// A chunk: one shard of one segment, as stored on one target.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize,
)]
pub struct ChunkId {
    /// The segment that it is a part of.
    pub segment: SegmentId,
    /// 0..k are data shards, k..k+m parity shards.
    pub shard: u8,
}

impl ChunkId {
    /// Bytes of its encoding.
    pub const LEN: usize = SegmentId::LEN + 1;

    /// As in keys: the order of bytes is that of ids.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..SegmentId::LEN].copy_from_slice(&self.segment.to_bytes());
        b[SegmentId::LEN] = self.shard;
        b
    }

    /// Reverses [`Self::to_bytes`].
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let (segment, shard) = b.split_at(SegmentId::LEN);
        Self {
            segment: SegmentId::from_bytes(segment.try_into().expect("split at LEN")),
            shard: shard[0],
        }
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.segment, self.shard)
    }
}

/// A random 128-bit identity, of a cluster or of a target. Printed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Nobody's.
    pub const NIL: Self = Self([0; 16]);

    /// Takes an identity from the wire, where it must be exactly 16 bytes.
    pub fn from_slice(b: &[u8]) -> Option<Self> {
        b.try_into().ok().map(Self)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Uuid {
    type Err = &'static str;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        if s.len() != 32 || !s.is_ascii() {
            return Err("expected 32 hexadecimal digits");
        }
        let mut out = [0; 16];
        for (i, b) in out.iter_mut().enumerate() {
            *b = u8::from_str_radix(&s[2 * i..2 * i + 2], 16)
                .map_err(|_| "expected 32 hexadecimal digits")?;
        }
        Ok(Self(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_encoding_and_keep_order() {
        let a = ChunkId { segment: SegmentId { session: SessionId(1), seq: u64::MAX }, shard: 3 };
        let b = ChunkId { segment: SegmentId { session: SessionId(2), seq: 0 }, shard: 0 };
        assert_eq!(ChunkId::from_bytes(&a.to_bytes()), a);
        assert!(a < b && a.to_bytes() < b.to_bytes());
        let u: Uuid = "000102030405060708090a0b0c0d0eff".parse().unwrap();
        assert_eq!(u.to_string().parse::<Uuid>().unwrap(), u);
        assert!("xx".parse::<Uuid>().is_err());
        assert_eq!(InodeId::new(7, 9).shard(), 7);
        assert_eq!(InodeId::new(7, 9).number(), 9);
    }
}
