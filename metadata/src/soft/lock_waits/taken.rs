//! What is taken of an inode, and who may take what is not: one look at all who wait for it, in
//! their order, each of which is quick however much is taken and however many wait.

use super::queues::{Owner, Queue, Waiter, item_of};
use super::ranges::{Item, Ranges};
use std::collections::BTreeSet;
use weft_proto::{SessionId, v1};

/// Those whose turn it is now, of the waiters for locks of one sort, as places in the queue.
/// `held`: what is locked. A waiter whose lock is not free keeps nobody from one that is.
pub(super) fn free(held: &[v1::Lock], queue: &Queue, flock: bool) -> Vec<u64> {
    let mut items: Vec<Item<Owner>> = held.iter().filter_map(item_of).collect();
    let turns = queue.turns().filter(|w| w.lock.flock == flock);
    items.extend(turns.filter_map(|w| item_of(&w.lock)));
    let taken = items.len();
    let waiting: Vec<_> =
        queue.iter().filter(|(_, w)| w.lock.flock == flock && !w.has_turn()).collect();
    items.extend(waiting.iter().filter_map(|(_, w)| item_of(&w.lock)));
    let mut ranges = Ranges::new(items);
    (0..taken).for_each(|number| ranges.count(number));
    let (mut free, mut number) = (Vec::new(), taken);
    for (at, waiter) in waiting {
        let Some(item) = item_of(&waiter.lock) else {
            free.push(at);
            continue;
        };
        if !ranges.stands_against(&item) {
            ranges.count(number);
            free.push(at);
        }
        number += 1;
    }
    free
}

/// The sessions that hold a lock of one sort, or have the turn to, for which one of another session
/// waits.
pub(super) fn wanted(held: &[v1::Lock], queue: &Queue, flock: bool) -> BTreeSet<SessionId> {
    let of_sort = |w: &&Waiter| w.lock.flock == flock;
    let waiting = queue.iter().map(|(_, w)| w).filter(of_sort).filter(|w| !w.has_turn());
    let waiting = waiting.filter_map(|w| Item::of(&w.lock, w.session)).collect();
    let waiting = Ranges::counting(waiting);
    let turns = queue.turns().filter(of_sort).map(|w| &w.lock);
    let taken = held.iter().chain(turns).filter_map(|lock| {
        let item = Item::of(lock, SessionId(lock.session))?;
        waiting.stands_against(&item).then_some(item.whose)
    });
    taken.collect()
}
