//! Threads that may not be through with an answer that gives attributes a time to live.
//!
//! The kernel takes such an answer in only when the thread that asked runs again. What has changed
//! the attributes meanwhile it may have followed before: then it would keep the old ones.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The kernel is through with an answer after so long, whoever it woke.
pub const LATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers are looked through for what is old when there are so many.
const FEW: usize = 1 << 10;

/// An answer that a thread may not be through with, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answered {
    thread: u32,
    at: Instant,
}

impl Answered {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < LATE_TIMEOUT
    }
}

#[derive(Default)]
pub struct Asking {
    /// By the inode whose attributes they give.
    answers: HashMap<u64, Vec<Answered>>,
    /// The inode of the last answer to each thread that the mount can see.
    threads: HashMap<u32, u64>,
    count: usize,
    limit: usize,
    /// Another process gave answers until then.
    adopted: Option<Instant>,
}

impl Asking {
    /// After another process: who asked that is not known.
    pub fn adopted() -> Self {
        Self { adopted: Some(Instant::now()), ..Self::default() }
    }

    /// A thread is about to be told the attributes of an inode; 0: one that the mount cannot see.
    pub fn answer(&mut self, thread: u32, ino: u64) {
        self.is_through(thread);
        if self.count >= self.limit {
            self.drop_old();
        }
        self.answers.entry(ino).or_default().push(Answered { thread, at: Instant::now() });
        self.count += 1;
        if thread != 0 {
            self.threads.insert(thread, ino);
        }
    }

    /// A thread asks for something else.
    pub fn is_through(&mut self, thread: u32) {
        if self.threads.is_empty() {
            return;
        }
        let Some(ino) = self.threads.remove(&thread) else { return };
        let Some(answers) = self.answers.get_mut(&ino) else { return };
        let before = answers.len();
        answers.retain(|answer| answer.thread != thread);
        self.count -= before - answers.len();
        if answers.is_empty() {
            self.answers.remove(&ino);
        }
    }

    fn drop_old(&mut self) {
        self.answers.retain(|_, answers| {
            answers.retain(Answered::is_recent);
            !answers.is_empty()
        });
        let all = self.answers.iter();
        self.threads = all
            .flat_map(|(ino, answers)| answers.iter().map(|answer| (answer.thread, *ino)))
            .filter(|(thread, _)| *thread != 0)
            .collect();
        self.count = self.answers.values().map(Vec::len).sum();
        self.limit = (2 * self.count).max(FEW);
    }

    /// The answers about an inode that somebody may not be through with.
    pub fn about(&self, ino: u64) -> Vec<Answered> {
        let answers = self.answers.get(&ino).into_iter().flatten();
        let adopted = self.adopted.map(|at| Answered { thread: 0, at });
        answers.copied().chain(adopted).filter(Answered::is_recent).collect()
    }

    /// Whether there are any.
    pub fn is_asked(&self, ino: u64) -> bool {
        !self.about(ino).is_empty()
    }

    /// Whether one is still among them.
    pub fn is_still(&self, ino: u64, answer: &Answered) -> bool {
        let is_there = |all: &Vec<Answered>| all.contains(answer);
        answer.is_recent()
            && (self.adopted == Some(answer.at) || self.answers.get(&ino).is_some_and(is_there))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const INO: u64 = 7;

    #[tokio::test(start_paused = true)]
    async fn a_thread_is_through_when_it_asks_again_or_after_a_while() {
        let mut asking = Asking::default();
        asking.answer(1, INO);
        asking.answer(2, INO);
        asking.answer(2, INO + 1);
        let [answer] = asking.about(INO)[..] else { panic!("one is left") };
        assert!(asking.is_still(INO, &answer) && asking.is_asked(INO + 1));
        asking.is_through(1);
        assert!(!asking.is_still(INO, &answer) && !asking.is_asked(INO));
        advance(LATE_TIMEOUT).await;
        assert!(!asking.is_asked(INO + 1) && asking.about(INO + 1).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn of_threads_that_are_not_seen_nothing_is_known_for_a_while() {
        let mut asking = Asking::default();
        asking.answer(0, INO);
        asking.answer(0, INO);
        asking.is_through(0);
        assert_eq!(asking.about(INO).len(), 2);
        assert!(Asking::adopted().is_asked(INO));
        advance(LATE_TIMEOUT).await;
        assert!(!asking.is_asked(INO));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_is_through_with_is_dropped_when_it_is_old() {
        let mut asking = Asking::default();
        for round in 0..10 {
            let threads = round * FEW as u32..(round + 1) * FEW as u32;
            threads.for_each(|thread| asking.answer(thread, u64::from(thread % 9)));
            let kept = asking.answers.values().map(Vec::len).sum::<usize>();
            assert!(asking.count == kept && asking.threads.len() <= kept);
            assert!(kept <= 3 * FEW, "{kept} in round {round}");
            advance(LATE_TIMEOUT).await;
        }
    }
}
