//! What Prometheus is told.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};
use std::sync::LazyLock;
use weft_net::metrics::registered;

/// All that is counted.
pub struct Metrics {
    /// Bytes that reads had from this drive.
    pub hits: IntCounter,
    /// Bytes that the targets had to be asked for.
    pub misses: IntCounter,
    /// Bytes that were put here.
    pub written: IntCounter,
    /// Bytes of pieces that came faster than the drive takes them.
    pub dropped: IntCounter,
    /// Records that were not as they were put.
    pub corrupt: IntCounter,
    /// Reads and writes of the drive that failed, or took too long.
    pub errors: IntCounter,
    /// Bytes that are kept.
    pub kept: IntGauge,
    /// Bytes that there is room for; 0 while the drive cannot be used.
    pub size: IntGauge,
}

/// Of this process.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let counter = |name, help| registered(IntCounter::new(name, help));
    let gauge = |name, help| registered(IntGauge::new(name, help));
    let help = "Content that was read, by where it came from.";
    let read = Opts::new("weft_hot_read_bytes_total", help);
    let read: IntCounterVec = registered(IntCounterVec::new(read, &["from"]));
    let from = |whence: &str| read.with_label_values(&[whence]);
    Metrics {
        hits: from("drive"),
        misses: from("targets"),
        written: counter("weft_hot_written_bytes_total", "Content put into the hot tier."),
        dropped: counter(
            "weft_hot_dropped_bytes_total",
            "Content that came faster than the drive of the hot tier takes it.",
        ),
        corrupt: counter(
            "weft_hot_corrupt_total",
            "Records of the hot tier that did not match their checksums.",
        ),
        errors: counter(
            "weft_hot_errors_total",
            "Reads and writes of the hot tier's drive that failed or took too long.",
        ),
        kept: gauge("weft_hot_kept_bytes", "Content in the hot tier."),
        size: gauge(
            "weft_hot_size_bytes",
            "Room of the hot tier; 0 while its drive cannot be used.",
        ),
    }
});
