//! What waits for the disk: messages that promise something which must be durable first.
//!
//! Invariant: the batches ("readies") of the Raft library are reported durable in order, and the
//! messages of each leave only then.

use raft::eraftpb::Message;
use std::collections::VecDeque;

struct Held {
    number: u64,
    /// The batch has something that must be written.
    writes: bool,
    messages: Vec<Message>,
}

/// Batches in flight to the disk.
#[derive(Default)]
pub struct Outbox {
    held: VecDeque<Held>,
}

impl Outbox {
    /// Notes a batch. `writes`: the disk will report its number.
    pub fn hold(&mut self, number: u64, writes: bool, messages: Vec<Message>) {
        self.held.push_back(Held { number, writes, messages });
    }

    /// The disk has written all batches up to `written`. Answers the highest batch that is now
    /// complete, if any, and the messages that may leave.
    pub fn release(&mut self, written: u64) -> (Option<u64>, Vec<Message>) {
        let mut highest = None;
        let mut messages = Vec::new();
        while self.held.front().is_some_and(|h| !h.writes || h.number <= written)
            && let Some(held) = self.held.pop_front()
        {
            highest = Some(held.number);
            messages.extend(held.messages);
        }
        (highest, messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overtakes_a_write() {
        let message = |index| Message { index, ..Default::default() };
        let mut outbox = Outbox::default();
        outbox.hold(1, false, vec![message(1)]);
        let (highest, messages) = outbox.release(0);
        assert_eq!((highest, messages.len()), (Some(1), 1));
        outbox.hold(2, true, vec![message(2)]);
        outbox.hold(3, false, vec![message(3)]);
        outbox.hold(4, true, vec![]);
        assert_eq!(outbox.release(1).0, None);
        let (highest, messages) = outbox.release(2);
        assert_eq!(highest, Some(3));
        assert_eq!(messages.iter().map(|m| m.index).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(outbox.release(4).0, Some(4));
    }
}
