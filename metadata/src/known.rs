//! What servers of this version know, and older ones do not.

/// What older versions do not know, mostly entries of the log, each with all before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    MovesOfExtents = 1,
    /// And seats that move for balance.
    Weights = 2,
    /// And mends, and events beside other entries.
    Mends = 3,
    /// And batches of what sessions did on their own.
    Batches = 4,
    /// And quotas.
    Quotas = 5,
    /// And what tenants may have.
    Qos = 6,
    /// And batches that are guarded.
    Guards = 7,
    /// And commits whose attributes are.
    GuardedAttributes = 8,
    /// And, no entry, ranges that sessions declare to a new leader.
    Ranges = 9,
    /// And batches in which each inode has its own times.
    OwnTimes = 10,
    /// And batches that change extended attributes, or are told late with their own times.
    Xattrs = 11,
    /// And sessions of confined clients, with which others share nothing.
    Confined = 12,
    /// And since when targets are down.
    Downtimes = 13,
    /// And targets that are forgotten.
    Forgetting = 14,
}

impl Known {
    /// What this version knows.
    pub const NEWEST: u32 = Self::Forgetting as u32;
}
