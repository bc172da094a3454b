//! Who writes segments here: orders of the leader, one at a time, each in a session and with
//! numbers of the leader's own.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_proto::{SegmentId, SessionId};
use weft_segments::Writer;

/// Gives numbers to the segments of the order that is carried out.
#[derive(Default)]
pub(crate) struct OrderWriter {
    next: Mutex<SegmentId>,
    ended: AtomicBool,
}

impl OrderWriter {
    /// From now on they are these.
    pub fn begin(&self, first: SegmentId) {
        *self.next.lock() = first;
    }

    /// The daemon ends: nobody waits for targets any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

impl Writer for OrderWriter {
    fn next_segment(&self) -> SegmentId {
        let next = &mut *self.next.lock();
        let id = *next;
        next.seq = next.seq.saturating_add(1);
        id
    }

    fn session(&self) -> SessionId {
        self.next.lock().session
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_order() {
        let writer = OrderWriter::default();
        writer.begin(SegmentId { session: SessionId(9), seq: 4 });
        assert_eq!([writer.next_segment().seq, writer.next_segment().seq], [4, 5]);
        assert_eq!(writer.session(), SessionId(9));
    }
}
