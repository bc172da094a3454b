//! Names, in both of their records, and the tree that they make.

use super::Check;
use super::plan::{Draft, Stage};
use crate::schema::{self, Dentry, FIRST_COOKIE, HEAD, IndexEntry, Tag};
use crate::store::{Read, StoreResult};
use crate::tables::names;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use v1::FileKind;
use weft_proto::{InodeId, v1};

/// No directory gives out so many: it is damaged.
pub(super) const MAX_COOKIE: u64 = 1 << 62;
/// Most names of a directory that one fix lists again.
const MAX_LISTED: usize = 1000;

/// What the dentries say of inodes.
#[derive(Default)]
pub(super) struct Names {
    pub of: HashMap<u64, Named>,
    /// The directory that names a directory.
    pub parent: HashMap<u64, u64>,
    pub within: HashMap<u64, Within>,
    /// Inodes of which names say different kinds.
    pub odd: HashSet<u64>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Named {
    /// How many names it has.
    pub count: u32,
    /// What the first of them says that it is.
    pub kind: FileKind,
    /// Where that is.
    pub dir: InodeId,
}

/// Of a directory.
#[derive(Clone, Copy, Default)]
pub(super) struct Within {
    pub entries: u64,
    pub subdirs: u32,
    pub last_cookie: u64,
}

impl Names {
    /// Of what kind an inode is, as far as its names, and those in it, tell.
    pub fn kind(&self, ino: InodeId) -> Option<FileKind> {
        if self.within.contains_key(&ino.0) {
            return Some(FileKind::Directory);
        }
        self.of.get(&ino.0).map(|named| named.kind)
    }
}

impl Check<'_> {
    /// Dentries against the index of their directory, both ways.
    pub(super) fn names(&mut self) -> StoreResult<Names> {
        let state = self.state;
        let mut names = Names::default();
        let root = InodeId::root_of(self.shard);
        // Names that need another cookie.
        let mut unlisted: BTreeMap<InodeId, Vec<(Bytes, Dentry)>> = BTreeMap::new();
        state.records(schema::all_in(self.shard, Tag::Dentry), |key, d: Dentry| {
            let (dir, name) = (schema::ino_of(key)?, &key[HEAD + 8..]);
            self.report.dentries += 1;
            if d.ino == root.0 {
                let told = String::from_utf8_lossy(name);
                let what = format!("name {told:?} in directory {dir}: leads to the root");
                self.mend(Stage::Names, what, |draft| forget(draft, dir, name, &d))?;
            }
            let named = names.of.entry(d.ino).or_default();
            if named.count == 0 {
                (named.kind, named.dir) = (d.kind(), dir);
            }
            named.count += 1;
            let within = names.within.entry(dir.0).or_default();
            within.entries += 1;
            if d.cookie < MAX_COOKIE {
                within.last_cookie = within.last_cookie.max(d.cookie);
            }
            if d.kind() != named.kind {
                names.odd.insert(d.ino);
            }
            let told = || format!("name {:?} in directory {dir}", String::from_utf8_lossy(name));
            if d.kind() == FileKind::Directory && d.ino != root.0 {
                within.subdirs += 1;
                self.only_name(&mut names.parent, dir, name, &d)?;
            }
            let index: Option<IndexEntry> = state.load(&schema::index(dir, d.cookie))?;
            if index.as_ref() != Some(&entry_of(name, &d)) {
                let what = format!("{}: cookie {} does not lead to it", told(), d.cookie);
                let taken = index.is_some_and(|entry| entry.name != name);
                if taken || !(FIRST_COOKIE..MAX_COOKIE).contains(&d.cookie) {
                    unlisted.entry(dir).or_default().push((Bytes::copy_from_slice(name), d));
                    self.problem(what);
                } else {
                    self.mend(Stage::Names, what, |draft| {
                        draft.keep(schema::dentry(dir, name))?;
                        draft.put(schema::index(dir, d.cookie), &entry_of(name, &d))
                    })?;
                }
            }
            Ok(true)
        })?;
        self.index(&names)?;
        for (dir, unlisted) in unlisted {
            self.list_again(dir, unlisted)?;
        }
        Ok(names)
    }

    /// The index of each directory against its names.
    fn index(&mut self, names: &Names) -> StoreResult<()> {
        let state = self.state;
        state.records(schema::all_in(self.shard, Tag::Index), |key, entry: IndexEntry| {
            let (dir, cookie) = (schema::ino_of(key)?, schema::number_at(key, HEAD + 8)?);
            let dentry = state.dentry(dir, &entry.name)?;
            if dentry.as_ref().is_none_or(|d| d.cookie != cookie) {
                let what = format!("directory {dir}: cookie {cookie} leads to no name");
                let lost = dentry.is_none() && is_lost(state, dir, &entry, names)?;
                let name = schema::dentry(dir, &entry.name);
                self.mend(Stage::Names, what, |draft| {
                    if !lost {
                        draft.keep(name)?;
                        return draft.delete(key.to_vec());
                    }
                    draft.keep(key.to_vec())?;
                    draft.keep(schema::inode(InodeId(entry.ino)))?;
                    draft.put(name, &Dentry { ino: entry.ino, kind: entry.kind, cookie })
                })?;
            }
            Ok(true)
        })
    }

    /// Gives names cookies that no other name of their directory has.
    fn list_again(&mut self, dir: InodeId, names: Vec<(Bytes, Dentry)>) -> StoreResult<()> {
        let state = self.state;
        let what = format!("directory {dir}: {} names without a cookie of their own", names.len());
        self.plan(Stage::Names, &what, |draft| {
            let inode = state.inode(dir)?;
            let told = inode.as_ref().map_or(0, |dir| dir.next_cookie);
            let mut cookie = told.max(FIRST_COOKIE);
            if cookie >= MAX_COOKIE {
                cookie = FIRST_COOKIE;
            }
            state.records(schema::all_of(Tag::Index, dir), |key, _: IndexEntry| {
                let used = schema::number_at(key, HEAD + 8)?;
                if used < MAX_COOKIE {
                    cookie = cookie.max(used + 1);
                }
                Ok(true)
            })?;
            for (name, d) in names.into_iter().take(MAX_LISTED) {
                let d = Dentry { cookie, ..d };
                draft.put(schema::index(dir, cookie), &entry_of(&name, &d))?;
                draft.put(schema::dentry(dir, &name), &d)?;
                cookie += 1;
            }
            match inode {
                Some(mut inode) => {
                    inode.next_cookie = cookie;
                    draft.put(schema::inode(dir), &inode)
                }
                None => draft.keep(schema::inode(dir)),
            }
        })
    }

    /// All names of these inodes.
    pub(super) fn names_of(
        &self,
        inos: &HashSet<u64>,
    ) -> StoreResult<Vec<(InodeId, Bytes, Dentry)>> {
        let mut found = Vec::new();
        if inos.is_empty() {
            return Ok(found);
        }
        let all = schema::all_in(self.shard, Tag::Dentry);
        self.state.records(all, |key, d: Dentry| {
            if inos.contains(&d.ino) {
                let name = Bytes::copy_from_slice(&key[HEAD + 8..]);
                found.push((schema::ino_of(key)?, name, d));
            }
            Ok(true)
        })?;
        Ok(found)
    }
}

fn entry_of(name: &[u8], d: &Dentry) -> IndexEntry {
    IndexEntry { name: Bytes::copy_from_slice(name), ino: d.ino, kind: d.kind }
}

/// Takes a name away, in both of its records.
pub(super) fn forget(
    draft: &mut Draft<'_>,
    dir: InodeId,
    name: &[u8],
    d: &Dentry,
) -> StoreResult<()> {
    draft.delete(schema::dentry(dir, name))?;
    draft.delete(schema::index(dir, d.cookie))
}

/// Whether an entry of the index is what is left of a name: the inode counts more than there are.
fn is_lost(state: &dyn Read, dir: InodeId, entry: &IndexEntry, names: &Names) -> StoreResult<bool> {
    let is_dir = state.inode(dir)?.is_some_and(|dir| dir.is_dir());
    let Some(inode) = state.inode(InodeId(entry.ino))? else { return Ok(false) };
    if !is_dir || names::valid(&entry.name).is_err() || inode.kind() != entry.kind() {
        return Ok(false);
    }
    if inode.is_dir() {
        let alive = inode.attr.nlink > 0 && inode.parent == dir.0;
        return Ok(alive && !names.parent.contains_key(&entry.ino));
    }
    let named = names.of.get(&entry.ino).map_or(0, |named| named.count);
    Ok(inode.attr.nlink > named)
}
