//! Operations of a mount are followed through all processes that have a part in them, by what
//! OpenTelemetry's collectors are sent.

use anyhow::{Context, Result, ensure};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use weft_tests::{Cluster, Shape, eventually};

const PATIENCE: Duration = Duration::from_secs(60);

/// What was sent: spans, each with the service that it is of.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let mut all = self.0.lock().unwrap();
        for of in request.into_inner().resource_spans {
            let attributes = of.resource.map(|r| r.attributes).unwrap_or_default();
            let service = attributes.iter().find(|a| a.key == "service.name");
            let service = service.and_then(|a| a.value.clone()?.value);
            let Some(Value::StringValue(service)) = service else { continue };
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            all.extend(spans.map(|span| (service.clone(), span)));
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves on a port of its own, until the runtime ends. Answers where.
    fn start(&self, runtime: &Runtime) -> Result<String> {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let url = format!("http://{}", listener.local_addr()?);
        let service = TraceServiceServer::new(self.clone());
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        runtime.spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            let _ = server.serve_with_incoming(incoming).await;
        });
        Ok(url)
    }

    /// Finds a span by what it is a part of: names with their services and kinds, the innermost
    /// first.
    fn find(&self, chain: &[(&str, &str, SpanKind)]) -> Option<Span> {
        let all = self.0.lock().unwrap();
        let by_id: HashMap<&[u8], &(String, Span)> =
            all.iter().map(|of| (&*of.1.span_id, of)).collect();
        let is = |(service, span): &(String, Span), (name, of, kind): (&str, &str, SpanKind)| {
            span.name == name && service == of && span.kind() == kind
        };
        let fits = |of: &&(String, Span)| {
            let mut at = Some(*of);
            for wanted in chain {
                let Some(of) = at.filter(|of| is(of, *wanted)) else { return false };
                at = by_id.get(&*of.1.parent_span_id).copied();
            }
            // And so on, to the beginning of the operation.
            let mut last = at;
            while let Some(of) = at {
                (last, at) = (at, by_id.get(&*of.1.parent_span_id).copied());
            }
            last.is_some_and(|of| of.1.parent_span_id.is_empty() && of.0 == "weft-mount")
        };
        all.iter().find(fits).map(|of| of.1.clone())
    }
}

#[test]
fn an_operation_is_followed_from_the_mount_to_the_drives() -> Result<()> {
    use SpanKind::{Client, Internal, Server};
    let runtime = Runtime::new()?;
    let collector = Collector::default();
    let url = collector.start(&runtime)?;
    let environment = vec![("WEFT_OTLP", url.clone()), ("WEFT_TRACE_RATIO", "1".into())];
    let shape = Shape { storage: 3, profile: "2+1", environment, ..Shape::default() };
    let cluster = Cluster::start_as(shape)?;
    let mut file = File::create(cluster.mnt().join("a-secret-name"))?;
    file.write_all(&vec![7; 3 << 20])?;
    file.sync_all()?;
    // Another knows nothing of it yet.
    let reader = cluster.mount_with("reader", &["--otlp", &url, "--trace-ratio", "1"])?;
    let mut content = Vec::new();
    File::open(reader.join("a-secret-name"))?.read_to_end(&mut content)?;
    ensure!(content == vec![7; 3 << 20]);

    let mount = |name, kind| (name, "weft-mount", kind);
    let storage = |name, kind| (name, "weft-storaged", kind);
    let metadata = |name, kind| (name, "weft-metadata", kind);
    let stored = [
        storage("store", Internal),
        storage("PUT", Server),
        mount("PUT", Client),
        mount("put segment", Internal),
    ];
    // In a request of its own, or with those that tell of the new file.
    let committed = ["CommitExtents", "Batch"].map(|by| {
        [
            metadata("commit", Internal),
            metadata(by, Internal),
            metadata("META", Server),
            mount("META", Client),
        ]
    });
    let read = [
        storage("read", Internal),
        storage("GET", Server),
        mount("GET", Client),
        mount("get segment", Internal),
    ];
    for chain in [&stored, &read] {
        eventually(PATIENCE, chain[0].0, || collector.find(chain))?;
    }
    eventually(PATIENCE, "the commit", || committed.iter().find_map(|of| collector.find(of)))?;
    let on_a_drive = collector.find(&stored).context("it was there")?;
    ensure!(on_a_drive.attributes.iter().any(|a| a.key == "weft.target"), "{on_a_drive:?}");
    eventually(PATIENCE, "the fsync", || {
        let all = collector.0.lock().unwrap();
        all.iter().any(|(_, s)| s.name == "FSYNC" && s.parent_span_id.is_empty()).then_some(())
    })?;
    // Who reads traces learns no names.
    let told = format!("{:?}", collector.0.lock().unwrap());
    ensure!(!told.contains("secret"), "a name was told");

    // Nobody waits for a collector that has gone.
    drop(runtime);
    fs::write(cluster.mnt().join("later"), vec![7; 1 << 20])?;
    File::open(cluster.mnt().join("later"))?.sync_all()?;
    Ok(())
}
