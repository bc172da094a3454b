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
/// Names of the first page that is asked for by who looks names up, and of those that follow.
const FIRST_PAGE: u32 = 256;
const PAGE: u32 = 1024;
/// Who looks names up and lists nothing gets attributes ahead in any order among so many names;
/// among more only one after the other.
const MAX_ANY_ORDER: usize = FIRST_PAGE as usize + 4 * PAGE as usize;
/// That near is the next one.
const NEAR: usize = 64;
/// How often the first page is asked for under one lease, if what is known is forgotten.
const MAX_FIRST_PAGES: u8 = 8;
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
    /// It was asked for by who looks names up: nobody has listed the directory.
    sought: bool,
}

/// What was looked up in a directory and is not known, name by name.
#[derive(Default)]
pub(crate) struct Sought {
    names: u32,
    first_pages: u8,
    /// The page that was asked for last goes on after this cookie.
    asked: Option<u64>,
}

impl Sought {
    /// A name that nothing is known of is going to be asked for, in a directory with this listing.
    /// Answers after which cookie, and how many names, to ask for beside: who looked up two will
    /// look up more. Where there are many, no more are asked for than pays if none is wanted.
    pub fn page(&mut self, listing: Option<&Listing>) -> Option<(u64, u32)> {
        self.names = self.names.saturating_add(1);
        let Some(listing) = listing else {
            // Not whenever a name is made, which drops a listing.
            let due = self.names == 2 && self.first_pages < MAX_FIRST_PAGES;
            self.first_pages += u8::from(due);
            self.asked = None;
            return due.then_some((0, FIRST_PAGE));
        };
        let (used_up, most) = (listing.is_used_up(), listing.names.len() + PAGE as usize);
        let due = used_up || self.names.is_multiple_of(MIN_AHEAD);
        let few = used_up || most <= MAX_ANY_ORDER;
        let (goes_on, last) = (!listing.end && most <= MAX_NAMES, listing.last_cookie());
        // Once: it may be on its way, or not be believed.
        let asks = goes_on && due && few && self.asked != Some(last);
        asks.then(|| {
            self.asked = Some(last);
            (last, PAGE)
        })
    }

    /// What was known of the names is not any more.
    pub fn begin_anew(&mut self) {
        self.names = 0;
    }
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
            sought: false,
        };
        listing.extend(0, page)
    }

    /// With the page that was asked for after `cookie` too; nothing if it does not go on from here.
    pub fn extend(mut self, cookie: u64, page: &v1::ReadDirReply) -> Option<Self> {
        if self.end || cookie < self.last_cookie() {
            // Two have asked for it.
            return Some(self);
        }
        let goes_on = self.last_cookie() == cookie;
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

    fn last_cookie(&self) -> u64 {
        self.names.last().map_or(0, |last| last.cookie)
    }

    /// It came for who looks names up, one at least before.
    pub fn note_sought(&mut self) {
        self.sought = true;
        self.misses = self.misses.max(1);
    }

    /// Whoever lists the directory will look at all names in whatever order.
    pub fn note_listed(&mut self) {
        self.sought = false;
    }

    /// Whether its last names were looked up, as those before.
    fn is_used_up(&self) -> bool {
        self.next > 0 && self.next + NEAR >= self.names.len()
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
        let at = match self.sought && self.names.len() > MAX_ANY_ORDER {
            false => self.find(self.next, name)?,
            true => self.find_near(name)?,
        };
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

    /// Where a name is, if that is not long after the one before.
    fn find_near(&self, name: &[u8]) -> Option<usize> {
        let near = self.names[self.next..].iter().take(NEAR);
        near.map(|listed| &listed.name).position(|n| n == name).map(|found| self.next + found)
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
        if self.sought {
            return Vec::new();
        }
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
mod tests;
