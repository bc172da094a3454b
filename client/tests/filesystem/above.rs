//! What a cache above the library, such as the kernel's pages, may go on showing. Here it is a
//! cache of the test's own, with the locks that the kernel has: who fills a page holds it until the
//! read is answered, and who forgets it waits for that.

mod behind;
mod lapse;
mod mapping;

use crate::fixture::storage::Fault;
use crate::fixture::{Cluster, NEVER, PATIENCE, alone, in_time, small_layout};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use weft_client::{
    ContentCache, Creator, Filesystem, HandleId, OpenFlags, Opened, Options, Via, Writing,
};
use weft_net::sync::Mutex;
use weft_proto::{ErrorKind, InodeId, Result, v1};

const PAGE: u64 = 4096;
const PAGES: u64 = 8;

#[derive(Clone)]
enum Page {
    /// Being read.
    Locked,
    Good(Vec<u8>),
}

/// The pages of one file.
#[derive(Default)]
struct Kernel {
    pages: Mutex<BTreeMap<u64, Page>>,
    changes: watch::Sender<()>,
}

impl Kernel {
    async fn read(&self, fs: &Filesystem, handle: HandleId, page: u64) -> Option<Vec<u8>> {
        loop {
            let mut changes = self.changes.subscribe();
            {
                let mut pages = self.pages.lock();
                match pages.get(&page) {
                    Some(Page::Good(bytes)) => return Some(bytes.clone()),
                    Some(Page::Locked) => {}
                    None => {
                        pages.insert(page, Page::Locked);
                        break;
                    }
                }
            }
            let _ = changes.changed().await;
        }
        // On the way to the library, and back.
        yield_now().await;
        let read = fs.read_via(handle, page * PAGE, PAGE as usize, Via::Cache).await;
        yield_now().await;
        let bytes = read.ok().map(|read| read.into_bytes().to_vec());
        let _ = match &bytes {
            Some(bytes) => self.pages.lock().insert(page, Page::Good(bytes.clone())),
            None => self.pages.lock().remove(&page),
        };
        self.changes.send_replace(());
        bytes
    }

    /// One page after the other, as the kernel does.
    async fn forget(&self, range: Range<u64>) {
        let mut at = range.start / PAGE;
        while at < range.end.div_ceil(PAGE) {
            let mut changes = self.changes.subscribe();
            let locked = {
                let mut pages = self.pages.lock();
                let found = pages.range(at..range.end.div_ceil(PAGE)).next();
                let Some((&page, state)) = found else { return };
                at = page;
                let locked = matches!(state, Page::Locked);
                if !locked {
                    pages.remove(&page);
                    at += 1;
                }
                locked
            };
            match locked {
                true => drop(changes.changed().await),
                false => yield_now().await,
            }
        }
    }

    /// Pages that anybody may look at.
    fn shown(&self) -> Vec<u64> {
        let pages = self.pages.lock();
        let good = pages.iter().filter(|(_, page)| matches!(page, Page::Good(_)));
        good.map(|(number, _)| *number).collect()
    }

    async fn until_empty(&self) {
        let mut changes = self.changes.subscribe();
        while !self.shown().is_empty() {
            let _ = tokio::time::timeout(Duration::from_millis(20), changes.changed()).await;
        }
    }
}

struct Cache(Arc<Kernel>);

impl ContentCache for Cache {
    fn forget(&self, _: InodeId, range: Range<u64>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let kernel = self.0.clone();
        let forgotten = tokio::spawn(async move { kernel.forget(range).await });
        Box::pin(async move { forgotten.await.unwrap() })
    }

    fn page(&self) -> u64 {
        PAGE
    }
}

struct Rig {
    cluster: Cluster,
    fs: Filesystem,
    kernel: Arc<Kernel>,
    handle: HandleId,
    ino: InodeId,
}

impl Rig {
    async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    async fn start_with(options: impl FnOnce(&mut Options)) -> Self {
        let cluster = Cluster::start(3, small_layout("2+1")).await;
        Self::start_on(cluster, options).await
    }

    /// One whose leases are over soon after it is cut off.
    async fn that_lapses(options: impl FnOnce(&mut Options)) -> Self {
        let cluster = Cluster::start(3, small_layout("2+1")).await;
        cluster.metadata.ttl_ms.store(4000, Ordering::SeqCst);
        Self::start_on(cluster, options).await
    }

    async fn start_on(cluster: Cluster, options: impl FnOnce(&mut Options)) -> Self {
        let mut with = cluster.options();
        options(&mut with);
        let fs = in_time(async || Filesystem::connect(with.clone()).await).await.unwrap();
        let kernel = Arc::new(Kernel::default());
        fs.set_content_cache(Arc::new(Cache(kernel.clone())));
        let flags = OpenFlags { write: true, ..Default::default() };
        let by = Creator::default();
        let made = in_time(async || fs.create(InodeId::ROOT, b"f", 0o644, by, flags).await);
        let opened = made.await.unwrap();
        let (handle, ino) = (opened.handle, opened.attr.ino);
        let content = [7; (PAGE * PAGES) as usize];
        assert_eq!(fs.write(handle, 0, &content).await.unwrap(), content.len());
        in_time(async || fs.fsync(handle, false).await).await.unwrap();
        Self { cluster, fs, kernel, handle, ino }
    }

    async fn read(&self, page: u64) -> Option<Vec<u8>> {
        self.kernel.read(&self.fs, self.handle, page).await
    }

    /// A page is there from now on, all of this byte.
    fn set(&self, page: u64, byte: u8) {
        self.kernel.pages.lock().insert(page, Page::Good(vec![byte; PAGE as usize]));
        self.kernel.changes.send_replace(());
    }

    /// As a program does that stores in a mapping.
    async fn open_to_map(&self) -> HandleId {
        let flags = OpenFlags { write: true, both: true, ..Default::default() };
        let opened = self.fs.open(self.ino, flags).await.unwrap();
        assert!(opened.cached);
        opened.handle
    }

    /// Others use the file from now on: it is read under a lease, and no more.
    async fn give_back_write(&self) {
        let (tell, mut returned) = watch::channel(false);
        let told = move |_: &mut crate::fixture::metadata::Inode| {
            tell.send_modify(|returned| *returned = true)
        };
        *self.cluster.metadata.on_return.lock() = Some(Box::new(told));
        self.cluster.metadata.recall(self.ino.0);
        returned.wait_for(|returned| *returned).await.unwrap();
    }

    /// Tells which pages are shown when the lease is given back.
    fn shown_on_return(&self) -> watch::Receiver<Option<Vec<u64>>> {
        let ((tell, told), kernel) = (watch::channel(None), self.kernel.clone());
        let look = move |_: &mut crate::fixture::metadata::Inode| {
            drop(tell.send_replace(Some(kernel.shown())))
        };
        *self.cluster.metadata.on_return.lock() = Some(Box::new(look));
        told
    }

    /// No metadata leader answers any more.
    fn cut_off(&self) {
        self.cluster.metadata.hints.store(false, Ordering::SeqCst);
        self.cluster.metadata.leader.store(usize::MAX, Ordering::SeqCst);
    }

    /// Returns when the session was renewed meanwhile.
    async fn renewed(&self) {
        let renewed = self.cluster.metadata.count("renew") + 2;
        while self.cluster.metadata.count("renew") < renewed {
            yield_now().await;
        }
    }

    /// As if others changed the content whenever the lease is given back. Answers how often.
    fn change_on_return(&self) -> watch::Receiver<u64> {
        let (tell, returns) = watch::channel(0);
        let change = move |inode: &mut crate::fixture::metadata::Inode| {
            inode.attr.data_version += 1;
            tell.send_modify(|n| *n += 1);
        };
        *self.cluster.metadata.on_return.lock() = Some(Box::new(change));
        returns
    }

    async fn read_all(&self) {
        for page in 0..PAGES {
            assert_eq!(self.read(page).await.unwrap(), [7; PAGE as usize]);
        }
    }
}

impl Rig {
    /// Metadata servers answer again, and the session is found to live.
    async fn heals(&self) {
        self.cluster.metadata.leader.store(0, Ordering::SeqCst);
        self.renewed().await;
    }

    async fn open_to_append(&self) -> HandleId {
        let flags = OpenFlags { write: true, append: true, ..Default::default() };
        self.fs.open(self.ino, flags).await.unwrap().handle
    }

    /// A failure is told to who syncs, once.
    async fn tells_once(&self, handle: HandleId) {
        let sync = async || in_time(async || self.fs.fsync(handle, false).await).await;
        assert!(sync().await.is_err(), "nobody is told");
        sync().await.unwrap();
    }
}

/// Every page tells the version of the content.
fn content_of(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat((PAGE * PAGES / 8) as usize)
}

/// Others change the file whenever its lease is given back: whatever a read is under way then,
/// nobody sees an older content after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_cached_when_a_lease_is_given_back() {
    const ROUNDS: u64 = 300;
    let rig = Arc::new(Rig::start().await);
    let current = Arc::new(watch::Sender::new(0));
    let now = current.clone();
    let change = move |inode: &mut crate::fixture::metadata::Inode| {
        let version = *now.borrow() + 1;
        let content = content_of(version);
        let len = content.len() as u64;
        let source = Some(v1::extent::Source::Inline(content.into()));
        inode.extents = vec![v1::Extent { file_off: 0, len, source }];
        inode.attr.data_version += 1;
        now.send_replace(version);
    };
    *rig.cluster.metadata.on_return.lock() = Some(Box::new(change));
    rig.cluster.metadata.recall(rig.ino.0);
    current.subscribe().wait_for(|version| *version > 0).await.unwrap();

    let seen = Arc::new(AtomicU64::new(0));
    let mut readers = JoinSet::new();
    for reader in 0..6 {
        let (rig, current, seen) = (rig.clone(), current.clone(), seen.clone());
        readers.spawn(async move {
            let mut page = reader;
            while *current.borrow() < ROUNDS {
                page = (page * 5 + 3) % PAGES;
                let before = *current.borrow();
                let bytes = rig.read(page).await.expect("a read fails");
                let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                assert!(bytes == content_of(version)[..PAGE as usize], "torn");
                assert!(version >= before, "{version} is shown after the change to {before}");
                seen.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        });
    }
    let mut versions = current.subscribe();
    for round in 1..ROUNDS {
        // Each change is looked at.
        let read = seen.load(Ordering::Relaxed) + 6;
        while seen.load(Ordering::Relaxed) < read && !readers.is_empty() {
            yield_now().await;
            if let Some(ended) = readers.try_join_next() {
                ended.unwrap();
            }
        }
        rig.cluster.metadata.recall(rig.ino.0);
        versions.wait_for(|version| *version > round).await.unwrap();
    }
    while let Some(ended) = readers.join_next().await {
        ended.unwrap();
    }
}

/// A read that waits for lost targets holds its page; that keeps nothing else from being forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_hangs_keeps_no_page_from_being_forgotten() {
    let rig = Arc::new(Rig::start().await);
    rig.read_all().await;
    rig.kernel.pages.lock().remove(&3);
    // One that nothing was read ahead for.
    let other = rig.fs.open(rig.ino, OpenFlags::default()).await.unwrap().handle;
    rig.cluster.targets.iter().for_each(|target| target.set(Fault::Hang));
    let hangs = tokio::spawn({
        let rig = rig.clone();
        async move { rig.kernel.read(&rig.fs, other, 3).await }
    });
    while rig.cluster.targets.iter().all(|target| target.hung.load(Ordering::Relaxed) == 0) {
        yield_now().await;
    }
    let mut told = rig.shown_on_return();
    rig.cluster.metadata.recall(rig.ino.0);
    let shown = told.wait_for(Option::is_some).await.unwrap().clone();
    assert_eq!(shown, Some(vec![]), "pages are shown after the lease was given back");
    hangs.abort();
}

/// A write that comes while pages are taken back holds one of them, and waits for a leader that may
/// wait for these pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_hangs_keeps_no_page_from_being_forgotten() {
    let rig = Rig::start().await;
    rig.give_back_write().await;
    rig.read_all().await;
    let metadata = &rig.cluster.metadata;
    let mut told = rig.shown_on_return();
    metadata.hold_answers();
    rig.kernel.pages.lock().insert(3, Page::Locked);
    metadata.recall(rig.ino.0);
    while rig.kernel.shown().contains(&0) {
        yield_now().await;
    }
    let (fs, handle) = (rig.fs.clone(), rig.handle);
    let writes =
        tokio::spawn(async move { fs.write_via(handle, 3 * PAGE, b"part", Via::Cache).await });
    let shown = told.wait_for(Option::is_some).await.unwrap().clone();
    assert_eq!(shown, Some(vec![]), "pages are shown after the lease was given back");
    assert!(!writes.is_finished());
    metadata.answer(u64::MAX);
    assert_eq!(writes.await.unwrap(), Ok(4));
}

/// The kernel lets go of a page while it is written, and so it may be forgotten, and filled again
/// with what was there before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_filled_while_it_is_written_is_forgotten_when_that_is_answered() {
    let rig = Rig::start().await;
    rig.give_back_write().await;
    rig.read_all().await;
    let metadata = &rig.cluster.metadata;
    metadata.hold_commits.send_replace(true);
    let (fs, handle) = (rig.fs.clone(), rig.handle);
    let writes = tokio::spawn(async move {
        fs.write_via(handle, PAGE, &[9; 2 * PAGE as usize], Via::Cache).await
    });
    while metadata.held.load(Ordering::SeqCst) == 0 {
        yield_now().await;
    }
    [1, 5].into_iter().for_each(|page| drop(rig.kernel.pages.lock().remove(&page)));
    for page in [1, 5] {
        assert_eq!(rig.read(page).await.unwrap(), [7; PAGE as usize], "nobody may see it yet");
    }
    metadata.hold_commits.send_replace(false);
    writes.await.unwrap().unwrap();
    assert!(rig.kernel.shown().contains(&5) && !rig.kernel.shown().contains(&1));
    assert_eq!(rig.read(1).await.unwrap(), [9; PAGE as usize]);
}

/// Others see it as soon as it is committed, whoever has heard of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_and_not_answered_is_read_here_as_elsewhere() {
    let rig = Rig::start().await;
    rig.give_back_write().await;
    rig.read_all().await;
    let metadata = &rig.cluster.metadata;
    metadata.hold_answers();
    let commits = metadata.count("commit");
    let (fs, handle) = (rig.fs.clone(), rig.handle);
    let writes =
        tokio::spawn(
            async move { fs.write_via(handle, PAGE, &[9; PAGE as usize], Via::Direct).await },
        );
    while metadata.count("commit") == commits {
        yield_now().await;
    }
    let other = rig.cluster.client().await;
    let opened = other.open(rig.ino, OpenFlags::default()).await.unwrap();
    for (fs, handle) in [(&other, opened.handle), (&rig.fs, rig.handle)] {
        let read = fs.read(handle, PAGE, PAGE as usize).await.unwrap();
        assert_eq!(read.into_bytes(), [9; PAGE as usize][..]);
    }
    metadata.answer(u64::MAX);
    writes.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_cut_off_shows_nothing_when_its_leases_are_over() {
    let rig = Rig::that_lapses(|_| ()).await;
    rig.read_all().await;
    assert_eq!(rig.kernel.shown().len() as u64, PAGES);
    rig.cut_off();
    rig.kernel.until_empty().await;
    rig.cluster.metadata.leader.store(0, Ordering::SeqCst);
    rig.read_all().await;
}

/// What was given up is not shown as if it had been written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_committed_is_not_shown() {
    let rig = Rig::start().await;
    rig.read_all().await;
    *rig.cluster.metadata.refuse_commits.lock() = Some(ErrorKind::Invalid);
    let lost = [9; PAGE as usize];
    rig.fs.write_via(rig.handle, 0, &lost, Via::Cache).await.unwrap();
    rig.kernel.pages.lock().insert(0, Page::Good(lost.to_vec()));
    assert!(rig.fs.fsync(rig.handle, false).await.is_err());
    rig.kernel.until_empty().await;
    rig.read_all().await;
}

/// A read that ran at the same time may have filled the cache with what was there before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_past_the_cache_is_not_cached_when_that_is_answered() {
    let rig = Rig::start().await;
    rig.read_all().await;
    rig.fs.write_via(rig.handle, PAGE, &[8; PAGE as usize], Via::Direct).await.unwrap();
    assert!(!rig.kernel.shown().contains(&1) && rig.kernel.shown().contains(&5));
    // Appended bytes may share the last page with what was there.
    let flags = OpenFlags { write: true, append: true, ..Default::default() };
    let append = rig.fs.open(rig.ino, flags).await.unwrap().handle;
    rig.fs.write_via(append, PAGE * PAGES, b"more", Via::Direct).await.unwrap();
    assert!(rig.read(PAGES).await.unwrap() == b"more");
    rig.fs.write_via(append, PAGE * PAGES + 4, b" of it", Via::Direct).await.unwrap();
    assert!(rig.read(PAGES).await.unwrap() == b"more of it");
    assert!(rig.kernel.shown().contains(&5));
    // What was stored in a mapping is written where it is, through whichever handle.
    rig.fs.write_via(append, 2 * PAGE, &[6; PAGE as usize], Via::WriteBack).await.unwrap();
    let stored = rig.fs.read(rig.handle, 2 * PAGE, PAGE as usize).await.unwrap();
    assert!(stored.into_bytes() == vec![6; PAGE as usize]);
    assert!(rig.fs.get_attr(rig.ino).await.unwrap().size == PAGE * PAGES + 10);
}

/// Programs change whether what they have open appends, and the kernel files what is appended where
/// it believes that the file ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_appended_is_not_shown_where_the_kernel_has_filed_it() {
    let rig = Rig::start().await;
    rig.read_all().await;
    let writing = |via, append| Writing { via, append: Some(append), sync: false };
    // Held until it is answered.
    rig.kernel.pages.lock().insert(2, Page::Locked);
    let appended = rig.fs.write_via(rig.handle, 2 * PAGE, b"more", writing(Via::Cache, true)).await;
    assert_eq!(appended, Ok(4));
    rig.set(2, 9);
    let forgotten = async {
        while rig.kernel.shown().contains(&2) {
            yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, forgotten).await.expect("it is still shown");
    rig.read_all().await;
    assert!(rig.read(PAGES).await.unwrap() == b"more");
    // And what is open to append and does so no more.
    let append = rig.open_to_append().await;
    rig.fs.write_via(append, PAGE, b"here", writing(Via::Direct, false)).await.unwrap();
    assert!(rig.read(1).await.unwrap()[..5] == *b"here\x07");
    assert!(rig.fs.get_attr(rig.ino).await.unwrap().size == PAGE * PAGES + 4);
    // One write that is to be durable waits for that.
    let durable = Writing { sync: true, ..Via::Direct.into() };
    assert!(rig.fs.write_now(append, 0, b"x", durable).is_none());
    let told = || ["commit", "batch"].map(|name| rig.cluster.metadata.count(name));
    let before = told();
    rig.fs.write_via(append, 0, b"x", durable).await.unwrap();
    assert_ne!(told(), before);
}

/// A cache in whose second page programs store just before it is forgotten: it writes that back, as
/// it was filled, with a byte changed at `at`.
struct Stored {
    fs: Filesystem,
    handle: HandleId,
    /// What the page was filled with, and where a program stores; `None`: it is filled anew.
    page: Mutex<Option<(Option<Vec<u8>>, usize)>>,
}

impl ContentCache for Stored {
    fn forget(&self, _: InodeId, range: Range<u64>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let is_stored = range.start < 2 * PAGE && PAGE < range.end;
        let page = if is_stored { self.page.lock().take() } else { None };
        let (fs, handle) = (self.fs.clone(), self.handle);
        Box::pin(async move {
            let Some((filled, at)) = page else { return };
            let mut page = match filled {
                Some(page) => page,
                None => {
                    let read = fs.read_via(handle, PAGE, PAGE as usize, Via::Cache).await;
                    read.unwrap().into_bytes().to_vec()
                }
            };
            page[at] = 9;
            assert_eq!(
                fs.write_via(handle, PAGE, &page, Via::WriteBack).await.unwrap(),
                page.len()
            );
        })
    }

    fn page(&self) -> u64 {
        PAGE
    }
}

/// Neither is lost: what was written, what was stored beside it meanwhile, and what was stored over
/// it by who had seen it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_past_a_page_and_what_is_stored_in_it_are_both_kept() {
    const AT: usize = 10;
    for (has_seen, stores) in [(false, 100), (false, AT), (true, 100), (true, AT)] {
        let cluster = Cluster::start(3, small_layout("2+1")).await;
        let fs = cluster.client().await;
        let flags = OpenFlags { write: true, both: true, ..Default::default() };
        let by = Creator::default();
        let opened = fs.create(InodeId::ROOT, b"f", 0o644, by, flags).await.unwrap();
        let content = vec![7; (PAGE * PAGES) as usize];
        fs.write(opened.handle, 0, &content).await.unwrap();
        fs.fsync(opened.handle, false).await.unwrap();
        let cache =
            Arc::new(Stored { fs: fs.clone(), handle: opened.handle, page: Mutex::default() });
        fs.set_content_cache(cache.clone());
        let filled = fs.read_via(opened.handle, PAGE, PAGE as usize, Via::Cache).await.unwrap();
        let filled = (!has_seen).then(|| filled.into_bytes().to_vec());
        *cache.page.lock() = Some((filled, stores));
        let (at, written) = (PAGE + AT as u64, [8; 4]);
        match fs.write_now(opened.handle, at, &written, Via::Direct) {
            None => drop(fs.write(opened.handle, at, &written).await.unwrap()),
            Some(_) => panic!("it waits for what is cached"),
        }
        assert!(cache.page.lock().is_none(), "nothing was forgotten");
        let mut expected = content[..PAGE as usize].to_vec();
        expected[AT..AT + 4].copy_from_slice(&written);
        if has_seen || stores != AT {
            expected[stores] = 9;
        }
        let read = fs.read(opened.handle, PAGE, PAGE as usize).await.unwrap().into_bytes();
        assert!(read == expected, "seen: {has_seen}, stored at {stores}");
        // Later pages are written back whole again.
        let page = vec![6; PAGE as usize];
        fs.write_via(opened.handle, PAGE, &page, Via::WriteBack).await.unwrap();
        let read = fs.read(opened.handle, PAGE, PAGE as usize).await.unwrap().into_bytes();
        assert!(read == page);
        fs.fsync(opened.handle, false).await.unwrap();
        cluster.assert_no_violations();
    }
}
