//! A directory of very many names, listed while another mount makes and removes some of them.
//!
//! `WEFT_DIR_ENTRIES=1000000` makes it larger than the test suite does.

// How long a run took is told.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use weft_client::{Creator, FileKind, Filesystem, Options};
use weft_proto::InodeId;
use weft_tests::{Cluster, eventually, path};

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
    let fs = Filesystem::connect(Options::new(servers, weft_net::tcp())).await?;
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
