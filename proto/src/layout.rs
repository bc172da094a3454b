//! Layout arithmetic: how the bytes of a segment lie in the chunks of its shards.
//!
//! A segment of `length` bytes is cut in stripes of `k` units. Shard `j < k` holds unit `j` of
//! every stripe, one after the other; shards `k..k+m` hold parity. The last stripe may be short: a
//! data shard then ends early, is zero-extended for encoding, and parity is as long as the longest
//! data shard. Chunks are stored rounded up to [`BLOCK`] with zeros, so that checksum blocks,
//! O_DIRECT and the wire agree.
//!
//! Invariants: every byte of a segment lies in exactly one data shard; `locate` and `shard_len`
//! agree; nothing here does I/O.

use crate::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;

/// Unit of checksums, of allocation on a target and of O_DIRECT, in bytes.
pub const BLOCK: u32 = 4096;
/// Most data shards in a stripe.
pub const MAX_K: u8 = 20;
/// Most parity shards in a stripe.
pub const MAX_M: u8 = 4;
/// Longest segment, in bytes.
pub const MAX_SEGMENT: u64 = 64 << 20;
/// Longest file, in bytes.
pub const MAX_FILE: u64 = 16 << 40;
/// Longest chunk: a replica of the longest segment, in bytes.
pub const MAX_CHUNK: u64 = MAX_SEGMENT;

/// Redundancy: erasure coding k+m, or n copies (which is 1 data shard and n-1 equal shards).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Profile {
    /// Erasure coding.
    Ec {
        /// Data shards, 2..=[`MAX_K`].
        k: u8,
        /// Parity shards, 0..=[`MAX_M`]: so many may be lost.
        m: u8,
    },
    /// The same on several targets.
    Replica {
        /// How many, 1..=[`MAX_M`] + 1.
        copies: u8,
    },
}

impl Profile {
    /// k data and m parity shards; with one data shard, copies. Error: `Invalid`.
    pub fn ec(k: u8, m: u8) -> Result<Self> {
        if k == 0 || k > MAX_K || m > MAX_M {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("profile {k}+{m}: k must be 1..={MAX_K} and m 0..={MAX_M}"),
            ));
        }
        // One data shard coded with m parities is m+1 copies: any of them serves reads.
        Ok(if k == 1 { Self::Replica { copies: m + 1 } } else { Self::Ec { k, m } })
    }

    /// So many copies. Error: `Invalid`.
    pub fn replica(copies: u8) -> Result<Self> {
        if copies == 0 || copies > MAX_M + 1 {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("replica={copies}: copies must be 1..={}", MAX_M + 1),
            ));
        }
        Ok(Self::Replica { copies })
    }

    /// Data shards in a stripe.
    pub fn k(self) -> u8 {
        match self {
            Self::Ec { k, .. } => k,
            Self::Replica { .. } => 1,
        }
    }

    /// Shards that may be lost without losing data.
    pub fn m(self) -> u8 {
        match self {
            Self::Ec { m, .. } => m,
            Self::Replica { copies } => copies - 1,
        }
    }

    /// Shards in all, k + m.
    pub fn width(self) -> u8 {
        self.k() + self.m()
    }

    /// The profile of one segment: no more data shards than it has units, so that a small segment
    /// is read from one target, and no more than `live` targets allow; m never shrinks (I1).
    /// `None` when fewer than m+1 targets live.
    pub fn fit(self, length: u64, unit: u32, live: usize) -> Option<Self> {
        let m = self.m();
        let room = live.checked_sub(usize::from(m)).filter(|&k| k > 0)?;
        let units = length.div_ceil(u64::from(unit)).max(1);
        let k = u64::from(self.k()).min(units).min(room as u64) as u8;
        Some(match self {
            Self::Replica { .. } => self,
            Self::Ec { .. } if k == 1 => Self::Replica { copies: m + 1 },
            Self::Ec { .. } => Self::Ec { k, m },
        })
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ec { k, m } => write!(f, "{k}+{m}"),
            Self::Replica { copies } => write!(f, "replica={copies}"),
        }
    }
}

impl FromStr for Profile {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let bad = || {
            Error::new(
                ErrorKind::Invalid,
                format!("profile {s:?} is neither K+M (such as 4+2) nor replica=N"),
            )
        };
        if let Some(n) = s.strip_prefix("replica=") {
            return Self::replica(n.parse().map_err(|_| bad())?);
        }
        let (k, m) = s.split_once('+').ok_or_else(bad)?;
        Self::ec(k.parse().map_err(|_| bad())?, m.parse().map_err(|_| bad())?)
    }
}

/// How new data of a file is laid out; inherited from the directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// Redundancy of new segments, while there are targets enough for it.
    pub profile: Profile,
    /// Stripe unit in bytes, a multiple of [`BLOCK`].
    pub unit: u32,
    /// Longest segment in bytes, a multiple of k * unit, at most [`MAX_SEGMENT`].
    pub segment_len: u64,
    /// Most bytes of one file that may live in the inode.
    pub inline_limit: u32,
}

impl Layout {
    /// Stripe unit of a new filesystem, bytes.
    pub const DEFAULT_UNIT: u32 = 128 << 10;
    /// Longest segment of a new filesystem, bytes, before it is cut to whole stripes.
    pub const DEFAULT_SEGMENT: u64 = 16 << 20;
    /// Bytes of a file that may live in the inode on a new filesystem.
    pub const DEFAULT_INLINE: u32 = 16 << 10;
    /// Bytes of a file that may live in the inode at most.
    pub const MAX_INLINE: u32 = 64 << 10;

    /// The default layout for a profile. The segment is rounded down to whole stripes.
    pub fn for_profile(profile: Profile) -> Self {
        let stripe = u64::from(profile.k()) * u64::from(Self::DEFAULT_UNIT);
        Self {
            profile,
            unit: Self::DEFAULT_UNIT,
            segment_len: Self::DEFAULT_SEGMENT / stripe * stripe,
            inline_limit: Self::DEFAULT_INLINE,
        }
    }

    /// Refuses what cannot be laid out.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        if self.unit == 0 || !self.unit.is_multiple_of(BLOCK) || u64::from(self.unit) > MAX_SEGMENT
        {
            let (unit, block) = (exact_size(self.unit.into()), exact_size(BLOCK.into()));
            return bad(format!("stripe unit {unit} is not a multiple of {block}"));
        }
        let stripe = u64::from(self.profile.k()) * u64::from(self.unit);
        if self.segment_len == 0
            || self.segment_len > MAX_SEGMENT
            || !self.segment_len.is_multiple_of(stripe)
        {
            return bad(format!(
                "segment length {} is not a multiple of the stripe ({}) up to {}",
                exact_size(self.segment_len),
                exact_size(stripe),
                exact_size(MAX_SEGMENT)
            ));
        }
        if self.inline_limit > Self::MAX_INLINE {
            return bad(format!(
                "inline limit {} is over {}",
                exact_size(self.inline_limit.into()),
                exact_size(Self::MAX_INLINE.into())
            ));
        }
        Ok(())
    }
}

/// A number of bytes as it would be typed, to the byte: `3MiB`, `4097`.
pub fn exact_size(bytes: u64) -> String {
    let units = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Where one byte run lies: a part of one data shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Data shard, 0..k.
    pub shard: u8,
    /// Offset in the shard's chunk, bytes.
    pub chunk_off: u64,
    /// Offset in the segment, bytes.
    pub segment_off: u64,
    /// Length in bytes; never crosses a unit.
    pub len: u64,
}

/// Geometry of one segment: its own profile and unit, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// How it is encoded.
    pub profile: Profile,
    /// Stripe unit in bytes, a multiple of [`BLOCK`].
    pub unit: u32,
    /// True bytes in the segment.
    pub length: u64,
}

impl Geometry {
    fn stripe(&self) -> u64 {
        u64::from(self.profile.k()) * u64::from(self.unit)
    }

    /// Bytes of the longest shard before rounding to blocks. Parity is this long.
    fn longest(&self) -> u64 {
        let (full, rest) = (self.length / self.stripe(), self.length % self.stripe());
        full * u64::from(self.unit) + rest.min(u64::from(self.unit))
    }

    /// Stored length of shard `shard` in bytes: a multiple of [`BLOCK`]; 0 for a data shard that
    /// the segment does not reach (such a chunk is not stored).
    pub fn shard_len(&self, shard: u8) -> u64 {
        let raw = if shard < self.profile.k() {
            let (full, rest) = (self.length / self.stripe(), self.length % self.stripe());
            let before = u64::from(shard) * u64::from(self.unit);
            full * u64::from(self.unit) + rest.saturating_sub(before).min(u64::from(self.unit))
        } else {
            self.longest()
        };
        raw.next_multiple_of(u64::from(BLOCK))
    }

    /// Number of stripes, the short last one included.
    pub fn stripes(&self) -> u64 {
        self.length.div_ceil(self.stripe())
    }

    /// Cuts `[off, off+len)` of the segment in runs, in order; clipped to the segment's length.
    pub fn locate(&self, off: u64, len: u64) -> impl Iterator<Item = Run> + use<> {
        let g = *self;
        let unit = u64::from(g.unit);
        let end = off.saturating_add(len).min(g.length);
        let mut at = off;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (stripe, within) = (at / g.stripe(), at % g.stripe());
            let (shard, in_unit) = (within / unit, within % unit);
            let len = (unit - in_unit).min(end - at);
            let run = Run {
                shard: shard as u8,
                chunk_off: stripe * unit + in_unit,
                segment_off: at,
                len,
            };
            at += len;
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests;
