//! What a file of the model holds: a length, and pages; where there is none are zeros. A page stays
//! when it is cut off or zeroed, so that it is looked for what may have come back.

use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: u64 = 4096;

#[derive(Clone, Default, Debug)]
pub struct Content {
    len: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Content {
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Up to `len` bytes; fewer only at the end.
    pub fn read(&self, off: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (page, part) in pages(off..self.len.min(off + len)) {
            match self.pages.get(&page) {
                Some(data) => bytes.extend_from_slice(&data[part]),
                None => bytes.resize(bytes.len() + part.len(), 0),
            }
        }
        bytes
    }

    pub fn write(&mut self, off: u64, mut bytes: &[u8]) {
        let end = off + bytes.len() as u64;
        for (page, part) in pages(off..end) {
            let (now, rest) = bytes.split_at(part.len());
            let data = self.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize]);
            data[part].copy_from_slice(now);
            bytes = rest;
        }
        self.len = self.len.max(end);
    }

    pub fn set_len(&mut self, len: u64) {
        self.zero(len..self.len);
        self.len = len;
    }

    /// Answers whether there was anything else.
    pub fn zero(&mut self, range: Range<u64>) -> bool {
        let mut changed = false;
        for (page, part) in pages(range.start..range.end.min(self.len)) {
            let Some(data) = self.pages.get_mut(&page) else { continue };
            changed |= data[part.clone()].iter().any(|byte| *byte != 0);
            data[part].fill(0);
        }
        changed
    }

    /// Where to look at it: all of a short file; of a long one where data is or was, and around
    /// that.
    pub fn places(&self) -> Vec<Range<u64>> {
        const SHORT: u64 = 512 << 10;
        let near = |at: u64| at.saturating_sub(PAGE)..(at + 2 * PAGE);
        let mut places = vec![Range { start: 0, end: SHORT }];
        for page in self.pages.range(SHORT / PAGE..).map(|(page, _)| page * PAGE) {
            match places.last_mut() {
                Some(last) if last.contains(&page) => last.end = page + 2 * PAGE,
                _ => places.push(near(page)),
            }
        }
        places.push(near(self.len));
        places
    }
}

/// The pages of a range, and which part of each.
fn pages(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let Range { start, end } = range;
    let pages = if start < end { start / PAGE..end.div_ceil(PAGE) } else { 0..0 };
    pages.map(move |page| {
        let at = |place: u64| (place.clamp(page * PAGE, (page + 1) * PAGE) - page * PAGE) as usize;
        (page, at(start)..at(end))
    })
}
