//! What is counted of requests, for Prometheus: of those that are served here, and of those that
//! others are asked.
//!
//! Counts are of the process. Labels have few values: operations and kinds of errors.

use crate::sync::{Mutex, MutexGuard};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
};
use std::sync::{LazyLock, OnceLock};
use tokio::time::Instant;
use weft_proto::{ErrorKind, Result, op};

/// Upper bounds of the classes that latencies are counted in, in seconds.
pub const LATENCIES: &[f64] = &[
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0,
];
/// Codes of operations are below.
const CODES: usize = 64;
/// Kinds of errors, and that a request was given up.
const KINDS: usize = ErrorKind::ALL.len() + 1;

/// All that is counted of one sort of requests.
pub(crate) struct Family {
    seconds: HistogramVec,
    errors: IntCounterVec,
    received: IntCounterVec,
    sent: IntCounterVec,
    running: IntGaugeVec,
    operations: [OnceLock<Operation>; CODES],
}

/// What is counted of one operation.
pub(crate) struct Operation {
    pub name: &'static str,
    family: &'static IntCounterVec,
    /// By the place of their kind. Looked up without a lock: another thread may hold it for ever
    /// where this process was forked.
    errors: [OnceLock<IntCounter>; KINDS],
    seconds: Histogram,
    received: IntCounter,
    sent: IntCounter,
    running: IntGauge,
}

/// Requests that are served here.
pub(crate) static SERVED: LazyLock<Family> = LazyLock::new(|| Family::new("server", "served here"));
/// Requests that others are asked.
pub(crate) static ASKED: LazyLock<Family> =
    LazyLock::new(|| Family::new("client", "others are asked"));

/// Held while errors of a kind are counted for the first time: Prometheus' own lock is taken then.
static MAKING: Mutex<()> = Mutex::new(());

/// Keeps everything that is counted of requests to others as it is, made as a whole: a process that
/// is forked meanwhile finds nothing half made, which it would wait for.
pub(crate) fn hold() -> MutexGuard<'static, ()> {
    LazyLock::force(&CARRIED);
    for code in 0..CODES as u16 {
        let _ = ASKED.of(code);
    }
    MAKING.lock()
}

/// Connections that are open to this process.
pub(crate) static CONNECTIONS: LazyLock<IntGauge> = LazyLock::new(|| {
    registered(IntGauge::new("weft_server_connections", "Connections that others have opened."))
});

/// What carries connections.
pub(crate) const NETWORKS: [&str; 3] = ["tcp", "tls", "rdma"];

/// Connections that are open, by side and what carries them. Looked up without a lock, as errors
/// are.
static CARRIED: LazyLock<[[IntGauge; NETWORKS.len()]; 2]> = LazyLock::new(|| {
    let opts = Opts::new("weft_connections", "Open connections, by side and what carries them.");
    let all: IntGaugeVec = registered(IntGaugeVec::new(opts, &["side", "network"]));
    ["client", "server"].map(|side| NETWORKS.map(|network| all.with_label_values(&[side, network])))
});

/// Connections to others, or from others (`served`), that this network carries.
pub(crate) fn carried(served: bool, network: &str) -> &'static IntGauge {
    let at = NETWORKS.iter().position(|known| *known == network).unwrap_or_default();
    &CARRIED[usize::from(served)][at]
}

/// What is counted of RDMA.
pub(crate) mod rdma {
    use super::registered;
    use prometheus::{IntCounter, IntGauge};
    use std::sync::LazyLock;

    /// What is not reached over RDMA now.
    pub static FALLBACK_SERVERS: LazyLock<IntGauge> = LazyLock::new(|| {
        registered(IntGauge::new(
            "weft_rdma_fallback_servers",
            "Servers that are reached over TCP now because they could not be over RDMA.",
        ))
    });

    /// Connections that were to be made over RDMA and could not.
    pub static FALLBACKS: LazyLock<IntCounter> = LazyLock::new(|| {
        registered(IntCounter::new(
            "weft_rdma_fallbacks_total",
            "Connections that go over TCP because they could not be made over RDMA.",
        ))
    });

    /// Payload that crossed in messages, or lay in memory that the card does not know.
    pub static COPIED: LazyLock<IntCounter> = LazyLock::new(|| {
        registered(IntCounter::new(
            "weft_rdma_copied_bytes_total",
            "Payload that was copied on its way over RDMA: small, or in memory of its own.",
        ))
    });
}

/// Makes something that is counted known. There is one of each name: what it is called is in the
/// code.
pub fn registered<M: prometheus::core::Collector + Clone + 'static>(
    made: prometheus::Result<M>,
) -> M {
    let made = made.expect("a name and labels as Prometheus has them");
    if let Err(error) = prometheus::register(Box::new(made.clone())) {
        tracing::error!(%error, "something is counted twice");
    }
    made
}

/// Latencies by one label.
pub fn latencies(name: &str, help: &str, label: &str) -> HistogramVec {
    let opts = HistogramOpts::new(name, help).buckets(LATENCIES.to_vec());
    registered(HistogramVec::new(opts, &[label]))
}

impl Family {
    fn new(side: &str, what: &str) -> Self {
        let name = |name: &str| format!("weft_{side}_{name}");
        let counter = |short: &str, help: &str, labels: &[&str]| {
            registered(IntCounterVec::new(Opts::new(name(short), help), labels))
        };
        let op = &["op"][..];
        Self {
            seconds: latencies(
                &name("request_seconds"),
                &format!("How long requests take that are {what}."),
                "op",
            ),
            errors: counter(
                "errors_total",
                &format!("Requests {what} that were answered with an error."),
                &["op", "error"],
            ),
            received: counter(
                "received_bytes_total",
                &format!("Payload that came with requests {what}."),
                op,
            ),
            sent: counter(
                "sent_bytes_total",
                &format!("Payload that left, of requests {what}."),
                op,
            ),
            running: registered(IntGaugeVec::new(
                Opts::new(name("requests"), format!("Requests {what} that have no answer yet.")),
                op,
            )),
            operations: [const { OnceLock::new() }; CODES],
        }
    }

    /// `None`: nothing has this code, and a stranger does not fill memory with such.
    pub fn of(&'static self, code: u16) -> Option<&'static Operation> {
        let place = self.operations.get(usize::from(code))?;
        let name = op::name_of(code)?;
        Some(place.get_or_init(|| Operation {
            name,
            family: &self.errors,
            errors: [const { OnceLock::new() }; KINDS],
            seconds: self.seconds.with_label_values(&[name]),
            received: self.received.with_label_values(&[name]),
            sent: self.sent.with_label_values(&[name]),
            running: self.running.with_label_values(&[name]),
        }))
    }
}

impl Operation {
    /// A request begins.
    pub fn begin(&self) -> Running<'_> {
        self.running.inc();
        Running { of: self, begun: Instant::now(), ended: false }
    }
}

/// A request that has no answer yet. One that is given up counts with the time until then.
pub(crate) struct Running<'a> {
    of: &'a Operation,
    begun: Instant,
    ended: bool,
}

impl Running<'_> {
    /// It was answered.
    pub fn end<T>(mut self, answer: &Result<T>) {
        self.ended = true;
        if let Err(error) = answer {
            let place = ErrorKind::ALL.iter().position(|kind| *kind == error.kind);
            self.count_error(place.unwrap_or(0), error.kind.name());
        }
    }

    fn count_error(&self, place: usize, kind: &str) {
        let Operation { name, family, errors, .. } = self.of;
        let counter = errors[place].get().cloned().unwrap_or_else(|| {
            let _making = MAKING.lock();
            errors[place].get_or_init(|| family.with_label_values(&[name, kind])).clone()
        });
        counter.inc();
    }

    pub fn received(&self, bytes: usize) {
        self.of.received.inc_by(bytes as u64);
    }

    pub fn sent(&self, bytes: usize) {
        self.of.sent.inc_by(bytes as u64);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.of.running.dec();
        self.of.seconds.observe(self.begun.elapsed().as_secs_f64());
        if !self.ended {
            self.count_error(KINDS - 1, "Abandoned");
        }
    }
}
