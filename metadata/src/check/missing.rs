//! Inodes that are missing, or of which the record is another's: made anew from what is left.

use super::Check;
use super::accounts::{Facts, Seen, links, room, sizes};
use super::names::forget;
use super::plan::Stage;
use crate::schema::{self, Dentry, IndexEntry, Inode, Pool, Tag};
use crate::store::StoreResult;
use crate::tables::content;
use crate::tables::inodes::{self, Wanted};
use std::collections::HashSet;
use v1::FileKind;
use weft_proto::{InodeId, Layout, Profile, v1};

/// The version of content that is put together anew: behind all that clients may know.
const REMADE: u64 = 1 << 40;

impl Check<'_> {
    /// A record that calls itself another inode is that of the other, if it was made when that was,
    /// or is of another kind than the names say; else its number is wrong.
    pub(super) fn misnamed(
        &mut self,
        ino: InodeId,
        mut inode: Inode,
        seen: &Seen,
        facts: Facts<'_>,
    ) -> StoreResult<()> {
        let kind = facts.names.kind(ino).unwrap_or(inode.kind());
        let other = self.state.inode(inode.ino())?;
        let copied = other.is_some_and(|other| other.attr.btime_ns == inode.attr.btime_ns);
        if kind == inode.kind() && !copied {
            let what = format!("inode {ino}: calls itself {}", inode.ino());
            inode.attr.ino = ino.0;
            let key = schema::inode(ino);
            return self.mend(Stage::Existence, what, |draft| draft.put(key, &inode));
        }
        let what = format!("inode {ino}: its record is that of {}", inode.ino());
        match kind {
            FileKind::Regular | FileKind::Directory => self.make(what, ino, kind, seen, facts),
            // The next look has its name go.
            _ => self.mend(Stage::Existence, what, |draft| draft.delete(schema::inode(ino))),
        }
    }

    /// Names say of which kind their inode is.
    pub(super) fn kinds(&mut self, odd: &HashSet<u64>) -> StoreResult<()> {
        for (dir, name, d) in self.names_of(odd)? {
            let ino = InodeId(d.ino);
            let Some(inode) = self.state.inode(ino)? else { continue };
            if inode.kind() != d.kind() {
                let told = String::from_utf8_lossy(&name);
                let what = format!(
                    "name {told:?} in directory {dir}: says {:?} of inode {ino}, which is {:?}",
                    d.kind(),
                    inode.kind()
                );
                self.mend(Stage::Existence, what, |draft| {
                    let (kind, cookie) = (inode.attr.kind, d.cookie);
                    draft.keep(schema::inode(ino))?;
                    draft.put(schema::dentry(dir, &name), &Dentry { kind, ..d })?;
                    let entry = IndexEntry { name: name.clone(), ino: ino.0, kind };
                    draft.put(schema::index(dir, cookie), &entry)
                })?;
            }
        }
        Ok(())
    }

    /// What is named, holds names or holds content, and has no inode.
    pub(super) fn missing(&mut self, seen: &Seen, facts: Facts<'_>) -> StoreResult<()> {
        let (names, extents) = (facts.names, facts.extents);
        let mut nameless = HashSet::new();
        let mut missing: Vec<_> =
            names.of.iter().filter(|(ino, _)| !seen.known.contains(*ino)).collect();
        missing.sort_by_key(|(ino, _)| **ino);
        for (&ino, named) in missing {
            let what = format!("inode {} has names but does not exist", InodeId(ino));
            let kind = names.kind(InodeId(ino)).unwrap_or(named.kind);
            match kind {
                FileKind::Regular | FileKind::Directory => {
                    self.make(what, InodeId(ino), kind, seen, facts)?;
                }
                _ => {
                    nameless.insert(ino);
                }
            }
        }
        // Nothing is left of a symbolic link, or of a device, but its name.
        for (dir, name, d) in self.names_of(&nameless)? {
            let what = format!(
                "name {:?} in directory {dir}: {:?} {}, which does not exist, is lost",
                String::from_utf8_lossy(&name),
                d.kind(),
                InodeId(d.ino)
            );
            self.mend(Stage::Existence, what, |draft| {
                draft.keep(schema::inode(InodeId(d.ino)))?;
                forget(draft, dir, &name, &d)
            })?;
        }
        let is_gone = |ino: &u64| !seen.known.contains(ino) && !names.of.contains_key(ino);
        let dirs = names.within.keys().filter(|dir| is_gone(dir));
        for dir in dirs.copied().map(InodeId).collect::<Vec<_>>() {
            let what = format!("directory {dir} has names but does not exist");
            self.make(what, dir, FileKind::Directory, seen, facts)?;
        }
        let unowned = extents.of.keys().filter(|content| !seen.contents.contains(content));
        for content in unowned.copied().map(InodeId).collect::<Vec<_>>() {
            let what = format!("content {content} belongs to no file");
            if is_gone(&content.0) {
                self.make(what, content, FileKind::Regular, seen, facts)?;
            } else {
                self.problem(what);
            }
        }
        Ok(())
    }

    /// Makes an inode that is missing, as its names, entries and extents say. Nobody but root may
    /// do anything with it: whose it was is lost.
    fn make(
        &mut self,
        what: String,
        ino: InodeId,
        kind: FileKind,
        seen: &Seen,
        facts: Facts<'_>,
    ) -> StoreResult<()> {
        let state = self.state;
        let root = InodeId::root_of(self.shard);
        let dir = facts.names.of.get(&ino.0).map_or(root, |named| named.dir);
        let top = state.inode(root)?.filter(|inode| inode.ino() == root);
        let near = state.inode(dir)?.or(top);
        let layout = match near.as_ref().and_then(|near| near.layout) {
            Some(layout) if ino != root => Some(layout),
            _ => self.layout_of_pool()?,
        };
        // It is not for this group to make it, or was never given out, or its content is that of
        // another file.
        let foreign = ino.shard() != self.shard || ino.0 != root.0 && ino.is_root();
        let unknown = ino.number() >= state.counters()?.next_inode;
        let shared = kind == FileKind::Regular && seen.contents.contains(&ino.0);
        let Some(layout) = layout.filter(|_| !foreign && !unknown && !shared) else {
            self.problem(what);
            return Ok(());
        };
        let mode = if kind == FileKind::Directory { 0o700 } else { 0o600 };
        let wanted = Wanted { kind, mode, umask: 0, uid: 0, gid: 0, rdev: 0 };
        // Of the directory only its place and layout.
        let plain = Inode {
            attr: v1::Attr { ino: dir.0, ..Default::default() },
            layout: Some(layout),
            ..Default::default()
        };
        let now = near.map_or(0, |near| near.attr.mtime_ns);
        let mut made = match ino == root {
            true => inodes::root(ino, layout, now),
            false => inodes::describe(&plain, &wanted, ino, now)?,
        };
        made.attr.mode = mode;
        made.attr.data_version = REMADE;
        let mut told = Vec::new();
        links(&mut made, facts.names, &mut told);
        room(&mut made, facts.xattrs, &mut told);
        sizes(&mut made, facts.extents, &mut told);
        // It will get one.
        if made.attr.nlink == 0 {
            let subdirs = facts.names.within.get(&ino.0).map_or(0, |within| within.subdirs);
            made.attr.nlink = if made.is_dir() { subdirs.saturating_add(2) } else { 1 };
        }
        // What nobody shows may have been shown by it: reading it is an error, and not the end.
        let missing = facts.extents.missing.min(content::MAX_FILE);
        let lost = (kind == FileKind::Regular && made.allocated == 0 && missing > 0).then(|| {
            made.attr.size = missing;
            made.set_allocated(missing);
            v1::Extent { file_off: 0, len: missing, source: None }
        });
        self.mend(Stage::Existence, what, |draft| {
            if let Some(lost) = lost {
                draft.put(schema::extent(ino, content::end(&lost)), &lost)?;
            }
            draft.put(schema::inode(ino), &made)
        })
    }

    /// The layout that a new cluster's root has.
    fn layout_of_pool(&self) -> StoreResult<Option<v1::LayoutInfo>> {
        let mut profile = None;
        self.state.records(schema::all(Tag::Pool), |_, pool: Pool| {
            profile = Some(pool.profile);
            Ok(false)
        })?;
        let profile = profile.and_then(|p| Profile::try_from(p).ok());
        Ok(profile.map(|profile| Layout::for_profile(profile).into()))
    }
}
