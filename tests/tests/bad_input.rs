//! What a newcomer and a network may do wrong: clear errors, closed connections, nothing lost.

use anyhow::{Context, Result, ensure};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use weft_tests::{Cluster, Shape, data, path, weft};

/// Runs `weft`, demands failure, and demands that each of `words` is in what it says.
fn refused(args: &[&str], words: &[&str]) -> Result<()> {
    let out = weft(args)?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(!out.status.success(), "weft {args:?} was not refused; it said {said:?}");
    ensure!(!said.contains("panicked"), "weft {args:?} panicked: {said}");
    for word in words {
        ensure!(said.contains(word), "weft {args:?} does not mention {word:?}: {said:?}");
    }
    Ok(())
}

#[test]
fn wrong_arguments_are_refused_with_a_reason() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "64MiB", ..Shape::default() })?;
    let address = cluster.address()?;
    fs::write(cluster.mnt().join("f"), b"kept")?;

    refused(&["dev", "strat"], &["strat"])?;
    refused(
        &["mount", "--cluster", &address, "/nonexistent/mount/point"],
        &["/nonexistent/mount/point"],
    )?;
    let full = cluster.scratch("full")?;
    fs::write(full.join("x"), b"x")?;
    refused(&["mount", "--cluster", &address, path(&full)], &["not empty", path(&full)])?;
    let empty = cluster.scratch("empty")?;
    refused(&["mount", "--cluster", "127.0.0.1:1", path(&empty)], &["127.0.0.1:1"])?;
    refused(&["dev", "start", "--dir", path(&full), "--mount", path(&empty)], &[path(&full)])?;
    refused(
        &[
            "dev",
            "start",
            "--dir",
            path(&empty.join("d")),
            "--mount",
            path(&empty),
            "--profile",
            "4x2",
        ],
        &["4x2"],
    )?;
    refused(&["layout", "set", path(cluster.mnt()), "--ec", "99+1"], &["99+1"])?;

    ensure!(fs::read(cluster.mnt().join("f"))? == b"kept");
    Ok(())
}

#[test]
fn garbage_on_every_port_does_no_harm() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "64MiB", ..Shape::default() })?;
    let content = data::bytes(3, 2 << 20);
    fs::write(cluster.mnt().join("f"), &content)?;
    let status = cluster.status()?;
    let addresses = ["metadata", "storage"]
        .iter()
        .flat_map(|kind| status[*kind].as_array().into_iter().flatten())
        .filter_map(|p| p["address"].as_str());
    for address in addresses {
        for garbage in [
            data::bytes(1, 100_000),
            b"WEFT".iter().copied().chain(data::bytes(2, 4096)).collect(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                .iter()
                .copied()
                .chain(data::bytes(4, 4096))
                .collect(),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        ] {
            let mut stream = TcpStream::connect(address).with_context(|| address.to_string())?;
            stream.set_read_timeout(Some(Duration::from_secs(120)))?;
            // The daemon may close before all of it is sent.
            let _ = stream.write_all(&garbage);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut rest = Vec::new();
            match stream.read_to_end(&mut rest) {
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
                Err(e) => anyhow::bail!("{address} neither answered nor closed: {e}"),
            }
        }
    }
    cluster.remount()?;
    ensure!(fs::read(cluster.mnt().join("f"))? == content);
    cluster.await_clean()
}

#[test]
fn damaged_and_foreign_targets_are_refused_and_lose_nothing() -> Result<()> {
    let shape = Shape { target_size: "64MiB", ..Shape::default() };
    let cluster = Cluster::start_as(shape.clone())?;
    let content = data::bytes(3, 2 << 20);
    fs::write(cluster.mnt().join("f"), &content)?;
    cluster.stop()?;

    // A truncated target: its daemon refuses it and says so, the others serve.
    let target = cluster.target_paths()?.remove(0);
    let whole = fs::read(&target)?;
    OpenOptions::new().write(true).open(&target)?.set_len(1 << 20)?;
    let out =
        weft(&["dev", "start", "--dir", path(cluster.dir()), "--mount", path(cluster.mnt())])?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &cluster.logs();
    // Healthy starts name it, too.
    let refuses = |line: &str| line.contains(path(&target)) && !line.contains(" INFO ");
    ensure!(said.lines().any(refuses), "nothing refuses the truncated {target:?}: {said}");
    if out.status.success() {
        ensure!(fs::read(cluster.mnt().join("f"))? == content);
    }
    cluster.stop()?;

    // Given back whole, it serves again.
    fs::write(&target, &whole)?;
    cluster.start_again()?;
    cluster.await_targets("up", 6)?;
    ensure!(fs::read(cluster.mnt().join("f"))? == content);
    cluster.await_clean()
}
