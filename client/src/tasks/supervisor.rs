//! The tasks of a mount, which end with it, or while another process may go on with it.

use tokio::task::JoinSet;
use weft_net::sync::Mutex;

#[derive(Default)]
pub(crate) struct Supervisor(Mutex<Tasks>);

#[derive(Default)]
struct Tasks {
    set: JoinSet<()>,
    /// None is begun.
    resting: bool,
}

impl Supervisor {
    /// Runs a task until it ends or all do; not at all while they rest.
    pub fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        while tasks.set.try_join_next().is_some() {}
        if !tasks.resting {
            tasks.set.spawn(task);
        }
    }

    /// Ends all tasks.
    pub fn stop(&self) {
        self.0.lock().set.abort_all();
    }

    /// Ends all tasks, and waits until none runs; none is begun until [`Self::resume`].
    pub async fn rest(&self) {
        let mut set = {
            let mut tasks = self.0.lock();
            tasks.resting = true;
            std::mem::take(&mut tasks.set)
        };
        set.shutdown().await;
    }

    /// Tasks may be run again.
    pub fn resume(&self) {
        self.0.lock().resting = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Also those that a task is just about to begin.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn while_they_rest_no_task_runs() {
        let (supervisor, alive) = (Arc::<Supervisor>::default(), Arc::<AtomicUsize>::default());
        struct Alive(Arc<AtomicUsize>);
        impl Drop for Alive {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let begin = |alive: &Arc<AtomicUsize>| {
            alive.fetch_add(1, Ordering::SeqCst);
            Alive(alive.clone())
        };
        for _ in 0..200 {
            let (of, alive_too) = (supervisor.clone(), alive.clone());
            supervisor.run(async move {
                loop {
                    let task = begin(&alive_too);
                    of.run(async move {
                        let _task = task;
                        pending::<()>().await;
                    });
                    tokio::task::yield_now().await;
                }
            });
            tokio::task::yield_now().await;
            supervisor.rest().await;
            assert_eq!(alive.load(Ordering::SeqCst), 0);
            supervisor.resume();
        }
    }
}
