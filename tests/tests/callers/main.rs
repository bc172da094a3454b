//! Programs that use the library without a kernel get the answers that the kernel gives on a mount
//! of the same cluster: the same calls of the same users in two trees, one by each way. Needs to be
//! root.

mod draw;
mod kernel;
mod op;
mod steps;

use anyhow::{Context, Result, ensure};
use draw::Draw;
use kernel::{as_user, by_kernel};
use op::Op::{self, *};
use op::{Answer, BOB, ROOT, SAME, users};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use steps::{CUT, RW, STEPS, WR};
use tokio::runtime::Runtime;
use weft_client::{Access, Caller, Filesystem, OpenFlags, Options, SetTime};
use weft_proto::ErrorKind;
use weft_tests::{Cluster, Shape};

const RANDOM_STEPS: usize = 600;

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
            // The library opens files only, and says so to who may read the directory.
            Err(e) if e.kind == ErrorKind::IsDirectory && flags & (WR | RW | CUT) == 0 => Ok(()),
            Err(e) => Err(e),
        },
        Create(flags, mode) => match caller.create(path, mode, OpenFlags::from_bits(flags)).await {
            Ok(file) => file.close().await,
            Err(e) => Err(e),
        },
        Write => match caller.open(path, OpenFlags { write: true, ..Default::default() }).await {
            Ok(file) => match file.write(0, b"x").await {
                Ok(_) => file.close().await,
                Err(e) => Err(e),
            },
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

/// An inode, and whose it is.
fn show(at: &Path) -> Result<String> {
    let meta = fs::symlink_metadata(at)?;
    let (mode, uid, gid, size) = (meta.mode(), meta.uid(), meta.gid(), meta.size());
    Ok(format!("{mode:o} {uid}:{gid} {} {size}", meta.nlink()))
}

/// All that is below, and whose it is.
fn picture(at: &Path, name: &str, out: &mut Vec<String>) -> Result<()> {
    out.push(format!("{name} {}", show(at)?));
    if fs::symlink_metadata(at)?.is_dir() {
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

/// Two trees of one cluster: one for the kernel, one for the library.
struct Trees {
    cluster: Cluster,
    runtime: Runtime,
    fs: Filesystem,
    tops: [PathBuf; 2],
    callers: [Caller; 3],
}

impl Trees {
    fn plant() -> Result<Self> {
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
        let runtime = Runtime::new()?;
        let servers = cluster.address()?.split(',').map(str::to_owned).collect();
        let options = Options::new(servers, cluster.transport()?);
        let fs = runtime.block_on(Filesystem::connect(options))?;
        let [root, ..] = users();
        let start = runtime.block_on(fs.as_user(root).lookup(b"/library"))?;
        let callers = users().map(|who| fs.as_user(who).with_umask(0o022).at(start));
        Ok(Self { cluster, runtime, fs, tops, callers })
    }

    /// What the kernel answers, and what is different.
    fn step(&self, user: usize, path: &str, op: Op) -> Result<(Answer, Option<String>)> {
        let kernel = self.tops[0].to_str().context("a path that is text")?;
        let want = as_user(&users()[user], || by_kernel(kernel, path, op));
        let got = self.runtime.block_on(by_library(&self.callers[user], path, op));
        let shown = self.tops.each_ref().map(|top| show(&top.join(path)).ok());
        let wrong = !same(op, want, got) || shown[0] != shown[1];
        let text =
            || format!("{user} {path} {op:?}: {got:?} {:?}, not {want:?} {:?}", shown[1], shown[0]);
        Ok((want, wrong.then(text)))
    }

    /// Both trees are the same.
    fn fell(self) -> Result<()> {
        let mut pictures = [Vec::new(), Vec::new()];
        for (top, picture_of) in self.tops.iter().zip(&mut pictures) {
            picture(top, "", picture_of)?;
        }
        let [want, got] = pictures;
        ensure!(want == got, "{got:#?}\nnot {want:#?}");
        self.runtime.block_on(self.fs.shutdown())?;
        self.cluster.await_clean()
    }
}

#[test]
fn the_library_answers_as_the_kernel_does() -> Result<()> {
    let trees = Trees::plant()?;
    let strict = policy("hardlinks")?;
    let (mut wrong, mut seen) = (Vec::new(), [0; 3]);
    for (number, &(user, path, op)) in STEPS.iter().enumerate() {
        if !strict && user == BOB && matches!(op, Link(_)) {
            continue;
        }
        let (want, different) = trees.step(user, path, op)?;
        wrong.extend(different.map(|text| format!("{number}: {text}")));
        match want {
            Err(libc::EACCES) => seen[0] += 1,
            Err(libc::EPERM) => seen[1] += 1,
            Err(_) => seen[2] += 1,
            Ok(()) => {}
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    ensure!(seen.iter().all(|refusals| *refusals >= 15), "too few refusals: {seen:?}");
    trees.fell()
}

/// Whoever does whatever to names that come again and again. `WEFT_SEED` repeats a run.
#[test]
fn the_library_answers_as_the_kernel_does_whatever_is_asked() -> Result<()> {
    let seed = match std::env::var("WEFT_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    println!("WEFT_SEED={seed}");
    let trees = Trees::plant()?;
    let mut draw = Draw {
        rng: SmallRng::seed_from_u64(seed),
        links: policy("hardlinks")?,
        sticky: !policy("symlinks")? && !policy("regular")?,
    };
    let (opened, _) = trees.step(ROOT, ".", Chmod(0o777))?;
    ensure!(opened == Ok(()), "the trees are to be open to all: {opened:?}");
    let mut before = Vec::new();
    for _ in 0..RANDOM_STEPS {
        let (user, path, op) = draw.step();
        let (want, different) = trees.step(user, path, op)?;
        before.push(format!("{user} {path} {op:?}: {want:?}"));
        let recent = &before[before.len().saturating_sub(40)..];
        ensure!(different.is_none(), "seed {seed}: {different:?}\nafter {recent:#?}");
    }
    trees.fell()
}

/// Where a name would get below itself, or in place of what it is in, the library asks for
/// permission first: only the metadata group knows the way up.
fn same(op: Op, want: Answer, got: Answer) -> bool {
    let moves = matches!(op, Rename(_) | Exchange(_));
    let circle = matches!(want, Err(libc::EINVAL | libc::ENOTEMPTY));
    want == got || moves && circle && got.is_err()
}

/// Whether the machine's kernel protects such things from other users.
fn policy(what: &str) -> Result<bool> {
    Ok(fs::read_to_string(format!("/proc/sys/fs/protected_{what}"))?.trim() != "0")
}
