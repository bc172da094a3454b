//! Programs that use the library without a kernel get the answers that the kernel gives on a mount
//! of the same cluster: the same calls of the same users in two trees, one by each way. Needs to be
//! root.

mod kernel;
mod op;
mod steps;

use anyhow::{Context, Result, ensure};
use kernel::{as_user, by_kernel};
use op::Op::{self, *};
use op::{Answer, BOB, SAME, users};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use steps::STEPS;
use tokio::runtime::Runtime;
use weft_client::{Access, Caller, Filesystem, OpenFlags, Options, SetTime};
use weft_tests::{Cluster, Shape};

async fn by_library(caller: &Caller, path: &str, op: Op) -> Answer {
    let path = path.as_bytes();
    let id = |id: u32| (id != SAME).then_some(id);
    let done = match op {
        Stat => caller.stat(path).await.map(drop),
        Lstat => caller.lstat(path).await.map(drop),
        Access(1) => caller.access(path, Access::EXECUTE).await,
        Access(_) => unreachable!("nothing else is asked"),
        Open(flags) => match caller.open(path, OpenFlags::from_bits(flags)).await {
            Ok(file) => file.close().await,
            Err(e) => Err(e),
        },
        Create(flags, mode) => match caller.create(path, mode, OpenFlags::from_bits(flags)).await {
            Ok(file) => file.close().await,
            Err(e) => Err(e),
        },
        Mkdir(mode) => caller.mkdir(path, mode).await.map(drop),
        Unlink => caller.unlink(path).await,
        Rmdir => caller.rmdir(path).await,
        Rename(to) => caller.rename(path, to.as_bytes(), 0).await,
        Exchange(to) => caller.rename(path, to.as_bytes(), libc::RENAME_EXCHANGE).await,
        Link(to) => caller.link(path, to.as_bytes()).await.map(drop),
        Symlink(target) => caller.symlink(target.as_bytes(), path).await.map(drop),
        Readlink => caller.readlink(path).await.map(drop),
        ReadDir => caller.read_dir(path, 0, 100, false).await.map(drop),
        Chmod(mode) => caller.chmod(path, mode).await.map(drop),
        Chown(uid, gid) => caller.chown(path, id(uid), id(gid)).await.map(drop),
        Truncate(size) => caller.truncate(path, size).await.map(drop),
        Touch => caller.utimes(path, Some(SetTime::Now), Some(SetTime::Now)).await.map(drop),
        Age => {
            let then = Some(SetTime::At(5_000_000_000));
            caller.utimes(path, then, then).await.map(drop)
        }
        GetXattr(name) => caller.get_xattr(path, name.to_bytes()).await.map(drop),
        SetXattr(name, value) => caller.set_xattr(path, name.to_bytes(), value, 0).await,
    };
    done.map_err(|e| e.errno())
}

/// All that is below, and whose it is.
fn picture(at: &Path, name: &str, out: &mut Vec<String>) -> Result<()> {
    let meta = fs::symlink_metadata(at)?;
    let (mode, uid, gid, size) = (meta.mode(), meta.uid(), meta.gid(), meta.size());
    out.push(format!("{name} {mode:o} {uid}:{gid} {} {size}", meta.nlink()));
    if meta.is_dir() {
        let mut names = Vec::new();
        for entry in fs::read_dir(at)? {
            names.push(entry?.file_name().into_string().ok().context("a name that is text")?);
        }
        names.sort();
        for below in names {
            picture(&at.join(&below), &format!("{name}/{below}"), out)?;
        }
    }
    Ok(())
}

#[test]
fn the_library_answers_as_the_kernel_does() -> Result<()> {
    let shape = Shape { metadata: 1, storage: 3, profile: "2+1", ..Default::default() };
    let cluster = Cluster::start_as(shape)?;
    let above = cluster.mnt().parent().context("a folder above")?;
    fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
    // SAFETY: a number.
    unsafe { libc::umask(0o022) };
    let tops = ["kernel", "library"].map(|name| cluster.mnt().join(name));
    for top in &tops {
        fs::create_dir(top)?;
    }
    let kernel = tops[0].to_str().context("a path that is text")?;
    let runtime = Runtime::new()?;
    let servers = cluster.address()?.split(',').map(str::to_owned).collect();
    let options = Options::new(servers, weft_net::tcp());
    let fs = runtime.block_on(Filesystem::connect(options))?;
    let [root, ..] = users();
    let start = runtime.block_on(fs.as_user(root).lookup(b"/library"))?;
    let callers = users().map(|who| fs.as_user(who).with_umask(0o022).at(start));
    // A machine may let users link what the library does not.
    let strict = fs::read_to_string("/proc/sys/fs/protected_hardlinks")?.trim() != "0";
    let mut wrong = Vec::new();
    let mut seen = [0; 3];
    for (number, &(user, path, op)) in STEPS.iter().enumerate() {
        if !strict && user == BOB && matches!(op, Link(_)) {
            continue;
        }
        let want = as_user(&users()[user], || by_kernel(kernel, path, op));
        let got = runtime.block_on(by_library(&callers[user], path, op));
        if want != got {
            wrong.push(format!("{number}: {user} {path} {op:?}: {got:?}, not {want:?}"));
        }
        match want {
            Err(libc::EACCES) => seen[0] += 1,
            Err(libc::EPERM) => seen[1] += 1,
            Err(_) => seen[2] += 1,
            Ok(()) => {}
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    ensure!(seen.iter().all(|refusals| *refusals >= 15), "too few refusals: {seen:?}");
    let mut pictures = [Vec::new(), Vec::new()];
    for (top, picture_of) in tops.iter().zip(&mut pictures) {
        picture(top, "", picture_of)?;
    }
    let [want, got] = pictures;
    ensure!(want == got, "{got:#?}\nnot {want:#?}");
    runtime.block_on(fs.shutdown())?;
    cluster.await_clean()
}
