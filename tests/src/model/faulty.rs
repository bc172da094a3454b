//! A mount with a fault between the kernel and the client, which has none itself: by it the model
//! test is tested.
//!
//! It is served by a process of its own, `faulty-mount`, as a process that is killed cannot end
//! while it waits for its own mount. What the fault is in is remembered there, of what went by on
//! this mount alone.

use crate::certificates;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use weft_client::{Filesystem, OpenFlags};
use weft_fuse::abi::{Answer, Attr, Entry, Errno, Header, Op, Reply, Request};
use weft_fuse::{Adapter, Handler, Outcome};
use weft_proto::InodeId;

/// How long an end may take that was not clean.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A name that was renamed over goes on to lead to the inode it had.
    RenameOver,
    /// What loses one name of several keeps its link count.
    LinkCount,
    /// What was not there stays so until this mount makes it.
    NegativeDentry,
    /// What a truncation cut off is there again when the file grows.
    TruncateExtents,
    /// A recall does not take back the pages that the kernel has.
    StaleData,
}

impl Fault {
    pub const ALL: [Self; 5] = [
        Self::RenameOver,
        Self::LinkCount,
        Self::NegativeDentry,
        Self::TruncateExtents,
        Self::StaleData,
    ];
}

/// A process that serves a mount until its input ends, which it does with this one; stopped when
/// dropped.
pub struct FaultyMount(Child);

impl FaultyMount {
    /// Has `program` mount `cluster` in an empty folder; without a fault, as any client does.
    pub fn start(program: &str, cluster: &str, at: &Path, fault: Option<Fault>) -> Result<Self> {
        let fault = fault.map(|fault| format!("{fault:?}")).unwrap_or_default();
        let mut child = Command::new(program)
            .args([cluster, crate::path(at), &fault])
            .envs(certificates::shown_to(cluster))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {program}"))?;
        let said = child.stdout.take().map(BufReader::new).context("no output")?.lines().next();
        let mount = Self(child);
        ensure!(said.is_some(), "{program} did not mount {}", at.display());
        Ok(mount)
    }
}

impl Drop for FaultyMount {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Mounts, says so, and serves until the input ends: what the process does.
pub fn serve(cluster: &str, at: &Path, fault: &str) -> Result<()> {
    let fault = match Fault::ALL.into_iter().find(|known| format!("{known:?}") == fault) {
        None if !fault.is_empty() => bail!("{fault} is not known"),
        found => found,
    };
    let runtime = Runtime::new().context("start a runtime")?;
    let addresses = cluster.split(',').map(str::to_owned).collect();
    let options = weft_client::Options::new(addresses, weft_net::from_env()?);
    let fs = runtime.block_on(Filesystem::connect(options)).context("connect")?;
    let options =
        weft_fuse::Options { source: format!("weft:{cluster}"), locks: true, ..Default::default() };
    let inner = Adapter::new(fs.clone());
    let faulty = Faulty { inner, fs: fs.clone(), fault, told: Arc::default() };
    let _inside = runtime.enter();
    let mounted = weft_fuse::mount_handler(Arc::new(faulty), at, &options)?;
    if fault != Some(Fault::StaleData) {
        fs.set_content_cache(mounted.content_cache());
    }
    println!("mounted");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    // Whoever began us may have died with files open.
    mounted.unmount(true)?;
    let shutdown = runtime.block_on(async { timeout(PATIENCE, fs.shutdown()).await });
    Ok(shutdown.context("shut down")??)
}

/// A name in a directory.
type Name = (u64, Vec<u8>);

/// What went by.
#[derive(Default)]
struct Told {
    /// What names led to.
    names: HashMap<Name, Entry>,
    /// Names that were renamed over, with what they led to.
    renamed_over: HashMap<Name, Entry>,
    missing: HashSet<Name>,
    /// Inodes that lost a name.
    miscounted: HashSet<u64>,
    /// What was cut off of inodes, and where.
    cut: HashMap<u64, (u64, Vec<u8>)>,
}

struct Faulty {
    inner: Adapter,
    fs: Filesystem,
    fault: Option<Fault>,
    told: Arc<Mutex<Told>>,
}

impl Handler for Faulty {
    fn handle(&self, request: &Request<'_>) -> Outcome {
        match self.fault {
            Some(Fault::RenameOver) => self.rename_over(request),
            Some(Fault::LinkCount) => self.link_count(request),
            Some(Fault::NegativeDentry) => self.negative_dentry(request),
            Some(Fault::TruncateExtents) => self.truncate_extents(request),
            // This one is in what the client is not given.
            Some(Fault::StaleData) | None => self.inner.handle(request),
        }
    }

    fn unwanted(&self, header: &Header, reply: &Reply) {
        self.inner.unwanted(header, reply);
    }
}

impl Faulty {
    /// The answer of the mount, changed.
    fn answer(
        &self,
        request: &Request<'_>,
        change: impl FnOnce(&mut Told, Answer) -> Answer + Send + 'static,
    ) -> Outcome {
        let told = self.told.clone();
        let change = move |answer| change(&mut lock(&told), answer);
        match self.inner.handle(request) {
            Outcome::Done(answer) => Outcome::Done(change(answer)),
            Outcome::Working(work) => Outcome::working(async move { change(work.await) }),
            // Locks, of which no fault is.
            waiting => waiting,
        }
    }

    fn rename_over(&self, request: &Request<'_>) -> Outcome {
        let node = request.header.node;
        match request.op {
            Op::Lookup { name } => {
                let name = (node, name.to_vec());
                if let Some(entry) = lock(&self.told).renamed_over.get(&name) {
                    return Outcome::Done(Ok(Reply::Entry(*entry)));
                }
                self.answer(request, |told, answer| told.name(name, answer))
            }
            Op::Rename { new_parent, new_name, flags: 0, .. } => {
                let name = (new_parent, new_name.to_vec());
                self.answer(request, |told, answer| {
                    if let (Ok(_), Some(entry)) = (&answer, told.names.remove(&name)) {
                        told.renamed_over.insert(name, entry);
                    }
                    answer
                })
            }
            _ => self.inner.handle(request),
        }
    }

    fn link_count(&self, request: &Request<'_>) -> Outcome {
        let node = request.header.node;
        match request.op {
            Op::Lookup { name } => {
                let name = (node, name.to_vec());
                self.answer(request, |told, answer| {
                    let answer = told.name(name, answer);
                    told.miscount(answer)
                })
            }
            Op::Unlink { name } => {
                let name = (node, name.to_vec());
                self.answer(request, move |told, answer| {
                    if let (Ok(_), Some(entry)) = (&answer, told.names.remove(&name))
                        && entry.attr.nlink > 1
                    {
                        told.miscounted.insert(entry.attr.ino);
                    }
                    answer
                })
            }
            _ => self.answer(request, |told, answer| told.miscount(answer)),
        }
    }

    fn negative_dentry(&self, request: &Request<'_>) -> Outcome {
        let node = request.header.node;
        let makes = match request.op {
            Op::Lookup { name } => {
                let name = (node, name.to_vec());
                if lock(&self.told).missing.contains(&name) {
                    return Outcome::Done(Err(Errno(libc::ENOENT)));
                }
                return self.answer(request, |told, answer| {
                    if answer == Err(Errno(libc::ENOENT)) {
                        told.missing.insert(name);
                    }
                    answer
                });
            }
            Op::Rename { new_parent, new_name, .. } => (new_parent, new_name),
            Op::Create { name, .. }
            | Op::MkNod { name, .. }
            | Op::MkDir { name, .. }
            | Op::SymLink { name, .. }
            | Op::Link { name, .. } => (node, name),
            _ => return self.inner.handle(request),
        };
        lock(&self.told).missing.remove(&(makes.0, makes.1.to_vec()));
        self.inner.handle(request)
    }

    fn truncate_extents(&self, request: &Request<'_>) -> Outcome {
        let ino = request.header.node;
        let Op::SetAttr(change) = request.op else { return self.inner.handle(request) };
        let Some(len) = change.size else { return self.inner.handle(request) };
        let (fs, told) = (self.fs.clone(), self.told.clone());
        let truncate = self.inner.handle(request);
        Outcome::working(async move {
            let size = fs.get_attr(InodeId(ino)).await.map_or(0, |attr| attr.size);
            if len < size
                && let Some(bytes) = read(&fs, ino, len, size).await
            {
                lock(&told).cut.insert(ino, (len, bytes));
            }
            let answer = match truncate {
                Outcome::Done(answer) => answer,
                Outcome::Working(work) | Outcome::Waiting(work, _) => work.await,
            };
            let again = lock(&told).cut.remove(&ino).filter(|_| answer.is_ok());
            match again {
                // Whoever wrote behind it has filled the gap.
                Some((from, mut bytes)) if from < len && from == size => {
                    bytes.truncate(usize::try_from(len - from).unwrap_or(usize::MAX));
                    write(&fs, ino, from, &bytes).await;
                }
                Some(kept) if kept.0 == len => drop(lock(&told).cut.insert(ino, kept)),
                _ => {}
            }
            answer
        })
    }
}

impl Told {
    fn name(&mut self, name: Name, answer: Answer) -> Answer {
        if let Ok(Reply::Entry(entry)) = &answer {
            self.names.insert(name, *entry);
        }
        answer
    }

    fn miscount(&self, mut answer: Answer) -> Answer {
        let add = |attr: &mut Attr| attr.nlink += u32::from(self.miscounted.contains(&attr.ino));
        match &mut answer {
            Ok(Reply::Entry(entry) | Reply::Created(entry, _)) => add(&mut entry.attr),
            Ok(Reply::Attr(attr, _) | Reply::StatX(attr, _)) => add(attr),
            _ => {}
        }
        answer
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(|e| e.into_inner())
}

/// What a file holds there. None if it cannot be read: then there is no fault.
async fn read(fs: &Filesystem, ino: u64, from: u64, to: u64) -> Option<Vec<u8>> {
    let opened = fs.open(InodeId(ino), OpenFlags::default()).await.ok()?;
    let len = usize::try_from(to - from).unwrap_or(usize::MAX).min(1 << 20);
    let data = fs.read(opened.handle, from, len).await;
    fs.release(opened.handle).await.ok()?;
    Some(data.ok()?.into_bytes().to_vec())
}

async fn write(fs: &Filesystem, ino: u64, at: u64, bytes: &[u8]) {
    let wanted = OpenFlags { write: true, ..OpenFlags::default() };
    if let Ok(opened) = fs.open(InodeId(ino), wanted).await {
        // What does not get through is no fault, and the test says so.
        let _ = fs.write(opened.handle, at, bytes).await;
        let _ = fs.release(opened.handle).await;
    }
}
