//! The line of those who wait for a lease of one inode: readers who come back in turns would else
//! keep a writer waiting for ever, and writers a reader.

use super::mode::Mode;
use weft_proto::SessionId;

/// Who cannot go on before this is granted, or could be.
struct Waiter {
    number: u64,
    session: SessionId,
    mode: Mode,
}

/// In order of arrival.
#[derive(Default)]
pub(super) struct Line(Vec<Waiter>);

impl Line {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the last place.
    pub fn join(&mut self, number: u64, session: SessionId, mode: Mode) {
        self.0.push(Waiter { number, session, mode });
    }

    pub fn leave(&mut self, number: u64) {
        self.0.retain(|w| w.number != number);
    }

    /// Whether another session came earlier for something that cannot be granted beside this. Who
    /// wants ranges waits for nobody who does: whoever comes late for bytes has them recalled, and
    /// who had none of them in time commits its write.
    pub fn has_earlier(&self, than: SessionId, mode: Mode) -> bool {
        let before = self.0.iter().take_while(|w| w.session != than || w.mode < mode);
        let stands = |w: &Waiter| !w.mode.stands_beside(mode);
        before.filter(|w| w.session != than).any(stands)
    }
}
