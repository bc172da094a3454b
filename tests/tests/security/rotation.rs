//! Certificates that are renewed and revoked while the cluster is used.

use crate::{connect, issue, secured};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use weft_proto::InodeId;
use weft_tests::{Cluster, data, eventually, path, weft_ok};

/// Puts a new certificate in the place of one that is there.
fn renew(cluster: &Cluster, file: &str, role: &str, name: &str) -> Result<()> {
    let dir = cluster.tls_dir();
    let new = dir.join(format!("{file}.renewed"));
    let mut args = vec![
        "ca",
        "issue",
        "--dir",
        path(&dir),
        "--role",
        role,
        "--name",
        name,
        "--out",
        path(&new),
    ];
    if role != "client" {
        args.extend(["--host", "127.0.0.1"]);
    }
    weft_ok(&args)?;
    for ending in ["key", "pem"] {
        let from = dir.join(format!("{file}.renewed.{ending}"));
        fs::rename(from, dir.join(format!("{file}.{ending}")))?;
    }
    Ok(())
}

#[test]
fn certificates_come_and_go_under_load() -> Result<()> {
    let cluster = secured()?;
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let runtime = Runtime::new()?;
    let eve = runtime.block_on(connect(&cluster, issue(&cluster, "client", "eve", &[])?))?;
    std::thread::scope(|scope| {
        let load = scope.spawn(|| -> Result<()> {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let file = cluster.mnt().join(format!("f{}", n % 50));
                fs::write(&file, data::bytes(n, 300_000))?;
                fs::File::open(&file)?.sync_all()?;
                ensure!(fs::read(&file)? == data::bytes(n, 300_000), "file {n}");
                written.store(n, Ordering::Relaxed);
            }
            Ok(())
        });
        let more = |count: u64| {
            let from = written.load(Ordering::Relaxed);
            eventually(Duration::from_secs(120), "the load goes on", || {
                let on = written.load(Ordering::Relaxed) >= from + count;
                (on || load.is_finished()).then_some(())
            })
        };
        let result = (|| {
            more(5)?;
            renew(&cluster, "metadata-1", "metadata", "1")?;
            for n in 1..=3 {
                let name = format!("storage-{n}");
                renew(&cluster, &name, "storage", &name)?;
            }
            renew(&cluster, "client", "client", "client")?;
            more(20)?;
            // A daemon that starts anew shows what is there now.
            cluster.kill_storage(0)?;
            cluster.start_again()?;
            more(20)?;
            let dir = cluster.tls_dir();
            weft_ok(&["ca", "revoke", "--dir", path(&dir), "--role", "client", "--name", "eve"])?;
            let look = || {
                runtime.block_on(async {
                    let stat = eve.get_attr(InodeId::ROOT);
                    tokio::time::timeout(Duration::from_secs(1), stat).await
                })
            };
            // Under its lease it needs to ask nobody; when that is over, nobody answers.
            eventually(Duration::from_secs(60), "who is revoked is cut off", || {
                (!matches!(look(), Ok(Ok(_)))).then_some(())
            })?;
            more(20)
        })();
        stop.store(true, Ordering::Relaxed);
        let loaded = load.join().expect("the load does not panic");
        result.and(loaded.context("the load"))
    })?;
    let again = issue(&cluster, "client", "frank", &[])?;
    runtime.block_on(async {
        let fs = connect(&cluster, again).await?;
        anyhow::Ok(fs.shutdown().await?)
    })
}
