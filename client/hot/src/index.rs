//! Where pieces lie, and which are kept: a few words of memory for each (some 100 bytes).
//!
//! Regions are filled one after the other; the one that has been of no use for longest is filled
//! anew. What is read again and again in turn, and is more than there is room for, would then be
//! gone each time before it is read again. So while all regions are in use, only one region in
//! [`OPEN_ONE_IN`] that could be filled is: most of what is there stays, and the others come in
//! slowly (bimodal insertion, Qureshi et al., ISCA 2007).
//!
//! Invariant: a piece is at one place, in a region that is listed with it.

use crate::list::{Entry, List};
use crate::piece::Piece;
use crate::store::Place;
use std::collections::HashMap;

/// While all regions are in use, so many times the size of one is turned away before another is
/// filled anew.
const OPEN_ONE_IN: u64 = 16;
/// A region is out of use when so many times the size of all has been read since it was read from.
const IDLE_SIZES: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// Is being filled.
    Open,
    Full,
}

struct Region {
    state: State,
    generation: u64,
    /// When it was read from last, by [`Index::clock`].
    used_at: u64,
    pieces: Vec<Piece>,
}

/// What is known of all regions.
pub struct Index {
    places: HashMap<Piece, Place>,
    regions: Vec<Region>,
    /// Bytes that were read, from here or past it.
    clock: u64,
    /// Of all regions, bytes.
    size: u64,
    /// Of what is at a place, bytes.
    kept: u64,
    generation: u64,
    /// No region is out of use before, by [`Index::clock`].
    idle_from: u64,
    /// Bytes that were not taken since a region was begun.
    turned_away: u64,
    region_size: u64,
    /// A region is being filled.
    open: bool,
}

impl Index {
    /// Of so many regions, of a size each, with what is listed of them.
    pub fn new(size: u64, lists: Vec<Option<List>>) -> Self {
        let free = || Region { state: State::Free, generation: 0, used_at: 0, pieces: Vec::new() };
        let mut index = Self {
            places: HashMap::new(),
            regions: lists.iter().map(|_| free()).collect(),
            clock: 0,
            size: size * lists.len() as u64,
            kept: 0,
            generation: 0,
            idle_from: 0,
            turned_away: 0,
            region_size: size,
            open: false,
        };
        let mut lists: Vec<_> = (0..).zip(lists).filter_map(|(r, l)| Some((r, l?))).collect();
        // What was put again later counts, and what was filled first is the oldest.
        lists.sort_unstable_by_key(|(_, list)| list.generation);
        for (region, list) in lists {
            index.generation = list.generation;
            index.clock += 1;
            for entry in list.entries {
                index.insert(region, entry);
            }
            index.seal(region, list.generation);
        }
        index
    }

    /// Bytes that are kept.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Whether a piece is here.
    pub fn has(&self, piece: &Piece) -> bool {
        self.places.contains_key(piece)
    }

    /// Where a piece lies of which so many bytes are read.
    pub fn find(&mut self, piece: &Piece, bytes: u64) -> Option<Place> {
        let place = *self.places.get(piece)?;
        self.clock += bytes;
        self.regions[place.region as usize].used_at = self.clock;
        Some(place)
    }

    /// So many bytes of a piece were read past this.
    pub fn miss(&mut self, bytes: u64) {
        self.clock += bytes;
    }

    /// Whether a piece that was read is to be put here, of so many bytes.
    pub fn admits(&mut self, len: u64) -> bool {
        let admits = self.open || self.may_open();
        self.turned_away += if admits { 0 } else { len };
        admits
    }

    /// Whether another region may be filled anew with what is read.
    pub fn may_open(&mut self) -> bool {
        if self.turned_away >= self.region_size * OPEN_ONE_IN {
            return true;
        }
        if self.clock < self.idle_from {
            return false;
        }
        // It only grows: until then nobody has to look again.
        let idle_from = |region: &Region| match region.state {
            State::Free => 0,
            State::Open => u64::MAX,
            State::Full => region.used_at + self.size * IDLE_SIZES,
        };
        self.idle_from = self.regions.iter().map(idle_from).min().unwrap_or(u64::MAX);
        self.clock >= self.idle_from
    }

    /// A region to fill anew, and its generation; what it had is forgotten. `None`: there is none
    /// but those that are being filled.
    pub fn open(&mut self) -> Option<(u32, u64)> {
        let fillable = (0..).zip(&self.regions).filter(|(_, r)| r.state != State::Open);
        let (region, _) =
            fillable.min_by_key(|(_, r)| (r.state != State::Free, r.used_at, r.generation))?;
        self.clear(region);
        (self.turned_away, self.idle_from, self.open) = (0, 0, true);
        self.generation += 1;
        let (state, generation) = (State::Open, self.generation);
        let used_at = self.clock;
        self.regions[region as usize] = Region { state, generation, used_at, pieces: Vec::new() };
        Some((region, generation))
    }

    /// The region that was filled last is filled on.
    pub fn reopen(&mut self, region: u32) {
        self.open = true;
        self.regions[region as usize].state = State::Open;
    }

    /// A piece was put into a region.
    pub fn insert(&mut self, region: u32, Entry { piece, len, at }: Entry) {
        self.remove(&piece);
        self.places.insert(piece, Place { region, at, len });
        self.kept += u64::from(len);
        self.regions[region as usize].pieces.push(piece);
    }

    /// A region is full.
    pub fn seal(&mut self, region: u32, generation: u64) {
        (self.open, self.idle_from) = (false, 0);
        let region = &mut self.regions[region as usize];
        (region.state, region.generation) = (State::Full, generation);
        region.used_at = region.used_at.max(self.clock);
    }

    /// A region could not be filled: nothing of it is kept, and others are tried before it.
    pub fn give_up(&mut self, region: u32) {
        self.clear(region);
        (self.open, self.idle_from) = (false, 0);
        let region = &mut self.regions[region as usize];
        (region.state, region.used_at) = (State::Full, self.clock);
    }

    /// What is at this place is no good. Answers whether it was still there: another may have been
    /// put there while it was read.
    pub fn forget(&mut self, piece: &Piece, place: Place) -> bool {
        let there = self.places.get(piece) == Some(&place);
        if there {
            self.remove(piece);
        }
        there
    }

    /// Nothing is in a region any more.
    fn clear(&mut self, region: u32) {
        for piece in std::mem::take(&mut self.regions[region as usize].pieces) {
            // It may have been put elsewhere since.
            if self.places.get(&piece).is_some_and(|place| place.region == region) {
                self.remove(&piece);
            }
        }
    }

    fn remove(&mut self, piece: &Piece) {
        if let Some(place) = self.places.remove(piece) {
            self.kept -= u64::from(place.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use weft_proto::{SegmentId, SessionId};

    fn piece(seq: u64) -> Piece {
        Piece { segment: SegmentId { session: SessionId(1), seq }, number: 0 }
    }

    /// Reads pieces of a byte in turn, with regions of ten pieces each. Answers how many were here.
    fn scan(
        index: &mut Index,
        open: &mut Option<(u32, u64, u32)>,
        pieces: std::ops::Range<u64>,
    ) -> u64 {
        let mut hits = 0;
        for seq in pieces {
            if index.find(&piece(seq), 1).is_some() {
                hits += 1;
                continue;
            }
            index.miss(1);
            if !index.admits(1) {
                continue;
            }
            let begin = || index.open().map(|(region, generation)| (region, generation, 0));
            let (region, generation, at) = open.take().or_else(begin).unwrap();
            index.insert(region, Entry { piece: piece(seq), len: 1, at });
            if at == 9 {
                index.seal(region, generation);
            } else {
                *open = Some((region, generation, at + 1));
            }
        }
        hits
    }

    #[test]
    fn what_fits_is_all_kept() {
        let (mut index, mut open) = (Index::new(10, vec![None; 10]), None);
        assert_eq!(scan(&mut index, &mut open, 0..100), 0);
        assert_eq!(scan(&mut index, &mut open, 0..100), 100);
        assert_eq!(index.kept(), 100);
    }

    #[test]
    fn of_what_does_not_fit_a_share_stays() {
        let (mut index, mut open) = (Index::new(10, vec![None; 10]), None);
        let hits: Vec<u64> = (0..20).map(|_| scan(&mut index, &mut open, 0..150)).collect();
        let mean = hits[4..].iter().sum::<u64>() / 16;
        assert!(mean >= 60, "of 150 in room for 100, in each round: {hits:?}");
    }

    #[test]
    fn what_is_read_no_more_makes_room() {
        let (mut index, mut open) = (Index::new(10, vec![None; 10]), None);
        scan(&mut index, &mut open, 0..100);
        let hits: Vec<u64> = (0..6).map(|_| scan(&mut index, &mut open, 1000..1080)).collect();
        assert!(hits[5] >= 75, "of 80, after others took all room: {hits:?}");
    }

    #[test]
    fn a_region_that_fails_does_not_keep_others_from_being_filled() {
        let mut index = Index::new(10, vec![None; 3]);
        let mut filled = Vec::new();
        for _ in 0..4 {
            let (region, generation) = index.open().unwrap();
            filled.push(region);
            match region {
                0 => index.give_up(region),
                _ => index.seal(region, generation),
            }
        }
        assert_eq!(filled, [0, 1, 2, 0]);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(u64),
        Forget(u64),
        Seal,
        GiveUp,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0u64..20).prop_map(Op::Put),
            2 => (0u64..20).prop_map(Op::Forget),
            3 => Just(Op::Seal),
            1 => Just(Op::GiveUp),
        ]
    }

    proptest! {
        #[test]
        fn each_piece_is_where_it_was_put_last_and_what_is_kept_is_counted(
            ops in prop::collection::vec(op(), 0..150),
        ) {
            let mut index = Index::new(10, vec![None; 4]);
            let (mut region, mut generation) = index.open().unwrap();
            let mut at = 0;
            // What lies in each region by now, in the order it came.
            let mut lies: HashMap<u32, Vec<Entry>> = HashMap::new();
            for op in ops {
                let next = match op {
                    Op::Put(seq) => {
                        at += 1;
                        let entry = Entry { piece: piece(seq), len: 1 + seq as u32, at };
                        index.insert(region, entry);
                        lies.values_mut().for_each(|l| l.retain(|e| e.piece != entry.piece));
                        lies.entry(region).or_default().push(entry);
                        false
                    }
                    Op::Forget(seq) => {
                        if let Some(place) = index.find(&piece(seq), 1) {
                            prop_assert!(index.forget(&piece(seq), place));
                            prop_assert!(!index.forget(&piece(seq), place));
                        }
                        lies.values_mut().for_each(|l| l.retain(|e| e.piece != piece(seq)));
                        false
                    }
                    Op::Seal => {
                        index.seal(region, generation);
                        true
                    }
                    Op::GiveUp => {
                        index.give_up(region);
                        lies.remove(&region);
                        true
                    }
                };
                if next {
                    (region, generation) = index.open().unwrap();
                    lies.remove(&region);
                }
                let all: Vec<(u32, Entry)> =
                    lies.iter().flat_map(|(r, l)| l.iter().map(|e| (*r, *e))).collect();
                let kept: u64 = all.iter().map(|(_, e)| u64::from(e.len)).sum();
                prop_assert_eq!(index.kept(), kept);
                let here: HashSet<_> = all.iter().map(|(_, e)| e.piece).collect();
                for seq in 0..20 {
                    prop_assert_eq!(index.has(&piece(seq)), here.contains(&piece(seq)));
                }
                for (region, e) in all {
                    let place = Place { region, at: e.at, len: e.len };
                    prop_assert_eq!(index.find(&e.piece, 0), Some(place));
                }
            }
        }
    }

    #[test]
    fn lists_tell_what_is_there_and_the_newest_counts() {
        let entry = |seq, at| Entry { piece: piece(seq), len: 5, at };
        let list = |generation, entries| Some(List { generation, entries });
        let lists = vec![list(7, vec![entry(1, 0), entry(2, 2)]), None, list(3, vec![entry(1, 4)])];
        let mut index = Index::new(10, lists);
        assert_eq!(index.find(&piece(1), 0), Some(Place { region: 0, at: 0, len: 5 }));
        assert_eq!(index.kept(), 10);
        assert_eq!(index.open(), Some((1, 8)), "the free one");
        assert_eq!(index.open(), Some((2, 9)), "the oldest");
        assert!(index.has(&piece(1)) && index.has(&piece(2)));
        assert_eq!(index.open(), Some((0, 10)));
        assert!(!index.has(&piece(1)) && !index.has(&piece(2)) && index.kept() == 0);
        assert_eq!(index.open(), None, "all are being filled");
    }
}
