//! Sends spans to an OpenTelemetry collector, by OTLP over gRPC.
//!
//! Invariant: nobody waits for the collector, nor for who sends, which has threads of its own. What
//! is not taken in time is dropped.

use anyhow::{Context, Result};
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use weft_net::trace::{self, Ended, Side, Value};

/// The collector gets so long for what is left when this process ends.
const END_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Traces")]
pub struct CollectorArgs {
    /// OpenTelemetry collector that takes this process' part of traces, by OTLP over gRPC
    #[arg(long, env = "WEFT_OTLP", value_name = "http://HOST:PORT", value_parser = url)]
    otlp: Option<String>,
}

/// An empty one is none, as in all that OpenTelemetry reads from the environment.
fn url(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    match text.strip_prefix("http://") {
        Some(rest) if !rest.is_empty() => Ok(text.into()),
        _ => {
            Err("write http://HOST:PORT: for TLS, let a collector on this machine pass it on"
                .into())
        }
    }
}

/// Sends what is left when it is dropped.
pub struct Sending {
    processor: Arc<BatchSpanProcessor>,
    /// Moves what is sent.
    runtime: Option<Runtime>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Err(error) = self.processor.shutdown_with_timeout(END_TIMEOUT) {
            tracing::warn!("the last spans of traces are lost: {error}");
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Says when the collector takes nothing, and when it does again.
#[derive(Debug)]
struct Told {
    exporter: SpanExporter,
    otlp: String,
    fails: AtomicBool,
}

impl opentelemetry_sdk::trace::SpanExporter for Told {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        match (&exported, self.fails.swap(exported.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => {
                tracing::warn!("{} takes no traces, they are dropped: {error}", self.otlp);
            }
            (Ok(()), true) => tracing::info!("{} takes traces again", self.otlp),
            _ => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl CollectorArgs {
    /// Where spans are sent to, if anywhere.
    pub fn otlp(&self) -> Option<&String> {
        self.otlp.as_ref().filter(|url| !url.is_empty())
    }

    /// Sends spans from now on, if somebody takes them; of the operations that begin here, this
    /// `ratio` is traced. `service` and `name`: what this process is.
    pub fn start(&self, service: &'static str, name: &str, ratio: f64) -> Result<Option<Sending>> {
        let Some(otlp) = self.otlp() else { return Ok(None) };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("weft-traces")
            .enable_all()
            .build()
            .context("cannot start a thread that sends traces")?;
        let exporter = {
            let _inside = runtime.enter();
            SpanExporter::builder().with_tonic().with_endpoint(otlp).build()
        };
        let exporter = exporter.with_context(|| format!("cannot send traces to {otlp}"))?;
        let told = Told { exporter, otlp: otlp.clone(), fails: AtomicBool::new(false) };
        let mut processor = BatchSpanProcessor::builder(told).build();
        let resource = Resource::builder()
            .with_service_name(service)
            .with_attribute(KeyValue::new("service.instance.id", name.to_owned()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        processor.set_resource(&resource);
        let (processor, scope) =
            (Arc::new(processor), InstrumentationScope::builder("weft").build());
        let sending = Sending { processor: processor.clone(), runtime: Some(runtime) };
        trace::collect(ratio, move |ended| processor.on_end(span(ended, &scope)));
        tracing::info!("traces are sent to {otlp}");
        Ok(Some(sending))
    }
}

/// A span as OpenTelemetry has it.
fn span(ended: Ended, scope: &InstrumentationScope) -> SpanData {
    let place = SpanContext::new(
        TraceId::from(ended.context.trace),
        SpanId::from(ended.context.span),
        TraceFlags::SAMPLED,
        false,
        TraceState::default(),
    );
    let attribute = |(name, value): (&'static str, Value)| match value {
        Value::Text(text) => KeyValue::new(name, text),
        Value::Number(number) => KeyValue::new(name, number),
    };
    SpanData {
        span_context: place,
        parent_span_id: ended.parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: ended.remote,
        span_kind: match ended.side {
            Side::Internal => SpanKind::Internal,
            Side::Client => SpanKind::Client,
            Side::Server => SpanKind::Server,
        },
        name: ended.name.into(),
        start_time: ended.begun,
        end_time: ended.begun + ended.took,
        attributes: ended.attributes.into_iter().map(attribute).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: ended.error.map_or(Status::Unset, Status::error),
        instrumentation_scope: scope.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_named_by_what_can_be_reached() {
        assert_eq!(url("http://127.0.0.1:4317").unwrap(), "http://127.0.0.1:4317");
        assert!(CollectorArgs { otlp: Some(url("").unwrap()) }.otlp().is_none());
        for wrong in ["127.0.0.1:4317", "https://collector:4317", "http://"] {
            assert!(url(wrong).unwrap_err().contains("http://HOST:PORT"), "{wrong}");
        }
    }
}
