//! Who may do what, where the kernel decides with what it is told: on files that another mount made
//! a moment ago.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::runtime::{Handle, Runtime};
use weft_client::{Creator, Filesystem, OpenFlags};
use weft_fuse::abi::{Header, Op, Reply, Request};
use weft_fuse::{Adapter, Handler, Options, Outcome, mount_handler};
use weft_proto::InodeId;
use weft_tests::{Cluster, path, run};

/// After so many looks nothing happens any more.
const ENOUGH: u32 = 9;

/// Answers as the adapter does; but the file is made by another mount after the kernel was told
/// that there is none. If it `goes`, that removes it before the kernel looks once more, and so on.
struct Overtaken {
    adapter: Adapter,
    other: Filesystem,
    name: &'static str,
    mode: u32,
    goes: bool,
    looks: AtomicU32,
}

impl Handler for Overtaken {
    fn handle(&self, request: &Request<'_>) -> Outcome {
        let sought = matches!(request.op, Op::Lookup { name } if name == self.name.as_bytes());
        let looks = if sought { self.looks.fetch_add(1, Ordering::SeqCst) } else { ENOUGH };
        let (other, name, mode) = (self.other.clone(), self.name, self.mode);
        if looks > u32::from(self.goes) {
            return self.adapter.handle(request);
        }
        if looks > 0 {
            let fs = other.clone();
            let remove = async move { fs.unlink(InodeId::ROOT, name.as_bytes()).await };
            Handle::current().block_on(remove).expect("the other mount removes it");
        }
        let outcome = self.adapter.handle(request);
        Outcome::working(async move {
            let answer = match outcome {
                Outcome::Working(work) | Outcome::Waiting(work, _) => work.await,
                Outcome::Done(answer) => answer,
            };
            make(&other, name, mode).await.expect("the other mount makes it");
            answer
        })
    }

    fn unwanted(&self, header: &Header, reply: &Reply) {
        self.adapter.unwanted(header, reply);
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

/// Changes a file in each way, as each user, and prints the modes that are left.
const CHANGES: &str = r#"
import os, sys
folder, other = sys.argv[1:]
USERS = {"owner": (1000, 1000, []), "root": (0, 0, []), "nobody": (65534, 65534, []),
         "member": (1001, 2000, []), "member beside": (1001, 1001, [2000])}

def opened(flags, change):
    def run(name):
        fd = os.open(name, flags)
        change(fd)
        os.close(fd)
    return run

def aged(flags, change):
    """The bits are set by another mount while the file is open already."""
    def run(name, set_mode):
        fd = os.open(name, flags)
        change(fd)
        set_mode()
        change(fd)
        os.close(fd)
    run.aged = True
    return run

def copy(fd):
    source = os.open("/proc/self/exe", os.O_RDONLY)
    if os.fstat(source).st_dev != os.fstat(fd).st_dev:
        os.close(source)
        source = os.open(folder + "/source", os.O_RDONLY)
    os.copy_file_range(source, fd, 10)
    os.close(source)

write = lambda fd: os.write(fd, b"x")
CHANGES = {
    "write": opened(os.O_WRONLY, write),
    "direct": opened(os.O_WRONLY | os.O_APPEND, write),
    "append after": aged(os.O_WRONLY | os.O_APPEND, write),
    "write after": aged(os.O_WRONLY, write),
    "truncate": lambda name: os.truncate(name, 3),
    "grow": lambda name: os.truncate(name, 300),
    "ftruncate": opened(os.O_WRONLY, lambda fd: os.ftruncate(fd, 2)),
    "open to cut": opened(os.O_WRONLY | os.O_TRUNC, lambda fd: None),
    "allocate": opened(os.O_WRONLY, lambda fd: os.posix_fallocate(fd, 0, 100)),
    "copy": opened(os.O_WRONLY, copy),
    "times": opened(os.O_WRONLY, lambda fd: os.utime(fd)),
    "read": opened(os.O_RDONLY, lambda fd: os.read(fd, 1)),
    "chown": lambda name: os.chown(name, -1, -1),
    "chgrp": lambda name: os.chown(name, -1, os.getegid()),
}
number = 0
with open(folder + "/source", "w") as source:
    source.write("source of the copy")
for change, run in CHANGES.items():
    for mode in [0o4777, 0o2777, 0o6777, 0o2767, 0o6767, 0o1777, 0o666]:
        for user, (uid, gid, groups) in USERS.items():
            if change in ["chown", "chgrp"] and user not in ["owner", "root"]:
                continue
            number += 1
            name = f"f{number}"
            with open(f"{folder}/{name}", "w") as file:
                file.write("content")
            os.chown(f"{folder}/{name}", 1000, 2000)
            os.chmod(f"{folder}/{name}", 0o777 if hasattr(run, "aged") else mode)
            def become(uid, gid, groups):
                os.setresuid(-1, 0, -1)
                os.setgroups(groups)
                os.setresgid(-1, gid, -1)
                os.setresuid(-1, uid, -1)
            def set_mode():
                become(0, 0, [])
                os.chmod(f"{other}/{name}", mode)
                become(uid, gid, groups)
            become(uid, gid, groups)
            if hasattr(run, "aged"):
                run(f"{folder}/{name}", set_mode)
            else:
                run(f"{folder}/{name}")
            become(0, 0, [])
            left = {oct(os.stat(f"{at}/{name}").st_mode & 0o7777) for at in [folder, other]}
            print(change, user, oct(mode), *left)
            os.remove(f"{folder}/{name}")
"#;

/// Who changes a file takes the rights that its program gave, as on the local filesystem.
#[test]
fn set_id_bits_end_with_a_change_by_whom_they_do_not_belong_to() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    let local = cluster.scratch("local")?;
    let above = local.parent().context("a folder above")?;
    fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(&a, fs::Permissions::from_mode(0o777))?;
    fs::set_permissions(&local, fs::Permissions::from_mode(0o777))?;
    let changed = |folder: &Path, other: &Path| -> Result<Vec<String>> {
        let shown = run("python3", &["-c", CHANGES, path(folder), path(other)], above)?;
        Ok(shown.lines().map(str::to_owned).collect())
    };
    let want = changed(&local, &local)?;
    for (here, there) in [(&a, &a), (&a, &b), (&b, &a)] {
        let got = changed(here, there)?;
        let wrong: Vec<_> = want.iter().zip(&got).filter(|(want, got)| want != got).collect();
        ensure!(wrong.is_empty() && want.len() == got.len(), "locally and here: {wrong:#?}");
    }
    cluster.await_clean()
}

/// A file appears between the kernel's look and its request to make it, which does not insist that
/// it be new.
#[test]
fn what_another_mount_made_meanwhile_is_opened_by_whom_it_allows_only() -> Result<()> {
    let cluster = Cluster::start()?;
    fs::set_permissions(cluster.mnt(), fs::Permissions::from_mode(0o777))?;
    let servers = || -> Result<Vec<String>> {
        Ok(cluster.address()?.split(',').map(str::to_owned).collect())
    };
    let runtime = Runtime::new()?;
    let private = (0o600, "echo more >> \"$1\"", "content", false, false);
    let groups = (0o660, "echo more >> \"$1\"", "content", false, false);
    let public = (0o666, "echo more >> \"$1\"", "contentmore\n", true, true);
    let cut = (0o666, "echo more > \"$1\"", "more\n", true, true);
    for (name, (mode, script, left, allowed, goes)) in
        [("private", private), ("groups", groups), ("public", public), ("cut", cut)]
    {
        let connect = || -> Result<Filesystem> {
            let options = weft_client::Options::new(servers()?, cluster.transport()?);
            Ok(runtime.block_on(Filesystem::connect(options))?)
        };
        let (fs, other) = (connect()?, connect()?);
        let adapter = Adapter::new(fs.clone());
        let looks = AtomicU32::new(0);
        let handler =
            Arc::new(Overtaken { adapter, other: other.clone(), name, mode, goes, looks });
        let at = cluster.scratch(&format!("at {name}"))?;
        let above = at.parent().context("a folder above")?;
        fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
        let inside = runtime.enter();
        let mounted = mount_handler(handler.clone(), &at, &Options::default())?;
        drop(inside);
        let file = at.join(name);
        let out = as_nobody(&["sh", "-c", script, "sh", path(&file)])?;
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        // What whoever asks may have for certain is opened at once.
        let looks = handler.looks.swap(ENOUGH, Ordering::SeqCst);
        let as_wanted = if allowed { looks == 1 } else { looks > 1 };
        ensure!(as_wanted, "the kernel looked {looks} times: {told}");
        ensure!(out.status.success() == allowed, "{name}: {}, {told}", out.status);
        ensure!(allowed || told.contains("ermission denied"), "{told}");
        let text = fs::read_to_string(&file)?;
        ensure!(text == left, "{name} has {text:?}");
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
