//! How every call is served: to its end, whoever goes meanwhile, and counted.

use prometheus::{HistogramVec, IntCounterVec, Opts};
use std::future::Future;
use std::sync::LazyLock;
use tokio::time::Instant;
use tonic::{Code, Response, Status};
use weft_net::metrics::{latencies, registered};

static SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    let help = "How long calls of the orchestrator take.";
    latencies("weft_csi_request_seconds", help, "op")
});

static ERRORS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Calls of the orchestrator that were answered with an error.";
    let opts = Opts::new("weft_csi_errors_total", help);
    registered(IntCounterVec::new(opts, &["op", "code"]))
});

/// Serves a call in a task of its own: who does not wait for the answer does not leave it half
/// done.
pub async fn serve<T: Send + 'static>(
    op: &'static str,
    call: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<Response<T>, Status> {
    let begun = Instant::now();
    let answer = match tokio::spawn(call).await {
        Ok(answer) => answer,
        Err(error) => Err(Status::internal(format!("{op} broke off: {error}"))),
    };
    SECONDS.with_label_values(&[op]).observe(begun.elapsed().as_secs_f64());
    if let Err(status) = &answer {
        ERRORS.with_label_values(&[op, name(status.code())]).inc();
        tracing::warn!(code = name(status.code()), "{op}: {}", status.message());
    }
    answer.map(Response::new)
}

/// As the specification of gRPC writes it.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
