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
            // SAFETY: the handlers are functions of this library, which stays loaded; they lock and
            // unlock what no code holds that forks, and add to a number. If there is no memory for
            // that, forks are not noticed.
            unsafe { libc::pthread_atfork(Some(forks), Some(parent), Some(child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is this one. Takes no lock and makes no system call.
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn forks() {
    weft_net::before_fork();
}

extern "C" fn parent() {
    weft_net::after_fork();
}

extern "C" fn child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    weft_net::after_fork();
}
