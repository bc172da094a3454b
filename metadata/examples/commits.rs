//! Measures what a commit costs: three servers in this process on one disk and loopback TCP, with
//! creates from 1, 4 and 64 concurrent clients; beside it, the floor: the same amount
//! written to a plain file, one fdatasync per group.
//!
//! `cargo run --release -p weft-metadata --example commits [SECONDS] [FOLDER]`

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_metadata::{Config, Member};
use weft_net::Peers;
use weft_proto::{NodeId, Result, v1};

#[tokio::main]
async fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(3);
    let folder = std::env::args().nth(2).unwrap_or_else(|| "/tmp".into());
    let dir = tempfile::tempdir_in(folder).expect("a folder for data");
    floor(dir.path(), seconds);

    let members: Vec<_> = (1..=3)
        .map(|id| Member { id: NodeId(id), address: format!("127.0.0.1:{}", free_port()) })
        .collect();
    let (stop, stopped) = watch::channel(false);
    let mut servers = Vec::new();
    for member in &members {
        let data = dir.path().join(member.id.to_string());
        let config = Config::new(member.id, member.address.clone(), members.clone(), data);
        weft_metadata::bootstrap(&config)?;
        servers.push(tokio::spawn(weft_metadata::run(config, weft_net::tcp(), stopped.clone())));
    }
    let leader = find_leader(&members).await;
    for clients in [1, 4, 64] {
        measure("creates", &leader, clients, seconds, true).await?;
    }
    for clients in [1, 4, 64] {
        measure("getattrs", &leader, clients, seconds, false).await?;
    }
    // The receivers live in the servers.
    let _ = stop.send(true);
    for server in servers {
        server.await.expect("a server panicked")?;
    }
    Ok(())
}

/// Writes of 300 bytes to a file that is already that long, with one fdatasync each, and with one
/// per 4 and 64.
fn floor(dir: &Path, seconds: u64) {
    let file =
        OpenOptions::new().write(true).create_new(true).open(dir.join("floor")).expect("a file");
    let room = 16 << 20;
    file.write_all_at(&vec![1; room as usize], 0).and_then(|()| file.sync_all()).expect("a write");
    for group in [1, 4, 64] {
        let record = vec![7u8; 300 * group];
        let (begin, mut done, mut at) = (Instant::now(), 0, 0);
        while begin.elapsed() < Duration::from_secs(seconds) {
            file.write_all_at(&record, at).and_then(|()| file.sync_data()).expect("a write");
            at = (at + record.len() as u64) % (room - 65536);
            done += group;
        }
        println!(
            "floor: {:>7.0} records/s, {group} per fdatasync",
            done as f64 / begin.elapsed().as_secs_f64()
        );
    }
}

async fn find_leader(members: &[Member]) -> String {
    let peers = peers();
    loop {
        for member in members {
            let request = v1::MetaRequest {
                op: Some(Op::GetAttr(v1::GetAttrOp { ino: 1 })),
                ..Default::default()
            };
            if ask(&peers, &member.address, &request).await.is_ok() {
                return member.address.clone();
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn measure(what: &str, leader: &str, clients: u64, seconds: u64, create: bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let mut tasks = Vec::new();
    for client in 0..clients {
        let leader = leader.to_string();
        tasks.push(tokio::spawn(async move {
            run(&leader, clients * 1000 + client, end, create).await
        }));
    }
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("a client panicked")?;
    }
    let (elapsed, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!(
        "{clients:>2} clients: {:>7.0} {what}/s, {:>6.0} us each, {:>4.0} us CPU each (3 servers \
         and clients)",
        done as f64 / elapsed,
        elapsed * clients as f64 / done as f64 * 1e6,
        cpu / done as f64 * 1e6
    );
    Ok(())
}

async fn run(leader: &str, client: u64, end: Instant, create: bool) -> Result<u64> {
    let peers = peers();
    let open = v1::OpenSessionOp {
        client: "bench".into(),
        nonce: [[7; 8], client.to_be_bytes()].concat().into(),
        ..Default::default()
    };
    let request = v1::MetaRequest { op: Some(Op::OpenSession(open)), ..Default::default() };
    let Some(Reply::OpenSession(opened)) = ask(&peers, leader, &request).await?.result else {
        panic!("no session");
    };
    let mut number = 0;
    while Instant::now() < end {
        number += 1;
        let op = if create {
            Op::Create(v1::CreateOp {
                parent: 1,
                name: format!("{client}-{number}").into(),
                mode: 0o644,
                exclusive: true,
                open_seq: number,
                ..Default::default()
            })
        } else {
            Op::GetAttr(v1::GetAttrOp { ino: 1 })
        };
        let number = if create { number } else { 0 };
        let request =
            v1::MetaRequest { session: opened.session, number, acked_below: number, op: Some(op) };
        ask(&peers, leader, &request).await?;
    }
    Ok(number)
}

async fn ask(
    peers: &Arc<Peers>,
    address: &str,
    request: &v1::MetaRequest,
) -> Result<v1::MetaReply> {
    peers.peer(address).call(request, Instant::now() + Duration::from_secs(10)).await
}

fn peers() -> Arc<Peers> {
    Peers::new(weft_net::tcp(), weft_net::Identity { name: "bench".into(), cluster: None })
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port()
}

/// CPU time of this process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().filter_map(|&i| fields.get(i)?.parse::<f64>().ok()).sum();
    ticks / 100.0
}
