//! Which directories clients ask for most, as counted by the leader of late.
//!
//! Bounded: when more directories are asked for than are counted, all counts go down by one and
//! those at zero go (Misra and Gries). So a directory with more than one in so many of all requests
//! is always among those that are counted.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use v1::meta_request::Op;
use weft_proto::v1;

/// Counted are requests of so long.
const SPAN: Duration = Duration::from_secs(5);
/// Directories that are counted.
const COUNTED: usize = 1024;

/// Of one server.
#[derive(Default)]
pub struct Hot(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    begun: Option<Instant>,
    now: HashMap<u64, u64>,
    last: Option<(Duration, HashMap<u64, u64>)>,
}

impl Hot {
    /// A client asks for this now.
    pub fn note(&self, now: Instant, op: &Op) {
        let mut counts = self.0.lock();
        counts.turn(now);
        directories(op, |dir| counts.count(dir));
    }

    /// The directories with the most requests, with how many a second.
    pub fn rates(&self, now: Instant, limit: usize) -> Vec<(u64, u64)> {
        let mut counts = self.0.lock();
        counts.turn(now);
        let since = counts.begun.map_or(Duration::ZERO, |begun| now - begun);
        let (took, of) = match &counts.last {
            Some((took, of)) => (*took, of),
            None => (since.max(Duration::from_secs(1)), &counts.now),
        };
        let a_second = |n: u64| (n as f64 / took.as_secs_f64()).round() as u64;
        let mut all: Vec<_> = of.iter().map(|(dir, n)| (*dir, a_second(*n))).collect();
        all.retain(|(_, rate)| *rate > 0);
        all.sort_by_key(|&(dir, rate)| (std::cmp::Reverse(rate), dir));
        all.truncate(limit);
        all
    }
}

impl Counts {
    fn turn(&mut self, now: Instant) {
        let begun = *self.begun.get_or_insert(now);
        let took = now.saturating_duration_since(begun);
        if took >= SPAN {
            let ended = std::mem::take(&mut self.now);
            self.last = (took < 2 * SPAN).then_some((took, ended));
            self.begun = Some(now);
        }
    }

    fn count(&mut self, dir: u64) {
        if self.now.len() >= COUNTED && !self.now.contains_key(&dir) {
            self.now.retain(|_, n| {
                *n -= 1;
                *n > 0
            });
            return;
        }
        *self.now.entry(dir).or_default() += 1;
    }
}

/// The directories in which a request looks up, makes, moves, removes or lists names.
fn directories(op: &Op, mut count: impl FnMut(u64)) {
    use v1::batch_op::step::Op as Step;
    match op {
        Op::Lookup(op) => count(op.parent),
        Op::LookupMany(op) => op.items.iter().for_each(|item| count(item.parent)),
        Op::ReadDir(op) => count(op.ino),
        Op::Create(op) => count(op.parent),
        Op::MkNod(op) => count(op.parent),
        Op::MkDir(op) => count(op.parent),
        Op::SymLink(op) => count(op.parent),
        Op::Link(op) => count(op.parent),
        Op::Unlink(op) => count(op.parent),
        Op::RmDir(op) => count(op.parent),
        Op::Rename(op) => {
            count(op.parent);
            if op.new_parent != op.parent {
                count(op.new_parent);
            }
        }
        Op::MakeFiles(op) => op.files.iter().for_each(|file| count(file.parent)),
        Op::Batch(op) => {
            for step in &op.steps {
                match &step.op {
                    Some(Step::Make(op)) => count(op.parent),
                    Some(Step::Unlink(op)) => count(op.parent),
                    Some(Step::RmDir(op)) => count(op.parent),
                    Some(Step::Rename(op)) => count(op.parent),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(parent: u64) -> Op {
        Op::Lookup(v1::LookupOp { parent, ..Default::default() })
    }

    #[test]
    fn the_busiest_are_known_however_many_there_are() {
        let (hot, begun) = (Hot::default(), Instant::now());
        for n in 0..20 * COUNTED as u64 {
            hot.note(begun, &lookup(1000 + n));
            hot.note(begun, &lookup(7));
            if n % 3 == 0 {
                hot.note(begun, &lookup(8));
            }
        }
        assert!(hot.0.lock().now.len() <= COUNTED);
        let dirs: Vec<_> = hot.rates(begun, 2).into_iter().map(|(dir, _)| dir).collect();
        assert_eq!(dirs, [7, 8]);
        assert!(hot.rates(begun + 3 * SPAN, 9).is_empty(), "that is past");
    }
}
