//! Usage against a model, under random histories in which quotas come and go.

use crate::model::{Cell, Model, ROOT};
use crate::quotas::{clear, count, count_all, limit, purge, quota, set};
use crate::requests::{self, Step};
use crate::rig::{Rig, run};
use proptest::prelude::*;
use std::collections::BTreeSet;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use v1::quota_key::Kind;
use weft_proto::v1;

struct World {
    rig: Rig,
    model: Model,
    next_seq: u64,
    limited: BTreeSet<u64>,
    /// Some file had names on both sides of a directory with a quota: it counts on one.
    crossed: bool,
}

#[derive(Clone, Debug)]
enum Do {
    Step(Step),
    Set(prop::sample::Index, u64),
    Clear(prop::sample::Index),
    Count,
}

impl World {
    fn new() -> Self {
        let rig = Rig::in_memory();
        let Ok(Reply::Layout(layout)) = rig.read(Op::GetLayout(v1::GetLayoutOp { ino: ROOT }))
        else {
            panic!("no layout")
        };
        let model = Model::new(1001, layout);
        Self { rig, model, next_seq: 1, limited: BTreeSet::new(), crossed: false }
    }

    fn dir(&self, index: &prop::sample::Index) -> u64 {
        let is_dir = |ino: &u64| self.model.links(*ino) >= 2 && self.model.is_dir(*ino);
        let dirs: Vec<u64> = self.model.nodes.keys().copied().filter(is_dir).collect();
        *index.get(&dirs)
    }

    fn carry_out(&mut self, what: &Do) {
        match what {
            Do::Count => drop(count(&mut self.rig)),
            Do::Set(index, inodes) => {
                let dir = self.dir(index);
                // Most limits are far away.
                let inodes = if *inodes < 30 { *inodes } else { 0 };
                set(&mut self.rig, limit(Kind::Tree, dir, inodes * 500, inodes)).unwrap();
                self.limited.insert(dir);
            }
            Do::Clear(index) => {
                let dir = self.dir(index);
                self.limited.remove(&dir);
                let _ = clear(&mut self.rig, dir);
            }
            Do::Step(Step::Purge) => {
                purge(&mut self.rig);
                self.limited.retain(|dir| self.model.links(*dir) > 0);
                self.model.purge();
            }
            Do::Step(Step::Free | Step::Retry) => {}
            Do::Step(step) => {
                let op = requests::resolve(step, &self.model, &self.rig, &mut self.next_seq);
                if let Ok(reply) = run(&mut self.rig, op.clone()) {
                    match (&op, reply) {
                        (Op::CopyRange(op), Reply::CopyRange(reply)) => {
                            self.model.copy(op, self.rig.time, Some(reply.copied)).map(drop)
                        }
                        _ => self.model.run(&op, self.rig.time).map(drop),
                    }
                    .unwrap();
                }
            }
        }
    }

    /// What the model finds below a directory: bytes, inodes; and whether files have names outside,
    /// too.
    fn below(&self, dir: u64) -> (u64, u64, bool) {
        let (mut seen, mut names, mut todo) = (BTreeSet::new(), 0, vec![dir]);
        while let Some(at) = todo.pop() {
            for &child in self.model.nodes[&at].children.values() {
                let is_dir = self.model.is_dir(child);
                names += u32::from(!is_dir);
                if seen.insert(child) {
                    todo.extend(Some(child).filter(|_| is_dir));
                }
            }
        }
        let files = || seen.iter().filter(|ino| !self.model.is_dir(**ino));
        let cells = files().flat_map(|ino| &self.model.nodes[ino].cells);
        let bytes = cells.filter(|cell| **cell != Cell::Hole).count() as u64;
        let outside = files().map(|ino| self.model.links(*ino)).sum::<u32>() != names;
        (bytes, seen.len() as u64, outside)
    }

    fn limited(&self) -> impl Iterator<Item = u64> {
        self.limited.iter().copied().filter(|dir| self.model.links(*dir) > 0)
    }

    fn compare(&mut self) {
        self.rig.check();
        if self.crossed {
            return;
        }
        self.carry_out(&Do::Step(Step::Purge));
        self.rig.check();
        for dir in self.limited() {
            let (bytes, inodes, _) = self.below(dir);
            let quota = quota(&self.rig, Kind::Tree, dir);
            if quota.counting {
                continue;
            }
            assert_eq!((quota.bytes, quota.inodes), (bytes, inodes), "below {dir}");
        }
    }
}

fn what() -> impl Strategy<Value = Do> {
    prop_oneof![
        12 => requests::step().prop_map(Do::Step),
        1 => (any::<prop::sample::Index>(), 0u64..90).prop_map(|(dir, n)| Do::Set(dir, n)),
        1 => any::<prop::sample::Index>().prop_map(Do::Clear),
        2 => Just(Do::Count),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_is_used_is_what_there_is(steps in prop::collection::vec(what(), 1..150)) {
        let mut world = World::new();
        for (i, step) in steps.iter().enumerate() {
            world.carry_out(step);
            let crossed = world.limited().any(|dir| world.below(dir).2);
            world.crossed |= crossed;
            if i % 16 == 0 {
                world.compare();
            }
        }
        count_all(&mut world.rig);
        world.compare();
        let log = std::mem::take(&mut world.rig.log);
        let again = weft_metadata::state::StateMachine::open_in_memory();
        for entries in log.chunks(7) {
            again.apply(entries).unwrap();
        }
        prop_assert!(again.dump().unwrap() == world.rig.machine.dump().unwrap());
    }
}
