//! The state of one file: what is known of what is committed, and what is written and is not.

use super::dirty::Dirty;
use super::extents::Extents;
use super::failures::Failures;
use super::past::Past;
use super::waiting::Waiting;
use crate::cache::{Pages, Right};
use crate::types::Attr;
use weft_proto::{Layout, SessionId};

pub(super) struct State {
    /// The newest that a server told.
    pub attr: Attr,
    pub layout: Layout,
    pub extents: Extents,
    pub dirty: Dirty,
    /// What is not committed yet of the attributes.
    pub waiting: Waiting,
    pub buffered_under: Under,
    /// While the leases may be over: the version of the content that they were of. Else none: the
    /// largest number.
    pub lapsed_at: u64,
    pub past: Past,
    /// The last place in the log that was taken for the content.
    pub place: Option<u64>,
    /// Content of an earlier place was not committed there.
    pub displaced: bool,
    pub failures: Failures,
}

/// Under what the oldest write that is not committed was made. All that waits at a time was made
/// under the same right.
#[derive(Clone, Copy, Default)]
pub(super) struct Under {
    pub session: SessionId,
    /// `None`: it may not stay in the buffer.
    pub right: Option<Right>,
    /// Of the content that it was made on.
    pub version: u64,
}

impl State {
    pub fn new(attr: Attr, layout: Layout) -> Self {
        Self {
            attr,
            layout,
            extents: Extents::default(),
            dirty: Dirty::default(),
            waiting: Waiting::default(),
            buffered_under: Under::default(),
            lapsed_at: u64::MAX,
            past: Past::default(),
            place: None,
            displaced: false,
            failures: Failures::default(),
        }
    }

    /// Attributes with what is not committed yet.
    pub fn view(&self) -> Attr {
        let mut attr = self.attr;
        if self.is_dirty() {
            attr.size = attr.size.max(self.dirty.end());
            attr.blocks += self.dirty.live().div_ceil(512);
            self.waiting.view(&mut attr);
        }
        attr
    }

    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.waiting.is_more()
    }

    /// Something was committed, or given up: what comes when nothing is left has no place yet.
    pub fn settled(&mut self) {
        if !self.is_dirty() {
            (self.place, self.displaced) = (None, false);
        }
    }

    /// The user and the group that what is written counts for.
    pub fn owner(&self) -> (u32, u32) {
        (self.attr.uid, self.attr.gid)
    }

    pub fn size(&self) -> u64 {
        self.attr.size.max(self.dirty.end())
    }

    /// Something is about to be kept here under this right.
    pub fn keeps_under(&mut self, session: SessionId, right: Option<Right>) {
        if !self.is_dirty() {
            self.buffered_under = Under { session, right, version: self.attr.data_version };
        }
    }

    /// The same of what was stored under a lease that may be over, and joins whatever waits: all of
    /// it is committed only onto the content that the lease was of.
    pub fn keeps_in_doubt(&mut self, session: SessionId, right: Right) {
        self.keeps_under(session, Some(right));
        let under = &mut self.buffered_under;
        under.version = under.version.min(self.lapsed_at);
        if under.right != Some(right) {
            under.right = Some(Right::GONE);
        }
    }

    /// What waited went with a commit, or was given up with it; what is still dirty was written
    /// since, or is on its way.
    pub fn went_along(&mut self) {
        let Waiting { mtime_ns, changed_ns, .. } = self.waiting;
        self.waiting = match self.dirty.is_empty() {
            true => Waiting::default(),
            false => Waiting { mtime_ns, changed_ns, ..Waiting::default() },
        };
    }

    /// Takes attributes that a server told, unless those of a newer content are known: answers may
    /// overtake each other.
    pub fn adopt(&mut self, attr: Attr) {
        if attr.data_version >= self.attr.data_version {
            self.attr = attr;
        }
        if attr.data_version > self.extents.version() {
            self.extents.move_to(attr.data_version);
        }
    }

    /// Takes over a change of the content that this mount made under `order`; `change` does the
    /// same to what is known of the extents.
    pub fn changed(&mut self, pages: &Pages, attr: Attr, change: impl FnOnce(&mut Extents)) {
        let before = self.extents.version();
        change(&mut self.extents);
        pages.note_commit(attr.ino, before, attr.data_version);
        // If others made some in between, what waits was not written on them.
        follow(&mut self.buffered_under.version, attr.data_version);
        follow(&mut self.lapsed_at, attr.data_version);
        self.adopt(attr);
    }

    /// All that was written is committed, given up, cut off or lost: its times go with no other
    /// commit.
    pub fn forget_times(&mut self) {
        if self.dirty.live() == 0 && !self.waiting.is_more() {
            self.waiting = Waiting::default();
        }
    }
}

/// A version becomes that after a change of this mount's own, which counts one, if it was that
/// before.
pub(super) fn follow(version: &mut u64, after: u64) {
    if after.checked_sub(1) == Some(*version) {
        *version = after;
    }
}
