//! What people look at: the console of the metadata leader, `weft top`, `weft trace`, and what
//! `weft status` says first.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use weft_net::Transport;
use weft_tests::{
    Cluster, Shape, certificates, data, eventually, path, weft, weft_binary, weft_ok,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Head and body of an answer, of a server without certificates.
fn ask(address: &str, request: &str) -> Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    // In one piece: who answers before the end of it may close the connection.
    stream.write_all(format!("{request} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    split(answer)
}

/// The same as who has a certificate.
fn ask_as(way: &Arc<dyn Transport>, address: &str, path: &str) -> Result<(String, String)> {
    Runtime::new()?.block_on(async {
        let mut stream = way.stream(&address.parse()?).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: weft\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        split(answer)
    })
}

fn split(answer: Vec<u8>) -> Result<(String, String)> {
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    Ok((head.to_owned(), body.to_owned()))
}

/// The leader's address, and those of the others.
fn leader(cluster: &Cluster) -> Result<(String, Vec<String>)> {
    eventually(PATIENCE, "a leader", || {
        let status = cluster.status().ok()?;
        let servers = status["metadata"].as_array()?;
        let at = |leads: bool| -> Vec<String> {
            let of = servers.iter().filter(|m| m["leader"] == leads && !m["pid"].is_null());
            of.filter_map(|m| m["address"].as_str().map(str::to_owned)).collect()
        };
        Some((at(true).pop()?, at(false)))
    })
}

fn data_of(address: &str) -> Result<Value> {
    let (head, body) = ask(address, "GET /console/data.json")?;
    ensure!(head.starts_with("HTTP/1.1 200") && head.contains("application/json"), "{head}");
    serde_json::from_str(&body).context(body)
}

/// Waits until the leader's data shows something.
fn await_data(cluster: &Cluster, what: &str, shows: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    eventually(PATIENCE, what, || {
        last = data_of(&leader(cluster).ok()?.0).ok()?;
        shows(&last).then(|| last.clone())
    })
    .with_context(|| format!("the last was {last}"))
}

fn names(all: &Value, field: &str) -> Vec<String> {
    let all = all.as_array().into_iter().flatten();
    all.filter_map(|one| one[field].as_str().map(str::to_owned)).collect()
}

const HOSTILE: &str = "<script>alert(1)</script>";

#[test]
fn the_leader_shows_the_cluster_and_others_send_there() -> Result<()> {
    // As a browser without a certificate sees it; with one: below.
    let cluster = Cluster::start_as(Shape { tls: false, ..Shape::default() })?;
    let client = format!("{HOSTILE}:there");
    let mount = cluster.mount_with("hostile", &["--name", &client])?;
    fs::create_dir(mount.join("<img src=x onerror=alert(1)>"))?;
    let (at, others) = leader(&cluster)?;
    let (head, page) = ask(&at, "GET /")?;
    ensure!(head.starts_with("HTTP/1.1 200") && head.contains("text/html"), "{head}");
    for wanted in ["default-src 'none'", "script-src 'sha256-", "nosniff", "no-store"] {
        ensure!(head.contains(wanted), "{wanted}: {head}");
    }
    ensure!(!page.contains("http://") || page.matches("http://").count() == 1, "only SVG's name");
    ensure!(!head.contains("unsafe"), "{head}");
    // Numbers, and names as they are: the page puts them in as text.
    let all = await_data(&cluster, "tenants and directories that are busy", |all| {
        let folder = mount.join("<img src=x onerror=alert(1)>");
        for n in 0..64 {
            let _ = fs::metadata(folder.join(format!("missing-{n}")));
            let _ = fs::write(folder.join(format!("f{n}")), vec![7u8; 40_000]);
            let _ = fs::remove_file(folder.join(format!("f{n}")));
        }
        let dirs = names(&all["directories"], "path");
        names(&all["tenants"], "name").contains(&HOSTILE.to_owned())
            && dirs.iter().any(|dir| dir == "/<img src=x onerror=alert(1)>")
            && all["health"] == "ok"
            && all["problems"].as_array().is_some_and(Vec::is_empty)
    })?;
    ensure!(all["leads"] == true, "{all}");
    ensure!(all["daemons"].as_array().map(Vec::len) == Some(6), "{all}");
    ensure!(names(&all["servers"], "state").iter().filter(|s| *s == "follower").count() == 2);
    ensure!(names(&all["sessions"], "client").contains(&client), "{}", all["sessions"]);
    ensure!(!names(&all["events"], "kind").is_empty(), "no events");
    // Others.
    for other in &others {
        let (head, _) = ask(other, "GET /")?;
        ensure!(head.starts_with("HTTP/1.1 307"), "{head}");
        ensure!(head.to_lowercase().contains(&format!("location: //{at}/console")), "{head}");
        let data = data_of(other)?;
        ensure!(data["leads"] == false && data["leader"] == *at, "{data}");
        ensure!(data["daemons"].as_array().is_some_and(Vec::is_empty), "{data}");
    }
    odd_requests(&at)?;
    let storage = cluster.status()?["storage"][0]["address"].as_str().context("none")?.to_owned();
    ensure!(ask(&storage, "GET /")?.0.starts_with("HTTP/1.1 404"));
    // In a terminal, and for scripts.
    let cluster_at = cluster.address()?;
    let top = weft_ok(&["top", "--once", "--cluster", &cluster_at])?;
    for wanted in ["health ok", "room ", "DAEMON", HOSTILE, "CLIENT"] {
        ensure!(top.contains(wanted), "{wanted}: {top}");
    }
    let json = weft_ok(&["top", "--once", "--output", "json", "--cluster", &cluster_at])?;
    ensure!(serde_json::from_str::<Value>(&json)?["capacity"]["targets_up"] == 6, "{json}");
    let piped = weft(&["top", "--cluster", &cluster_at])?;
    ensure!(String::from_utf8_lossy(&piped.stderr).contains("--once"), "{piped:?}");
    cluster.await_clean()
}

fn odd_requests(at: &str) -> Result<()> {
    let (head, body) = ask(at, "HEAD /console")?;
    ensure!(head.starts_with("HTTP/1.1 200") && body.is_empty(), "{head}");
    for (request, status) in
        [("GET /console/../etc/passwd", "404"), ("GET /console/data.json/x", "404")]
    {
        let (head, _) = ask(at, request)?;
        ensure!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {head}");
        ensure!(head.contains("default-src 'none'"), "{request}: {head}");
    }
    // More than a request may be long: refused, or cut off.
    let long = format!("GET /{}", "x".repeat(1 << 20));
    let answered = ask(at, &long).is_ok_and(|(head, _)| !head.starts_with("HTTP/1.1 4"));
    ensure!(!answered, "a path of a megabyte was answered");
    let (head, page) = ask(at, "GET /console?q=%3Cscript%3Eecho")?;
    ensure!(head.starts_with("HTTP/1.1 200") && !page.contains("echo"), "{head}");
    // A page of a stranger whose name suddenly leads here reads nothing.
    let strange = "GET /console/data.json HTTP/1.1\r\nHost: evil.example:7100\r\n\r\nGET /";
    let (head, body) = ask(at, strange)?;
    ensure!(head.starts_with("HTTP/1.1 421") && !body.contains("storage"), "{head} {body}");
    // What would change something is no HTTP here.
    for request in ["POST /", "DELETE /console/data.json", "OPTIONS /"] {
        let answered = ask(at, request).is_ok_and(|(head, _)| head.starts_with("HTTP/1.1 2"));
        ensure!(!answered, "{request} was answered");
    }
    Ok(())
}

#[test]
fn names_are_for_those_who_may_know_them() -> Result<()> {
    let cluster = Cluster::start_as(Shape { tls: true, ..Shape::default() })?;
    fs::create_dir_all(cluster.mnt().join("team/deep"))?;
    fs::write(cluster.mnt().join("team/deep/file"), data::bytes(1, 3 << 20))?;
    weft_ok(&["sync", path(cluster.mnt())])?;
    let (at, _) = leader(&cluster)?;
    let plain = ask(&at, "GET /");
    ensure!(!plain.is_ok_and(|(head, _)| head.contains("200")), "read without a certificate");
    let data = |way: &Arc<dyn Transport>| -> Result<Value> {
        let (head, body) = ask_as(way, &at, "/console/data.json")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        Ok(serde_json::from_str(&body)?)
    };
    let admin = cluster.transport_as("admin")?;
    ensure!(ask_as(&admin, &at, "/")?.1.contains("<title>Weft</title>"));
    let seen = data(&admin)?;
    ensure!(seen["tenants"].is_array() && seen["events"].is_array(), "{seen}");
    let client = data(&cluster.transport()?)?;
    ensure!(client["tenants"].is_null() && client["events"].is_array(), "{client}");
    let storage = data(&certificates::transport(&cluster.tls_dir(), "storage-1")?)?;
    for hidden in ["tenants", "events", "directories"] {
        ensure!(storage[hidden].is_null(), "{hidden}: {storage}");
    }
    // Who is confined to a part sees nothing, and traces what is his.
    let issue = ["--role", "client", "--name", "team", "--subtree", "/team"];
    let (dir, out) = (cluster.tls_dir(), cluster.tls_dir().join("team"));
    let ca = ["ca", "issue", "--dir", path(&dir), "--out", path(&out)];
    weft_ok(&[&ca[..], &issue].concat())?;
    let team = certificates::transport(&dir, "team")?;
    ensure!(ask_as(&team, &at, "/console/data.json").is_err(), "read by who is confined");
    let as_team = |args: &[&str]| {
        let mut command = Command::new(weft_binary());
        command.args(args).args(["--cluster", &at]).envs(certificates::environment(&dir, "team"));
        command.stdin(Stdio::null()).output()
    };
    let refused = as_team(&["top", "--once"])?;
    ensure!(String::from_utf8_lossy(&refused.stderr).contains("confined"), "{refused:?}");
    let traced = as_team(&["trace", "/deep/file", "--verify", "--output", "json"])?;
    ensure!(traced.status.success(), "{traced:?}");
    let traced: Value = serde_json::from_slice(&traced.stdout)?;
    ensure!(traced["segments"][0]["shards"][0]["chunk"] == "verified", "{traced}");
    ensure!(!as_team(&["trace", "/../team/deep/none"])?.status.success());
    let top = weft_ok(&["top", "--once", "--cluster", &cluster.address()?])?;
    ensure!(top.contains("health ok"), "{top}");
    cluster.await_clean()
}

/// `weft trace` of a file: whether all was whole, and what it says.
fn trace(file: &Path, more: &[&str]) -> Result<(bool, Value)> {
    let out = weft(&[&["trace", path(file), "--output", "json"], more].concat())?;
    let report = serde_json::from_slice(&out.stdout);
    let said = || String::from_utf8_lossy(&out.stderr).into_owned();
    Ok((out.status.success(), report.with_context(said)?))
}

fn chunks(report: &Value) -> Vec<String> {
    let segments = report["segments"].as_array().into_iter().flatten();
    let shards = segments.flat_map(|s| s["shards"].as_array().into_iter().flatten());
    shards.filter_map(|s| s["chunk"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_trace_tells_what_may_still_be_lost() -> Result<()> {
    let cluster = Cluster::start_as(Shape { tls: false, ..Shape::default() })?;
    let file = cluster.mnt().join("file");
    let content = data::bytes(7, 3 << 20);
    fs::write(&file, &content)?;
    fs::File::open(&file)?.sync_all()?;
    let (whole, report) = trace(&file, &["--verify"])?;
    ensure!(whole && report["may_lose"] == 2, "{report}");
    ensure!(chunks(&report) == vec!["verified"; 6], "{report}");
    ensure!(report["segments"][0]["file_bytes"] == 3 << 20, "{report}");
    // Small content is in metadata, and what was never written is nowhere.
    let small = cluster.mnt().join("small");
    fs::write(&small, b"small")?;
    fs::File::options().write(true).open(&small)?.set_len(1 << 30)?;
    let (whole, report) = trace(&small, &[])?;
    ensure!(whole && report["inline_bytes"] == 5 && report["may_lose"].is_null(), "{report}");
    ensure!(report["hole_bytes"] == (1 << 30) - 5, "{report}");
    // One chunk is damaged: found by who reads all of it.
    let damaged = cluster.flip(&content[..64])?;
    ensure!(damaged > 0, "no chunk begins with the file");
    let (whole, report) = trace(&file, &["--verify"])?;
    ensure!(!whole && chunks(&report).contains(&"damaged".to_owned()), "{report}");
    ensure!(report["next"][0].as_str().is_some_and(|n| n.contains("fsck --repair")), "{report}");
    lost_shards(&cluster, &file)?;
    refusals(&cluster)
}

/// Two of the six targets go.
fn lost_shards(cluster: &Cluster, file: &Path) -> Result<()> {
    let fresh = cluster.mnt().join("fresh");
    fs::write(&fresh, data::bytes(8, 3 << 20))?;
    fs::File::open(&fresh)?.sync_all()?;
    for (lost, says) in [(0, "1 more may be lost"), (1, "one more loss does not")] {
        cluster.kill_storage(lost)?;
        cluster.await_targets("down", lost + 1)?;
        let report = eventually(PATIENCE, "a trace without the target", || {
            let (whole, report) = trace(&fresh, &[]).ok()?;
            (!whole && report["may_lose"] == 1 - lost as i64).then_some(report)
        })?;
        let said = report["redundancy"].as_str().unwrap_or_default();
        ensure!(said.contains(says), "{said}");
        let text = weft(&["trace", path(&fresh)])?;
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        ensure!(text.contains("away: the target does not serve") && text.contains(says), "{text}");
    }
    ensure!(fs::read(&fresh)? == data::bytes(8, 3 << 20), "reads work");
    ensure!(!trace(file, &[])?.0);
    Ok(())
}

fn refusals(cluster: &Cluster) -> Result<()> {
    let said = |args: &[&str]| -> Result<String> {
        let out = weft(args)?;
        ensure!(!out.status.success(), "{args:?} succeeded");
        Ok(String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let elsewhere = cluster.scratch("elsewhere")?;
    ensure!(said(&["trace", path(&elsewhere)])?.contains("--cluster"), "not in a mount");
    ensure!(said(&["trace", path(cluster.mnt())])?.contains("is a directory"), "a directory");
    ensure!(said(&["trace", "/nowhere/at/all"])?.contains("--cluster"), "nowhere");
    let address = cluster.address()?;
    let none = said(&["trace", "/none", "--cluster", &address])?;
    ensure!(none.contains("no such file in the cluster"), "{none}");
    // A path of the cluster, without a mount.
    let traced = weft(&["trace", "/fresh", "--cluster", &address])?;
    ensure!(String::from_utf8_lossy(&traced.stdout).contains("placement group"), "{traced:?}");
    Ok(())
}

#[test]
fn what_is_wrong_is_said_first() -> Result<()> {
    let cluster = Cluster::start_as(Shape { tls: false, ..Shape::default() })?;
    let first = |kind: &str| -> Result<Value> {
        let mut last = Value::Null;
        eventually(PATIENCE, kind, || {
            last = cluster.overview().ok()?;
            let problem = last["problems"].as_array()?.iter().find(|p| p["kind"] == kind)?;
            Some(problem.clone())
        })
        .with_context(|| format!("the last was {last}"))
    };
    ensure!(cluster.overview()?["problems"].as_array().is_some_and(Vec::is_empty));
    let gone = cluster.status()?["storage"][2]["name"].as_str().unwrap_or("storage-3").to_owned();
    cluster.kill_storage(2)?;
    cluster.await_targets("down", 1)?;
    let problem = first("target_down")?;
    let said = problem["text"].as_str().unwrap_or_default();
    ensure!(said.contains(&gone) && said.contains("target "), "{problem}");
    ensure!(
        problem["command"].as_str().is_some_and(|c| c.contains("weft target out")),
        "{problem}"
    );
    await_data(&cluster, "the console to say so", |all| {
        names(&all["problems"], "kind").contains(&"target_down".to_owned())
            && names(&all["daemons"], "state").contains(&"down".to_owned())
    })?;
    // Of three servers, one: the next is one too many.
    cluster.kill_leader()?;
    let problem = first("metadata_away")?;
    ensure!(problem["severity"] == "critical", "{problem}");
    let text = weft_ok(&["status", "--cluster", &cluster.address()?])?;
    let critical = text.find("!! metadata server").context("no critical problem")?;
    ensure!(critical < text.find("\n!  storage").context("no warning")?, "{text}");
    ensure!(critical < text.find("metadata servers\n").context("no servers")?, "{text}");
    // And another: nobody leads.
    cluster.kill_leader()?;
    let (_, rest) = eventually(PATIENCE, "the last server to know no leader", || {
        let status = cluster.status().ok()?;
        let alive = status["metadata"].as_array()?.iter().find(|m| !m["pid"].is_null())?;
        let at = alive["address"].as_str()?.to_owned();
        let data = data_of(&at).ok()?;
        (data["leads"] == false && data["leader"] == "").then_some(((), at))
    })?;
    let (head, page) = ask(&rest, "GET /")?;
    ensure!(head.starts_with("HTTP/1.1 200") && page.contains("<title>Weft</title>"), "{head}");
    let top = weft(&["top", "--once", "--cluster", &cluster.address()?])?;
    let said = String::from_utf8_lossy(&top.stdout);
    ensure!(said.contains("!! no leader: 1 of 3 metadata servers answer"), "{top:?}");
    ensure!(!top.status.success(), "a script takes that for good: {top:?}");
    let status = weft(&["status", "--cluster", &cluster.address()?])?;
    ensure!(String::from_utf8_lossy(&status.stdout).contains("!! no leader"), "{status:?}");
    Ok(())
}

/// `weft top` on a terminal of its own.
fn on_a_terminal(address: &str) -> Result<(Child, fs::File, OwnedFd)> {
    let (mut ours, mut theirs) = (0, 0);
    let (name, modes, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: both numbers live through the call, which is told of nothing else.
    let rc = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, name, modes, size) };
    ensure!(rc == 0, "no terminal: {}", std::io::Error::last_os_error());
    // SAFETY: the call has opened both for us alone.
    let (ours, theirs) = unsafe { (fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let end = || theirs.try_clone().map(Stdio::from);
    let child = Command::new(weft_binary())
        .args(["top", "--interval", "0.5", "--cluster", address])
        .stdin(end()?)
        .stdout(end()?)
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, ours, theirs))
}

fn modes(terminal: &OwnedFd) -> Result<libc::tcflag_t> {
    // SAFETY: all zeros is a value of this plain structure.
    let mut now: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call.
    let rc = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut now) };
    ensure!(rc == 0, "no modes: {}", std::io::Error::last_os_error());
    Ok(now.c_lflag & (libc::ICANON | libc::ECHO))
}

#[test]
fn the_terminal_is_left_as_it_was() -> Result<()> {
    let shape = Shape { metadata: 1, storage: 3, profile: "2+1", tls: false, ..Shape::default() };
    let cluster = Cluster::start_as(shape)?;
    for signal in [None, Some(libc::SIGTERM), Some(libc::SIGINT)] {
        let (mut child, mut ours, terminal) = on_a_terminal(&cluster.address()?)?;
        let before = libc::ICANON | libc::ECHO;
        let mut shown = Vec::new();
        let mut piece = [0; 4096];
        while !String::from_utf8_lossy(&shown).contains("DAEMON") {
            let n = ours.read(&mut piece)?;
            ensure!(n > 0, "it ended: {}", String::from_utf8_lossy(&shown));
            shown.extend_from_slice(&piece[..n]);
        }
        ensure!(modes(&terminal)? != before, "keys are shown as they are pressed");
        match signal {
            None => ours.write_all(b"q")?,
            // SAFETY: the process is a child of ours that was not waited for.
            Some(signal) => ensure!(unsafe { libc::kill(child.id() as i32, signal) } == 0),
        }
        // What it still draws has to go somewhere.
        let drawn = std::thread::spawn(move || {
            let mut rest = Vec::new();
            while let Ok(n @ 1..) = ours.read(&mut piece) {
                rest.extend_from_slice(&piece[..n]);
            }
            rest
        });
        let status = child.wait()?;
        ensure!(status.success(), "{signal:?}: {status}");
        ensure!(modes(&terminal)? == before, "{signal:?}: the modes are not what they were");
        drop(terminal);
        let rest = drawn.join().ok().context("the reader panicked")?;
        let back = String::from_utf8_lossy(&rest).contains("\x1b[?1049l");
        ensure!(back, "{signal:?}: the other screen stays");
    }
    cluster.await_clean()
}
