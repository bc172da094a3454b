//! Keeps a connection moving: takes what its card has done, until it is over.

use super::connection::{Connection, RECEIVES, SENDS};
use crate::transport::{Pump, User};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Rounds of what the card has done, after which others have their turn.
const ROUNDS: usize = 16;

/// Resolves when a connection is over for a reason that the queue pair does not know. The reason.
pub(crate) type Watch = Pin<Box<dyn Future<Output = String> + Send>>;

/// Looks for completions before the card is asked to tell of them.
struct Looking {
    busy_poll: Duration,
    /// Since when nothing has come.
    quiet_since: Option<Instant>,
}

impl Looking {
    fn goes_on(&mut self) -> bool {
        if self.busy_poll.is_zero() {
            return false;
        }
        let now = Instant::now();
        now.saturating_duration_since(*self.quiet_since.get_or_insert(now)) < self.busy_poll
    }
}

/// Does what the card tells of.
pub(super) struct Engine {
    connection: Arc<Connection>,
    watch: Watch,
    looking: Looking,
    /// The card tells of the next completion.
    armed: bool,
    /// Why the connection is over.
    ended: Option<String>,
}

impl Engine {
    pub fn new(connection: Arc<Connection>, watch: Watch, busy_poll: Duration) -> Self {
        let looking = Looking { busy_poll, quiet_since: None };
        Self { connection, watch, looking, armed: false, ended: None }
    }

    /// Ends when everything has left, or the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>, user: &dyn User) -> Poll<io::Result<()>> {
        self.connection.pump_waits(cx.waker());
        if let Some(ended) = &self.ended {
            return self.poll_taken(ended.clone());
        }
        let queue_pair = self.connection.queue_pair();
        for _ in 0..ROUNDS {
            let advanced = self.connection.advance();
            self.tell(user);
            let any = match advanced {
                Ok(any) => any,
                Err(error) => return self.over(error.to_string(), user),
            };
            if self.connection.has_left() {
                return Poll::Ready(Ok(()));
            }
            if any {
                self.looking.quiet_since = None;
                continue;
            }
            if !self.armed && self.looking.goes_on() {
                if let Poll::Ready(why) = self.watch.as_mut().poll(cx) {
                    return self.over(why, user);
                }
                std::hint::spin_loop();
                continue;
            }
            if !self.armed {
                // What has ended since the last look is not told of.
                if let Err(error) = queue_pair.arm() {
                    return self.over(error.to_string(), user);
                }
                self.armed = true;
                continue;
            }
            match queue_pair.poll_event(cx) {
                Poll::Ready(Ok(())) => self.armed = false,
                Poll::Ready(Err(error)) => return self.over(error.to_string(), user),
                Poll::Pending => {
                    let Poll::Ready(why) = self.watch.as_mut().poll(cx) else {
                        return Poll::Pending;
                    };
                    // The last that has come is told of, first: as much as the queue holds.
                    for _ in 0..SENDS + RECEIVES {
                        if !matches!(self.connection.advance(), Ok(true)) {
                            break;
                        }
                    }
                    return self.over(why, user);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn tell(&self, user: &dyn User) {
        let (frames, cost) = self.connection.take_left();
        if frames > 0 {
            user.left(frames, cost);
        }
    }

    /// The connection cannot go on.
    fn over(&mut self, why: String, user: &dyn User) -> Poll<io::Result<()>> {
        self.connection.end(&why);
        self.tell(user);
        self.ended = Some(why.clone());
        self.poll_taken(why)
    }

    /// What the other side sent before it went is for the receiver to take.
    fn poll_taken(&self, why: String) -> Poll<io::Result<()>> {
        if !self.connection.is_drained() {
            return Poll::Pending;
        }
        Poll::Ready(match self.connection.was_closed() {
            true => Ok(()),
            false => Err(io::Error::other(why)),
        })
    }
}

#[async_trait::async_trait]
impl Pump for Engine {
    async fn run(self: Box<Self>, user: &dyn User) -> io::Result<()> {
        let mut running = Running { engine: self, user };
        let ended = poll_fn(|cx| running.engine.poll(cx, user)).await;
        if ended.is_ok() && running.engine.ended.is_none() {
            running.engine.connection.queue_pair().disconnect();
        }
        ended
    }
}

/// A pump at work. When it ends, however that comes, nothing leaves any more: what was to leave is
/// let go at once, though requests of the connection may be at work for long.
struct Running<'a> {
    engine: Box<Engine>,
    user: &'a dyn User,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.engine.connection.end("its pump has ended");
        self.engine.tell(self.user);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.connection.end("its pump has ended");
    }
}
