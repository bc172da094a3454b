//! One look at where something changed: turns are given, and circles broken.
//!
//! A look is cut where it has read very much: others have their turn. The next goes on there, and
//! round, so that no inode that changes all the time keeps the others.

use super::circles::{Graph, Held};
use super::queues::{Queue, Turn};
use super::{Waits, taken};
use std::collections::BTreeSet;
use tokio::time::Instant;
use weft_proto::{InodeId, Result, v1};

/// After so many locks and waiters a look is cut, and after so many that those lead to.
pub(super) const MAX_LOOKED_AT: usize = 1 << 16;
/// Most waiters of an inode that one look tells that they wait for themselves.
const MAX_TOLD: usize = 8;

/// What is locked of one inode, of flock(2) or not.
type Locked = Vec<(bool, Vec<v1::Lock>)>;

impl Waits {
    /// Gives turns where something changed; where that is very much, not everywhere at once, and
    /// there are `news` again. `held` must answer what is locked now. Where it cannot, that is
    /// tried again the next time, and keeps no other inode.
    pub fn settle(&mut self, now: Instant, held: &mut Held<'_>) -> Result<()> {
        let (mut looked_at, mut failed) = (0, Ok(()));
        let (mut begun, mut later) = (Vec::new(), Vec::new());
        while looked_at < MAX_LOOKED_AT
            && let Some(ino) = self.next_unsettled()
        {
            looked_at += 1 + self.queues.get(ino).map_or(0, Queue::len);
            match self.give_turns(now, ino, held) {
                Ok(locked) => {
                    looked_at += locked.iter().map(|(_, locks)| locks.len()).sum::<usize>();
                    begun.push((ino, locked));
                }
                Err(error) => {
                    later.push(ino);
                    failed = Err(error);
                }
            }
        }
        // Nobody else gets a turn meanwhile, so that what is found out for one holds for all.
        let (mut graph, mut cut) = (Graph::default(), None);
        for (ino, locked) in begun {
            if graph.looked_at() >= MAX_LOOKED_AT
                && self.queues.get(ino).is_some_and(|queue| !graph.is_apart(queue))
            {
                cut = cut.or(Some(ino));
                later.push(ino);
                continue;
            }
            match self.break_circles(ino, &mut graph, held) {
                Ok(whole) => {
                    self.note_wanted(ino, &locked);
                    later.extend((!whole).then_some(ino));
                }
                Err(error) => {
                    graph = Graph::new(graph.looked_at());
                    later.push(ino);
                    failed = Err(error);
                }
            }
        }
        match cut {
            Some(ino) => self.goes_on = ino,
            None if self.unsettled.is_empty() => self.goes_on = InodeId(0),
            None => {}
        }
        self.unsettled.extend(later);
        if failed.is_ok() && !self.unsettled.is_empty() {
            self.news.notify_one();
        }
        failed
    }

    /// The one whose turn it is to be looked at: behind the last, and round.
    fn next_unsettled(&mut self) -> Option<InodeId> {
        let behind = self.unsettled.range(self.goes_on..).next();
        let next = behind.or(self.unsettled.first()).copied()?;
        self.unsettled.remove(&next);
        self.goes_on = InodeId(next.0.saturating_add(1));
        Some(next)
    }

    /// Answers what is locked of each sort that is waited for.
    fn give_turns(&mut self, now: Instant, ino: InodeId, held: &mut Held<'_>) -> Result<Locked> {
        let mut locked = Vec::new();
        for flock in [false, true] {
            let Some(queue) = self.queues.get(ino) else { break };
            if !queue.iter().any(|(_, w)| w.lock.flock == flock) {
                continue;
            }
            let locks = held(ino, flock)?;
            for at in taken::free(&locks, queue, flock) {
                self.queues.give_turn(now, ino, at);
            }
            locked.push((flock, locks));
        }
        Ok(locked)
    }

    /// Notes who holds what those want who wait here.
    fn note_wanted(&mut self, ino: InodeId, locked: &Locked) {
        let mut wanted = BTreeSet::new();
        for (flock, locks) in locked {
            if let Some(queue) = self.queues.get(ino) {
                wanted.extend(taken::wanted(locks, queue, *flock));
            }
        }
        match wanted.is_empty() {
            true => self.wanted.remove(&ino),
            false => self.wanted.insert(ino, wanted),
        };
    }

    /// Tells those who wait here, the last first, if they wait for themselves. Answers false if
    /// more may.
    fn break_circles(
        &mut self,
        ino: InodeId,
        graph: &mut Graph,
        held: &mut Held<'_>,
    ) -> Result<bool> {
        for told in 0..MAX_TOLD {
            if told > 0 && graph.looked_at() >= MAX_LOOKED_AT {
                break;
            }
            let Some(at) = graph.last_in_circle(&self.queues, ino, held)? else {
                return Ok(true);
            };
            if let Some(waiter) = self.queues.remove(ino, at) {
                waiter.turn.send_replace(Turn::Deadlock);
                graph.take_out(waiter.owner());
            }
        }
        Ok(self.queues.get(ino).is_none())
    }
}
