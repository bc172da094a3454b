//! What a connection stands on: who is at its other end, until he is not trusted any more.

use super::subject::Subject;
use super::trust::Shown;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a connection stands on.
pub(super) struct Standing {
    pub subject: Arc<Subject>,
    pub shown: Shown,
    /// It is not trusted any more.
    over: AtomicBool,
}

impl Standing {
    pub fn new(subject: Arc<Subject>, shown: Shown) -> Self {
        Self { subject, shown, over: AtomicBool::new(false) }
    }

    /// From now on the other side is not trusted.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Error: the other side is not trusted any more.
    pub fn check(&self) -> io::Result<()> {
        if self.over.load(Ordering::Relaxed) {
            let what = format!("the certificate of {} is not valid any more", self.subject);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(())
    }
}
