//! The tasks of a mount, which end with it.

use parking_lot::Mutex;
use tokio::task::AbortHandle;

#[derive(Default)]
pub(crate) struct Supervisor {
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Supervisor {
    /// Runs a task until it ends or the mount does.
    pub fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().push(tokio::spawn(task).abort_handle());
    }

    /// Ends all tasks.
    pub fn stop(&self) {
        self.tasks.lock().iter().for_each(AbortHandle::abort);
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}
