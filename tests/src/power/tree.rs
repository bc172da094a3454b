//! The files of the disk, as they are and as they were flushed last.
//!
//! Invariants: [`Content::flush`] alone makes content durable, [`Tree::flush_names`] alone the
//! names of a folder; what is neither named, nor was when names were flushed, nor open, is
//! forgotten. A seed decides what a cut takes.

use fuser::FileType;
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

const PAGE: u64 = 4096;
/// What a drive writes whole, or not at all.
const SECTOR: usize = 512;

pub(super) const ROOT: u64 = 1;

type Page = Box<[u8; PAGE as usize]>;
type Names = BTreeMap<OsString, u64>;

/// A file or a folder.
pub(super) struct Node {
    pub kind: FileType,
    pub mode: u16,
    pub owner: (u32, u32),
    pub names: Names,
    pub link: OsString,
    pub content: Content,
    pub opens: u64,
}

/// Bytes, zeros where there is no page.
#[derive(Default)]
pub(super) struct Content {
    pub size: u64,
    pages: BTreeMap<u64, Page>,
    flushed_size: u64,
    /// The pages that have changed since the last flush, as they were then; `None`: zeros.
    unflushed: BTreeMap<u64, Option<Page>>,
}

pub(super) struct Tree {
    nodes: BTreeMap<u64, Node>,
    /// The names of folders, as each was flushed last.
    flushed: BTreeMap<u64, Names>,
    last: u64,
}

impl Content {
    pub fn read(&self, at: u64, len: u32) -> Vec<u8> {
        let end = self.size.min(at.saturating_add(len.into()));
        let mut bytes = vec![0; end.saturating_sub(at) as usize];
        each_page(at, bytes.len(), |page, within, range| {
            if let Some(page) = self.pages.get(&page) {
                bytes[range.clone()].copy_from_slice(&page[within..within + range.len()]);
            }
        });
        bytes
    }

    /// Whether so many bytes have their place on the disk.
    pub fn has(&self, at: u64, len: u64) -> bool {
        (at / PAGE..(at + len).div_ceil(PAGE)).all(|page| self.pages.contains_key(&page))
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        each_page(at, bytes.len(), |page, within, range| {
            self.keep(page);
            let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[within..within + range.len()].copy_from_slice(&bytes[range]);
        });
        self.size = self.size.max(at + bytes.len() as u64);
    }

    /// Zeros from `at` on, `len` bytes of them.
    pub fn punch(&mut self, at: u64, len: u64) {
        let end = at.saturating_add(len);
        let touched = |page: &u64| page * PAGE < end && at < (page + 1) * PAGE;
        let touched: Vec<u64> = self.pages.keys().copied().filter(touched).collect();
        for page in touched {
            self.keep(page);
            let start = page * PAGE;
            let (from, to) = (at.max(start) - start, end.min(start + PAGE) - start);
            if (from, to) == (0, PAGE) {
                self.pages.remove(&page);
            } else if let Some(page) = self.pages.get_mut(&page) {
                page[from as usize..to as usize].fill(0);
            }
        }
    }

    pub fn set_size(&mut self, size: u64) {
        self.punch(size, u64::MAX - size);
        self.size = size;
    }

    pub fn flush(&mut self) {
        self.unflushed.clear();
        self.flushed_size = self.size;
    }

    /// Bytes of the pages that it has.
    pub fn used(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    fn keep(&mut self, page: u64) {
        let pages = &self.pages;
        self.unflushed.entry(page).or_insert_with(|| pages.get(&page).cloned());
    }

    /// Of what was not flushed, each sector is there with this probability.
    fn cut(&mut self, rng: &mut impl Rng, kept: f64) {
        if !rng.random_bool(kept) {
            self.size = self.flushed_size;
        }
        for (at, before) in std::mem::take(&mut self.unflushed) {
            let before = before.unwrap_or_else(|| Box::new([0; PAGE as usize]));
            let page = self.pages.entry(at).or_insert_with(|| Box::new([0; PAGE as usize]));
            for (now, before) in page.chunks_mut(SECTOR).zip(before.chunks(SECTOR)) {
                if !rng.random_bool(kept) {
                    now.copy_from_slice(before);
                }
            }
        }
        // Beyond the end there is nothing.
        self.set_size(self.size);
        self.flush();
    }
}

/// Calls with each page that is touched, where in it that begins, and which of the bytes it is.
fn each_page(at: u64, len: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let (page, within) = ((at + done as u64) / PAGE, ((at + done as u64) % PAGE) as usize);
        let some = (PAGE as usize - within).min(len - done);
        each(page, within, done..done + some);
        done += some;
    }
}

impl Node {
    pub fn new(kind: FileType, mode: u32, owner: (u32, u32)) -> Self {
        let (names, link, content, opens) = Default::default();
        Self { kind, mode: mode as u16 & 0o7777, owner, names, link, content, opens }
    }
}

impl Tree {
    pub fn new(owner: (u32, u32)) -> Self {
        let root = Node::new(FileType::Directory, 0o755, owner);
        let mut tree = Self { nodes: BTreeMap::new(), flushed: BTreeMap::new(), last: ROOT };
        tree.nodes.insert(ROOT, root);
        tree
    }

    pub fn node(&mut self, ino: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&ino)
    }

    pub fn find(&self, dir: u64, name: &OsStr) -> Option<u64> {
        self.nodes.get(&dir)?.names.get(name).copied()
    }

    pub fn make(&mut self, dir: u64, name: &OsStr, node: Node) -> u64 {
        self.last += 1;
        self.nodes.insert(self.last, node);
        self.link(dir, name, self.last);
        self.last
    }

    pub fn link(&mut self, dir: u64, name: &OsStr, ino: u64) {
        if let Some(dir) = self.nodes.get_mut(&dir) {
            dir.names.insert(name.to_owned(), ino);
        }
    }

    pub fn unlink(&mut self, dir: u64, name: &OsStr) -> Option<u64> {
        self.nodes.get_mut(&dir)?.names.remove(name)
    }

    /// How many names a node has.
    pub fn links(&self, ino: u64) -> u32 {
        let names = self.nodes.values().flat_map(|node| node.names.values());
        names.filter(|named| **named == ino).count() as u32
    }

    /// Makes the names in a folder durable.
    pub fn flush_names(&mut self, dir: u64) {
        if let Some(node) = self.nodes.get(&dir) {
            self.flushed.insert(dir, node.names.clone());
        }
        self.forget();
    }

    /// The power goes: of what was not flushed, some is there, and the names of a folder are those
    /// of its last flush, or of now.
    pub fn cut(&mut self, rng: &mut impl Rng) {
        let kept = *[0.0, 0.5, 0.9].get(rng.random_range(0..3)).unwrap_or(&0.0);
        for (ino, node) in &mut self.nodes {
            if !rng.random_bool(kept) {
                node.names = self.flushed.get(ino).cloned().unwrap_or_default();
            }
            node.opens = 0;
            node.content.cut(rng, kept);
        }
        let folders = self.nodes.iter().filter(|(_, node)| node.kind == FileType::Directory);
        self.flushed = folders.map(|(ino, node)| (*ino, node.names.clone())).collect();
        self.forget();
    }

    /// Forgets what nothing leads to.
    fn forget(&mut self) {
        let open = self.nodes.iter().filter(|(_, node)| node.opens > 0).map(|(ino, _)| *ino);
        let mut left: Vec<u64> = open.chain([ROOT]).collect();
        let mut reached = BTreeSet::new();
        while let Some(ino) = left.pop() {
            if reached.insert(ino) {
                let now = self.nodes.get(&ino).into_iter().flat_map(|node| node.names.values());
                let then = self.flushed.get(&ino).into_iter().flat_map(BTreeMap::values);
                left.extend(now.chain(then));
            }
        }
        self.nodes.retain(|ino, _| reached.contains(ino));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    fn name(name: &str) -> &OsStr {
        OsStr::new(name)
    }

    #[test]
    fn what_was_flushed_is_there_and_all_else_may_be() {
        let (mut lost_names, mut lost, mut kept, mut torn) = (0, 0, 0, 0);
        for seed in 0..200 {
            let mut tree = Tree::new((0, 0));
            let file = || Node::new(FileType::RegularFile, 0o644, (0, 0));
            let f = tree.make(ROOT, name("f"), file());
            let content = &mut tree.node(f).unwrap().content;
            content.write(3000, &[1; 9000]);
            content.flush();
            tree.flush_names(ROOT);
            let content = &mut tree.node(f).unwrap().content;
            content.write(8000, &[2; 20_000]);
            content.punch(4096, 4096);
            let content = content.read(0, u32::MAX);
            assert!(content[4096..8192].iter().all(|b| *b == 0) && content[8192] == 2);
            tree.make(ROOT, name("g"), file());
            assert_eq!((tree.links(f), tree.unlink(ROOT, name("f"))), (1, Some(f)));
            tree.cut(&mut SmallRng::seed_from_u64(seed));
            let Some(found) = tree.find(ROOT, name("f")) else {
                assert!(tree.find(ROOT, name("g")).is_some() && tree.node(f).is_none());
                lost_names += 1;
                continue;
            };
            assert!(found == f && tree.find(ROOT, name("g")).is_none());
            let content = &tree.node(f).unwrap().content;
            let bytes = content.read(0, u32::MAX);
            assert!([12_000, 28_000].contains(&bytes.len()), "{}", bytes.len());
            assert!(bytes[..3000].iter().all(|b| *b == 0));
            assert!(bytes[3000..4096].iter().all(|b| *b == 1), "it was flushed, and not changed");
            let sectors = || bytes[4096..12_000].chunks(SECTOR).skip(1);
            let is_old = |sector: &[u8]| sector.iter().all(|b| *b == 1);
            match (sectors().all(is_old), sectors().any(is_old)) {
                (true, _) => lost += 1,
                (_, true) => torn += 1,
                _ => kept += 1,
            }
        }
        assert!(lost_names > 50 && lost > 10 && torn > 10, "{lost_names} {lost} {torn} {kept}");
    }
}
