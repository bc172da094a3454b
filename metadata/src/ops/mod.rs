//! The operations of the state machine, one a file ([`crate::operation`]), and which of them
//! carries a request out.
//!
//! Permissions are the business of the client's kernel; what is checked here is structure.

mod accessed;
mod batch;
mod change_members;
mod close_session;
mod commit_extents;
mod compacted;
mod copy_range;
mod count_owners;
mod create;
mod expire_session;
mod fallocate;
mod forget_target;
mod get_attr;
mod get_extents;
mod get_layout;
mod get_quota;
mod get_usage;
mod get_xattr;
mod init_cluster;
mod link;
mod list_segments;
mod list_xattr;
mod lookup;
mod make;
mod make_files;
mod mend;
mod mk_dir;
mod mk_nod;
mod move_extents;
mod move_seats;
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
mod set_attr;
mod set_layout;
mod set_lock;
mod set_pgs;
mod set_qos;
mod set_quota;
mod set_server;
mod set_target_state;
mod set_xattr;
mod stat_fs;
mod step_quota;
mod sym_link;
mod tmp_file;
mod trim_files;
mod unlink;

pub(crate) use accessed::MAX_ACCESSES;
pub(crate) use batch::MAX_STEPS;
pub(crate) use compacted::MAX_FILES as MAX_COMPACTED;
pub(crate) use create::{LONGEST_THERE, there as create_reply};
pub(crate) use list_xattr::{SHORT_ALL, short_xattrs};
pub(crate) use mend::LOST_FOUND;
pub(crate) use move_seats::MAX_MOVES;
pub(crate) use open::{BYTES_OF_MANY, bare_open_reply, open_reply, short_open_reply};
pub use open_session::SESSION_TTL_MS;
pub(crate) use reserve_inodes::{known_level, knows_batches, raise_level};
pub(crate) use step_quota::STEP as QUOTA_STEP;

use crate::check;
use crate::operation::{ATTR, BRIEF, Change, Fault, GRANT, Query, Reply, refuse};
use crate::store::Read;
use v1::log_entry::Body;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, v1};

/// What carries a request out.
enum Handler<'a> {
    /// The state, as it is.
    Read(&'a dyn Query),
    /// The log.
    Change(&'a dyn Change),
    /// The soft state of the leader, which answers no more bytes than this, but for what comes
    /// along. Others may wait for long, and are answered in few words, or in as many as they asked
    /// with.
    Soft { longest: usize },
}

/// Who carries each operation out, in agreement with [`weft_proto::Kind`].
fn handler(op: &Op) -> Handler<'_> {
    use Handler::{Change, Read, Soft};
    match op {
        Op::Lookup(op) => Read(op),
        Op::GetAttr(op) => Read(op),
        Op::ReadDir(op) => Read(op),
        Op::ReadLink(op) => Read(op),
        Op::GetXattr(op) => Read(op),
        Op::ListXattr(op) => Read(op),
        Op::StatFs(op) => Read(op),
        Op::GetExtents(op) => Read(op),
        Op::GetLayout(op) => Read(op),
        Op::ListSegments(op) => Read(op),
        Op::Check(op) => Read(op),
        Op::GetUsage(op) => Read(op),
        Op::GetQuota(op) => Read(op),
        Op::ListQuotas(op) => Read(op),
        Op::Open(_) | Op::Lease(_) => Soft { longest: open::LONGEST },
        Op::LeaseMany(op) => Soft { longest: BRIEF + op.inos.len() * (ATTR + GRANT) },
        Op::LookupMany(_) => Soft { longest: open::LONGEST_OF_MANY },
        Op::Close(_)
        | Op::Renew(_)
        | Op::ReturnLeases(_)
        | Op::Recalls(_)
        | Op::Map(_)
        | Op::GetLock(_)
        | Op::WaitLock(_)
        | Op::CancelLock(_)
        | Op::EndSession(_) => Soft { longest: 0 },
        Op::Mend(_) => Soft { longest: check::LONGEST },
        Op::OpenSession(op) => Change(op),
        Op::CloseSession(op) => Change(op),
        Op::Create(op) => Change(op),
        Op::TmpFile(op) => Change(op),
        Op::MkNod(op) => Change(op),
        Op::MkDir(op) => Change(op),
        Op::SymLink(op) => Change(op),
        Op::Link(op) => Change(op),
        Op::Unlink(op) => Change(op),
        Op::RmDir(op) => Change(op),
        Op::Rename(op) => Change(op),
        Op::SetAttr(op) => Change(op),
        Op::SetXattr(op) => Change(op),
        Op::RemoveXattr(op) => Change(op),
        Op::SetLayout(op) => Change(op),
        Op::SetLock(op) => Change(op),
        Op::CommitExtents(op) => Change(op),
        Op::Fallocate(op) => Change(op),
        Op::CopyRange(op) => Change(op),
        Op::Accessed(op) => Change(op),
        Op::ReserveInodes(op) => Change(op),
        Op::MakeFiles(op) => Change(op),
        Op::Batch(op) => Change(op),
        Op::SetQuota(op) => Change(op),
    }
}

/// Answers a read; anything else is refused.
pub(crate) fn query(op: Option<&Op>, state: &dyn Read) -> Result<Reply, Fault> {
    match op.map(handler) {
        Some(Handler::Read(query)) => query.answer(state),
        _ => refuse(ErrorKind::Protocol, "this request is not a read of the metadata state"),
    }
}

/// Whether a query reads one record only and so needs no snapshot.
pub(crate) fn is_single_read(op: Option<&Op>) -> bool {
    matches!(op.map(handler), Some(Handler::Read(query)) if query.is_single_read())
}

/// Bytes that the answer to a query or an open is no longer than, but for what comes along.
pub(crate) fn longest(op: &Op) -> usize {
    match handler(op) {
        Handler::Read(query) => query.longest(),
        Handler::Soft { longest } => longest,
        Handler::Change(_) => 0,
    }
}

/// The change that a request asks for, if it is one.
pub(crate) fn change(op: &Op) -> Option<&dyn Change> {
    match handler(op) {
        Handler::Change(change) => Some(change),
        Handler::Read(_) | Handler::Soft { .. } => None,
    }
}

/// The change that an entry of the leader's own is; nothing: it is of the group, or of a session.
pub(crate) fn of_leader(body: &Body) -> Option<&dyn Change> {
    match body {
        Body::InitCluster(op) => Some(op),
        Body::RegisterTarget(op) => Some(op),
        Body::SetTargetState(op) => Some(op),
        Body::SetPgs(op) => Some(op),
        Body::ExpireSession(op) => Some(op),
        Body::PurgeInodes(op) => Some(op),
        Body::SegmentsFreed(op) => Some(op),
        Body::TrimFiles(op) => Some(op),
        Body::MoveSeats(op) => Some(op),
        Body::SetServer(op) => Some(op),
        Body::ChangeMembers(op) => Some(op),
        Body::OpenWriter(op) => Some(op),
        Body::MoveExtents(op) => Some(op),
        Body::Compacted(op) => Some(op),
        Body::Mend(op) => Some(op),
        Body::StepQuota(op) => Some(op),
        Body::CountOwners(op) => Some(op),
        Body::SetQos(op) => Some(op),
        Body::ForgetTarget(op) => Some(op),
        Body::Client(_) | Body::AdmitServer(_) | Body::Note(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::Kind;

    #[test]
    fn who_carries_an_operation_out_is_of_its_kind() {
        for op in Op::every() {
            let agree = match handler(&op) {
                Handler::Read(_) => op.kind() == Kind::Read,
                Handler::Change(_) => matches!(op.kind(), Kind::Change | Kind::Session),
                Handler::Soft { .. } => op.kind() == Kind::Soft,
            };
            assert!(agree, "{op:?}");
        }
    }
}
