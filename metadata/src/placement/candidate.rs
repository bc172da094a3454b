//! What groups are made of.

/// A target to place on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub target: u32,
    /// Its failure domain, a path such as `rack-3/node-7`.
    pub domain: String,
    /// How much data it is to hold beside others, such as its capacity in bytes.
    pub weight: u64,
}

impl Candidate {
    pub(super) fn weight(&self) -> f64 {
        self.weight.max(1) as f64
    }
}
