//! The names of a directory in the order in which it is read, as far as they are known under a
//! lease; and what to ask for ahead when one name after the other is looked up or taken away.

use crate::types::{DirEntry, DirPage, FileKind};
use bytes::Bytes;
use weft_proto::{InodeId, v1};

/// Longer directories are asked for page by page each time.
const MAX_NAMES: usize = 1 << 14;
/// Attributes that are asked for with the second name that is looked up; twice as many with each
/// after.
const MIN_AHEAD: u32 = 16;
const MAX_AHEAD: u32 = 256;
/// Leases to write that are asked for with the first name that is taken away; four times as many
/// each time after.
const MIN_WRITE_AHEAD: usize = 64;
const MAX_WRITE_AHEAD: usize = 256;
/// So many names that were taken away are kept at least.
const MIN_GONE: usize = 64;

struct Listed {
    name: Bytes,
    ino: InodeId,
    kind: FileKind,
    cookie: u64,
    /// Its attributes were asked for ahead.
    asked: bool,
    /// A lease to write it was.
    asked_to_write: bool,
    /// It was taken away.
    gone: bool,
}

/// Names from the start of a directory on, without a gap.
pub(crate) struct Listing {
    parent: InodeId,
    /// The cookie of the next new name.
    next_cookie: u64,
    names: Vec<Listed>,
    /// There are no more.
    end: bool,
    /// Where the next name to be looked up is expected, and how many had to be asked for.
    next: usize,
    misses: u32,
    /// Where the next name to be taken away is expected, and for how many to ask then.
    next_gone: usize,
    write_ahead: usize,
    /// How many were taken away.
    gone: usize,
}

impl Listing {
    /// A directory's first page. Nothing if it tells of what this client does not know.
    pub fn begin(page: &v1::ReadDirReply) -> Option<Self> {
        let (parent, next_cookie) = (InodeId(page.parent), page.next_cookie);
        let listing = Self {
            parent,
            next_cookie,
            names: Vec::new(),
            end: false,
            next: 0,
            misses: 0,
            next_gone: 0,
            write_ahead: MIN_WRITE_AHEAD,
            gone: 0,
        };
        listing.extend(0, page)
    }

    /// With the page that was asked for after `cookie` too; nothing if it does not go on from here.
    pub fn extend(mut self, cookie: u64, page: &v1::ReadDirReply) -> Option<Self> {
        let goes_on = !self.end && self.names.last().map_or(0, |last| last.cookie) == cookie;
        if !goes_on || self.names.len() + page.entries.len() > MAX_NAMES {
            return None;
        }
        for entry in &page.entries {
            let kind = FileKind::from_wire(entry.kind()).ok()?;
            let (name, ino) = (entry.name.clone(), InodeId(entry.ino));
            let (cookie, asked, asked_to_write, gone) = (entry.cookie, false, false, false);
            self.names.push(Listed { name, ino, kind, cookie, asked, asked_to_write, gone });
        }
        self.end = page.end;
        Some(self)
    }

    /// Whether it has all names.
    pub fn is_whole(&self) -> bool {
        self.end
    }

    /// What a directory answers after `cookie`, if that is known.
    pub fn page(&self, cookie: u64, limit: usize) -> Option<DirPage> {
        let from = self.names.partition_point(|listed| listed.cookie <= cookie);
        let mut names = self.names[from..].iter().filter(|listed| !listed.gone).peekable();
        // An empty answer would be the end.
        if names.peek().is_none() && !self.end {
            return None;
        }
        let entry = |listed: &Listed| DirEntry {
            name: listed.name.clone(),
            ino: listed.ino,
            kind: listed.kind,
            cookie: listed.cookie,
            attr: None,
        };
        Some(DirPage {
            entries: names.by_ref().take(limit).map(entry).collect(),
            end: self.end && names.next().is_none(),
            parent: self.parent,
            next_cookie: self.next_cookie,
        })
    }

    /// A name is going to be asked for. Answers after which cookie, and how many names, to ask
    /// instead: who looked up two of a listing will look up more. Once a name: what could not be
    /// had ahead, because another mount writes it, is asked for alone from then on.
    pub fn ahead(&mut self, name: &[u8]) -> Option<(u64, u32)> {
        let at = self.find(self.next, name)?;
        if self.names[at].asked {
            return None;
        }
        self.misses = self.misses.saturating_add(1);
        let doublings = self.misses.checked_sub(2)?;
        let count = MIN_AHEAD.checked_shl(doublings).unwrap_or(MAX_AHEAD);
        let count = count.clamp(MIN_AHEAD, MAX_AHEAD);
        self.next = self.names.len().min(at + count as usize);
        self.names[at..self.next].iter_mut().for_each(|listed| listed.asked = true);
        Some((at.checked_sub(1).map_or(0, |before| self.names[before].cookie), count))
    }

    /// Where a name is, that is probably at `from` or not long after.
    fn find(&self, from: usize, name: &[u8]) -> Option<usize> {
        let (behind, rest) = self.names.split_at(from);
        let found = rest.iter().chain(behind).position(|listed| listed.name == name)?;
        Some((behind.len() + found) % self.names.len())
    }

    /// A name was taken away: what follows it stays where it was.
    pub fn remove(&mut self, name: &[u8]) {
        let Some(at) = self.find(self.next_gone, name) else { return };
        self.gone += usize::from(!self.names[at].gone);
        self.names[at].gone = true;
        self.next_gone = at + 1;
        if self.gone > MIN_GONE.max(self.names.len() / 2) {
            // The last one tells where the next page goes on.
            let last = self.names.last().map(|listed| listed.cookie);
            self.names.retain(|listed| !listed.gone || Some(listed.cookie) == last);
            self.names.shrink_to_fit();
            self.gone = self.names.iter().filter(|listed| listed.gone).count();
            (self.next, self.next_gone) = (0, 0);
        }
    }

    /// A name is going to be taken away or moved. Answers on which inodes leases to write may be of
    /// use: on what it leads to and on what comes after it. Once a name: what others use is not
    /// asked for again and again.
    pub fn write_ahead(&mut self, name: &[u8]) -> Vec<InodeId> {
        let at = self.find(self.next_gone, name).filter(|at| !self.names[*at].asked_to_write);
        let Some(at) = at else { return Vec::new() };
        let ahead =
            self.names[at..].iter_mut().filter(|listed| !listed.gone).take(self.write_ahead);
        self.write_ahead = MAX_WRITE_AHEAD.min(4 * self.write_ahead);
        let ask = |listed: &mut Listed| {
            listed.asked_to_write = true;
            listed.ino
        };
        ahead.map(ask).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(cookies: std::ops::Range<u64>, end: bool) -> v1::ReadDirReply {
        let entry = |cookie: u64| v1::DirEntry {
            name: cookie.to_string().into(),
            ino: cookie + 100,
            kind: v1::FileKind::Regular.into(),
            cookie,
            attr: None,
        };
        let entries = cookies.map(entry).collect();
        v1::ReadDirReply { entries, end, parent: 1, next_cookie: 5000 }
    }

    fn cookies(page: DirPage) -> (Vec<u64>, bool) {
        (page.entries.iter().map(|entry| entry.cookie).collect(), page.end)
    }

    #[test]
    fn pages_are_answered_as_far_as_they_are_known() {
        let listing = Listing::begin(&page(3..8, false)).unwrap();
        assert_eq!(cookies(listing.page(0, 3).unwrap()), (vec![3, 4, 5], false));
        assert_eq!(cookies(listing.page(5, 10).unwrap()), (vec![6, 7], false));
        assert_eq!(listing.page(7, 10), None);
        let listing = listing.extend(7, &page(9..11, true)).unwrap();
        assert!(listing.is_whole());
        assert_eq!(cookies(listing.page(7, 2).unwrap()), (vec![9, 10], true));
        assert_eq!(cookies(listing.page(7, 1).unwrap()), (vec![9], false));
        // A cookie whose name is gone.
        assert_eq!(cookies(listing.page(8, 9).unwrap()), (vec![9, 10], true));
        assert_eq!(cookies(listing.page(10, 9).unwrap()), (vec![], true));
        assert_eq!(listing.page(0, 1).unwrap().next_cookie, 5000);
        assert!(listing.extend(10, &page(20..30, true)).is_none(), "there was an end");
    }

    #[test]
    fn a_page_from_elsewhere_or_too_many_names_make_it_unknown() {
        let begun = || Listing::begin(&page(3..8, false)).unwrap();
        assert!(begun().extend(6, &page(7..9, true)).is_none());
        assert!(begun().extend(0, &page(3..8, false)).is_none());
        assert!(begun().extend(7, &page(8..8 + MAX_NAMES as u64, true)).is_none());
        let unknown = v1::DirEntry { kind: 99, ..Default::default() };
        let strange = v1::ReadDirReply { entries: vec![unknown], ..page(8..8, true) };
        assert!(begun().extend(7, &strange).is_none());
    }

    #[test]
    fn what_is_taken_away_leaves_the_rest_where_it_is() {
        let mut listing = Listing::begin(&page(3..8, false)).unwrap();
        for name in [b"3".as_slice(), b"4", b"6", b"6", b"none"] {
            listing.remove(name);
        }
        assert_eq!(cookies(listing.page(0, 3).unwrap()), (vec![5, 7], false));
        assert_eq!(cookies(listing.page(5, 1).unwrap()), (vec![7], false));
        let mut listing = listing.extend(7, &page(8..10, true)).unwrap();
        listing.remove(b"9");
        assert_eq!(cookies(listing.page(5, 2).unwrap()), (vec![7, 8], true));
        listing.remove(b"8");
        assert_eq!(cookies(listing.page(7, 2).unwrap()), (vec![], true));
        assert_eq!(cookies(listing.page(5, 1).unwrap()), (vec![7], true));
    }

    /// Answered with no name, who reads would take it for the end.
    #[test]
    fn what_has_only_names_that_are_gone_is_no_page() {
        let mut listing = Listing::begin(&page(3..6, false)).unwrap();
        (3..6).for_each(|name| listing.remove(name.to_string().as_bytes()));
        assert_eq!((listing.page(0, 9), listing.page(4, 9)), (None, None));
        let listing = listing.extend(5, &page(6..8, true)).unwrap();
        assert_eq!(cookies(listing.page(0, 9).unwrap()), (vec![6, 7], true));
    }

    #[test]
    fn names_that_are_gone_do_not_stay_for_ever() {
        let mut listing = Listing::begin(&page(3..1003, false)).unwrap();
        for name in 3..1003 {
            listing.remove(name.to_string().as_bytes());
            let kept = listing.names.len();
            let live = 1002 - name as usize;
            assert!(kept <= 2 * live + MIN_GONE + 1, "{kept} kept of {live}");
            let next: Vec<_> = (name + 1..1003).take(2).collect();
            let told = listing.page(0, 2).map(|page| cookies(page).0).unwrap_or_default();
            assert_eq!(told, next);
            assert_eq!(listing.ahead(b"none"), None);
        }
        let listing = listing.extend(1002, &page(1003..1005, true)).unwrap();
        assert_eq!(cookies(listing.page(0, 9).unwrap()), (vec![1003, 1004], true));
    }

    #[test]
    fn leases_to_write_are_asked_for_ahead_once() {
        let mut listing = Listing::begin(&page(3..5003, true)).unwrap();
        let inos = |from: u64, to: u64| (from + 100..to + 100).map(InodeId).collect::<Vec<_>>();
        assert_eq!(listing.write_ahead(b"3"), inos(3, 67));
        for name in 3..67 {
            let name = name.to_string().into_bytes();
            assert_eq!(listing.write_ahead(&name), []);
            listing.remove(&name);
        }
        listing.remove(b"69");
        let without = [inos(67, 69), inos(70, 324)].concat();
        assert_eq!(listing.write_ahead(b"67"), without);
        assert_eq!(listing.write_ahead(b"324"), inos(324, 580));
        assert_eq!(listing.write_ahead(b"4990"), inos(4990, 5003));
        assert_eq!(listing.write_ahead(b"4980"), inos(4980, 5003), "it comes before those");
        assert_eq!(listing.write_ahead(b"none"), []);
        assert_eq!(Listing::begin(&page(3..3, true)).unwrap().write_ahead(b"3"), []);
    }

    #[test]
    fn more_and_more_is_asked_ahead() {
        let mut listing = Listing::begin(&page(3..1003, true)).unwrap();
        assert_eq!(listing.ahead(b"3"), None);
        assert_eq!(listing.ahead(b"4"), Some((3, 16)));
        assert_eq!(listing.ahead(b"20"), Some((19, 32)));
        assert_eq!(listing.ahead(b"3"), Some((0, 64)));
        for name in [b"4".as_slice(), b"19", b"66"] {
            assert_eq!(listing.ahead(name), None, "it was asked for");
        }
        assert_eq!(listing.ahead(b"67"), Some((66, 128)));
        assert_eq!(listing.ahead(b"195"), Some((194, 256)));
        assert_eq!(listing.ahead(b"900"), Some((899, 256)));
        assert_eq!(listing.ahead(b"1002"), None, "it was asked for");
        assert_eq!(listing.ahead(b"none"), None);
        let mut empty = Listing::begin(&page(3..3, true)).unwrap();
        assert_eq!(empty.ahead(b"3"), None);
    }
}
