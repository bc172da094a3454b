//! What the kernel was given of names and attributes, and which inodes it knows.
//!
//! Invariant: the kernel knows no inode, has no dentry with a time to live, and no attributes with
//! one, that are not in here. What a request of this mount takes away stays until the kernel drops
//! its inode: the caller may have been killed, and then the kernel has not followed.

use super::recent::Recent;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use tokio::time::Instant;
use weft_proto::v1;

/// Names that lead nowhere, of all directories. Nothing says when the kernel drops them.
const MAX_NEGATIVE: usize = 1 << 16;
/// Names that may lead to either of two inodes, of all directories, until they are taken back.
/// Nothing says when the kernel drops those, either, and each file leaves one that another is moved
/// over.
const MAX_ANY: usize = 1 << 16;
/// Names that one inode may have had, until they are taken back.
const MAX_NAMES: usize = 64;
/// An inode that is not known.
pub const ANY: u64 = u64::MAX;
/// No inode: the number of a name that leads nowhere.
const NONE: u64 = 0;

#[derive(Default)]
pub struct Table {
    inodes: HashMap<u64, Known>,
    /// Names with a time to live, by directory, and what they lead to.
    dirs: HashMap<u64, HashMap<Bytes, u64>>,
    /// Inodes whose attributes have one.
    attrs: HashSet<u64>,
    /// How many names lead nowhere, and how many to either of two.
    negative: usize,
    any: usize,
    /// Threads that the kernel takes an answer in for without the lock of its directory.
    late: Recent<u64>,
    /// Inodes of which the kernel was told access control lists.
    acls: Recent<()>,
    /// The kernel may know any inode: no name is given.
    unknown: bool,
}

/// A thread that an answer goes to, and since when.
pub struct Late(u64, Instant);

/// An inode that the kernel may know.
#[derive(Default)]
struct Known {
    /// In how many answers it was told of it.
    answers: u64,
    /// Its names with a time to live, and some that are not its own any more.
    names: Vec<(u64, Bytes)>,
}

impl Table {
    /// The kernel may know any inode.
    pub fn unknown() -> Self {
        Self { unknown: true, ..Self::default() }
    }

    /// The kernel is told of an inode. Answers whether it may have known it before.
    pub fn tell(&mut self, ino: u64) -> bool {
        let known = self.inodes.entry(ino).or_default();
        known.answers += 1;
        known.answers > 1
    }

    /// Whether the kernel may know an inode.
    pub fn may_know(&self, ino: u64) -> bool {
        self.unknown || self.inodes.contains_key(&ino)
    }

    /// A name gets a time to live. Answers whether it may have one.
    pub fn give(&mut self, dir: u64, name: Bytes, ino: u64) -> bool {
        let full = ino == NONE && self.negative >= MAX_NEGATIVE;
        // Who does not know what the kernel had before does not know when it has dropped it.
        if full || self.unknown {
            return false;
        }
        let names = self.dirs.entry(dir).or_default();
        let before = names.insert(name.clone(), ino);
        self.negative += usize::from(ino == NONE);
        self.negative -= usize::from(before == Some(NONE));
        let either = before.is_some_and(|before| before != ino && before != NONE) && ino != NONE;
        self.any += usize::from(either || ino == ANY);
        self.any -= usize::from(before == Some(ANY));
        // The kernel may have either: it stays when the one goes that it does not lead to.
        if either {
            names.insert(name, ANY);
            return true;
        }
        if before != Some(ino)
            && let Some(known) = self.inodes.get_mut(&ino)
        {
            // Now and then, so that it costs little each time.
            if known.names.len() == known.names.capacity() {
                let dirs = &self.dirs;
                known.names.retain(|(dir, name)| {
                    dirs.get(dir).and_then(|names| names.get(name)) == Some(&ino)
                });
            }
            if known.names.is_empty() {
                known.names.reserve_exact(1);
            }
            known.names.push((dir, name));
        }
        true
    }

    /// What a name with a time to live leads to.
    pub fn leads_to(&self, dir: u64, name: &Bytes) -> Option<u64> {
        self.dirs.get(&dir)?.get(name).copied()
    }

    /// The directories in which an inode has names, if these are too many.
    pub fn too_many(&self, ino: u64) -> HashSet<u64> {
        let names = self.inodes.get(&ino).map(|known| &known.names);
        let Some(names) = names.filter(|names| names.len() > MAX_NAMES) else {
            return <_>::default();
        };
        let its = |(dir, name): &&(u64, Bytes)| self.leads_to(*dir, name) == Some(ino);
        let its: Vec<_> = names.iter().filter(its).map(|(dir, _)| *dir).collect();
        if its.len() > MAX_NAMES { its.into_iter().collect() } else { HashSet::new() }
    }

    /// The directories in which names may lead to either of two inodes, if these are too many.
    pub fn too_vague(&self) -> Vec<u64> {
        if self.any <= MAX_ANY {
            return Vec::new();
        }
        let is_vague = |names: &HashMap<Bytes, u64>| names.values().any(|ino| *ino == ANY);
        self.dirs.iter().filter(|(_, names)| is_vague(names)).map(|(dir, _)| *dir).collect()
    }

    /// An answer about a directory's name goes to a thread that may not hold its lock.
    pub fn is_late(&mut self, thread: u32, dir: u64) {
        self.late.insert(thread.into(), dir);
    }

    /// A thread asks for something: the kernel is through with all before it.
    pub fn is_through(&mut self, thread: u32) {
        self.late.remove(thread.into());
    }

    /// Threads for which the kernel may be about to take in an answer about a name of a directory.
    pub fn late_in(&self, dir: u64) -> Vec<Late> {
        self.late.all().filter(|(_, of, _)| **of == dir).map(|(key, _, at)| Late(key, at)).collect()
    }

    /// Whether it may be still.
    pub fn is_still(&self, late: &Late) -> bool {
        self.late.since(late.0) == Some(late.1)
    }

    /// The kernel is told an access control list, or that there is none. It keeps that while the
    /// attributes are good, and forgot what it had when it asked for those; with an answer that
    /// comes between the two, it would keep what was so before.
    pub fn tell_acl(&mut self, ino: u64) {
        self.acls.insert(ino, ());
    }

    /// Attributes get a time to live. Answers whether they may have one.
    pub fn give_attr(&mut self, ino: u64) -> bool {
        let given = self.acls.since(ino).is_none();
        if given {
            self.attrs.insert(ino);
        }
        given
    }

    /// Answers whether the attributes of an inode had a time to live.
    pub fn take_attr(&mut self, ino: u64) -> bool {
        self.attrs.remove(&ino)
    }

    /// The names in a directory that had a time to live, if any had.
    pub fn take_names(&mut self, dir: u64) -> Option<Vec<Bytes>> {
        let names = self.dirs.remove(&dir)?;
        let count = |of: u64| names.values().filter(|ino| **ino == of).count();
        self.negative -= count(NONE);
        self.any -= count(ANY);
        Some(names.into_keys().collect())
    }

    pub fn take_all_names(&mut self) -> Vec<(u64, Vec<Bytes>)> {
        (self.negative, self.any) = (0, 0);
        self.dirs.drain().map(|(dir, names)| (dir, names.into_keys().collect())).collect()
    }

    pub fn take_all_attrs(&mut self) -> Vec<u64> {
        self.attrs.drain().collect()
    }

    /// The kernel has dropped an inode that it was told of in so many answers: if there were no
    /// more, which this answers, it has no dentry of it, nor any below it.
    pub fn forgotten(&mut self, ino: u64, answers: u64) -> bool {
        let Some(known) = self.inodes.get_mut(&ino) else { return false };
        known.answers = known.answers.saturating_sub(answers);
        if known.answers > 0 {
            return false;
        }
        let names = self.inodes.remove(&ino).map_or_else(Vec::new, |known| known.names);
        for (dir, name) in names {
            if let Some(names) = self.dirs.get_mut(&dir)
                && names.get(&name) == Some(&ino)
            {
                names.remove(&name);
                if names.is_empty() {
                    self.dirs.remove(&dir);
                }
            }
        }
        self.take_names(ino);
        self.attrs.remove(&ino);
        !self.unknown
    }

    /// All of it, for another process.
    pub fn hand_over(&self) -> v1::KernelCache {
        let known = |(ino, known): (&u64, &Known)| (*ino, known.answers);
        let (inos, answers) = self.inodes.iter().map(known).unzip();
        let dirs = self.dirs.iter().map(|(dir, names)| {
            let (names, inos) = names.iter().map(|(name, ino)| (name.clone(), *ino)).unzip();
            v1::CachedNames { dir: *dir, names, inos }
        });
        let (dirs, attrs) = (dirs.collect(), self.attrs.iter().copied().collect());
        v1::KernelCache { inos, answers, dirs, attrs, unknown: self.unknown }
    }

    /// The same from another process.
    pub fn adopt(of: v1::KernelCache) -> Self {
        let mut table = Self { unknown: of.unknown, ..Self::default() };
        for (ino, answers) in of.inos.into_iter().zip(of.answers) {
            table.inodes.insert(ino, Known { answers, names: Vec::new() });
        }
        for v1::CachedNames { dir, names, inos } in of.dirs {
            for (name, ino) in names.into_iter().zip(inos) {
                // There were no more than there may be.
                table.give(dir, name, ino);
            }
        }
        table.attrs = of.attrs.into_iter().collect();
        table
    }
}

#[cfg(test)]
mod tests;
