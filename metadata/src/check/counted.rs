//! What the inodes that a check has seen come to, by whose quotas they count for.

use crate::schema::Accounting;
use crate::store::{Read, StoreResult};
use crate::tables::usage;
use std::collections::HashMap;

/// What the inodes come to that were seen.
pub(super) struct Counted {
    pub on: Accounting,
    /// By the directory whose quota they count for.
    pub zones: HashMap<u64, [i128; 2]>,
    pub users: HashMap<u32, [i128; 2]>,
    pub groups: HashMap<u32, [i128; 2]>,
}

impl Counted {
    /// Nothing if usage is not counted.
    pub fn new(state: &dyn Read) -> StoreResult<Option<Self>> {
        let (zones, users, groups) = Default::default();
        Ok(usage::accounting(state)?.map(|on| Self { on, zones, users, groups }))
    }
}
