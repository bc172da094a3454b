//! What Prometheus reads: every process answers, what was done is counted, and all of it is listed.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use weft_tests::{Cluster, Shape, eventually};

/// What was read: values by name and labels.
type Values = BTreeMap<String, f64>;

/// The answer of a server to a request in so many words.
fn ask(address: &str, request: &str) -> Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    Ok((head.to_owned(), body.to_owned()))
}

fn values(text: &str) -> Result<Values> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let value = |line: &str| -> Result<(String, f64)> {
        let (name, value) = line.rsplit_once(' ').context("a line without a value")?;
        Ok((name.to_owned(), value.parse()?))
    };
    lines.map(|line| value(line).with_context(|| format!("in {line:?}"))).collect()
}

fn read(address: &str) -> Result<Values> {
    let (head, body) = ask(address, "GET /metrics")?;
    ensure!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain"), "{head}");
    values(&body)
}

fn names(all: &Values) -> BTreeSet<String> {
    let plain = |name: &String| {
        let name = name.split('{').next().unwrap_or_default();
        let ends = ["_bucket", "_sum", "_count"];
        let of = ends.iter().find_map(|end| name.strip_suffix(end));
        of.filter(|name| name.ends_with("_seconds")).unwrap_or(name).to_owned()
    };
    all.keys().map(plain).collect()
}

fn in_project(file: &str) -> Result<String> {
    let at = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    fs::read_to_string(&at).with_context(|| at.display().to_string())
}

/// Words that are names of what is counted.
fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("weft_"));
    let ends = ["_bucket", "_count", "_sum"];
    let plain = |word: &str| ends.iter().find_map(|end| word.strip_suffix(end)).map(str::to_owned);
    ours.map(|word| plain(word).unwrap_or_else(|| word.to_owned())).collect()
}

/// Addresses of the daemons of a part.
fn daemons(cluster: &Cluster, part: &str) -> Result<Vec<String>> {
    let status = cluster.status()?;
    let all = status[part].as_array().context("no daemons")?;
    all.iter().map(|row| Ok(row["address"].as_str().context("no address")?.to_owned())).collect()
}

#[test]
fn every_process_tells_what_it_has_done() -> Result<()> {
    // As Prometheus reads it where it needs no certificate; with one: below.
    let cluster = Cluster::start_as(Shape { tls: false, ..Shape::default() })?;
    // Another may take it before the mount does, which waits then.
    let free = TcpListener::bind("127.0.0.1:0")?;
    let address = free.local_addr()?.to_string();
    let drive = cluster.scratch("drive")?;
    let hot = ["--hot", drive.to_str().context("a path")?, "--hot-size", "256MiB"];
    let mount = cluster.mount_with("watched", &[&["--metrics", &address][..], &hot].concat())?;
    drop(free);
    fs::write(mount.join("file"), vec![7u8; 3 << 20])?;
    fs::File::open(mount.join("file"))?.sync_all()?;
    fs::create_dir(mount.join("folder"))?;
    ensure!(fs::read(cluster.mnt().join("file"))?.len() == 3 << 20);
    let mut found = BTreeSet::new();
    // The mount asked, the daemons served.
    ensure!(fs::read(mount.join("file"))?.len() == 3 << 20);
    let asked = eventually(Duration::from_secs(60), "the mount to answer", || {
        read(&address)
            .ok()
            .filter(|all| all.contains_key("weft_client_sent_bytes_total{op=\"PUT\"}"))
            .filter(|all| all.get("weft_hot_size_bytes").is_some_and(|size| *size > 0.0))
    })?;
    let sent = asked.get("weft_client_sent_bytes_total{op=\"PUT\"}");
    ensure!(sent.is_some_and(|bytes| *bytes >= f64::from(3 << 20)), "{sent:?} bytes were sent");
    found.extend(names(&asked));
    eventually(Duration::from_secs(60), "one leader that tells of the cluster", || {
        let servers = daemons(&cluster, "metadata").ok()?;
        let all: Vec<_> = servers.iter().map(|at| read(at)).collect::<Result<_>>().ok()?;
        all.iter().for_each(|all| found.extend(names(all)));
        let leaders: Vec<_> = all.iter().filter(|all| all["weft_raft_leader"] == 1.0).collect();
        let [leader] = leaders[..] else { return None };
        let made = "weft_metadata_operation_seconds_count{operation=\"OpenSession\"}";
        let opened: f64 = all.iter().filter_map(|all| all.get(made)).sum();
        let is_whole = leader["weft_targets{state=\"up\"}"] > 0.0 && leader["weft_sessions"] >= 2.0;
        (opened >= 2.0 && is_whole).then_some(())
    })?;
    let (mut stored, mut targets) = (0.0, 0);
    for address in daemons(&cluster, "storage")? {
        let all = read(&address)?;
        stored += all.get("weft_server_received_bytes_total{op=\"PUT\"}").copied().unwrap_or(0.0);
        targets += all.keys().filter(|name| name.starts_with("weft_target_usable{")).count();
        found.extend(names(&all));
    }
    ensure!(stored >= f64::from(3 << 20), "{stored} bytes were stored");
    ensure!(targets == daemons(&cluster, "storage")?.len(), "{targets} targets are told of");
    // What is told is listed, and what alerts and dashboard ask for is told.
    let listed = words(&in_project("docs/metrics.md")?);
    let unlisted: Vec<_> = found.difference(&listed).collect();
    ensure!(unlisted.is_empty(), "docs/metrics.md does not list {unlisted:?}");
    for file in ["deploy/prometheus/weft.rules.yml", "deploy/grafana/weft.json"] {
        let unknown: Vec<_> = words(&in_project(file)?).difference(&found).cloned().collect();
        // Errors that nobody has seen are not told.
        let unknown: Vec<_> =
            unknown.iter().filter(|name| !name.contains("errors_total")).collect();
        ensure!(unknown.is_empty(), "{file} asks for {unknown:?}, which nobody tells");
    }
    // Nothing else is there, and nothing is changed.
    let leader = cluster.address()?;
    let address = leader.split(',').next().context("an address")?;
    ensure!(ask(address, "GET /nothing")?.0.starts_with("HTTP/1.1 404"));
    ensure!(ask(address, "HEAD /metrics")?.1.is_empty());
    eventually(Duration::from_secs(60), "an answer after noise", || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(b"GET \r\n\r\n\0\0\0").ok()?;
        stream.read_to_end(&mut Vec::new()).ok()?;
        read(address).ok()
    })?;
    cluster.await_clean()
}

#[test]
fn with_certificates_only_who_has_one_reads() -> Result<()> {
    let cluster = Cluster::start_as(Shape { tls: true, ..Shape::default() })?;
    let address = daemons(&cluster, "storage")?.remove(0);
    let plain = ask(&address, "GET /metrics");
    ensure!(!plain.is_ok_and(|(head, _)| head.contains("200")), "read without a certificate");
    // As Prometheus does with a certificate.
    let transport = cluster.transport_as("admin")?;
    let read = Runtime::new()?.block_on(async {
        let mut stream = transport.stream(&address.parse()?).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: weft\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, anyhow::Error>(answer)
    })?;
    let (head, body) = read.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    ensure!(values(body)?.contains_key("weft_server_connections"));
    cluster.await_clean()
}
