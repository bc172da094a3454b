//! Since when inodes have no name: each stays for a moment without one.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::InodeId;

/// An inode stays so long without a name, unless somebody waits for what it takes: who has looked a
/// name up opens what it led to, as on any local filesystem, though others take the name away
/// meanwhile. A kernel that is told twice that what it opens is gone fails with ESTALE.
const GRACE: Duration = Duration::from_secs(1);
/// Of more than so many that are open it is not remembered since when: they stay for so long once
/// they are closed.
const MOST: usize = 1 << 16;

/// See the module's documentation.
pub(super) struct Nameless {
    since: HashMap<InodeId, Instant>,
    /// As the round before saw them.
    before: HashMap<InodeId, Instant>,
    /// How many have ever been put on the list, and since when that is so.
    put: (u64, Instant),
    /// Some of those that are open may be so for a moment only.
    recent: bool,
    /// Somebody waits.
    at_once: bool,
    /// Those that still have their time.
    young: usize,
}

impl Nameless {
    pub fn new(now: Instant) -> Self {
        let (since, before, put) = (HashMap::new(), HashMap::new(), (0, now));
        Self { since, before, put, recent: false, at_once: false, young: 0 }
    }

    /// A round begins, when so many have been put on the list.
    pub fn begin(&mut self, now: Instant, put: u64, at_once: bool) {
        // What is not seen again is gone.
        self.before = std::mem::take(&mut self.since);
        if self.put.0 != put {
            self.put = (put, now);
        }
        self.recent = !at_once && now < self.put.1 + GRACE;
        (self.at_once, self.young) = (at_once, 0);
    }

    /// Whether an inode on the list is not known to be open, and has had its time.
    pub fn is_due(&mut self, now: Instant, ino: InodeId, is_open: bool) -> bool {
        if is_open && self.since.len() >= MOST {
            return false;
        }
        let since = self.before.get(&ino).copied().unwrap_or(now);
        let since = *self.since.entry(ino).or_insert(since);
        if is_open {
            return false;
        }
        let due = self.at_once || since + GRACE <= now;
        self.young += usize::from(!due);
        due
    }

    /// A round has ended. Answers whether some that it left may be gone soon.
    pub fn end(&mut self, left: usize) -> bool {
        self.before = HashMap::new();
        self.young > 0 || (self.recent && left > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_lost_its_name_has_its_time() {
        let (begun, a, b) = (Instant::now(), InodeId(7), InodeId(8));
        let mut nameless = Nameless::new(begun);
        let mut look = |at, at_once, inos: &[InodeId]| {
            nameless.begin(begun + at, 0, at_once);
            let due =
                inos.iter().map(|ino| nameless.is_due(begun + at, *ino, false)).collect::<Vec<_>>();
            nameless.end(0);
            (due, nameless.young)
        };
        assert_eq!(look(GRACE / 2, false, &[a]), (vec![false], 1));
        assert_eq!(look(GRACE, false, &[a, b]), (vec![false, false], 2));
        assert_eq!(look(GRACE, true, &[a, b]), (vec![true, true], 0), "somebody waits");
        assert_eq!(look(GRACE * 3 / 2, false, &[a, b]), (vec![true, false], 1));
        // It has got a name again, and lost it.
        assert_eq!(look(GRACE * 2, false, &[b]), (vec![true], 0));
        assert_eq!(look(GRACE * 2, false, &[a]), (vec![false], 1));
    }

    /// A round may take long: what loses its name while one is under way has its time from then.
    #[test]
    fn the_time_of_one_begins_when_it_is_met() {
        let (begun, ino) = (Instant::now(), InodeId(7));
        let mut nameless = Nameless::new(begun);
        nameless.begin(begun, 1, false);
        let met = begun + GRACE * 9;
        assert!(!nameless.is_due(met, ino, false));
        nameless.begin(met + GRACE / 2, 1, false);
        assert!(!nameless.is_due(met + GRACE / 2, ino, false), "it was met a moment ago");
        assert!(nameless.is_due(met + GRACE, ino, false));
    }

    #[test]
    fn what_is_open_may_be_closed_soon_if_it_has_just_lost_its_name() {
        let begun = Instant::now();
        let mut nameless = Nameless::new(begun);
        let mut ends = |at, put, at_once, left| {
            nameless.begin(begun + at, put, at_once);
            nameless.end(left)
        };
        assert!(ends(GRACE, 5, false, 1));
        assert!(!ends(GRACE, 5, true, 1), "somebody waits");
        assert!(!ends(GRACE, 5, false, 0), "nothing is open");
        assert!(ends(GRACE * 3 / 2, 5, false, 1));
        assert!(!ends(GRACE * 2, 5, false, 1));
        assert!(ends(GRACE * 2, 6, false, 1), "another has lost its name");
    }

    /// It is gone soon after its last close, and what is remembered of very many is bounded.
    #[test]
    fn the_time_goes_by_while_one_is_open() {
        let begun = Instant::now();
        let mut nameless = Nameless::new(begun);
        let all = |nameless: &mut Nameless, at, is_open| {
            nameless.begin(at, 1, false);
            let due = |ino: &u64| nameless.is_due(at, InodeId(*ino), is_open);
            (0..MOST as u64 + 9).filter(due).count()
        };
        assert_eq!(all(&mut nameless, begun, true), 0);
        assert_eq!(nameless.since.len(), MOST);
        assert_eq!(all(&mut nameless, begun + GRACE, true), 0);
        assert_eq!(all(&mut nameless, begun + GRACE, false), MOST);
        assert_eq!(all(&mut nameless, begun + GRACE * 2, false), MOST + 9);
    }
}
