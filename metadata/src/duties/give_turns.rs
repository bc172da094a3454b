//! Says whose turn it is to take a lock.

use super::propose::LOOK_INTERVAL;
use crate::node::Node;
use tokio::time::{Instant, sleep};

/// Tells who waits for a lock when it is its turn.
pub async fn give_turns(node: &Node) {
    let news = node.soft.with(|s| s.locks.news.clone());
    let mut look = Instant::now() + LOOK_INTERVAL;
    loop {
        // What comes often, comes together.
        let _ = tokio::time::timeout_at(look, news.notified()).await;
        // Also while something comes all the time.
        if Instant::now() >= look {
            look = Instant::now() + LOOK_INTERVAL;
            node.soft.with(|s| s.locks.look_around(Instant::now()));
        }
        // There may be very many, which are looked at some at a time.
        tokio::task::yield_now().await;
        // The state is read under the lock, so that whoever waits now waits for what is held now:
        // in older answers there could be a circle that never was.
        let mut held = |ino, flock| node.state.locks_of(ino, flock);
        let settled = node.soft.with(|s| s.locks.settle(Instant::now(), &mut held));
        if let Err(error) = settled {
            tracing::error!("cannot read the locks that others wait for: {error}");
            sleep(LOOK_INTERVAL).await;
        }
    }
}
