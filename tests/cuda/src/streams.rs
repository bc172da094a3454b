//! Streams: what is asked of each is done in order, by a thread of its own.

use crate::memory::{Used, locked};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Microseconds that a copy waits before it looks at memory.
pub(crate) static PAUSE: AtomicU64 = AtomicU64::new(300);
/// The code that the next copies fail with when their turn comes; 0: none.
pub(crate) static FAILURE: AtomicI32 = AtomicI32::new(0);
/// Copies from and to pinned memory, and others.
pub(crate) static PINNED: AtomicU64 = AtomicU64::new(0);
pub(crate) static PAGEABLE: AtomicU64 = AtomicU64::new(0);

/// Something that a stream is asked for.
pub(crate) enum Work {
    /// From pinned memory, or from a copy of what was there.
    In {
        from: Source,
        to: Used,
        len: usize,
    },
    Out {
        from: Used,
        to: usize,
        len: usize,
    },
    Call(Box<dyn FnOnce() + Send>),
    Event(Arc<Event>),
}

pub(crate) enum Source {
    Pinned(usize),
    Staged(Vec<u8>),
}

/// What was recorded has been reached, and how.
#[derive(Default)]
pub(crate) struct Event {
    /// How often it was recorded and reached, and the code of the last.
    state: Mutex<(u64, u64, i32)>,
    reached: Condvar,
}

impl Event {
    fn record(&self) {
        locked(&self.state).0 += 1;
    }

    fn reach(&self, code: i32) {
        let mut state = locked(&self.state);
        (state.1, state.2) = (state.1 + 1, code);
        self.reached.notify_all();
    }

    /// `None`: it was not reached yet.
    pub fn query(&self) -> Option<i32> {
        let state = locked(&self.state);
        (state.1 >= state.0).then_some(state.2)
    }

    pub fn wait(&self) -> i32 {
        let mut state = locked(&self.state);
        while state.1 < state.0 {
            state = self.reached.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.2
    }
}

pub(crate) struct Stream {
    /// What waits, whether something is under way, and the first failure.
    state: Mutex<(VecDeque<Work>, bool, i32)>,
    changed: Condvar,
}

impl Stream {
    pub fn new() -> &'static Self {
        let state = Mutex::new((VecDeque::new(), false, 0));
        let stream: &Self = Box::leak(Box::new(Self { state, changed: Condvar::new() }));
        std::thread::spawn(|| stream.run());
        stream
    }

    pub fn ask(&self, work: Work) {
        if let Work::Event(event) = &work {
            event.record();
        }
        locked(&self.state).0.push_back(work);
        self.changed.notify_all();
    }

    pub fn wait(&self) -> i32 {
        let mut state = locked(&self.state);
        while !state.0.is_empty() || state.1 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.2
    }

    fn run(&self) {
        loop {
            let work = {
                let mut state = locked(&self.state);
                loop {
                    if let Some(work) = state.0.pop_front() {
                        state.1 = true;
                        break work;
                    }
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let failed = locked(&self.state).2;
            let code = match work {
                Work::Event(event) => {
                    event.reach(failed);
                    failed
                }
                // Nothing is done any more after a failure.
                work if failed != 0 => {
                    drop(work);
                    failed
                }
                work => work.run(),
            };
            let mut state = locked(&self.state);
            (state.1, state.2) = (false, code);
            drop(state);
            self.changed.notify_all();
        }
    }
}

impl Work {
    fn run(self) -> i32 {
        match self {
            Self::In { from, to, len } => {
                if let Some(code) = pause() {
                    return code;
                }
                let from = match &from {
                    Source::Pinned(at) => std::ptr::with_exposed_provenance(*at),
                    Source::Staged(bytes) => bytes.as_ptr(),
                };
                // SAFETY: the caller keeps pinned memory until this is over; the rest is ours.
                unsafe { std::ptr::copy_nonoverlapping(from, to.bytes, len) };
            }
            Self::Out { from, to, len } => {
                if let Some(code) = pause() {
                    return code;
                }
                let to = std::ptr::with_exposed_provenance_mut(to);
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(from.bytes, to, len) };
            }
            Self::Call(call) => call(),
            Self::Event(event) => event.reach(0),
        }
        0
    }
}

/// The code that a copy fails with.
#[allow(clippy::disallowed_methods, reason = "a thread that does nothing else")]
fn pause() -> Option<i32> {
    std::thread::sleep(Duration::from_micros(PAUSE.load(Ordering::SeqCst)));
    let code = FAILURE.load(Ordering::SeqCst);
    (code != 0).then_some(code)
}
