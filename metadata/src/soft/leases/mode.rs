//! What leases are for.

/// What a request is going to do with an inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Use {
    Read,
    Change,
}

/// What a lease allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mode {
    /// To buffer what is written to some byte ranges, and to know nothing.
    Ranges,
    Read,
    Write,
}

impl Mode {
    /// Whether two sessions may hold leases of these modes at a time, as far as their ranges do not
    /// overlap.
    pub fn stands_beside(self, other: Self) -> bool {
        self == other && self != Self::Write
    }
}
