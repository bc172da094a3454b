//! Drawing operations: few names in few directories, so that operations meet.

use super::op::*;
use super::tree::Tree;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use std::ops::Range;

/// Names of files, directories, links: any.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const ATTRIBUTES: [&str; 3] = ["user.one", "user.two", "user.three"];
/// From this many inodes on, removing is likelier.
const CROWD: usize = 40;
/// Directories are made no deeper than this; renames may move them deeper.
const DEPTH: usize = 3;
/// Ends of ranges and files, but for a few that are far off.
const SHORT: u64 = 300_000;
const FAR: u64 = 5 << 30;

/// Draws an operation for mount `on`.
pub fn draw(rng: &mut SmallRng, tree: &Tree, on: usize) -> Op {
    Draw { rng, tree, slots: on * SLOTS..(on + 1) * SLOTS }.op()
}

struct Draw<'a> {
    rng: &'a mut SmallRng,
    tree: &'a Tree,
    /// Those of the mount.
    slots: Range<usize>,
}

impl Draw<'_> {
    fn op(&mut self) -> Op {
        if self.tree.inodes() > CROWD && self.one_in(2) {
            return self.remove();
        }
        match self.rng.random_range(0..100) {
            0..38 => self.on_slot(),
            38..45 => self.open(),
            45..49 => Op::MkDir { path: self.shallow(), mode: self.mode(0o700) },
            49..54 => self.remove(),
            54..64 => self.rename(),
            64..69 => Op::Link { from: self.known(), to: self.any() },
            69..72 => Op::SymLink { target: self.target(), path: self.any() },
            72 => Op::MkFifo { path: self.any(), mode: self.mode(0o600) },
            73..76 => Op::Truncate { path: self.known(), len: self.place() },
            76..79 => Op::ChMod { path: self.known_or_root(), mode: self.mode(0o700) },
            79..81 => self.chown(),
            81..84 => self.set_times(),
            84..90 => Op::Stat { path: self.any(), follow: self.one_in(2) },
            90..93 => Op::List { path: self.known_or_root() },
            93 => Op::ReadLink { path: self.known() },
            _ => self.xattr(),
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_ratio(1, n)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.random_range(0..of.len())]
    }

    /// A name in a directory, or now and then in what is none.
    fn any(&mut self) -> String {
        let parents = if self.one_in(15) { self.tree.paths() } else { self.tree.directories() };
        let parent = parents.choose(self.rng).cloned().unwrap_or_default();
        let name = self.pick(&NAMES);
        if parent.is_empty() { name.into() } else { format!("{parent}/{name}") }
    }

    fn shallow(&mut self) -> String {
        let path = self.any();
        if path.split('/').count() > DEPTH { self.pick(&NAMES).into() } else { path }
    }

    /// Mostly of something that is there.
    fn known(&mut self) -> String {
        let known = if self.one_in(8) { None } else { self.tree.paths().choose(self.rng).cloned() };
        known.unwrap_or_else(|| self.any())
    }

    fn known_or_root(&mut self) -> String {
        if self.one_in(8) { String::new() } else { self.known() }
    }

    /// Within the folder of the test: the model has no parent of its root.
    fn target(&mut self) -> String {
        match self.one_in(4) {
            true => format!("{}/{}", self.pick(&NAMES), self.pick(&NAMES)),
            false => self.pick(&NAMES).into(),
        }
    }

    /// The owner may always do what he wants: this is no test of permissions. Set-id bits are for
    /// root, who does not lose them by writing.
    fn mode(&mut self, owner: u32) -> u32 {
        let set_id = if self.tree.privileged && self.one_in(5) { 0o6000 } else { 0 };
        owner | self.rng.random_range(0..0o10000) & (0o777 | set_id)
    }

    fn place(&mut self) -> u64 {
        match self.rng.random_range(0..12) {
            0 => 0,
            1 => FAR + self.rng.random_range(0..SHORT),
            2..5 => self.rng.random_range(0..SHORT) / 4096 * 4096,
            5..8 => self.rng.random_range(0..5000),
            _ => self.rng.random_range(0..SHORT),
        }
    }

    fn len(&mut self) -> u64 {
        let most = self.pick(&[100, 5000, 70_000]);
        self.rng.random_range(1..=most)
    }

    fn data(&mut self, len: u64) -> Data {
        Data { seed: self.rng.random(), len }
    }

    fn open(&mut self) -> Op {
        let free = self.slots.clone().find(|slot| self.tree.handle(*slot).is_none());
        let Some(slot) = free else {
            return Op::Close { slot: self.rng.random_range(self.slots.clone()) };
        };
        let path = if self.one_in(3) { self.any() } else { self.known() };
        // It would wait for whoever opens its other end.
        if self.tree.is_fifo(&path) {
            return Op::Unlink { path };
        }
        let (read, write) = self.pick(&[(true, false), (false, true), (true, true), (true, true)]);
        let create = self.one_in(2);
        let how = How {
            read,
            write,
            create,
            exclusive: create && self.one_in(4),
            truncate: write && self.one_in(4),
            append: write && self.one_in(4),
        };
        Op::Open { slot, path, how, mode: self.mode(0o600) }
    }

    fn on_slot(&mut self) -> Op {
        let slot = self.rng.random_range(self.slots.clone());
        let Some(open) = self.tree.handle(slot) else { return self.open() };
        if self.tree[open.node].is_directory() && self.one_in(2) {
            return Op::ListOpen { slot };
        }
        let end = self.tree.end(slot);
        let near = end + self.rng.random_range(0..100);
        let off = if self.one_in(4) { near } else { self.place() };
        match self.rng.random_range(0..38) {
            0..8 => Op::Read { slot, off, len: self.len() },
            8..20 => {
                let len = self.len();
                Op::Write { slot, off, data: self.data(len) }
            }
            20..26 => {
                let (half, twice) = (end / 2, end.min(FAR) * 2);
                Op::SetLen { slot, len: self.pick(&[half, twice, off]) }
            }
            26..30 => {
                use Allocate::*;
                let what = self.pick(&[Room, RoomKeepingSize, Punch, Punch, Zero, ZeroKeepingSize]);
                Op::Allocate { slot, what, off, len: self.len() }
            }
            30..34 => {
                let to = self.rng.random_range(self.slots.clone());
                let Some(target) = self.tree.handle(to) else { return self.open() };
                let (off, mut len) = (self.rng.random_range(0..=end.min(SHORT)), self.len());
                // The end would move on while it is copied, call after call.
                if self.tree.handle(slot).is_some_and(|source| source.node == target.node) {
                    len = len.min((end - off).max(1));
                }
                Op::Copy { from: slot, off, to, to_off: self.place(), len }
            }
            34..36 => Op::Sync { slot },
            _ => Op::Close { slot },
        }
    }

    fn remove(&mut self) -> Op {
        let path = self.known();
        if self.tree.is_directory(&path, false) != self.one_in(8) {
            Op::RmDir { path }
        } else {
            Op::Unlink { path }
        }
    }

    fn rename(&mut self) -> Op {
        let how =
            self.pick(&[Rename::Replace, Rename::Replace, Rename::NoReplace, Rename::Exchange]);
        let to = if self.one_in(2) { self.known() } else { self.any() };
        Op::Rename { from: self.known(), to, how }
    }

    fn chown(&mut self) -> Op {
        if !self.tree.privileged {
            return self.set_times();
        }
        let owner = |draw: &mut Self| draw.pick(&[None, Some(0), Some(1), Some(1000)]);
        let (uid, gid) = (owner(self), owner(self));
        Op::ChOwn { path: self.known_or_root(), uid, gid, follow: self.one_in(2) }
    }

    fn set_times(&mut self) -> Op {
        // Long ago, so that a change is later.
        let at = SetTime::At(self.rng.random_range(1_000_000_000..1_600_000_000 * 1_000_000_000));
        // Nothing is done, and no path looked at, where both are omitted.
        let (atime, mtime) = self.pick(&[
            (at, SetTime::Omit),
            (SetTime::Omit, at),
            (SetTime::Omit, SetTime::Now),
            (SetTime::Now, at),
        ]);
        Op::SetTimes { path: self.known_or_root(), atime, mtime, follow: self.one_in(2) }
    }

    fn xattr(&mut self) -> Op {
        let (path, name) = (self.known_or_root(), self.pick(&ATTRIBUTES));
        match self.rng.random_range(0..7) {
            0..3 => {
                let how = self.pick(&[SetXattr::Any, SetXattr::Create, SetXattr::Replace]);
                let len = self.rng.random_range(0..100);
                Op::SetXattr { path, name, value: self.data(len), how }
            }
            3..5 => Op::GetXattr { path, name },
            5 => Op::RemoveXattr { path, name },
            _ => Op::ListXattr { path },
        }
    }
}
