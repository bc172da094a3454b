//! Ranges of bytes that some have locked, or wait to lock, and what of them stands against another.
//!
//! To ask is quick however many there are and however they overlap: a tree over the ranges, in the
//! order in which they begin, knows how far those reach that are below each of its nodes, and how
//! far those that are not of whoever reaches furthest.

use weft_proto::v1;
use weft_proto::v1::lock::Kind;

/// A range, and whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Item<K> {
    pub start: u64,
    pub end: u64,
    pub write: bool,
    pub whose: K,
}

impl<K> Item<K> {
    /// What is locked; `None` of what stands against nothing.
    pub fn of(lock: &v1::Lock, whose: K) -> Option<Self> {
        let (start, end, write) = (lock.start, lock.end, lock.kind() == Kind::Write);
        (lock.kind() != Kind::None).then_some(Self { start, end, write, whose })
    }
}

/// A fixed number of ranges, each of which counts or does not.
pub(super) struct Ranges<K> {
    /// In the order in which they begin.
    items: Vec<Item<K>>,
    /// Where each is there, by the number that it was given.
    places: Vec<usize>,
    /// The numbers of those, the other way round.
    numbers: Vec<usize>,
    all: Tree<K>,
    writes: Tree<K>,
}

impl<K: Copy + PartialEq> Ranges<K> {
    /// Of all of which none counts yet. Their numbers are their places in `items`.
    pub fn new(items: Vec<Item<K>>) -> Self {
        let mut numbers: Vec<usize> = (0..items.len()).collect();
        numbers.sort_by_key(|n| items[*n].start);
        let mut places = vec![0; items.len()];
        numbers.iter().enumerate().for_each(|(place, n)| places[*n] = place);
        let sorted = numbers.iter().map(|n| items[*n]).collect();
        let (all, writes) = (Tree::new(items.len()), Tree::new(items.len()));
        Self { items: sorted, places, numbers, all, writes }
    }

    /// Of all of which each counts.
    pub fn counting(items: Vec<Item<K>>) -> Self {
        let mut ranges = Self::new(items);
        (0..ranges.items.len()).for_each(|number| ranges.count(number));
        ranges
    }

    /// One counts from now on.
    pub fn count(&mut self, number: usize) {
        let place = self.places[number];
        let Item { end, write, whose, .. } = self.items[place];
        self.all.set(place, Reach::of(end, whose));
        if write {
            self.writes.set(place, Reach::of(end, whose));
        }
    }

    /// Whether one of another's stands against this.
    pub fn stands_against(&self, item: &Item<K>) -> bool {
        let begin = self.items.partition_point(|other| other.start <= item.end);
        let reach = self.against(item.write).first(begin);
        let end = if reach.whose == Some(item.whose) { reach.others } else { reach.end };
        end >= Some(item.start)
    }

    /// The number of one that stands against this, whose ever that is. It does not count any more.
    pub fn take(&mut self, item: &Item<K>) -> Option<usize> {
        let begin = self.items.partition_point(|other| other.start <= item.end);
        let place = self.against(item.write).find(begin, item.start)?;
        self.all.set(place, Reach::NONE);
        self.writes.set(place, Reach::NONE);
        Some(self.numbers[place])
    }

    /// What stands against who writes, or who reads.
    fn against(&self, write: bool) -> &Tree<K> {
        if write { &self.all } else { &self.writes }
    }
}

/// How far some ranges reach: to the last byte of the furthest, whose that is, and how far those of
/// others reach.
#[derive(Clone, Copy)]
struct Reach<K> {
    end: Option<u64>,
    whose: Option<K>,
    others: Option<u64>,
}

impl<K: Copy + PartialEq> Reach<K> {
    const NONE: Self = Self { end: None, whose: None, others: None };

    fn of(end: u64, whose: K) -> Self {
        Self { end: Some(end), whose: Some(whose), others: None }
    }

    fn with(self, other: Self) -> Self {
        let (far, near) = if self.end >= other.end { (self, other) } else { (other, self) };
        let others = if near.whose == far.whose { near.others } else { near.end };
        Self { others: far.others.max(others), ..far }
    }
}

/// Reaches of places in a row. The children of a node are twice its number, and the next.
struct Tree<K> {
    nodes: Vec<Reach<K>>,
    /// The first place, of a power of two.
    leaves: usize,
}

impl<K: Copy + PartialEq> Tree<K> {
    fn new(places: usize) -> Self {
        let leaves = places.next_power_of_two();
        Self { nodes: vec![Reach::NONE; 2 * leaves], leaves }
    }

    fn set(&mut self, place: usize, reach: Reach<K>) {
        let mut node = self.leaves + place;
        self.nodes[node] = reach;
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node].with(self.nodes[2 * node + 1]);
        }
    }

    /// How far the first so many places reach.
    fn first(&self, places: usize) -> Reach<K> {
        let (mut reach, mut end) = (Reach::NONE, self.leaves + places);
        let mut begin = self.leaves;
        while begin < end {
            if begin % 2 == 1 {
                reach = reach.with(self.nodes[begin]);
                begin += 1;
            }
            if end % 2 == 1 {
                end -= 1;
                reach = reach.with(self.nodes[end]);
            }
            (begin, end) = (begin / 2, end / 2);
        }
        reach
    }

    /// One of the first so many places that reaches so far.
    fn find(&self, places: usize, to: u64) -> Option<usize> {
        self.find_below(1, 0, self.leaves, places, to)
    }

    /// Below a node that covers so many places from one on.
    fn find_below(
        &self,
        node: usize,
        from: usize,
        len: usize,
        places: usize,
        to: u64,
    ) -> Option<usize> {
        if from >= places || self.nodes[node].end < Some(to) {
            return None;
        }
        if len == 1 {
            return Some(from);
        }
        let half = len / 2;
        self.find_below(2 * node, from, half, places, to)
            .or_else(|| self.find_below(2 * node + 1, from + half, half, places, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item() -> impl Strategy<Value = Item<u8>> {
        (0u64..20, 0u64..12, any::<bool>(), 0u8..4).prop_map(|(start, len, write, whose)| {
            let end = if len == 11 { u64::MAX } else { start + len };
            Item { start, end, write, whose }
        })
    }

    fn meet(a: &Item<u8>, b: &Item<u8>) -> bool {
        a.start <= b.end && b.start <= a.end && (a.write || b.write)
    }

    proptest! {
        #[test]
        fn what_stands_against_a_range_is_found(
            items in prop::collection::vec((item(), any::<bool>()), 0..20),
            asked in prop::collection::vec(item(), 1..20),
        ) {
            let mut ranges = Ranges::new(items.iter().map(|(item, _)| *item).collect());
            let mut counts: Vec<bool> = items.iter().map(|(_, counts)| *counts).collect();
            counts.iter().enumerate().filter(|(_, c)| **c).for_each(|(n, _)| ranges.count(n));
            for item in asked {
                let with = |n: &usize| counts[*n] && meet(&items[*n].0, &item);
                let all: Vec<usize> = (0..items.len()).filter(with).collect();
                let others = all.iter().any(|n| items[*n].0.whose != item.whose);
                prop_assert_eq!(ranges.stands_against(&item), others);
                let taken = ranges.take(&item);
                prop_assert_eq!(taken.is_some(), !all.is_empty());
                if let Some(n) = taken {
                    prop_assert!(all.contains(&n));
                    counts[n] = false;
                }
            }
        }
    }
}
