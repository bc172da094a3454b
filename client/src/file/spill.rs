//! Small synced writes of a larger file lie inline until they fill a segment.
//!
//! A write of 4 KiB that is committed inline is one round to the metadata group; in a segment it is
//! a put on m+1 targets before. A file may have a few KiB inline. When the next write does not fit,
//! what lies there goes along into its segment, as if it was written once more, and the writes that
//! follow have room again.
//!
//! Invariant: inline bytes are written once more only while nobody can have changed them: under
//! the right to write the whole file, which was granted on the version that they are known of, and
//! while no change of the whole file is under way here.

use super::buffer::BufferNo;
use super::inode::File;
use super::state::State;
use std::sync::atomic::Ordering;

/// Inline parts that go along at a time: each is an extent of the commit.
const MAX_PARTS: usize = 1024;

impl File {
    /// Closes all that is written. Answers what is to be launched.
    pub(super) fn close_all(&self, state: &mut State) -> Vec<BufferNo> {
        if state.dirty.is_split() {
            // By who took its place in the log.
            return state.dirty.start_spilled();
        }
        let inline = state.fits_inline();
        if !inline
            && self.may_spill(state)
            && let Some(spilled) = self.spill(state)
        {
            // What is appended comes behind it, in a commit that may yet find the end elsewhere.
            if state.dirty.append && state.fits_inline_but(spilled) {
                return state.dirty.close_but(spilled);
            }
        }
        // It may be all that there is now.
        let inline = inline || state.fits_inline();
        state.dirty.close_all(inline, state.layout.segment_len)
    }

    /// Whether this mount alone writes the file, and what is known of it here is what everybody
    /// sees: where it ends, and what is in it.
    pub(super) fn is_alone(&self, state: &State) -> bool {
        let (under, leases) = (state.buffered_under, &self.context.leases);
        let whole = |right| leases.keeps(self.ino, right) && !leases.is_of_ranges(self.ino, right);
        // What was granted may be of a newer content than this file was told of.
        let newest = |version| leases.version(self.ino) == Some(version);
        under.right.is_some_and(whole)
            && under.session == self.context.sessions.current().id
            && under.version == state.attr.data_version
            && newest(under.version)
    }

    /// Whether what is written is so little that the inline bytes of the file should go along, and
    /// they are what everybody sees.
    fn may_spill(&self, state: &State) -> bool {
        // With two of them inline, half of all would be written twice.
        (1..=u64::from(state.layout.inline_limit) / 2).contains(&state.dirty.live())
            && state.dirty.is_pending()
            // A hole may be on its way.
            && self.wholes.load(Ordering::Acquire) == 0
            && state.extents.version() == state.attr.data_version
            && self.is_alone(state)
    }

    /// Writes the inline bytes that are known, and were not overwritten, once more: into a buffer
    /// of their own, if there is room for it.
    fn spill(&self, state: &mut State) -> Option<BufferNo> {
        let State { extents, dirty, layout, .. } = state;
        let (mut parts, mut len) = (Vec::new(), 0);
        for (range, bytes) in extents.inline().take(MAX_PARTS) {
            for gap in dirty.gaps(range.clone()) {
                let at = (gap.start - range.start) as usize..(gap.end - range.start) as usize;
                len += at.len();
                parts.push((gap.start, bytes.slice(at)));
            }
        }
        if parts.is_empty() || len as u64 > layout.segment_len {
            return None;
        }
        // Without room for it, it stays where it is.
        let permit = self.context.budget.try_take(len)?;
        Some(dirty.spill(&parts, layout.segment_len, permit))
    }
}

impl State {
    /// Whether what is written may be committed as inline bytes.
    fn fits_inline(&self) -> bool {
        let (limit, written) = (u64::from(self.layout.inline_limit), self.dirty.live());
        if written > limit || !self.dirty.is_pending() {
            return false;
        }
        // If others made some of it since, the group will say so.
        let replaced = || self.dirty.ranges().map(|r| self.extents.inline_within(r)).sum();
        let stays = self.attr.inline_bytes.saturating_sub(match self.dirty.append {
            false => replaced(),
            true => 0,
        });
        stays + written <= limit || self.dirty.covers(self.attr.size)
    }

    /// The same of all but one buffer, which takes the place of inline bytes.
    fn fits_inline_but(&self, spilled: BufferNo) -> bool {
        let spilled = self.dirty.live_of(spilled);
        let stays = self.attr.inline_bytes.saturating_sub(spilled);
        stays + self.dirty.live() - spilled <= u64::from(self.layout.inline_limit)
    }
}
