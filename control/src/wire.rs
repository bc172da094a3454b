//! Errors of the control service as they cross gRPC: the kind in the metadata entry `weft-error`,
//! as the number of the [`ErrorKind`], and for `NotLeader` the leader's address in `weft-leader`.

use tonic::{Code, Status};
use weft_proto::{Error, ErrorKind};

const KIND: &str = "weft-error";
const LEADER: &str = "weft-leader";

/// An error as a server sends it. The code is for other clients of gRPC.
pub fn to_status(e: Error) -> Status {
    let code = match e.kind {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Invalid | ErrorKind::Protocol => Code::InvalidArgument,
        ErrorKind::WrongCluster => Code::FailedPrecondition,
        ErrorKind::Internal | ErrorKind::Io | ErrorKind::Corrupt => Code::Internal,
        _ => Code::Unavailable,
    };
    let mut status = Status::new(code, e.message);
    let metadata = status.metadata_mut();
    metadata.insert(KIND, e.kind.code().into());
    if let Ok(address) = e.hint.parse() {
        metadata.insert(LEADER, address);
    }
    status
}

/// The error that a server sent, with the leader's address as hint where it knows one;
/// `Unavailable` for what came from gRPC itself.
pub fn from_status(status: &Status) -> Error {
    let entry = |name| status.metadata().get(name).and_then(|v| v.to_str().ok());
    let kind = entry(KIND).and_then(|code| code.parse().ok()).map(ErrorKind::from_code);
    let message = match (kind, status.message()) {
        // Tonic has no message for some of its own.
        (None, "") => status.code().description(),
        (_, message) => message,
    };
    let mut error = Error::new(kind.unwrap_or(ErrorKind::Unavailable), message);
    error.hint = entry(LEADER).unwrap_or_default().to_string();
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_cross_as_they_are() {
        for kind in [ErrorKind::NotLeader, ErrorKind::WrongCluster, ErrorKind::NotFound] {
            let error = Error { kind, message: "why".into(), hint: "10.0.0.1:7100".into() };
            assert_eq!(from_status(&to_status(error.clone())), error);
            let unhinted = Error { hint: String::new(), ..error };
            assert_eq!(from_status(&to_status(unhinted.clone())), unhinted);
        }
        let error = from_status(&Status::new(Code::Unavailable, ""));
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(!error.message.is_empty());
        let mut odd = Status::unknown("odd");
        odd.metadata_mut().insert(KIND, "x".parse().unwrap());
        assert_eq!(from_status(&odd), Error::new(ErrorKind::Unavailable, "odd"));
    }
}
