//! How much the answers take that are kept for the retries of a session.
//!
//! They are in the state of every server until the client acknowledges them. What an earlier leader
//! had stored is not counted here.

use std::collections::BTreeMap;

/// Most bytes of them, without the short ones, which their number bounds.
const MOST: usize = 256 << 20;
/// Shorter ones are not counted.
const SHORT: usize = 1 << 10;
/// A request with so few before it that were not acknowledged is always taken: the oldest, for
/// which the acknowledgement of all others waits, is one.
const FEW: u64 = 1024;

#[derive(Default)]
pub(super) struct Kept {
    bytes: usize,
    answers: BTreeMap<u64, usize>,
}

impl Kept {
    /// The client has all answers below `acked_below`. Answers whether there is room for that to
    /// this request.
    pub fn has_room(&mut self, number: u64, acked_below: u64) -> bool {
        let left = self.answers.split_off(&acked_below);
        let gone = std::mem::replace(&mut self.answers, left);
        self.bytes -= gone.into_values().sum::<usize>();
        self.bytes < MOST || number.saturating_sub(acked_below) < FEW
    }

    /// The answer to this request is kept.
    pub fn note(&mut self, number: u64, bytes: usize) {
        if bytes > SHORT && self.answers.insert(number, bytes).is_none() {
            self.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_with_acknowledgements() {
        let mut kept = Kept::default();
        let part = MOST / 4;
        for number in 1..=4 {
            assert!(kept.has_room(FEW, 0));
            kept.note(number, part);
            kept.note(number, part);
            kept.note(number + 10, SHORT);
        }
        assert!(!kept.has_room(FEW + 1, 1) && kept.has_room(FEW, 1));
        assert!(kept.has_room(FEW + 2, 2));
        assert_eq!((kept.bytes, kept.answers.len()), (3 * part, 3));
        assert!(kept.has_room(100, 100));
        assert_eq!((kept.bytes, kept.answers.len()), (0, 0));
    }
}
