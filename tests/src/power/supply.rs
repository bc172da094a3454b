//! Whether there is power, and what lies on the disk.

use super::tree::Tree;
use fuser::Errno;
use std::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    tree: Tree,
    power: Power,
    /// There is no room for more.
    full: bool,
    /// Requests that wait for power.
    waiting: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Power {
    On,
    /// Requests wait.
    Cut,
    /// Requests fail.
    Off,
}

impl Shared {
    /// There is power.
    pub fn new(tree: Tree) -> Self {
        let state = Mutex::new(State { tree, power: Power::On, full: false, waiting: 0 });
        Self { state, changed: Condvar::new() }
    }

    pub fn set(&self, power: Power) {
        self.state().power = power;
        self.changed.notify_all();
    }

    pub fn fill(&self, full: bool) {
        self.state().full = full;
    }

    pub fn is_full(&self) -> bool {
        self.state().full
    }

    /// The power goes at one moment, with what `lose` takes.
    pub fn cut(&self, lose: impl FnOnce(&mut Tree)) {
        let mut state = self.state();
        lose(&mut state.tree);
        state.power = Power::Cut;
    }

    /// Does something as soon as it is known whether there is power.
    pub fn with<T>(&self, act: impl FnOnce(&mut Tree) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut state = self.state();
        state.waiting += 1;
        let waited = self.changed.wait_while(state, |state| state.power == Power::Cut);
        let mut state = waited.unwrap_or_else(|e| e.into_inner());
        state.waiting -= 1;
        match state.power {
            Power::On => act(&mut state.tree),
            _ => Err(Errno::EIO),
        }
    }

    /// Whether a request waits for power.
    #[cfg(test)]
    pub fn is_awaited(&self) -> bool {
        self.state().waiting > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}
