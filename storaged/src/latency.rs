//! How long clients wait for targets.

use prometheus::HistogramVec;
use std::sync::LazyLock;

/// How long reads and writes of clients take at the targets of this daemon, with their turns, and
/// without what is put off on purpose: rates, and reads in the background.
pub(crate) static SERVED: LazyLock<HistogramVec> = LazyLock::new(|| {
    let help = "How long reads and writes of clients take, without what is put off on purpose.";
    weft_net::metrics::latencies("weft_target_request_seconds", help, "op")
});
