//! What people and monitors read of a process over HTTP/1: pages, and nothing that changes
//! anything.
//!
//! It is answered on the port that all else is on, so that certificates are for this, too
//! ([`may_read`]).

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, GaugeVec, Opts, TextEncoder};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use weft_net::{BoxStream, Subject};

/// Who has not sent a request by then is cut off.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// And who has not taken the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// A page is made anew no more often than this, however many read it.
const FRESH: Duration = Duration::from_secs(1);
/// Readers at a time.
const READERS: usize = 32;

/// What is read.
#[derive(Clone)]
pub struct Page {
    /// As HTTP names what it is.
    pub content_type: &'static str,
    /// All of it.
    pub body: Bytes,
}

/// The page that was made last, and when.
type Last = Mutex<Option<(String, Instant, Page)>>;

struct Reading {
    pages: Arc<dyn Pages>,
    last: Last,
}

impl Reading {
    /// Who comes while a page is being made waits for that.
    async fn page(&self, path: &str) -> Option<Page> {
        let mut last = self.last.lock().await;
        if let Some((of, at, page)) = &*last
            && of == path
            && at.elapsed() < FRESH
        {
            return Some(page.clone());
        }
        let page = self.pages.page(path).await?;
        *last = Some((path.to_owned(), Instant::now(), page.clone()));
        Some(page)
    }
}

/// What a process has to show.
#[async_trait::async_trait]
pub trait Pages: Send + Sync + 'static {
    /// The page at a path; `None`: there is none.
    async fn page(&self, path: &str) -> Option<Page>;
}

/// Everything that this process counts, and `more` besides, as Prometheus reads it.
pub fn metrics(more: Values) -> Page {
    let mut families = prometheus::gather();
    families.extend(more.0);
    families.retain(|family| !family.get_metric().is_empty());
    families.sort_by(|a, b| a.name().cmp(b.name()));
    let (encoder, mut body) = (TextEncoder::new(), Vec::new());
    if let Err(error) = encoder.encode(&families, &mut body) {
        tracing::error!(%error, "what is counted cannot be told");
    }
    Page { content_type: "text/plain; version=0.0.4; charset=utf-8", body: body.into() }
}

/// Values that are looked up when somebody reads them.
#[derive(Default)]
pub struct Values(Vec<MetricFamily>);

impl Values {
    /// One of this name.
    pub fn one(&mut self, name: &str, help: &str, value: f64) {
        self.each(name, help, "", [(String::new(), value)]);
    }

    /// One for each value of a label.
    pub fn each(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (String, f64)>,
    ) {
        let labels = if label.is_empty() { &[][..] } else { &[label][..] };
        let Ok(gauges) = GaugeVec::new(Opts::new(name, help), labels) else {
            tracing::error!(name, "no name for a value");
            return;
        };
        for (of, value) in values {
            let of = if label.is_empty() { &[][..] } else { &[of.as_str()][..] };
            gauges.with_label_values(of).set(value);
        }
        self.0.extend(gauges.collect());
    }
}

/// Whether somebody may read pages: who sees a part only sees none of what all do.
fn may_read(subject: Option<&Arc<Subject>>) -> bool {
    subject.is_none_or(|subject| !subject.confinement.is_any())
}

/// Answers connections that the listener recognised as HTTP/1, until shutdown.
pub async fn serve(
    pages: Arc<dyn Pages>,
    mut connections: mpsc::Receiver<BoxStream>,
    mut shutdown: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(READERS));
    let reading = Arc::new(Reading { pages, last: Mutex::default() });
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = shutdown.wait_for(|&stop| stop) => break,
            Some(_) = open.join_next() => {}
            stream = connections.recv() => {
                let Some(stream) = stream else { break };
                if !may_read(stream.subject()) {
                    tracing::warn!("refused: a certificate for a part of the filesystem");
                    continue;
                }
                // Who comes when all places are taken comes again.
                let Ok(place) = places.clone().try_acquire_owned() else { continue };
                let reading = reading.clone();
                open.spawn(async move {
                    let _ = timeout(CONNECTION_TIMEOUT, connection(reading, stream)).await;
                    drop(place);
                });
            }
        }
    }
    open.shutdown().await;
}

async fn connection(reading: Arc<Reading>, stream: BoxStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let reading = reading.clone();
        async move { Ok::<_, Infallible>(answer(&reading, &request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "who reads pages has gone");
    }
}

async fn answer(reading: &Reading, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let refuse = |status: StatusCode, why: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(why.as_bytes())));
        *response.status_mut() = status;
        response
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "nothing is changed here\n");
    }
    let Some(page) = reading.page(request.uri().path()).await else {
        return refuse(StatusCode::NOT_FOUND, "there is /metrics\n");
    };
    let mut response = Response::new(Full::new(page.body));
    let headers = response.headers_mut();
    let put = [
        (CONTENT_TYPE, page.content_type),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, "default-src 'self'; frame-ancestors 'none'"),
    ];
    for (name, value) in put {
        headers.insert(name, hyper::header::HeaderValue::from_static(value));
    }
    response
}
