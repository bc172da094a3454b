//! What the inodes come to that a look has seen, for those that they count for.

use crate::schema::{Accounting, Inode};
use crate::store::{Read, StoreResult};
use crate::tables::usage;
use std::collections::HashMap;

/// What the inodes come to that were seen.
#[derive(Default)]
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
        Ok(usage::accounting(state)?.map(|on| Self { on, ..Self::default() }))
    }

    /// An inode that is there.
    pub fn count(&mut self, inode: &Inode) {
        let charge = usage::charge(inode);
        if inode.quota != 0 {
            add(self.zones.entry(inode.quota).or_default(), charge);
        }
        if inode.attr.ino < self.on.owners_below {
            add(self.users.entry(inode.attr.uid).or_default(), charge);
            add(self.groups.entry(inode.attr.gid).or_default(), charge);
        }
    }
}

fn add(sum: &mut [i128; 2], change: [i128; 2]) {
    *sum = [sum[0] + change[0], sum[1] + change[1]];
}
