//! Locks for what runs inside of other people's programs: those of the standard library, whose
//! waiting threads only the kernel knows. A process that such a program forks has a copy of the
//! memory and none of the other threads; a lock that keeps a list of them there, for all locks
//! together, may wake or follow one that is not there.
//!
//! What is locked is whole after each step, so that a thread that panics leaves nothing half done:
//! there is no poison.

use std::sync::{self, PoisonError};
use std::time::Duration;

/// The right to use what a [`Mutex`] holds.
pub type MutexGuard<'a, T> = sync::MutexGuard<'a, T>;

/// Mutual exclusion.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

/// One writer, or any number of readers.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

/// Waits for what others do to what a [`Mutex`] holds.
#[derive(Default)]
pub struct Condvar(sync::Condvar);

impl<T> Mutex<T> {
    /// Holding a value.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for its turn.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For who has it alone.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> RwLock<T> {
    /// Holding a value.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for its turn to read.
    pub fn read(&self) -> sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn to write.
    pub fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condvar {
    /// That nobody waits for.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Waits until it is notified; without a reason, too.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for so long at most; whether it was that long.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout(guard, limit);
        let (guard, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, waited.timed_out())
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl<T: ?Sized + std::fmt::Debug> std::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized + std::fmt::Debug> std::fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
