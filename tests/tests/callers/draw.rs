//! Steps by chance.

use super::op::Op::{self, *};
use super::op::{BOB, ROOT, SAME};
use super::steps::{ACL, CUT, LIST, NEW, QUIET, RD, RW, STAY, USER, WR};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

const PATHS: [&str; 20] = [
    "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/", "e", "e/a", "e/", "a/", "s", "s/", "s/a",
    "d/s", "d/s/a", "d/../a", "d/.", "e/..",
];
const TARGETS: [&str; 7] = ["a", "d", "d/e/", "../a", "s", "../e", "nothing"];
const MODES: [u32; 12] =
    [0o777, 0o755, 0o700, 0o711, 0o744, 0o2775, 0o1777, 0o6777, 0o2767, 0o070, 0o607, 0o000];
const OPENS: [i32; 8] = [RD, WR, RW, RD | CUT, WR | CUT, RD | STAY, WR | STAY, RD | QUIET];
const CREATES: [i32; 5] = [WR, RW, WR | NEW, WR | STAY, RD | CUT];
const IDS: [u32; 4] = [SAME, 1000, 1001, 2000];

pub struct Draw {
    pub rng: SmallRng,
    /// Users may ask for links to the files of others.
    pub links: bool,
    /// There may be sticky directories that all can write in.
    pub sticky: bool,
}

impl Draw {
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        *all.choose(&mut self.rng).expect("there are some")
    }

    fn mode(&mut self) -> u32 {
        let kept = if self.sticky { 0o7777 } else { 0o6777 };
        self.of(&MODES) & kept
    }

    pub fn step(&mut self) -> (usize, &'static str, Op) {
        let (user, path) = (self.rng.random_range(ROOT..=BOB), self.of(&PATHS));
        let op = match self.rng.random_range(0..29) {
            0 => Stat,
            1 => Lstat,
            2 => Access(1),
            3 | 4 => Open(self.of(&OPENS)),
            5..8 => Create(self.of(&CREATES), self.mode()),
            8 => Write,
            9..12 => Mkdir(self.mode()),
            12 => Unlink,
            13 => Rmdir,
            14 | 15 => Rename(self.of(&PATHS)),
            16 => Exchange(self.of(&PATHS)),
            17 if self.links || user == ROOT => Link(self.of(&PATHS)),
            18 => Symlink(self.of(&TARGETS)),
            19 => Readlink,
            20 => ReadDir,
            21..23 => Chmod(self.mode()),
            23 => Chown(self.of(&IDS), self.of(&IDS)),
            24 => Truncate(self.rng.random_range(0..9)),
            25 => Touch,
            26 => Age,
            27 => GetXattr(self.of(&[USER, ACL])),
            _ => match self.rng.random() {
                true => SetXattr(USER, b"1"),
                false => SetXattr(ACL, LIST),
            },
        };
        (user, path, op)
    }
}
