//! One session: the numbers of its requests and of its segments.
//!
//! Invariants: numbers and segment ids are unique within a session, also if another process goes on
//! with it: none is given while it is sealed; `acked_below` never passes a request that may still
//! be sent again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use weft_net::sync::Mutex;
use weft_proto::{Error, ErrorKind, REQUEST_WINDOW, Result, SegmentId, SessionId};

#[derive(Default)]
struct Numbers {
    last: u64,
    outstanding: BTreeSet<u64>,
    sealed: bool,
}

/// One session and its counters.
#[derive(Default)]
pub(crate) struct Session {
    pub id: SessionId,
    numbers: Mutex<Numbers>,
    /// The lowest outstanding number is over.
    moved: Notify,
    segments: AtomicU64,
}

/// The number of one request; it counts as outstanding until this is dropped.
pub(crate) struct Number<'a> {
    session: &'a Session,
    number: u64,
    acked_below: u64,
}

impl Session {
    pub(super) fn new(id: SessionId) -> Self {
        Self { id, ..Self::default() }
    }

    /// A session with which another process was, up to these numbers.
    pub(super) fn resumed(id: SessionId, last_request: u64, last_segment: u64) -> Self {
        let numbers = Numbers { last: last_request, ..Numbers::default() };
        Self { id, numbers: Mutex::new(numbers), segments: last_segment.into(), ..Self::default() }
    }

    /// From now on requests wait for a number. Answers the last number of a request and of a
    /// segment; `None`, with nothing done, if a request is under way.
    pub fn seal(&self) -> Option<(u64, u64)> {
        let mut numbers = self.numbers.lock();
        numbers.sealed = numbers.outstanding.is_empty();
        numbers.sealed.then(|| (numbers.last, self.segments.load(Ordering::Relaxed)))
    }

    /// Takes [`Self::seal`] back.
    pub fn unseal(&self) {
        self.numbers.lock().sealed = false;
        self.moved.notify_waiters();
    }

    /// The next number, as soon as it is in the window of what may be outstanding: one request that
    /// waits for another mount holds up those far behind it. Error: `TimedOut`.
    pub async fn number(&self, deadline: Instant) -> Result<Number<'_>> {
        loop {
            let moved = self.moved.notified();
            if let Some(number) = self.number_now() {
                return Ok(number);
            }
            if timeout_at(deadline, moved).await.is_err() {
                let what =
                    "too many requests wait for one that the metadata group has not answered";
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
        }
    }

    fn number_now(&self) -> Option<Number<'_>> {
        let mut numbers = self.numbers.lock();
        let number = numbers.last + 1;
        let acked_below = numbers.outstanding.first().copied().unwrap_or(number);
        if numbers.sealed || number - acked_below >= REQUEST_WINDOW {
            return None;
        }
        numbers.last = number;
        numbers.outstanding.insert(number);
        Some(Number { session: self, number, acked_below })
    }

    pub fn next_segment(&self) -> SegmentId {
        SegmentId { session: self.id, seq: self.segments.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Number<'_> {
    pub fn get(&self) -> u64 {
        self.number
    }

    /// All requests with lower numbers are over.
    pub fn acked_below(&self) -> u64 {
        self.acked_below
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        let outstanding = &mut self.session.numbers.lock().outstanding;
        let was_first = outstanding.first() == Some(&self.number);
        outstanding.remove(&self.number);
        if was_first {
            self.session.moved.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn acked_below_stops_at_the_oldest_outstanding_request() {
        let session = Session::new(SessionId(7));
        let number = || session.number_now().expect("in the window");
        let first = number();
        assert_eq!((first.get(), first.acked_below()), (1, 1));
        let second = number();
        assert_eq!((second.get(), second.acked_below()), (2, 1));
        drop(second);
        assert_eq!(number().acked_below(), 1);
        drop(first);
        let later = number();
        assert_eq!((later.get(), later.acked_below()), (4, 4));
        assert_eq!(session.next_segment(), SegmentId { session: SessionId(7), seq: 1 });
        assert_eq!(session.next_segment().seq, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sealed_session_gives_no_number_and_the_next_process_goes_on_behind_it() {
        let session = Session::new(SessionId(7));
        let first = session.number_now().expect("in the window");
        assert_eq!(session.seal(), None, "a request is under way");
        drop(first);
        session.next_segment();
        assert_eq!(session.seal(), Some((1, 1)));
        let (waits, ()) = tokio::join!(session.number(Instant::now() + SOON), async {
            assert!(session.number_now().is_none());
            session.unseal();
        });
        assert_eq!(waits.expect("it is sealed no more").get(), 2);
        let next = Session::resumed(SessionId(7), 2, 1);
        let number = next.number_now().expect("in the window");
        assert_eq!((number.get(), number.acked_below()), (3, 3));
        assert_eq!(next.next_segment().seq, 2);
    }

    /// The group would refuse them for good, and what they carry would be given up.
    #[tokio::test(start_paused = true)]
    async fn numbers_beyond_the_window_wait_for_the_oldest_request() {
        let session = Session::new(SessionId(7));
        let oldest = session.number_now().expect("in the window");
        for _ in 1..REQUEST_WINDOW {
            session.number_now().expect("in the window");
        }
        let soon = Instant::now() + SOON;
        let refused = session.number(soon).await.map(|number| number.get());
        assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::TimedOut));
        let late = soon + SOON;
        let (number, ()) = tokio::join!(session.number(late), async { drop(oldest) });
        let number = number.expect("the oldest is over");
        assert_eq!((number.get(), number.acked_below()), (REQUEST_WINDOW + 1, REQUEST_WINDOW + 1));
    }
}
