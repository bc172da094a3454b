//! Threads that may be about to take in attributes of an inode, which its notices wait for.
//!
//! The kernel drops attributes that it had asked for before it heard a notice of the same inode.
//! Whoever asked goes on with what it had before: a read ends at an old size, and a page behind it
//! kills who touches it (SIGBUS).

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The kernel is through with an answer after so long, nearly always.
const TAKEN_TIMEOUT: Duration = Duration::from_millis(2);
/// What was asked longer ago is not kept for long.
const OLD: Duration = Duration::from_secs(1);
/// Threads are looked through for those that have ended when there are so many.
const FEW: usize = 1 << 10;

/// What a thread has asked for last.
#[derive(Clone, Copy)]
struct Asked {
    ino: u64,
    /// When it did, or was answered.
    at: Instant,
    answered: bool,
}

impl Asked {
    fn waits(&self) -> bool {
        self.at.elapsed() < if self.answered { TAKEN_TIMEOUT } else { OLD }
    }
}

#[derive(Default)]
pub struct Told {
    threads: HashMap<u32, Asked>,
    /// How many of them by inode.
    inodes: HashMap<u64, Vec<u32>>,
    limit: usize,
}

impl Told {
    /// A thread asks for attributes of an inode.
    pub fn ask(&mut self, thread: u32, ino: u64) {
        self.insert(thread, Asked { ino, at: Instant::now(), answered: false });
    }

    /// It is about to be told them; or it has opened the inode, and may ask for them next.
    pub fn tell(&mut self, thread: u32, ino: u64) {
        self.insert(thread, Asked { ino, at: Instant::now(), answered: true });
    }

    fn insert(&mut self, thread: u32, asked: Asked) {
        // It cannot be seen what the others do.
        if thread == 0 {
            return;
        }
        if let Some(before) = self.threads.get_mut(&thread).filter(|of| of.ino == asked.ino) {
            *before = asked;
            return;
        }
        self.forget(thread);
        if self.threads.len() >= self.limit {
            let ended = self.threads.iter().filter(|(_, of)| of.at.elapsed() >= OLD);
            let ended: Vec<_> = ended.map(|(thread, _)| *thread).collect();
            ended.into_iter().for_each(|thread| self.forget(thread));
            self.limit = (2 * self.threads.len()).max(FEW);
        }
        self.threads.insert(thread, asked);
        self.inodes.entry(asked.ino).or_default().push(thread);
    }

    /// A thread is sent something for: it has taken in what it was told, most likely.
    pub fn taken(&mut self, thread: u32) {
        if self.threads.get(&thread).is_some_and(|asked| asked.answered) {
            self.forget(thread);
        }
    }

    /// A thread asks for something else.
    pub fn forget(&mut self, thread: u32) {
        if self.threads.is_empty() {
            return;
        }
        let Some(Asked { ino, .. }) = self.threads.remove(&thread) else { return };
        if let Some(threads) = self.inodes.get_mut(&ino) {
            threads.retain(|of| *of != thread);
            if threads.is_empty() {
                self.inodes.remove(&ino);
            }
        }
    }

    /// Whether some thread may be about to take in attributes of an inode.
    pub fn has(&self, ino: u64) -> bool {
        let threads = self.inodes.get(&ino).into_iter().flatten();
        threads.filter_map(|thread| self.threads.get(thread)).any(Asked::waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn who_was_told_attributes_takes_them_in_when_it_asks_for_more_or_after_a_while() {
        let mut told = Told::default();
        told.ask(1, 7);
        advance(2 * TAKEN_TIMEOUT).await;
        told.taken(1);
        assert!(told.has(7) && !told.has(8), "it has no answer");
        told.tell(1, 7);
        told.forget(2);
        assert!(told.has(7));
        told.ask(1, 8);
        assert!(!told.has(7) && told.has(8));
        told.forget(1);
        assert!(!told.has(8));
        told.tell(0, 7);
        assert!(!told.has(7), "it cannot be seen what it does");
        told.tell(1, 7);
        told.taken(1);
        assert!(!told.has(7));
        told.tell(1, 7);
        advance(TAKEN_TIMEOUT).await;
        assert!(!told.has(7));
    }

    #[tokio::test(start_paused = true)]
    async fn threads_that_have_ended_are_dropped() {
        let mut told = Told::default();
        for round in 0..10 {
            let threads = round * FEW as u32 + 1..=(round + 1) * FEW as u32;
            threads.for_each(|thread| told.tell(thread, u64::from(thread % 9)));
            let of_inodes = told.inodes.values().map(Vec::len).sum::<usize>();
            assert_eq!(told.threads.len(), of_inodes);
            assert!(of_inodes <= 3 * FEW, "{of_inodes} in round {round}");
            advance(OLD).await;
        }
    }
}
