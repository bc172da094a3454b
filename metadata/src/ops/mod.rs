//! The operations of the state machine, one a file.
//!
//! A replicated operation is an [`Operation`]: `check` reads the state and either refuses or
//! answers a plan; `apply` carries the plan out. `check` cannot write and `apply` cannot refuse, so a
//! refused operation leaves nothing behind. A read is a [`Query`]. Neither sees a clock, a socket
//! or randomness: time and random ids come in the log entry.
//!
//! An operation that meets records which make no sense, or panics, is undone and refused, loudly: every
//! replica has the same records and refuses the same one, where stopping would stop them all, at every
//! start again. Only a store that fails stops its replica, and a record that does not even read: that
//! happened to this replica alone.
//!
//! Permissions are the business of the client's kernel; what is checked here is structure.

mod accessed;
mod acl;
mod check;
mod close_session;
mod cluster;
mod commit_extents;
mod content;
mod copy_range;
mod create;
mod fallocate;
mod get_attr;
mod get_extents;
mod get_layout;
mod get_xattr;
mod init_cluster;
mod inodes;
mod link;
mod list_segments;
mod list_xattr;
mod locks;
mod lookup;
mod make_files;
mod mk_dir;
mod mk_nod;
mod names;
mod open;
mod open_session;
mod purge_inodes;
mod read_dir;
mod read_link;
mod register_target;
mod remove_xattr;
mod rename;
mod reserve_inodes;
mod rm_dir;
mod segments_freed;
mod session;
mod set_attr;
mod set_layout;
mod set_lock;
mod set_pgs;
mod set_target_state;
mod set_xattr;
mod stat_fs;
mod sym_link;
mod tmp_file;
mod trim_files;
mod unlink;

pub(crate) use cluster::cluster_map;
pub(crate) use list_xattr::{SHORT_ALL, short_xattrs};
pub(crate) use locks::{conflict as lock_conflict, of_inode as locks_of, others_hold};
pub(crate) use open::open_reply;
pub use open_session::SESSION_TTL_MS;

use crate::store::{Read, StoreError, StoreResult, Txn};
use prost::Message;
use std::panic::{AssertUnwindSafe, catch_unwind};
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
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
    fn refusal(self) -> StoreResult<Error> {
        match self {
            Self::Refused(e) => Ok(e),
            Self::Store(e) if e.is_of_content() => {
                tracing::error!("an operation is refused, since what it found makes no sense: {e}");
                // The text becomes part of the state: what was found depends on the version's words.
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
fn refuse<T>(kind: ErrorKind, what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Refused(Error::new(kind, what)))
}

/// What comes to an operation beside its own fields.
pub(crate) struct Context {
    /// Time of the entry, nanoseconds since 1970.
    pub now: i64,
    /// Who asks; nobody for entries of the leader's own.
    pub session: SessionId,
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

/// A question about the state.
pub(crate) trait Query {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault>;

    /// Bytes that no answer is longer than.
    fn longest(&self) -> usize {
        BRIEF
    }
}

/// An answer that holds no list and no content is no longer, in bytes; nor are attributes, an extent without
/// content, and the record of a segment.
const BRIEF: usize = 512;
const ATTR: usize = 256;
const EXTENT: usize = 96;
const SEGMENT: usize = 160;
/// A lease.
pub(crate) const GRANT: usize = 96;

fn run<O: Operation>(op: &O, tx: &mut Txn<'_>, cx: &Context) -> Result<Reply, Fault> {
    attempt(tx, |tx| {
        let plan = op.check(tx.state(), cx)?;
        Ok(op.apply(plan, tx, cx)?)
    })
}

/// Does something as a whole or not at all. What panics met something that nobody has thought of, and is
/// the same on every replica.
fn attempt<T>(
    tx: &mut Txn<'_>,
    work: impl FnOnce(&mut Txn<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    tx.attempt(|tx| {
        let caught = catch_unwind(AssertUnwindSafe(|| work(tx)));
        caught.unwrap_or_else(|_| Err(StoreError::corrupt("an operation panicked").into()))
    })
}

const EMPTY: Reply = Reply::Empty(v1::Empty {});

/// Answers a read; anything else is refused.
pub(crate) fn query(op: Option<&Op>, state: &dyn Read) -> Result<Reply, Fault> {
    match op {
        Some(Op::Lookup(op)) => op.answer(state),
        Some(Op::GetAttr(op)) => op.answer(state),
        Some(Op::ReadDir(op)) => op.answer(state),
        Some(Op::ReadLink(op)) => op.answer(state),
        Some(Op::GetXattr(op)) => op.answer(state),
        Some(Op::ListXattr(op)) => op.answer(state),
        Some(Op::StatFs(op)) => op.answer(state),
        Some(Op::GetExtents(op)) => op.answer(state),
        Some(Op::GetLayout(op)) => op.answer(state),
        Some(Op::ListSegments(op)) => op.answer(state),
        Some(Op::Check(op)) => op.answer(state),
        _ => refuse(ErrorKind::Protocol, "this request is not a read of the metadata state"),
    }
}

/// Bytes that the answer to a query or an open is no longer than, but for what comes along. Others may wait for
/// long, and are answered in few words, or in as many as they asked with.
pub(crate) fn longest(op: &Op) -> usize {
    match op {
        Op::Open(_) | Op::Lease(_) => open::LONGEST,
        Op::ReadDir(op) => op.longest(),
        Op::ReadLink(op) => op.longest(),
        Op::GetXattr(op) => op.longest(),
        Op::ListXattr(op) => op.longest(),
        Op::GetExtents(op) => op.longest(),
        Op::ListSegments(op) => op.longest(),
        Op::Check(op) => op.longest(),
        Op::Lookup(_) | Op::GetAttr(_) | Op::StatFs(_) | Op::GetLayout(_) => BRIEF,
        _ => 0,
    }
}

/// Whether a query reads one record only and so needs no snapshot.
pub(crate) fn is_single_read(op: Option<&Op>) -> bool {
    matches!(op, Some(Op::GetAttr(_) | Op::ReadLink(_) | Op::StatFs(_) | Op::GetLayout(_)))
}

/// Applies one entry of the log. Fails only if the store does.
pub(crate) fn apply(tx: &mut Txn<'_>, entry: &v1::LogEntry) -> StoreResult<v1::StoredReply> {
    // The records of the session itself may make no sense, too.
    attempt(tx, |tx| Ok(apply_body(tx, entry)?)).or_else(|fault| stored(Err(fault)))
}

fn apply_body(tx: &mut Txn<'_>, entry: &v1::LogEntry) -> StoreResult<v1::StoredReply> {
    let cx = Context { now: entry.time_ns, session: SessionId(0) };
    let outcome = match &entry.body {
        Some(Body::Client(request)) => return session::apply(tx, entry.time_ns, request),
        Some(Body::InitCluster(op)) => run(op, tx, &cx),
        Some(Body::RegisterTarget(op)) => run(op, tx, &cx),
        Some(Body::SetTargetState(op)) => run(op, tx, &cx),
        Some(Body::SetPgs(op)) => run(op, tx, &cx),
        Some(Body::ExpireSession(op)) => run(op, tx, &cx),
        Some(Body::PurgeInodes(op)) => run(op, tx, &cx),
        Some(Body::SegmentsFreed(op)) => run(op, tx, &cx),
        // Of the group, not of the state.
        Some(Body::AdmitServer(_)) => Ok(EMPTY),
        Some(Body::TrimFiles(op)) => run(op, tx, &cx),
        None => refuse(ErrorKind::Protocol, "log entry of an unknown kind"),
    };
    stored(outcome)
}

/// Runs an operation of a session.
fn replicated(op: &Op, tx: &mut Txn<'_>, cx: &Context) -> Result<Reply, Fault> {
    match op {
        Op::Create(op) => run(op, tx, cx),
        Op::TmpFile(op) => run(op, tx, cx),
        Op::MkNod(op) => run(op, tx, cx),
        Op::MkDir(op) => run(op, tx, cx),
        Op::SymLink(op) => run(op, tx, cx),
        Op::Link(op) => run(op, tx, cx),
        Op::Unlink(op) => run(op, tx, cx),
        Op::RmDir(op) => run(op, tx, cx),
        Op::Rename(op) => run(op, tx, cx),
        Op::SetAttr(op) => run(op, tx, cx),
        Op::SetXattr(op) => run(op, tx, cx),
        Op::RemoveXattr(op) => run(op, tx, cx),
        Op::SetLayout(op) => run(op, tx, cx),
        Op::SetLock(op) => run(op, tx, cx),
        Op::CommitExtents(op) => run(op, tx, cx),
        Op::Fallocate(op) => run(op, tx, cx),
        Op::CopyRange(op) => run(op, tx, cx),
        Op::Accessed(op) => run(op, tx, cx),
        Op::ReserveInodes(op) => run(op, tx, cx),
        // Each file by itself.
        Op::MakeFiles(op) => Ok(make_files::run(op, tx, cx)?),
        _ => refuse(ErrorKind::Protocol, "this request is not a replicated operation"),
    }
}

/// The outcome as it is stored and sent; a failure of the store passes through.
fn stored(outcome: Result<Reply, Fault>) -> StoreResult<v1::StoredReply> {
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
fn item_len(message: &impl Message) -> usize {
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
