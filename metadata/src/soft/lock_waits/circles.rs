//! Who would wait for himself, over any number of waiters of fcntl(2)'s locks.
//!
//! An owner waits for another if one of his waiters stands against what that holds, or has the turn
//! to. Those who wait for each other are a component of that graph: found by going through it once
//! along what is waited for, and once back. Each of what is held, and each waiter, is met once, so
//! that it takes little longer than to read them, however many stand against how many.

use super::queues::{Owner, Queues, Waiter, item_of, owner_of};
use super::ranges::{Item, Ranges};
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};
use weft_proto::{InodeId, Result, v1};

/// Answers all locks on an inode, of flock(2) or of fcntl(2).
pub type Held<'a> = dyn FnMut(InodeId, bool) -> Result<Vec<v1::Lock>> + 'a;

/// The last of those who wait for an inode that waits for himself, as his place in the queue.
pub(super) fn last_in_circle(
    queues: &Queues,
    ino: InodeId,
    held: &mut Held<'_>,
) -> Result<Option<u64>> {
    let Some(queue) = queues.get(ino) else { return Ok(None) };
    let mut graph = Graph { queues, inodes: HashMap::new(), known: Vec::new() };
    let mut seen = HashSet::new();
    for (_, waiter) in queue.iter().filter(|(_, w)| w.is_blocked()) {
        graph.go_along(waiter.owner(), &mut seen, held)?;
    }
    let circles = graph.circles(&seen);
    if circles.is_empty() {
        return Ok(None);
    }
    let taken = graph.inodes.get(&ino).map_or(&[][..], |of| &of.locks);
    // Of each circle, what its owners hold here.
    let mut of_circle: HashMap<usize, Vec<Item<Owner>>> = HashMap::new();
    for item in taken.iter().filter_map(item_of) {
        if let Some(circle) = circles.get(&item.whose) {
            of_circle.entry(*circle).or_default().push(item);
        }
    }
    let of_circle: HashMap<usize, Ranges<Owner>> =
        of_circle.into_iter().map(|(circle, items)| (circle, Ranges::counting(items))).collect();
    let is_in = |waiter: &Waiter| {
        let held = circles.get(&waiter.owner()).and_then(|circle| of_circle.get(circle));
        let item = item_of(&waiter.lock);
        held.zip(item).is_some_and(|(held, item)| held.stands_against(&item))
    };
    let mut last_first = queue.iter().rev().filter(|(_, w)| w.is_blocked());
    Ok(last_first.find(|(_, w)| is_in(w)).map(|(at, _)| at))
}

/// What is taken of one inode.
struct Taken {
    locks: Vec<v1::Lock>,
    /// Those that were not met yet: their numbers are places in `owners`.
    unmet: Ranges<Owner>,
    owners: Vec<Owner>,
}

struct Graph<'a> {
    queues: &'a Queues,
    /// Those that were come to.
    inodes: HashMap<InodeId, Taken>,
    /// The owners that were come to, each behind all whom he waits for, but in a circle.
    known: Vec<Owner>,
}

impl Graph<'_> {
    /// Comes to all for whom an owner waits, over any number of others.
    fn go_along(
        &mut self,
        from: Owner,
        seen: &mut HashSet<Owner>,
        held: &mut Held<'_>,
    ) -> Result<()> {
        let queues = self.queues;
        let wants = |owner| queues.blocked_of(owner).map(|w| w.lock).collect::<VecDeque<_>>();
        if !seen.insert(from) {
            return Ok(());
        }
        let mut path = vec![(from, wants(from))];
        while let Some((owner, wanted)) = path.last_mut() {
            let Some(lock) = wanted.front().copied() else {
                self.known.push(*owner);
                path.pop();
                continue;
            };
            match self.meet(&lock, held)? {
                None => drop(wanted.pop_front()),
                // What is his own, or of who is known, leads nowhere else.
                Some(holder) if seen.insert(holder) => path.push((holder, wants(holder))),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Whose lock stands against this one, of those that were not met yet.
    fn meet(&mut self, lock: &v1::Lock, held: &mut Held<'_>) -> Result<Option<Owner>> {
        let Some(item) = item_of(lock) else { return Ok(None) };
        let ino = InodeId(lock.ino);
        let taken = match self.inodes.entry(ino) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let mut locks = held(ino, false)?;
                let queue = self.queues.get(ino).into_iter();
                let turns = queue.flat_map(|queue| queue.turns()).filter(|w| !w.lock.flock);
                locks.extend(turns.map(|w| w.lock));
                let items: Vec<Item<Owner>> = locks.iter().filter_map(item_of).collect();
                let owners = items.iter().map(|item| item.whose).collect();
                unknown.insert(Taken { locks, unmet: Ranges::counting(items), owners })
            }
        };
        Ok(taken.unmet.take(&item).map(|number| taken.owners[number]))
    }

    /// The circles of those who were come to: the number of that of each owner who is in one.
    fn circles(&self, seen: &HashSet<Owner>) -> HashMap<Owner, usize> {
        let mut holds: HashMap<Owner, Vec<&v1::Lock>> = HashMap::new();
        for lock in self.inodes.values().flat_map(|taken| &taken.locks) {
            holds.entry(owner_of(lock)).or_default().push(lock);
        }
        // Without any of these there is no way back.
        let waits = |owner: &Owner| self.queues.blocked_of(*owner).next().is_some();
        if !holds.keys().any(|owner| seen.contains(owner) && waits(owner)) {
            return HashMap::new();
        }
        let mut waiting = self.waiting(seen);
        let (mut circles, mut done) = (HashMap::new(), HashSet::new());
        for (number, &root) in self.known.iter().rev().enumerate() {
            if !done.insert(root) {
                continue;
            }
            let (mut todo, mut members) = (vec![root], vec![root]);
            while let Some(owner) = todo.pop() {
                for lock in holds.get(&owner).into_iter().flatten() {
                    let Some(item) = item_of(lock) else { continue };
                    let Some((unmet, owners)) = waiting.get_mut(&InodeId(lock.ino)) else {
                        continue;
                    };
                    while let Some(at) = unmet.take(&item) {
                        if done.insert(owners[at]) {
                            todo.push(owners[at]);
                            members.push(owners[at]);
                        }
                    }
                }
            }
            if members.len() > 1 {
                circles.extend(members.into_iter().map(|owner| (owner, number)));
            }
        }
        circles
    }

    /// Those who wait for each inode, of the owners that were come to.
    fn waiting(&self, seen: &HashSet<Owner>) -> HashMap<InodeId, (Ranges<Owner>, Vec<Owner>)> {
        let mut waiting: HashMap<InodeId, Vec<Item<Owner>>> = HashMap::new();
        for waiter in seen.iter().flat_map(|owner| self.queues.blocked_of(*owner)) {
            let of = waiting.entry(InodeId(waiter.lock.ino)).or_default();
            of.extend(item_of(&waiter.lock));
        }
        let ranges = |(ino, items): (InodeId, Vec<Item<Owner>>)| {
            let owners = items.iter().map(|item| item.whose).collect();
            (ino, (Ranges::counting(items), owners))
        };
        waiting.into_iter().map(ranges).collect()
    }
}
