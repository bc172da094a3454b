//! Entries on their way through a ring.

use super::entry::Entry;
use crate::error::Failure;
use crate::memory::Buffer;
use libc::ssize_t;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::OnceLock;
use weft_client::blocking::Connection;
use weft_client::sync::{Condvar, Mutex};

/// What became of an entry.
pub struct Completion {
    pub user_data: u64,
    pub result: Result<ssize_t, Failure>,
}

/// A ring, as its threads and its callers share it.
pub struct Ring {
    pub connection: Connection,
    /// Entries that it has places for.
    pub places: usize,
    pub queues: Mutex<Queues>,
    /// Enough has completed for somebody who waits.
    pub completed: Condvar,
    /// An eventfd, once somebody asked for it.
    pub event: OnceLock<File>,
}

/// Where entries are; each is in one of these.
#[derive(Default)]
pub struct Queues {
    pub prepared: Vec<Entry>,
    /// Submitted; nothing of them has begun.
    pub waiting: VecDeque<Entry>,
    /// Those that are being done, by what the caller calls them.
    pub begun: Vec<u64>,
    pub completions: VecDeque<Completion>,
    /// Tasks that take what waits.
    pub workers: usize,
    /// Fewest completions that somebody waits for.
    pub wanted: Option<usize>,
    /// Buffers that entries name by number.
    pub buffers: Vec<Buffer>,
}

impl Queues {
    /// Places that are taken.
    pub fn taken(&self) -> usize {
        self.prepared.len() + self.under_way() + self.completions.len()
    }

    /// Entries that will complete.
    pub fn under_way(&self) -> usize {
        self.waiting.len() + self.begun.len()
    }
}

impl Ring {
    /// Adds a completion, and wakes who waits for it.
    pub fn complete(&self, queues: &mut Queues, completion: Completion) {
        if queues.completions.is_empty() {
            self.signal();
        }
        queues.completions.push_back(completion);
        // All is there that may come: nobody has to wait for more.
        let last = queues.under_way() == 0;
        if queues.wanted.is_some_and(|wanted| last || queues.completions.len() >= wanted) {
            queues.wanted = None;
            self.completed.notify_all();
        }
    }

    /// The eventfd can be read while completions wait. Called with the queues locked.
    pub fn signal(&self) {
        if let Some(mut event) = self.event.get() {
            // It cannot block before it was signalled 2^64 times.
            let _ = event.write(&1_u64.to_ne_bytes());
        }
    }

    /// No completions wait any more. Called with the queues locked.
    pub fn clear(&self) {
        if let Some(mut event) = self.event.get() {
            // The caller may have read it already.
            let _ = event.read(&mut [0; 8]);
        }
    }
}
