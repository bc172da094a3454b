//! Open directories: one of very many names, listed while another mount makes and removes some of
//! them, and those that are removed.
//!
//! `WEFT_DIR_ENTRIES=1000000` makes it larger than the test suite does.

// How long a run took is told.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat, mknodat};
use nix::unistd::{linkat, symlinkat};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use weft_client::{Creator, FileKind, Filesystem, Options};
use weft_proto::InodeId;
use weft_tests::{Cluster, await_free, eventually, path};

/// Names that are made at a time, past the kernel, which would make them one by one.
const AT_ONCE: u64 = 128;

/// An open directory, read as programs do.
struct Listing(*mut libc::DIR);

impl Listing {
    fn open(dir: &Path) -> Result<Self> {
        let name = CString::new(path(dir))?;
        // SAFETY: the name ends with a zero byte.
        let dir = unsafe { libc::opendir(name.as_ptr()) };
        ensure!(!dir.is_null(), "opendir: {}", std::io::Error::last_os_error());
        Ok(Self(dir))
    }

    /// The next name; `None` at the end.
    fn next(&mut self) -> Result<Option<String>> {
        // SAFETY: it is open, and errno belongs to this thread.
        let entry = unsafe {
            *libc::__errno_location() = 0;
            libc::readdir64(self.0)
        };
        if entry.is_null() {
            let error = std::io::Error::last_os_error();
            ensure!(error.raw_os_error() == Some(0), "readdir: {error}");
            return Ok(None);
        }
        // SAFETY: the entry is valid until the next call, and its name ends with a zero byte.
        let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
        Ok(Some(name.to_str()?.to_owned()))
    }

    /// The next name of those that stay; `None` at the end.
    fn next_kept(&mut self) -> Result<Option<String>> {
        while let Some(name) = self.next()? {
            if name.starts_with("kept") {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    fn place(&mut self) -> libc::c_long {
        // SAFETY: it is open.
        unsafe { libc::telldir(self.0) }
    }

    fn go(&mut self, place: libc::c_long) {
        // SAFETY: it is open.
        unsafe { libc::seekdir(self.0, place) }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { libc::closedir(self.0) };
    }
}

/// Makes all names, of which every tenth will be removed.
async fn make(cluster: &Cluster, count: u64) -> Result<()> {
    let servers = cluster.address()?.split(',').map(str::to_owned).collect();
    let fs = Filesystem::connect(Options::new(servers, cluster.transport()?)).await?;
    let dir = fs.lookup(InodeId::ROOT, b"d").await?.ino;
    let mut makers = JoinSet::new();
    for first in 0..AT_ONCE {
        let fs = fs.clone();
        makers.spawn(async move {
            for i in (first..count).step_by(AT_ONCE as usize) {
                let by = Creator::default();
                fs.mk_nod(dir, name(i).as_bytes(), FileKind::Regular, 0o600, 0, by).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(made) = makers.join_next().await {
        made??;
    }
    Ok(fs.shutdown().await?)
}

fn name(i: u64) -> String {
    format!("{}{i}", if i.is_multiple_of(10) { "lost" } else { "kept" })
}

#[test]
fn names_that_stay_are_listed_once_while_others_come_and_go() -> Result<()> {
    let count: u64 = match std::env::var("WEFT_DIR_ENTRIES") {
        Ok(text) => text.parse().context("WEFT_DIR_ENTRIES is no number")?,
        Err(_) => 20_000,
    };
    let cluster = Cluster::start()?;
    let (dir, there) = (cluster.mnt().join("d"), cluster.mount_again("second")?.join("d"));
    fs::create_dir(&dir)?;
    let begun = Instant::now();
    tokio::runtime::Runtime::new()?.block_on(make(&cluster, count))?;
    println!("{count} names made in {:.1} s", begun.elapsed().as_secs_f64());

    let (over, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let changed = change(&there, count, &over, &changes);
            over.store(true, Ordering::Relaxed);
            changed
        });
        let listed = list(&dir, count, &changes, &over);
        over.store(true, Ordering::Relaxed);
        changing.join().expect("the other mount panicked").and(listed)
    })?;
    println!("{} names made or removed meanwhile", changes.load(Ordering::Relaxed));
    cluster.await_clean()
}

/// Until it is `over`, makes names and removes them again, and those that are to go.
fn change(dir: &Path, count: u64, over: &AtomicBool, changes: &AtomicU64) -> Result<()> {
    for i in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        File::create(dir.join(format!("new{i}")))?;
        if i >= 100 {
            fs::remove_file(dir.join(format!("new{}", i - 100)))?;
        }
        if i * 10 < count {
            fs::remove_file(dir.join(name(i * 10)))?;
        }
        changes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Lists the directory whole, and from many places in it.
fn list(dir: &Path, count: u64, changes: &AtomicU64, over: &AtomicBool) -> Result<()> {
    let more = |since: u64| {
        eventually(Duration::from_secs(60), "changes by the other mount", || {
            // If it has failed, it says why.
            let ended = over.load(Ordering::Relaxed);
            (ended || changes.load(Ordering::Relaxed) > since).then_some(())
        })
    };
    more(0)?;
    let begun = Instant::now();
    let mut listing = Listing::open(dir)?;
    let mut order = Vec::new();
    // Where it was, and which name that stays came then.
    let mut places = Vec::new();
    let mut rng = SmallRng::seed_from_u64(count);
    loop {
        let place = rng.random_ratio(1, 500).then(|| listing.place());
        if place.is_some() {
            more(changes.load(Ordering::Relaxed))?;
        }
        let next = listing.next_kept()?;
        places.extend(place.map(|place| (place, next.clone())));
        let Some(name) = next else { break };
        order.push(name);
    }
    println!("listed in {:.1} s", begun.elapsed().as_secs_f64());
    let mut seen = order.clone();
    seen.sort_unstable();
    let mut kept: Vec<_> = (0..count).map(name).filter(|name| name.starts_with("kept")).collect();
    kept.sort_unstable();
    let wrong = seen.iter().zip(&kept).find(|(seen, kept)| seen != kept);
    let lengths = (seen.len(), kept.len());
    ensure!(seen == kept, "missing or twice near {wrong:?}; seen and there: {lengths:?}");

    places.shuffle(&mut rng);
    for (place, want) in &places {
        more(changes.load(Ordering::Relaxed))?;
        listing.go(*place);
        let got = listing.next_kept()?;
        ensure!(got == *want, "{got:?} instead of {want:?} came from place {place}");
    }
    println!("{} places found again", places.len());
    // From there on all the rest, to the end.
    let (place, want) = places.first().context("no places")?;
    listing.go(*place);
    let mut rest = 0;
    while listing.next_kept()?.is_some() {
        rest += 1;
    }
    let after = order.iter().position(|name| Some(name) == want.as_ref());
    let want = order.len() - after.unwrap_or(order.len());
    ensure!(rest == want, "{rest} names instead of {want} from place {place} on");
    Ok(())
}

/// A name that is moved, and moved back, is a new name: none of them comes again, so that there is
/// an end.
#[test]
fn an_open_directory_ends_where_it_ended_when_it_began_to_be_read() -> Result<()> {
    // More than one call of the kernel answers.
    const NAMES: usize = 1500;
    let cluster = Cluster::start()?;
    let (dir, there) = (cluster.mnt().join("d"), cluster.mount_again("second")?.join("d"));
    fs::create_dir(&dir)?;
    for i in 0..NAMES {
        File::create(dir.join(format!("f{i}")))?;
    }
    for mover in [&dir, &there] {
        let mut listing = Listing::open(&dir)?;
        let mut seen = BTreeSet::new();
        while let Some(name) = listing.next()? {
            if name.starts_with('.') {
                continue;
            }
            fs::rename(mover.join(&name), mover.join("moved"))?;
            fs::rename(mover.join("moved"), mover.join(&name))?;
            ensure!(seen.insert(name.clone()), "{name} came twice, after {} names", seen.len());
        }
        ensure!(seen.len() == NAMES, "{} names were read", seen.len());
        // From the start on, it is read as it is then.
        let new = format!("new by {}", mover.display()).replace('/', " ");
        File::create(mover.join(&new))?;
        listing.go(0);
        let mut names = Vec::new();
        while let Some(name) = listing.next()? {
            names.push(name);
        }
        ensure!(names.len() == NAMES + 3 && names.contains(&new), "{} names", names.len());
        fs::remove_file(mover.join(&new))?;
    }
    cluster.await_clean()
}

/// What an open directory answers that was removed: attributes can be looked at and changed, there
/// are no names, and none can be made.
fn check_removed(dir: &File, other: &Path) -> Result<()> {
    let attr = dir.metadata()?;
    ensure!(attr.is_dir() && attr.nlink() == 0, "{attr:?}");
    dir.set_permissions(fs::Permissions::from_mode(0o751))?;
    let time = std::time::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    dir.set_modified(time)?;
    let attr = dir.metadata()?;
    ensure!(attr.mode() & 0o7777 == 0o751 && attr.modified()? == time, "{attr:?}");
    // SAFETY: the names end with a zero byte and the lengths are those of the values.
    let (set, got) = unsafe {
        let (fd, name, mut value) = (dir.as_raw_fd(), c"user.a".as_ptr(), [0u8; 8]);
        let set = libc::fsetxattr(fd, name, c"value".as_ptr().cast(), 5, 0);
        let got = libc::fgetxattr(fd, name, value.as_mut_ptr().cast(), value.len());
        (set, usize::try_from(got).map(|len| value[..len].to_vec()))
    };
    ensure!(set == 0 && got.as_deref() == Ok(b"value"), "{set}, {got:?}");
    ensure!(entries(dir) == Err(Errno::ENOENT), "{:?}", entries(dir));

    let create = OFlag::O_CREAT | OFlag::O_WRONLY;
    let unnamed = OFlag::O_TMPFILE | OFlag::O_WRONLY;
    let (here, mode) = (AtFlags::empty(), Mode::S_IRWXU);
    let device = |kind| mknodat(dir, "x", kind, mode, 0);
    let made = [
        ("stat", fstatat(dir, "x", here).map(drop)),
        ("create", openat(dir, "x", create, mode).map(drop)),
        ("tmpfile", openat(dir, ".", unnamed, mode).map(drop)),
        ("mkdir", mkdirat(dir, "x", mode)),
        ("mknod", device(SFlag::S_IFREG)),
        ("mkfifo", device(SFlag::S_IFIFO)),
        ("symlink", symlinkat("x", dir, "x")),
        ("link", linkat(AT_FDCWD, other, dir, "x", here)),
        ("rename", renameat(AT_FDCWD, other, dir, "x")),
    ];
    for (what, answer) in made {
        ensure!(answer == Err(Errno::ENOENT), "{what} answered {answer:?}");
    }
    Ok(())
}

/// The bytes of the first names, as the kernel answers them: the C library takes `ENOENT` for the
/// end.
fn entries(dir: &File) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0u8; 4096];
    // SAFETY: the length is that of the buffer.
    let len = unsafe {
        libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), bytes.as_mut_ptr(), bytes.len())
    };
    bytes.truncate(usize::try_from(Errno::result(len)?).map_err(|_| Errno::EOVERFLOW)?);
    Ok(bytes)
}

#[test]
fn an_open_directory_outlives_its_removal() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    let other = a.join("file");
    fs::write(&other, "content")?;
    type Remove = fn(&Path) -> std::io::Result<()>;
    let removals: [(&str, Remove); 2] = [
        ("rmdir", |dir| fs::remove_dir(dir)),
        ("rename over it", |dir| {
            fs::create_dir(dir.with_file_name("new"))?;
            fs::rename(dir.with_file_name("new"), dir)?;
            fs::remove_dir(dir)
        }),
    ];
    // Without a lease, which nobody is granted for a moment after another mount's change, the open
    // is told; with one, the leader asks.
    for leased in [true, false] {
        for (by, mount) in [("this mount", &a), ("another mount", &b)] {
            for (how, remove) in removals {
                let case = || format!("{how} by {by}, opened with a lease: {leased}");
                let (here, there) = (a.join("d"), mount.join("d"));
                fs::create_dir(&here)?;
                if !leased {
                    fs::write(b.join("d/x"), "")?;
                    fs::remove_file(b.join("d/x"))?;
                }
                let open = [File::open(&here)?, File::open(&here)?];
                remove(&there).with_context(case)?;
                open.iter().try_for_each(|dir| check_removed(dir, &other)).with_context(case)?;
                let [first, last] = open;
                drop(first);
                await_orphans(&cluster, 1).with_context(case)?;
                check_removed(&last, &other).with_context(case)?;
                ensure!(!here.exists() && !there.exists());
                drop(last);
                await_orphans(&cluster, 0).with_context(case)?;
                cluster.await_opens(&[0, 0]).with_context(case)?;
            }
        }
    }
    cluster.await_clean()
}

/// Waits until so many inodes have no name, and nothing is wrong.
fn await_orphans(cluster: &Cluster, count: u64) -> Result<()> {
    eventually(Duration::from_secs(60), &format!("{count} inodes without a name"), || {
        let (clean, report) = cluster.fsck().ok()?;
        (clean && report["orphans"] == count).then_some(())
    })
}

#[test]
fn a_removed_directory_goes_with_the_mount_that_has_it_open() -> Result<()> {
    let cluster = Cluster::start()?;
    let second = cluster.mount_again("second")?;
    fs::create_dir(second.join("d"))?;
    fs::write(second.join("f"), "content")?;
    let open = File::open(second.join("d"))?;
    fs::remove_dir(cluster.mnt().join("d"))?;
    check_removed(&open, &second.join("f"))?;
    cluster.kill_mount(&second)?;
    await_orphans(&cluster, 0)?;
    cluster.await_opens(&[0])?;
    cluster.await_clean()
}

#[test]
fn opening_a_directory_under_a_lease_costs_no_request() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("d");
    fs::create_dir(&dir)?;
    fs::write(dir.join("f"), "")?;
    cluster.remount()?;
    let list = || -> Result<()> {
        let mut listing = Listing::open(&dir)?;
        let mut names = Vec::from_iter(std::iter::from_fn(|| listing.next().transpose()));
        ensure!(names.len() == 3 && names.drain(..).all(|name| name.is_ok()));
        Ok(())
    };
    list()?;
    await_free(cluster.mnt(), "open, list and close a directory 100 times", || {
        (0..100).try_for_each(|_| list())
    })?;
    cluster.await_opens(&[0])
}
