//! Servers that are told to stop.

use crate::support::*;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// Holds up whoever wakes it.
struct Late;

impl Wake for Late {
    #[allow(clippy::disallowed_methods)] // The thread that tells is what is to be held up.
    fn wake(self: Arc<Self>) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The tasks of a server do not hear of a stop at the same time: who tells them may be held up
/// between any two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stops_whichever_of_its_tasks_hears_of_it_first() {
    let mut group = Group::start(1, |_| {}).await;
    let late = Waker::from(Arc::new(Late));
    for _ in 0..8 {
        group.client().open_session().await;
        // Told among the tasks of the server.
        let mut told: Vec<_> = (0..64).map(|_| group.stops(1)).collect();
        let mut told: Vec<_> = told.iter_mut().map(|stop| Box::pin(stop.changed())).collect();
        for stop in &mut told {
            assert!(stop.as_mut().poll(&mut Context::from_waker(&late)).is_pending());
        }
        group.stop(1).await;
        group.run(1);
    }
}
