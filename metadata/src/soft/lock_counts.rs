//! How many locks each session holds at most, so that none fills the state with them.
//!
//! Each is a record in the replicated state, which the state alone could count, one by one. So what
//! a session has locked since it was counted is added to that, unlocked or not, and it is counted
//! anew where that may be too many.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::locks::MAX_LOCKS;
use weft_proto::{Error, ErrorKind, Result, SessionId};

/// Most of one session with those that it has taken without asking, which would be lost.
pub const MAX_WITH_HELD: usize = 2 * MAX_LOCKS;
/// A session that was found to hold so many is not counted again for so long.
const COUNTED_FOR: Duration = Duration::from_secs(1);

struct Count {
    at_most: usize,
    counted: Instant,
}

/// Of all sessions in one term.
#[derive(Default)]
pub struct LockCounts(HashMap<SessionId, Count>);

impl LockCounts {
    /// Whether a session that holds fewer than so many may lock more; `None`: what it holds must be
    /// counted.
    pub fn has_room(&self, session: SessionId, most: usize) -> Option<Result<()>> {
        let count = self.0.get(&session)?;
        if count.at_most < most {
            return Some(Ok(()));
        }
        (count.counted.elapsed() < COUNTED_FOR).then(|| {
            let what = format!("this client holds {most} locks, and none may hold more");
            Err(Error::new(ErrorKind::NoLocks, what))
        })
    }

    /// A session was found to hold so many.
    pub fn counted(&mut self, session: SessionId, locks: usize) {
        self.0.insert(session, Count { at_most: locks, counted: Instant::now() });
    }

    /// It has set one.
    pub fn was_set(&mut self, session: SessionId) {
        if let Some(count) = self.0.get_mut(&session) {
            count.at_most += 1;
        }
    }

    /// A session is no more.
    pub fn ended(&mut self, session: SessionId) {
        self.0.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const S: SessionId = SessionId(7);

    #[tokio::test(start_paused = true)]
    async fn who_may_hold_too_many_is_counted_now_and_then() {
        let mut counts = LockCounts::default();
        assert!(counts.has_room(S, MAX_LOCKS).is_none(), "it was never counted");
        counts.counted(S, MAX_LOCKS - 2);
        counts.was_set(S);
        assert!(matches!(counts.has_room(S, MAX_LOCKS), Some(Ok(()))));
        counts.was_set(S);
        advance(COUNTED_FOR).await;
        assert!(counts.has_room(S, MAX_LOCKS).is_none(), "it may have unlocked others");
        counts.counted(S, MAX_LOCKS);
        let refused = counts.has_room(S, MAX_LOCKS).unwrap().unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoLocks);
        assert!(matches!(counts.has_room(S, MAX_WITH_HELD), Some(Ok(()))));
        advance(COUNTED_FOR).await;
        assert!(counts.has_room(S, MAX_LOCKS).is_none());
        counts.ended(S);
        counts.was_set(S);
        assert!(counts.has_room(S, MAX_LOCKS).is_none(), "another session with its number");
    }
}
