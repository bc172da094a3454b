//! What is freed while others use the connection.

use super::{ask, settle};
use crate::aligned::AlignedBuf;
use crate::rdma::connection::{Connection, RECEIVES, Side};
use crate::rdma::script::Script;
use crate::rdma::wire::FRAGMENT;
use bytes::Bytes;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;
use tokio::time::advance;

/// A payload that tells, when it is freed, whether others can use the connection meanwhile.
struct Watched {
    buffer: AlignedBuf,
    connection: Weak<Connection>,
    freed: mpsc::Sender<bool>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(connection) = self.connection.upgrade() else { return };
        let (used, other) = mpsc::channel();
        std::thread::spawn(move || {
            connection.is_idle();
            drop(connection);
            let _ = used.send(()); // nobody waits: it took too long
        });
        let _ = self.freed.send(other.recv_timeout(Duration::from_secs(60)).is_ok());
    }
}

/// A card takes long to forget memory, and many requests may be over at once.
#[tokio::test(start_paused = true)]
async fn others_use_the_connection_while_requests_that_are_over_are_freed() {
    let script = Script::new(RECEIVES);
    let connection = script.connection(Side::Caller).unwrap();
    let (freed, all_freed) = mpsc::channel();
    let second = Duration::from_secs(1);
    // More than the other side takes at first.
    ask(&connection, (1, 20 * FRAGMENT), vec![], &[], 60 * second);
    let buffer = AlignedBuf::take(1000);
    let watched = Watched { buffer, connection: Arc::downgrade(&connection), freed };
    ask(&connection, (2, 0), vec![Bytes::from_owner(watched)], &[], second);
    advance(2 * second).await;
    assert!(all_freed.try_recv().is_err(), "it waits to leave");
    settle(&connection, &script);
    assert_eq!(all_freed.try_iter().collect::<Vec<_>>(), [true]);
}
