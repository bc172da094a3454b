//! What people and monitors read of a process over HTTP/1: pages, and nothing that changes
//! anything.
//!
//! It is answered on the port that all else is on, so that certificates are for this, too
//! ([`may_read`]).

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
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
use weft_net::{Address, BoxStream, Subject};
use weft_proto::Role;

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
    /// What a browser may do with it, as `Content-Security-Policy` says it; `None`: nothing of its
    /// own.
    pub policy: Option<Arc<str>>,
}

/// What is answered to who asks for a page.
#[derive(Clone)]
pub enum Answer {
    /// This.
    Page(Page),
    /// Another server has it, at this address, `host:port`, under this path.
    Elsewhere {
        /// Of the server.
        address: String,
        /// There.
        path: &'static str,
    },
}

/// Who reads a page, as far as it makes a difference: his certificate is not confined to a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// Nobody has to prove who he is.
    Anybody,
    /// The part that his certificate names.
    Proved(Role),
}

impl Reader {
    /// Whether he may be of one of these roles.
    pub fn may_be(self, roles: &[Role]) -> bool {
        match self {
            Self::Anybody => true,
            Self::Proved(role) => roles.contains(&role),
        }
    }
}

/// An answer that was made, for whom, and when.
struct Made {
    path: String,
    reader: Reader,
    at: Instant,
    answer: Answer,
}

struct Reading {
    pages: Arc<dyn Pages>,
    /// No more than there are paths and kinds of readers.
    made: Mutex<Vec<Made>>,
}

impl Reading {
    /// Who comes while a page is being made waits for that.
    async fn answer(&self, path: &str, reader: Reader) -> Option<Answer> {
        let mut made = self.made.lock().await;
        made.retain(|made| made.at.elapsed() < FRESH);
        if let Some(made) = made.iter().find(|m| m.path == path && m.reader == reader) {
            return Some(made.answer.clone());
        }
        let answer = self.pages.answer(path, reader).await?;
        let (path, at) = (path.to_owned(), Instant::now());
        made.push(Made { path, reader, at, answer: answer.clone() });
        Some(answer)
    }
}

/// What a process has to show.
#[async_trait::async_trait]
pub trait Pages: Send + Sync + 'static {
    /// The page at a path, the same for all who may read any; `None`: there is none.
    async fn page(&self, path: &str) -> Option<Page>;

    /// Whether this process is known by such a name, besides addresses and names without a dot.
    fn is_called(&self, _host: &str) -> bool {
        false
    }

    /// What is answered at a path to a reader; `None`: there is nothing.
    async fn answer(&self, path: &str, _reader: Reader) -> Option<Answer> {
        self.page(path).await.map(Answer::Page)
    }
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
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    Page { content_type, body: body.into(), policy: None }
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
    let reading = Arc::new(Reading { pages, made: Mutex::default() });
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
                let proved = stream.subject().map(|subject| Reader::Proved(subject.role));
                let reader = proved.unwrap_or(Reader::Anybody);
                open.spawn(async move {
                    let _ = timeout(CONNECTION_TIMEOUT, connection(reading, reader, stream)).await;
                    drop(place);
                });
            }
        }
    }
    open.shutdown().await;
}

async fn connection(reading: Arc<Reading>, reader: Reader, stream: BoxStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let reading = reading.clone();
        async move { Ok::<_, Infallible>(answer(&reading, reader, &request).await) }
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

async fn answer(
    reading: &Reading,
    reader: Reader,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "nothing is changed here\n".into());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or("?.?"));
    let meant = |host: &str| {
        let name = name_of(host);
        is_local(name) || reading.pages.is_called(name)
    };
    // With certificates a stranger's page has none. What monitors read names nobody.
    let strangers = reader == Reader::Anybody && request.uri().path() != "/metrics";
    if strangers && !host.is_none_or(meant) {
        let what = "no server of this name here: use its address, as the servers have it\n";
        return plain(StatusCode::MISDIRECTED_REQUEST, what.into());
    }
    match reading.answer(request.uri().path(), reader).await {
        None => {
            let there = "there is /metrics, and / on metadata servers\n";
            plain(StatusCode::NOT_FOUND, there.into())
        }
        Some(Answer::Page(page)) => {
            let mut response = Response::new(Full::new(page.body));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
            let policy = page.policy.as_deref().and_then(|p| HeaderValue::from_str(p).ok());
            guard(headers, policy);
            response
        }
        Some(Answer::Elsewhere { address, path }) => elsewhere(&address, path),
    }
}

/// Of what a request says about whom it is for, the part that is no port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether nobody outside can have given a server this name: a page of a stranger, for whose name
/// his own name server suddenly says this address (DNS rebinding), would else be let read here.
fn is_local(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.parse::<std::net::IpAddr>().is_ok() || !name.trim_end_matches('.').contains('.')
}

/// Sends a browser to another server, in the way that it came here.
fn elsewhere(address: &str, path: &str) -> Response<Full<Bytes>> {
    let to = address.parse::<Address>().ok().map(|to| match to.host() {
        host if host.contains(':') => format!("//[{host}]:{}{path}", to.port()),
        host => format!("//{host}:{}{path}", to.port()),
    });
    let Some(location) = to.and_then(|to| HeaderValue::from_str(&to).ok()) else {
        let what = format!("the leader is at {address}, which is no address for a browser\n");
        return plain(StatusCode::SERVICE_UNAVAILABLE, what);
    };
    let what = format!("the metadata leader is at {address}\n");
    let mut response = plain(StatusCode::TEMPORARY_REDIRECT, what);
    response.headers_mut().insert(LOCATION, location);
    response
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    guard(headers, None);
    response
}

/// What keeps a browser from doing anything else with an answer.
fn guard(headers: &mut HeaderMap, policy: Option<HeaderValue>) {
    let nothing = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.insert(CONTENT_SECURITY_POLICY, policy.unwrap_or(nothing));
    let fixed = [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_no_stranger_gives_are_local() {
        for local in ["10.0.0.1", "10.0.0.1:7100", "[fd00::1]:7100", "meta-1:7100", "localhost"] {
            assert!(is_local(name_of(local)), "{local}");
        }
        for strange in ["evil.example", "evil.example:7100", "10.0.0.1.evil.example", "a.b.", "?.?"]
        {
            assert!(!is_local(name_of(strange)), "{strange}");
        }
    }
}
