//! Whether this process is the one that connected.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Forks that lie between the first process that connected and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process, as told from those that it forks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Process(u64);

impl Process {
    /// This one.
    pub fn current() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler is a function of this library, which stays loaded, and does no
            // more than add to a number. If there is no memory for it, forks are not noticed.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is this one. Takes no lock and makes no system call.
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
