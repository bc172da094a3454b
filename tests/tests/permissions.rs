//! Who may do what, where the kernel decides with what it is told: on files that another mount made a moment
//! ago.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Runtime;
use weft_client::{Creator, Filesystem, OpenFlags};
use weft_fuse::abi::{Op, Reply, Request};
use weft_fuse::{Adapter, Handler, Options, Outcome, mount_handler};
use weft_proto::InodeId;
use weft_tests::{Cluster, path};

/// Answers as the adapter does; but the file is made by another mount after the kernel was told, once, that
/// there is none.
struct Overtaken {
    adapter: Adapter,
    other: Filesystem,
    name: &'static str,
    mode: u32,
    made: AtomicBool,
}

impl Handler for Overtaken {
    fn handle(&self, request: &Request<'_>) -> Outcome {
        let sought = matches!(request.op, Op::Lookup { name } if name == self.name.as_bytes());
        let outcome = self.adapter.handle(request);
        if !sought || self.made.swap(true, Ordering::SeqCst) {
            return outcome;
        }
        let (other, name, mode) = (self.other.clone(), self.name, self.mode);
        Outcome::working(async move {
            let answer = match outcome {
                Outcome::Working(work) | Outcome::Waiting(work, _) => work.await,
                Outcome::Done(answer) => answer,
            };
            make(&other, name, mode).await.expect("the other mount makes it");
            answer
        })
    }

    fn unwanted(&self, reply: &Reply) {
        self.adapter.unwanted(reply);
    }
}

async fn make(fs: &Filesystem, name: &str, mode: u32) -> Result<()> {
    let flags = OpenFlags { write: true, exclusive: true, ..Default::default() };
    let by = Creator::default();
    let made = fs.create(InodeId::ROOT, name.as_bytes(), mode, by, flags).await?;
    fs.write(made.handle, 0, b"content").await?;
    fs.close(made.handle, 0).await?;
    Ok(fs.release(made.handle).await?)
}

/// As somebody who owns nothing and is in no group of anything.
fn as_nobody(program: &[&str]) -> Result<Output> {
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    Command::new("setpriv").args(user).args(program).output().context("run setpriv")
}

/// A file appears between the kernel's look and its request to make it, which does not insist that it be new.
#[test]
fn what_another_mount_made_meanwhile_is_opened_by_whom_it_allows_only() -> Result<()> {
    let cluster = Cluster::start()?;
    fs::set_permissions(cluster.mnt(), fs::Permissions::from_mode(0o777))?;
    let servers = || -> Result<Vec<String>> {
        Ok(cluster.address()?.split(',').map(str::to_owned).collect())
    };
    let runtime = Runtime::new()?;
    for (name, mode, allowed) in [("private", 0o600, false), ("public", 0o666, true)] {
        let connect = || -> Result<Filesystem> {
            let options = weft_client::Options::new(servers()?, weft_net::tcp());
            Ok(runtime.block_on(Filesystem::connect(options))?)
        };
        let (fs, other) = (connect()?, connect()?);
        let adapter = Adapter::new(fs.clone());
        let made = AtomicBool::new(false);
        let handler = Arc::new(Overtaken { adapter, other: other.clone(), name, mode, made });
        let at = cluster.scratch(&format!("at {name}"))?;
        let above = at.parent().context("a folder above")?;
        fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
        let inside = runtime.enter();
        let mounted = mount_handler(handler.clone(), &at, &Options::default())?;
        drop(inside);
        let file = at.join(name);
        let out = as_nobody(&["sh", "-c", "echo more >> \"$1\"", "sh", path(&file)])?;
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        ensure!(handler.made.load(Ordering::SeqCst), "the kernel did not look: {told}");
        ensure!(out.status.success() == allowed, "{name}: {}, {told}", out.status);
        ensure!(allowed || told.contains("ermission denied"), "{told}");
        let text = fs::read_to_string(&file)?;
        ensure!(text == if allowed { "contentmore\n" } else { "content" }, "{name} has {text:?}");
        ensure!(fs::metadata(&file)?.mode() & 0o7777 == mode);
        // It took its name from nobody: to insist that it be new is refused.
        let again = fs::File::create_new(&file).map_err(|e| e.raw_os_error());
        ensure!(again.is_err_and(|e| e == Some(libc::EEXIST)));
        mounted.unmount(false)?;
        mounted.join()?;
        runtime.block_on(async {
            fs.shutdown().await?;
            other.shutdown().await?;
            anyhow::Ok(())
        })?;
    }
    cluster.await_clean()
}
