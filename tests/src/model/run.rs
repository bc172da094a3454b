//! Operation by operation, each by way of one of the mounts: the same answer as the model's, and
//! then the same attributes, times and content of all that it touched, there and by way of another
//! mount; now and then of the whole tree, by way of all.
//!
//! Which operations run is decided by the seed alone.

use super::draw::draw;
use super::node::{Answer, Body, Id, ROOT, Time, Times};
use super::op::{Op, SLOTS};
use super::real::{Real, Seen};
use super::tree::Tree;
use crate::fsx;
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::path::PathBuf;

/// Operations that a failure tells of.
const TOLD: usize = 40;
/// Operations from one look at the whole tree to the next.
const WHOLE: u64 = 64;

/// One run.
#[derive(Clone, Debug)]
pub struct Model {
    /// One empty folder, by way of each mount.
    pub folders: Vec<PathBuf>,
    pub seed: u64,
    pub operations: u64,
    /// Two changes may get the same time.
    pub coarse_clock: bool,
}

/// Where the filesystem and the model differed.
#[derive(Clone, Debug)]
pub struct Differs {
    pub seed: u64,
    pub operation: u64,
    last: Vec<String>,
}

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} operation {}; the last were", self.seed, self.operation)?;
        self.last.iter().try_for_each(|told| write!(f, "\n  {told}"))
    }
}

impl Model {
    /// Runs it and empties the folder. An error has a [`Differs`] as its context.
    pub fn run(&self) -> Result<()> {
        let mut world = World::new(self)?;
        for number in 0..=self.operations {
            let step = if number < self.operations { world.step(number) } else { world.end() };
            if let Err(error) = step {
                let last = world.trace.into();
                let differs = Differs { seed: self.seed, operation: number, last };
                return Err(error.context(differs));
            }
        }
        Ok(())
    }
}

struct World<'a> {
    model: &'a Model,
    rng: SmallRng,
    tree: Tree,
    real: Real,
    /// How each inode was seen last, by way of any mount.
    seen: BTreeMap<Id, Seen>,
    /// What became of times since.
    due: BTreeMap<Id, Times>,
    /// Touched, and seen only by way of the mount that did it.
    unshared: BTreeSet<Id>,
    /// One mount works alone until this operation, so that what it writes stays in its buffers.
    alone: Option<(usize, u64)>,
    trace: VecDeque<String>,
}

impl<'a> World<'a> {
    fn new(model: &'a Model) -> Result<Self> {
        let real = Real::new(model.folders.clone());
        let root = real.look(0, "").context("stat the folder of the test")?;
        Ok(Self {
            model,
            rng: SmallRng::seed_from_u64(model.seed),
            tree: Tree::new(root.attr, umask()?, nix::unistd::geteuid().is_root()),
            real,
            seen: [(ROOT, root)].into(),
            due: BTreeMap::new(),
            unshared: BTreeSet::new(),
            alone: None,
            trace: VecDeque::new(),
        })
    }

    fn mounts(&self) -> usize {
        self.model.folders.len()
    }

    fn step(&mut self, number: u64) -> Result<()> {
        self.alone = self.alone.filter(|(_, until)| number < *until);
        let on = match self.alone {
            Some((on, _)) => on,
            None => self.rng.random_range(0..self.mounts()),
        };
        if self.alone.is_none() && self.rng.random_ratio(1, 50) {
            self.alone = Some((on, number + self.rng.random_range(1..30)));
        }
        let op = draw(&mut self.rng, &self.tree, on);
        self.apply(number, on, &op)?;
        if number % WHOLE == WHOLE - 1 {
            (0..self.mounts()).try_for_each(|on| self.look_at_all(on))?;
        }
        Ok(())
    }

    fn apply(&mut self, number: u64, on: usize, op: &Op) -> Result<()> {
        let (want, touched) = self.tree.apply(op);
        if self.trace.len() == TOLD {
            self.trace.pop_front();
        }
        let failed = want.as_ref().err();
        let failed = failed.map(|errno| format!(" -> {errno:?}")).unwrap_or_default();
        self.trace.push_back(format!("{number} mount {on}: {op:?}{failed}"));
        let got = self.real.apply(on, op);
        same_answer(&want, &got).with_context(|| format!("what {op:?} on mount {on} answered"))?;
        for (id, times) in &touched {
            let due = self.due.entry(*id).or_insert(Times::SAME);
            *due = due.then(*times);
        }
        self.unshared.extend(touched.keys());
        self.unshared.retain(|id| self.tree.node(*id).is_some());
        self.due.retain(|id, _| self.tree.node(*id).is_some());
        self.seen.retain(|id, _| self.tree.node(*id).is_some());
        let mut looks = vec![(on, touched.into_keys().collect())];
        if self.alone.is_none() {
            let others = 1.min(self.mounts() - 1)..self.mounts();
            let other = (on + self.rng.random_range(others)) % self.mounts();
            looks.push((other, std::mem::take(&mut self.unshared)));
            if self.rng.random() {
                looks.reverse();
            }
        }
        for (on, ids) in looks {
            for path in op.paths() {
                self.look_at_name(on, path)?;
            }
            self.look(on, &ids)?;
        }
        Ok(())
    }

    /// Closes all, looks once more and removes all.
    fn end(&mut self) -> Result<()> {
        for (slot, _) in self.tree.handles().collect::<Vec<_>>() {
            self.apply(self.model.operations, slot / SLOTS, &Op::Close { slot })?;
        }
        (0..self.mounts()).try_for_each(|on| self.look_at_all(on))?;
        let mut paths = self.tree.paths();
        // What is in a directory comes after it.
        paths.reverse();
        for path in paths {
            let directory = self.tree.is_directory(&path, false);
            let op = if directory { Op::RmDir { path } } else { Op::Unlink { path } };
            self.apply(self.model.operations, 0, &op)?;
        }
        Ok(())
    }

    fn look_at_all(&mut self, on: usize) -> Result<()> {
        let names = self.tree.names().into_iter().map(|(_, id)| id);
        let open = self.tree.handles().map(|(_, handle)| handle.node);
        let all = names.chain(open).collect();
        self.look(on, &all)
    }

    /// At inodes, by what is open on that mount and by all their names. To open anything here would
    /// have the kernel look at its cache again: that comes last.
    fn look(&mut self, on: usize, ids: &BTreeSet<Id>) -> Result<()> {
        for (slot, handle) in self.tree.handles().collect::<Vec<_>>() {
            if slot / SLOTS == on && ids.contains(&handle.node) {
                self.look_at_open(slot, handle.node, handle.read)
                    .with_context(|| format!("slot {slot} of mount {on}"))?;
            }
        }
        for (path, id) in self.tree.names().into_iter().filter(|(_, id)| ids.contains(id)) {
            self.look_at_name(on, &path)?;
            self.look_inside(on, &path, id)
                .with_context(|| format!("what is in {path:?} by way of mount {on}"))?;
        }
        Ok(())
    }

    fn look_at_name(&mut self, on: usize, path: &str) -> Result<()> {
        let compare =
            |world: &mut Self| match (world.tree.find(path, false), world.real.look(on, path)) {
                (Ok(id), Ok(seen)) => world.compare(id, seen),
                (Err(want), Err(got)) if want == got => Ok(()),
                (want, Err(got)) => {
                    bail!("answered {got:?} instead of {:?}", want.map(|_| "attributes"))
                }
                (Err(want), Ok(got)) => bail!("answered {got:?} instead of {want:?}"),
            };
        compare(self).with_context(|| format!("stat of {path:?} by way of mount {on}"))
    }

    fn compare(&mut self, id: Id, now: Seen) -> Result<()> {
        let want = self.tree.attr(id);
        ensure!(now.attr == want, "\n    {:?} instead of\n    {want:?}", now.attr);
        let Some(before) = self.seen.insert(id, now) else {
            let other = self.seen.iter().find(|(other, seen)| **other != id && seen.ino == now.ino);
            ensure!(other.is_none(), "it has the number of another inode: {}", now.ino);
            return Ok(());
        };
        let Seen { ino, .. } = before;
        ensure!(now.ino == ino, "it is inode {} instead of {ino}", now.ino);
        let Times { mtime, ctime } = self.due.remove(&id).unwrap_or(Times::SAME);
        self.compare_time(mtime, before.mtime, now.mtime).context("mtime")?;
        self.compare_time(ctime, before.ctime, now.ctime).context("ctime")
    }

    fn compare_time(&self, rule: Time, before: i64, now: i64) -> Result<()> {
        let right = match rule {
            Time::Same => now == before,
            Time::Later if self.model.coarse_clock => now >= before,
            Time::Later => now > before,
            Time::Any => true,
            Time::At(time) => now == time,
        };
        ensure!(right, "was {before}, is {now}, and should be: {rule:?}");
        Ok(())
    }

    /// At the content of what has a name, and its extended attributes.
    fn look_inside(&self, on: usize, path: &str, id: Id) -> Result<()> {
        let node = self.tree.node(id).context("no such inode in the model")?;
        match &node.body {
            Body::File(_) => self.look_into(&self.real.open_to_read(on, path)?, id)?,
            Body::Directory { names, .. } => {
                let listed = self.real.list(on, path)?;
                ensure!(listed.keys().eq(names.keys()), "it lists {listed:?} instead of {names:?}");
                for (name, (ino, kind)) in listed {
                    let id = names[&name];
                    let known = self.seen.get(&id).is_none_or(|seen| seen.ino == ino);
                    let right = known && self.tree.attr(id).kind == kind;
                    ensure!(right, "it lists {name:?} as {ino}, a {kind:?}");
                }
            }
            Body::Link(target) => {
                let read = self.real.read_link(on, path)?;
                ensure!(read == *target, "it leads to {read:?} instead of {target:?}");
            }
            Body::Fifo => {}
        }
        if node.has_xattrs() {
            let names: BTreeSet<_> = self.real.xattr_names(on, path)?.into_iter().collect();
            ensure!(names.iter().eq(node.xattrs.keys()), "it has the attributes {names:?}");
            for (name, value) in &node.xattrs {
                let got = self.real.xattr(on, path, name)?;
                ensure!(got == *value, "{name} is {got:?} instead of {value:?}");
            }
        }
        Ok(())
    }

    fn look_at_open(&mut self, slot: usize, id: Id, read: bool) -> Result<()> {
        self.compare(id, self.real.look_at_open(slot)?)?;
        match self.tree.node(id).map(|node| &node.body) {
            Some(Body::File(_)) if read => self.look_into(self.real.file(slot)?, id),
            _ => Ok(()),
        }
    }

    fn look_into(&self, file: &File, id: Id) -> Result<()> {
        let Some(Body::File(content)) = self.tree.node(id).map(|node| &node.body) else {
            return Ok(());
        };
        for place in content.places() {
            let (off, len) = (place.start, place.end - place.start);
            fsx::same(&fsx::read(file, off, len)?, &content.read(off, len), off)?;
        }
        Ok(())
    }
}

fn same_answer(want: &Result<Answer, Errno>, got: &Result<Answer, Errno>) -> Result<()> {
    match (want, got) {
        (Ok(Answer::Bytes(want)), Ok(Answer::Bytes(got))) => fsx::same(got, want, 0),
        _ => {
            ensure!(want == got, "\n    {got:?} instead of\n    {want:?}");
            Ok(())
        }
    }
}

/// Of this process. There is no call that only tells it.
fn umask() -> Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let umask = umask.context("/proc/self/status has no umask")?.trim();
    u32::from_str_radix(umask, 8).with_context(|| format!("the umask {umask:?}"))
}
