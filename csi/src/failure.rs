//! Errors of the filesystem, as an orchestrator hears of them.

use tonic::{Code, Status};
use weft_proto::{Error, ErrorKind};

/// What was to be done, and why it could not be.
pub fn failed(what: &str, error: Error) -> Status {
    let code = match error.kind {
        ErrorKind::NotFound | ErrorKind::Stale => Code::NotFound,
        ErrorKind::Exists => Code::AlreadyExists,
        ErrorKind::NoSpace | ErrorKind::Quota => Code::ResourceExhausted,
        ErrorKind::NotPermitted | ErrorKind::AccessDenied | ErrorKind::ReadOnly => {
            Code::PermissionDenied
        }
        ErrorKind::Busy => Code::Aborted,
        ErrorKind::TimedOut
        | ErrorKind::Unavailable
        | ErrorKind::NotLeader
        | ErrorKind::Disconnected
        | ErrorKind::SessionExpired => Code::Unavailable,
        ErrorKind::NotSupported | ErrorKind::NotDirectory => Code::FailedPrecondition,
        _ => Code::Internal,
    };
    Status::new(code, format!("{what}: {error}"))
}
