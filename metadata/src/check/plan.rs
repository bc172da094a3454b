//! What mends something: records to be written if others are as they were found.

use crate::schema;
use crate::store::{Read, StoreResult};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;
use v1::mend_entry::{Fix, GroupCount, Record};
use weft_proto::{InodeId, v1};

/// What is mended before what: the later goes by what the earlier says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
    /// Names are the same in both of their records.
    Names,
    /// What is named, or holds content, has an inode.
    Existence,
    /// Directories are a tree.
    Tree,
    /// What is not deleted has a name.
    Found,
    /// Extents lie apart, within segments.
    Extents,
    /// What inodes account for.
    Inodes,
    /// What segments account for.
    Segments,
    /// What placement groups list and account for.
    Groups,
    /// What belongs to something that is not.
    Others,
    /// What counts for quotas.
    Usage,
}

/// A fix, and what it mends.
#[derive(Clone, Debug)]
pub(crate) struct Mend {
    pub what: String,
    pub fix: Fix,
    /// Whose attributes, names or content it changes.
    pub inos: BTreeSet<InodeId>,
}

/// A fix that is being put together.
pub(super) struct Draft<'a> {
    state: &'a dyn Read,
    fix: Fix,
    inos: BTreeSet<InodeId>,
}

impl<'a> Draft<'a> {
    pub fn new(state: &'a dyn Read) -> Self {
        Self { state, fix: Fix::default(), inos: BTreeSet::new() }
    }

    /// The mend; none if there is nothing that it would change.
    pub fn done(self, what: &str) -> Option<Mend> {
        let Self { fix, inos, .. } = self;
        let changes = fix.records.iter().any(|r| r.was != r.is);
        let numbers = (fix.inodes, fix.last_inode, fix.last_pg) != (0, 0, 0);
        let others = fix.found.is_some() || numbers || !fix.groups.is_empty();
        (changes || others).then(|| Mend { what: what.to_owned(), fix, inos })
    }

    fn record(
        &mut self,
        key: Vec<u8>,
        is: impl FnOnce(&Option<Bytes>) -> Option<Bytes>,
    ) -> StoreResult<()> {
        if schema::is_of_inode(&key) {
            self.inos.insert(schema::ino_of(&key)?);
        }
        let was = self.state.get(&key)?;
        let is = is(&was);
        self.fix.records.push(Record { key: key.into(), was, is });
        Ok(())
    }

    /// The fix stands on this record as it is, or on there being none.
    pub fn keep(&mut self, key: Vec<u8>) -> StoreResult<()> {
        self.record(key, Clone::clone)
    }

    pub fn put(&mut self, key: Vec<u8>, record: &impl Message) -> StoreResult<()> {
        self.record(key, |_| Some(record.encode_to_vec().into()))
    }

    pub fn delete(&mut self, key: Vec<u8>) -> StoreResult<()> {
        self.record(key, |_| None)
    }

    /// The inode gets a name in `/lost+found`.
    pub fn find(&mut self, ino: InodeId) {
        self.fix.found = Some(ino.0);
    }

    pub fn count_inodes(&mut self, more: i64) {
        self.fix.inodes = more;
    }

    pub fn count_in_group(&mut self, pg: u32, change: i64) {
        self.fix.groups.push(GroupCount { pg, change });
    }

    /// No new inode gets this number or one before it.
    pub fn last_inode(&mut self, number: u64) {
        self.fix.last_inode = number;
    }

    /// No new group gets this id or one before it.
    pub fn last_pg(&mut self, id: u32) {
        self.fix.last_pg = id;
    }
}
