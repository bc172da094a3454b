//! What an operation of the state machine is.
//!
//! A replicated operation is an [`Operation`]: `check` reads the state and either refuses or
//! answers a plan; `apply` carries the plan out. `check` cannot write and `apply` cannot refuse, so
//! a refused operation leaves nothing behind. A read is a [`Query`]. Neither sees a clock, a socket
//! or randomness: time and random ids come in the log entry.
//!
//! An operation that meets records which make no sense, or panics, is undone and refused, loudly:
//! every replica has the same records and refuses the same one, where stopping would stop them all,
//! at every start again. Only a store that fails stops its replica, and a record that does not even
//! read: that happened to this replica alone.

use crate::read_locked::ReadLocked;
use crate::store::{Read, StoreError, StoreResult, Txn};
use prost::Message;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
pub(crate) use v1::meta_reply::Result as Reply;
use weft_proto::{Error, ErrorKind, SessionId, v1};

/// Why an operation gave no answer: it was refused, or the store failed.
#[derive(Debug)]
pub(crate) enum Fault {
    Refused(Error),
    Store(StoreError),
}

impl From<StoreError> for Fault {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Self::Refused(e)
    }
}

impl Fault {
    /// What is answered to who asked for the operation; an error if the store failed.
    pub(crate) fn refusal(self) -> StoreResult<Error> {
        match self {
            Self::Refused(e) => Ok(e),
            Self::Store(e) if e.is_of_content() => {
                tracing::error!("an operation is refused, since what it found makes no sense: {e}");
                // The text becomes part of the state: what was found depends on the version's
                // words.
                let what = "the metadata makes no sense here: see the log of the servers";
                Ok(Error::new(ErrorKind::Internal, what))
            }
            Self::Store(e) => Err(e),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(e) | Fault::Store(StoreError(e)) => e,
        }
    }
}

/// A refusal.
pub(crate) fn refuse<T>(kind: ErrorKind, what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Refused(Error::new(kind, what)))
}

/// What comes to an operation beside its own fields.
#[derive(Clone)]
pub(crate) struct Context {
    /// Time of the entry, nanoseconds since 1970.
    pub now: i64,
    /// Who asks; nobody for entries of the leader's own.
    pub session: SessionId,
    /// What the state knows of locks, as the operations before this have left them.
    pub read_locked: Arc<ReadLocked>,
}

/// A change of the replicated state.
pub(crate) trait Operation {
    /// What `check` found out and `apply` needs.
    type Plan;

    /// Refuses, or says how it will be done. Changes nothing.
    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Self::Plan, Fault>;

    /// Does it. Only the store may fail now, or turn out to hold what makes no sense.
    fn apply(&self, plan: Self::Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply>;
}

/// An [`Operation`] whose plan is its own affair.
pub(crate) trait Change {
    /// Does it as a whole, or refuses and leaves nothing behind.
    fn run(&self, tx: &mut Txn<'_>, cx: &Context) -> Result<Reply, Fault>;
}

impl<O: Operation> Change for O {
    fn run(&self, tx: &mut Txn<'_>, cx: &Context) -> Result<Reply, Fault> {
        attempt(tx, |tx| {
            let plan = self.check(tx.state(), cx)?;
            Ok(self.apply(plan, tx, cx)?)
        })
    }
}

/// A question about the state.
pub(crate) trait Query {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault>;

    /// Bytes that no answer is longer than.
    fn longest(&self) -> usize {
        BRIEF
    }

    /// Whether one record answers it, so that it needs no snapshot.
    fn is_single_read(&self) -> bool {
        false
    }
}

/// An answer that holds no list and no content is no longer, in bytes; nor are attributes, an
/// extent without content, and the record of a segment.
pub(crate) const BRIEF: usize = 512;
pub(crate) const ATTR: usize = 256;
pub(crate) const EXTENT: usize = 96;
pub(crate) const SEGMENT: usize = 160;
/// A lease.
pub(crate) const GRANT: usize = 96;

/// Does something as a whole or not at all. What panics met something that nobody has thought of,
/// and is the same on every replica.
pub(crate) fn attempt<T>(
    tx: &mut Txn<'_>,
    work: impl FnOnce(&mut Txn<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    tx.attempt(|tx| {
        let caught = catch_unwind(AssertUnwindSafe(|| work(tx)));
        caught.unwrap_or_else(|_| Err(StoreError::corrupt("an operation panicked").into()))
    })
}

/// The answer of what answers nothing.
pub(crate) const EMPTY: Reply = Reply::Empty(v1::Empty {});

/// The outcome as it is stored and sent; a failure of the store passes through.
pub(crate) fn stored(outcome: Result<Reply, Fault>) -> StoreResult<v1::StoredReply> {
    match outcome {
        Ok(reply) => Ok(v1::StoredReply {
            error: 0,
            message: String::new(),
            reply: Some(v1::MetaReply { result: Some(reply), ..Default::default() }),
        }),
        Err(fault) => {
            let e = fault.refusal()?;
            Ok(v1::StoredReply { error: e.kind.code(), message: e.message, reply: None })
        }
    }
}

/// Encoded length of a message as one item of a list, to keep answers bounded.
pub(crate) fn item_len(message: &impl Message) -> usize {
    message.encoded_len() + 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;

    #[test]
    fn a_panic_is_undone_and_refused() {
        let memory = Memory::default();
        let base = memory.snapshot();
        let mut tx = Txn::new(&*base);
        tx.put_bytes(vec![1], "before".into());
        let outcome = attempt(&mut tx, |tx| {
            tx.put_bytes(vec![1], "over".into());
            tx.attempt(|tx| {
                tx.put_bytes(vec![2], "new".into());
                // What nobody has thought of.
                let short = std::hint::black_box(vec![0u8]);
                tx.put_bytes(vec![4], short[2..].to_vec().into());
                Ok::<_, Fault>(())
            })
        });
        assert_eq!(outcome.unwrap_err().refusal().unwrap().kind, ErrorKind::Internal);
        attempt(&mut tx, |tx| {
            tx.put_bytes(vec![3], "after".into());
            Ok(())
        })
        .unwrap();
        let kept = [(1, "before"), (3, "after")].map(|(k, v)| (vec![k], Some(v.into())));
        assert_eq!(tx.into_changes(), kept.into());
    }
}
