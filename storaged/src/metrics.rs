//! What Prometheus reads of a storage daemon, beside the requests that it serves
//! (`docs/metrics.md`).

use crate::engine::Engine;
use crate::service::{STALL, Targets};
use std::sync::Arc;
use weft_control::{Page, Pages, Values, metrics};
use weft_proto::v1::TargetStat;

/// What there is to read.
pub(crate) struct Metrics(pub Arc<Targets>);

#[async_trait::async_trait]
impl Pages for Metrics {
    async fn page(&self, path: &str) -> Option<Page> {
        (path == "/metrics").then(|| metrics(values(&self.0)))
    }
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

fn values(targets: &Targets) -> Values {
    let engines = targets.engines();
    let stats: Vec<TargetStat> = engines.iter().map(|(_, engine)| engine.stat()).collect();
    let mut all = Values::default();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    all.each("weft_build_info", "The version of this process.", "version", [(version, 1.0)]);
    let away = targets.away();
    let help = "Whether a target of this daemon can be used.";
    let works = |engine: &Engine| engine.failure().is_none() && engine.stalled() < STALL;
    let usable = engines.iter().map(|(id, engine)| (id.0.to_string(), flag(works(engine))));
    let usable = usable.chain(away.iter().map(|id| (id.to_string(), 0.0)));
    all.each("weft_target_usable", help, "target", usable);
    let mut each = |name: &str, help: &str, value: &dyn Fn(&TargetStat) -> f64| {
        let values = stats.iter().map(|stat| (stat.target.to_string(), value(stat)));
        all.each(name, help, "target", values);
    };
    each("weft_target_capacity_bytes", "Bytes that it can hold.", &|s| s.capacity_bytes as f64);
    each("weft_target_used_bytes", "Bytes that it holds.", &|s| s.used_bytes as f64);
    each("weft_target_chunks", "Chunks that it holds.", &|s| s.chunks as f64);
    let help = "Reads that its drive has failed, since it was opened.";
    each("weft_target_read_errors", help, &|s| s.read_errors as f64);
    let help = "Writes that its drive has failed, since it was opened.";
    each("weft_target_write_errors", help, &|s| s.write_errors as f64);
    let help = "Blocks that did not match their checksums, since it was opened.";
    each("weft_target_checksum_errors", help, &|s| s.checksum_errors as f64);
    let help = "Group commits, since it was opened.";
    each("weft_target_commits", help, &|s| s.commits as f64);
    let help = "How long its drive has not answered its oldest request.";
    each("weft_target_stalled_seconds", help, &|s| s.stalled_ms as f64 / 1e3);
    let help = "Whether the disk of its index has less room left than its reserve.";
    each("weft_target_index_full", help, &|s| flag(s.index_full));
    let help = "When all that it holds was last read and compared; 0: never.";
    let scrubbed = |s: &TargetStat| s.scrub.map_or(0, |scrub| scrub.last_s) as f64;
    each("weft_target_scrubbed_timestamp_seconds", help, &scrubbed);
    all
}
