//! Who would wait for himself, over any number of waiters of fcntl(2)'s locks.
//!
//! An owner waits for another if one of his waiters stands against what that holds, or has the turn
//! to. Those who wait for each other are a component of that graph: found by going through it once
//! along what is waited for, and once back. Each of what is held, and each waiter, is met once, so
//! that it takes little longer than to read them, however many stand against how many.
//!
//! What was found out is kept for the next inode: those who are in no circle are in none when
//! others wait no more, and only a circle from which one was taken is gone through again.

use super::queues::{Owner, Queue, Queues, Waiter, item_of};
use super::ranges::{Item, Ranges};
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};
use weft_proto::{InodeId, Result, v1};

/// Answers all locks on an inode, of flock(2) or of fcntl(2).
pub type Held<'a> = dyn FnMut(InodeId, bool) -> Result<Vec<v1::Lock>> + 'a;

/// What is taken of one inode.
struct Taken {
    items: Vec<Item<Owner>>,
    /// Those that were not met yet: their numbers are places in `items`.
    unmet: Ranges<Owner>,
}

/// Who waits for whom. Invariant: while it is used nobody begins to wait or gets a turn, and who
/// waits no more is taken out ([`Graph::take_out`]). After an error it is of no use.
#[derive(Default)]
pub(super) struct Graph {
    /// The inodes that were come to.
    inodes: HashMap<InodeId, Taken>,
    /// What each owner has taken of them, as inodes and places there.
    holds: HashMap<Owner, Vec<(InodeId, usize)>>,
    /// The owners that were come to, and in which circle they are.
    known: HashMap<Owner, Option<usize>>,
    /// Who is in each circle.
    circles: Vec<Vec<Owner>>,
    /// How much was read, and gone along.
    looked_at: usize,
}

impl Graph {
    /// Of which nothing is known, after so much was read.
    pub fn new(looked_at: usize) -> Self {
        Self { looked_at, ..Self::default() }
    }

    /// How much was read, and gone along.
    pub fn looked_at(&self) -> usize {
        self.looked_at
    }

    /// Whether it is known that none of those who wait here is in a circle.
    pub fn is_apart(&self, queue: &Queue) -> bool {
        let mut blocked = queue.iter().filter(|(_, w)| w.is_blocked());
        blocked.all(|(_, w)| self.known.get(&w.owner()) == Some(&None))
    }

    /// The last of those who wait for an inode that waits for himself, as his place in the queue.
    pub fn last_in_circle(
        &mut self,
        queues: &Queues,
        ino: InodeId,
        held: &mut Held<'_>,
    ) -> Result<Option<u64>> {
        let Some(queue) = queues.get(ino) else { return Ok(None) };
        let mut fresh = Vec::new();
        for (_, waiter) in queue.iter().filter(|(_, w)| w.is_blocked()) {
            self.go_along(queues, waiter.owner(), &mut fresh, held)?;
        }
        self.find_circles(queues, &fresh);
        if self.is_apart(queue) {
            return Ok(None);
        }
        let taken = self.inodes.get(&ino).map_or(&[][..], |of| &of.items);
        self.looked_at += queue.len() + taken.len();
        // Of each circle, what its owners hold here.
        let mut of_circle: HashMap<usize, Vec<Item<Owner>>> = HashMap::new();
        for item in taken {
            if let Some(circle) = self.circle_of(item.whose) {
                of_circle.entry(circle).or_default().push(*item);
            }
        }
        let ranges = |(circle, items)| (circle, Ranges::counting(items));
        let of_circle: HashMap<usize, Ranges<Owner>> = of_circle.into_iter().map(ranges).collect();
        let is_in = |waiter: &Waiter| {
            let held = self.circle_of(waiter.owner()).and_then(|circle| of_circle.get(&circle));
            let item = item_of(&waiter.lock);
            held.zip(item).is_some_and(|(held, item)| held.stands_against(&item))
        };
        let mut last_first = queue.iter().rev().filter(|(_, w)| w.is_blocked());
        Ok(last_first.find(|(_, w)| is_in(w)).map(|(at, _)| at))
    }

    /// One who was in a circle waits for something less. Those who were in it may be in none now,
    /// or in others.
    pub fn take_out(&mut self, owner: Owner) {
        let circle = self.circle_of(owner).and_then(|circle| self.circles.get_mut(circle));
        for member in circle.map(std::mem::take).unwrap_or_default() {
            self.known.remove(&member);
            for (ino, number) in self.holds.get(&member).into_iter().flatten() {
                self.looked_at += 1;
                if let Some(taken) = self.inodes.get_mut(ino) {
                    taken.unmet.count(*number);
                }
            }
        }
    }

    fn circle_of(&self, owner: Owner) -> Option<usize> {
        self.known.get(&owner).copied().flatten()
    }

    /// Comes to all for whom an owner waits, over any number of others, that are not known. They
    /// are put behind `fresh`, each behind all whom he waits for, but in a circle.
    fn go_along(
        &mut self,
        queues: &Queues,
        from: Owner,
        fresh: &mut Vec<Owner>,
        held: &mut Held<'_>,
    ) -> Result<()> {
        let wants = |owner| queues.blocked_of(owner).map(|w| w.lock).collect::<VecDeque<_>>();
        let mut path: Vec<_> =
            self.come_to(from).then(|| (from, wants(from))).into_iter().collect();
        while let Some((owner, wanted)) = path.last_mut() {
            let Some(lock) = wanted.front().copied() else {
                fresh.push(*owner);
                path.pop();
                continue;
            };
            match self.meet(queues, &lock, held)? {
                None => {
                    self.looked_at += 1;
                    wanted.pop_front();
                }
                // What is his own, or of who is known, leads nowhere else.
                Some(holder) if self.come_to(holder) => path.push((holder, wants(holder))),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Notes an owner, as in no circle. Answers whether he was not known. That is not counted: the
    /// waiter or the lock over which he was come to is.
    fn come_to(&mut self, owner: Owner) -> bool {
        let Entry::Vacant(unknown) = self.known.entry(owner) else { return false };
        unknown.insert(None);
        true
    }

    /// Whose lock stands against this one, of those that were not met yet.
    fn meet(
        &mut self,
        queues: &Queues,
        lock: &v1::Lock,
        held: &mut Held<'_>,
    ) -> Result<Option<Owner>> {
        let Some(item) = item_of(lock) else { return Ok(None) };
        let ino = InodeId(lock.ino);
        let taken = match self.inodes.entry(ino) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let mut locks = held(ino, false)?;
                let turns = queues.get(ino).into_iter().flat_map(Queue::turns);
                locks.extend(turns.filter(|w| !w.lock.flock).map(|w| w.lock));
                let items: Vec<Item<Owner>> = locks.iter().filter_map(item_of).collect();
                self.looked_at += 1 + locks.len();
                for (number, item) in items.iter().enumerate() {
                    self.holds.entry(item.whose).or_default().push((ino, number));
                }
                unknown.insert(Taken { unmet: Ranges::counting(items.clone()), items })
            }
        };
        Ok(taken.unmet.take(&item).map(|number| taken.items[number].whose))
    }

    /// Finds out who of those who were just come to is in which circle: nobody else is in one with
    /// them.
    fn find_circles(&mut self, queues: &Queues, fresh: &[Owner]) {
        // Without any of these there is no way back.
        let waits = |owner: &Owner| queues.blocked_of(*owner).next().is_some();
        if !fresh.iter().any(|owner| self.holds.contains_key(owner) && waits(owner)) {
            return;
        }
        let (mut waiting, mut done) = (waiting(queues, fresh), HashSet::new());
        for &root in fresh.iter().rev() {
            if !done.insert(root) {
                continue;
            }
            let (mut todo, mut members) = (vec![root], vec![root]);
            while let Some(owner) = todo.pop() {
                for (ino, number) in self.holds.get(&owner).into_iter().flatten() {
                    let item = self.inodes.get(ino).and_then(|taken| taken.items.get(*number));
                    let Some((item, (unmet, owners))) = item.zip(waiting.get_mut(ino)) else {
                        continue;
                    };
                    while let Some(at) = unmet.take(item) {
                        if done.insert(owners[at]) {
                            todo.push(owners[at]);
                            members.push(owners[at]);
                        }
                    }
                }
            }
            if members.len() > 1 {
                let circle = Some(self.circles.len());
                self.known.extend(members.iter().map(|owner| (*owner, circle)));
                self.circles.push(members);
            }
        }
    }
}

/// Those who wait for each inode, of these owners.
fn waiting(queues: &Queues, of: &[Owner]) -> HashMap<InodeId, (Ranges<Owner>, Vec<Owner>)> {
    let mut waiting: HashMap<InodeId, Vec<Item<Owner>>> = HashMap::new();
    for waiter in of.iter().flat_map(|owner| queues.blocked_of(*owner)) {
        let of = waiting.entry(InodeId(waiter.lock.ino)).or_default();
        of.extend(item_of(&waiter.lock));
    }
    let ranges = |(ino, items): (InodeId, Vec<Item<Owner>>)| {
        let owners = items.iter().map(|item| item.whose).collect();
        (ino, (Ranges::counting(items), owners))
    };
    waiting.into_iter().map(ranges).collect()
}
