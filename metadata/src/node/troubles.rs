//! What is wrong with this server by itself, as its status and its answers to the leader tell it:
//! it needs a snapshot that it cannot fetch, or cannot read what it has.
//!
//! Invariants: that it cannot fetch is said from the first fetch that fails until one succeeds, or
//! there is no need for one, or, where it was a matter of room, there is room; that it is damaged,
//! until what does not read is forgotten or replaced, or reads.

use crate::raftlog::Unread;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_proto::{Error, ErrorKind};

/// Room on a disk.
pub(super) struct Room {
    pub free: u64,
    /// What is to stay free.
    pub reserve: u64,
}

impl Room {
    /// Bytes by which there is too little for so many more.
    pub fn missing(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.reserve).saturating_sub(self.free)
    }

    pub fn fits(&self, bytes: u64) -> bool {
        self.missing(bytes) == 0
    }
}

/// A snapshot that could not be fetched.
struct Missed {
    /// Of the last entry in it.
    index: u64,
    /// Bytes that it takes, if there was no room for them.
    bytes: Option<u64>,
    why: Error,
}

/// Whether this server is behind, and cannot fetch what it lacks.
#[derive(Default)]
pub struct Behind(Mutex<Option<Missed>>);

impl Behind {
    /// Why no snapshot can be fetched, if one is needed.
    pub fn why(&self) -> Option<String> {
        self.0.lock().as_ref().map(|missed| missed.why.message.clone())
    }

    pub fn is(&self) -> bool {
        self.0.lock().is_some()
    }

    /// A snapshot of so many bytes, up to an entry, could not be fetched.
    pub(super) fn note(&self, index: u64, bytes: u64, why: Error) {
        let bytes = (why.kind == ErrorKind::NoSpace).then_some(bytes);
        let before = self.0.lock().replace(Missed { index, bytes, why: why.clone() });
        if before.is_none_or(|before| before.why.kind != why.kind) {
            tracing::error!("this server is behind, and cannot fetch the state: {why}");
        }
    }

    /// A snapshot was fetched.
    pub(super) fn fetched(&self) {
        *self.0.lock() = None;
    }

    /// This server knows of all entries up to this one.
    pub(super) fn has(&self, index: u64) {
        self.0.lock().take_if(|missed| missed.index <= index);
    }

    /// There is this much room.
    pub(super) fn note_room(&self, room: &Room) {
        let fits = |missed: &mut Missed| missed.bytes.is_some_and(|bytes| room.fits(bytes));
        if self.0.lock().take_if(fits).is_some() {
            tracing::info!("there is room for the state that this server is to fetch");
        }
    }
}

/// What of this server's log does not read, and what of its state, when it is copied.
#[derive(Default)]
pub struct Damage {
    /// The last entry that does not, and why.
    log: Mutex<Option<(u64, String)>>,
    copy: Mutex<Option<String>>,
    /// Another was noted since that was asked.
    noted: AtomicBool,
}

impl Damage {
    /// For people; `None`: nothing is known.
    pub fn what(&self) -> Option<String> {
        let log = self.log.lock().as_ref().map(|(_, why)| why.clone());
        log.or_else(|| self.copy.lock().clone())
    }

    /// An entry of the log does not read.
    pub(super) fn note_log(&self, unread: Unread) {
        let mut log = self.log.lock();
        if log.as_ref().is_none_or(|(known, _)| *known < unread.index) {
            let (index, why) = (unread.index, Error::from(unread));
            tracing::error!("this server does not read all that it has: {why}");
            *log = Some((index, why.message));
        }
    }

    /// The log begins after this entry.
    pub(super) fn forgets(&self, index: u64) {
        if self.log.lock().take_if(|(last, _)| *last <= index).is_some() {
            tracing::info!(index, "what did not read of the log is in it no more");
        }
    }

    /// The state does not read as a whole.
    pub fn note_copy(&self, why: &Error) {
        *self.copy.lock() = Some(why.message.clone());
        self.noted.store(true, Ordering::Release);
    }

    /// Whether the state was found not to read since this was asked last.
    pub(super) fn take_noted(&self) -> bool {
        self.noted.swap(false, Ordering::AcqRel)
    }

    /// The state was copied, as a whole.
    pub fn is_copied(&self) {
        *self.copy.lock() = None;
    }

    /// Log and state are others now.
    pub(super) fn is_replaced(&self) {
        *self.log.lock() = None;
        self.is_copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_until_it_is_over() {
        let behind = Behind::default();
        let note = |kind| behind.note(50, 1000, Error::new(kind, "a reason"));
        note(ErrorKind::NoSpace);
        assert_eq!(behind.why().as_deref(), Some("a reason"));
        behind.has(49);
        behind.note_room(&Room { free: 3999, reserve: 3000 });
        assert!(behind.is());
        behind.note_room(&Room { free: 4000, reserve: 3000 });
        assert!(!behind.is());
        note(ErrorKind::TimedOut);
        behind.note_room(&Room { free: u64::MAX, reserve: 0 });
        assert!(behind.is(), "it was not a matter of room");
        behind.has(50);
        assert!(!behind.is());
        note(ErrorKind::TimedOut);
        behind.fetched();
        assert_eq!(behind.why(), None);
    }

    #[test]
    fn damage_is_over_when_what_does_not_read_is_no_more() {
        let damage = Damage::default();
        let note = |index| {
            let why = Error::new(ErrorKind::Corrupt, "a reason");
            damage.note_log(Unread { index, why });
            damage.what().expect("it is told")
        };
        assert_eq!(note(4), "log entry 4: a reason");
        // Of several the last counts.
        assert_eq!((note(9), note(4)), (note(9), note(9)));
        damage.forgets(8);
        assert_eq!(damage.what().as_deref(), Some("log entry 9: a reason"));
        damage.note_copy(&Error::new(ErrorKind::Io, "another"));
        damage.forgets(9);
        assert_eq!(damage.what().as_deref(), Some("another"));
        damage.is_copied();
        assert_eq!(damage.what(), None);
    }
}
