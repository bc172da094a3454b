//! Pages in which programs store, on this mount and on others.

use super::*;

/// Programs store in what a mapping fills, whole pages of which are written back later: without the
/// right to write none is filled, not even for whoever takes back what is cached and would wait for
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mapping_that_others_share_is_filled_under_the_right_to_write_only() {
    let rig = Rig::start().await;
    let (tell, mut returns) = watch::channel(0);
    // From now on others use the file.
    let count = move |_: &mut crate::fixture::metadata::Inode| tell.send_modify(|n| *n += 1);
    *rig.cluster.metadata.on_return.lock() = Some(Box::new(count));
    rig.cluster.metadata.recall(rig.ino.0);
    returns.wait_for(|n| *n == 1).await.unwrap();
    let flags = OpenFlags { write: true, both: true, ..Default::default() };
    let opened = rig.fs.open(rig.ino, flags).await.unwrap();
    assert!(!opened.cached, "another has the right to map it");
    // The kernel holds the page; its request is on its way when the lease to read is recalled.
    rig.kernel.pages.lock().insert(0, Page::Locked);
    rig.cluster.metadata.recall(rig.ino.0);
    let fs = rig.fs.clone();
    let fills =
        tokio::spawn(async move { fs.read_via(opened.handle, 0, PAGE as usize, Via::Cache).await });
    returns.wait_for(|n| *n == 2).await.unwrap();
    let asked = rig.cluster.metadata.count("lease");
    while rig.cluster.metadata.count("lease") < asked + 3 {
        yield_now().await;
    }
    assert!(!fills.is_finished(), "a page is filled that is not taken back");
    *rig.cluster.metadata.on_return.lock() = None;
    assert_eq!(fills.await.unwrap().unwrap().into_bytes(), [7; PAGE as usize][..]);
}

/// Has other mounts use the file from now on, so that there are leases to read only. Answers how
/// often one was given back.
pub(super) async fn share(rig: &Rig) -> watch::Receiver<u64> {
    let (tell, mut returns) = watch::channel(0);
    let count = move |_: &mut crate::fixture::metadata::Inode| tell.send_modify(|n| *n += 1);
    *rig.cluster.metadata.on_return.lock() = Some(Box::new(count));
    rig.cluster.metadata.recall(rig.ino.0);
    returns.wait_for(|n| *n == 1).await.unwrap();
    returns
}

/// Asks for the right to map the file, and returns when it was granted and the answer is on its
/// way.
async fn begin_to_map(rig: &Rig) -> JoinHandle<Result<Opened>> {
    let metadata = &rig.cluster.metadata;
    metadata.grant_maps.store(true, Ordering::Relaxed);
    metadata.hold_maps.send_replace(true);
    let (fs, ino) = (rig.fs.clone(), rig.ino);
    let flags = OpenFlags { write: true, both: true, ..Default::default() };
    let opens = tokio::spawn(async move { fs.open(ino, flags).await });
    while metadata.count("map") == 0 {
        yield_now().await;
    }
    opens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_to_map_a_file_says_so_when_it_gives_the_lease_back() {
    let rig = Rig::start().await;
    let mut returns = share(&rig).await;
    rig.read_all().await;
    let opens = begin_to_map(&rig).await;
    rig.cluster.metadata.recall(rig.ino.0);
    returns.wait_for(|n| *n == 2).await.unwrap();
    let maps: Vec<_> = rig.cluster.metadata.returns.lock().iter().map(|item| item.maps).collect();
    assert_eq!(maps, [false, true], "the leader would give the right to another");
    rig.cluster.metadata.hold_maps.send_replace(false);
    assert!(opens.await.unwrap().unwrap().cached);
}

/// What is cached when this mount hears of it was filled under a lease to read, with which nothing
/// is taken back of a file that others map.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_cached_for_a_mapping_whose_right_went_with_its_session() {
    let rig = Rig::start().await;
    let mut returns = share(&rig).await;
    let opens = begin_to_map(&rig).await;
    rig.cluster.metadata.expire_sessions();
    // The new session has declared what is open.
    while !rig.cluster.metadata.opens().contains(&rig.ino.0) {
        yield_now().await;
    }
    rig.read_all().await;
    assert_eq!(rig.kernel.shown().len() as u64, PAGES);
    rig.cluster.metadata.hold_maps.send_replace(false);
    assert!(!opens.await.unwrap().unwrap().cached, "another may have the right by now");
    assert_eq!(rig.kernel.shown(), [], "pages are shown that no recall takes back");
    rig.cluster.metadata.recall(rig.ino.0);
    returns.wait_for(|n| *n == 2).await.unwrap();
}

/// The answer to the recall waits for the group to hear of the file, which is not open when it
/// begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_opened_and_cached_while_its_lease_is_given_back_is_taken_back() {
    let (cluster, fs) = alone::client(|_| ()).await;
    let (kernel, metadata) = (Arc::new(Kernel::default()), &cluster.metadata);
    fs.set_content_cache(Arc::new(Cache(kernel.clone())));
    let (handle, ino) = alone::create(&fs, "f").await;
    metadata.hold_answers();
    let makes = metadata.count("batch");
    fs.release(handle).await.unwrap();
    while metadata.count("batch") == makes {
        yield_now().await;
    }
    let (tell, mut told) = watch::channel(None);
    let shown = kernel.clone();
    let look =
        move |_: &mut crate::fixture::metadata::Inode| drop(tell.send_replace(Some(shown.shown())));
    *metadata.on_return.lock() = Some(Box::new(look));
    metadata.recall(ino.0);
    // Who opens it to write waits for the group, too, as soon as the right to write is being given
    // back.
    let waits = loop {
        let (opener, flags) = (fs.clone(), OpenFlags { write: true, ..Default::default() });
        let mut opens = tokio::spawn(async move { opener.open(ino, flags).await });
        match tokio::time::timeout(Duration::from_millis(200), &mut opens).await {
            Ok(opened) => fs.release(opened.unwrap().unwrap().handle).await.unwrap(),
            Err(_) => break opens,
        }
    };
    let opened = fs.open(ino, OpenFlags::default()).await.unwrap();
    assert_eq!(kernel.read(&fs, opened.handle, 0).await.unwrap(), b"");
    assert_eq!((kernel.shown(), told.borrow().is_none()), (vec![0], true));
    metadata.answer(u64::MAX);
    let shown = told.wait_for(Option::is_some).await.unwrap().clone();
    assert_eq!(shown, Some(vec![]), "a page is shown after the lease was given back");
    waits.await.unwrap().unwrap();
}

/// The answer to the recall waits for what was written before; the file is mapped and stored in
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_while_a_lease_is_given_back_is_written_before_it_is() {
    let rig = Rig::start().await;
    let metadata = &rig.cluster.metadata;
    rig.fs.write(rig.handle, 0, b"before").await.unwrap();
    let commits = metadata.count("commit");
    metadata.hold_answers();
    let may = Arc::new(AtomicBool::new(false));
    let (tell, mut told) = watch::channel(None);
    let looks = may.clone();
    let look = move |_: &mut crate::fixture::metadata::Inode| {
        tell.send_replace(Some(looks.load(Ordering::SeqCst)));
    };
    *metadata.on_return.lock() = Some(Box::new(look));
    metadata.recall(rig.ino.0);
    while metadata.count("commit") == commits {
        yield_now().await;
    }
    metadata.grant_maps.store(true, Ordering::Relaxed);
    let flags = OpenFlags { write: true, both: true, ..Default::default() };
    let opened = rig.fs.open(rig.ino, flags).await.unwrap();
    assert!(opened.cached);
    let (fs, leases) = (rig.fs.clone(), metadata.count("lease"));
    let page = [8; PAGE as usize];
    let writes =
        tokio::spawn(async move { fs.write_via(opened.handle, 0, &page, Via::WriteBack).await });
    while metadata.count("lease") == leases {
        yield_now().await;
    }
    metadata.answer(1);
    while metadata.count("commit") < commits + 2 {
        yield_now().await;
    }
    // An answer to the recall would come in this time.
    for _ in 0..100 {
        rig.fs.stat_fs().await.unwrap();
    }
    may.store(true, Ordering::SeqCst);
    metadata.answer(u64::MAX);
    writes.await.unwrap().unwrap();
    let after = *told.wait_for(Option::is_some).await.unwrap();
    assert_eq!(after, Some(true), "given back while the cache writes what was stored");
}

/// Taking pages back waits for one that a request holds. Meanwhile another is written, and stored
/// in, and the cache writes that back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_in_while_pages_are_taken_back_is_taken_back_too() {
    let rig = Rig::start().await;
    let metadata = &rig.cluster.metadata;
    share(&rig).await;
    metadata.grant_maps.store(true, Ordering::Relaxed);
    let handle = rig.open_to_map().await;
    rig.read_all().await;
    rig.kernel.pages.lock().insert(1, Page::Locked);
    let written = Arc::new(AtomicBool::new(false));
    let (tell, mut told) = watch::channel(None);
    let (is_written, kernel) = (written.clone(), rig.kernel.clone());
    let look = move |_: &mut crate::fixture::metadata::Inode| {
        tell.send_replace(Some((is_written.load(Ordering::SeqCst), kernel.shown())));
    };
    *metadata.on_return.lock() = Some(Box::new(look));
    metadata.recall(rig.ino.0);
    while rig.kernel.shown().contains(&0) {
        yield_now().await;
    }
    rig.fs.write_via(handle, 0, &[9; PAGE as usize], Via::Cache).await.unwrap();
    rig.kernel.pages.lock().insert(0, Page::Locked);
    let commits = metadata.count("commit");
    metadata.hold_answers();
    let (fs, stored) = (rig.fs.clone(), [8; PAGE as usize]);
    let writes =
        tokio::spawn(async move { fs.write_via(handle, 0, &stored, Via::WriteBack).await });
    while metadata.count("commit") == commits {
        yield_now().await;
    }
    rig.set(1, 7);
    // An answer to the recall would come in this time.
    for _ in 0..100 {
        rig.fs.stat_fs().await.unwrap();
    }
    written.store(true, Ordering::SeqCst);
    metadata.answer(u64::MAX);
    writes.await.unwrap().unwrap();
    rig.set(0, 8);
    let seen = told.wait_for(Option::is_some).await.unwrap().clone();
    assert_eq!(seen, Some((true, vec![])), "a page outlives the lease that it was filled under");
}

/// Nor is any filled before that has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_is_filled_while_pages_are_taken_back() {
    let rig = Arc::new(Rig::start().await);
    let mut returns = share(&rig).await;
    rig.cluster.metadata.grant_maps.store(true, Ordering::Relaxed);
    rig.open_to_map().await;
    rig.read_all().await;
    rig.kernel.pages.lock().insert(1, Page::Locked);
    rig.cluster.metadata.recall(rig.ino.0);
    while rig.kernel.shown().contains(&0) {
        yield_now().await;
    }
    let reads = tokio::spawn({
        let rig = rig.clone();
        async move { rig.read(0).await }
    });
    for _ in 0..100 {
        rig.fs.stat_fs().await.unwrap();
    }
    assert!(!reads.is_finished() && *returns.borrow() == 1);
    rig.set(1, 7);
    returns.wait_for(|n| *n == 2).await.unwrap();
    assert_eq!(reads.await.unwrap().unwrap(), [7; PAGE as usize]);
}

/// Who wants to read has the right to write recalled, and who wants to write then the lease to
/// read. A write that fills a page waits for the right meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_recalls_of_a_file_do_not_wait_for_what_only_one_allows() {
    const LAST: u64 = PAGES - 1;
    let rig = Rig::start().await;
    let metadata = &rig.cluster.metadata;
    share(&rig).await;
    let flags = OpenFlags { write: true, both: true, ..Default::default() };
    let opened = rig.fs.open(rig.ino, flags).await.unwrap();
    assert!(!opened.cached, "another has the right to map it");
    // A mapping is filled, under the right to write.
    *metadata.on_return.lock() = None;
    rig.fs.read_via(opened.handle, 0, PAGE as usize, Via::Cache).await.unwrap();
    rig.set(0, 7);
    rig.kernel.pages.lock().insert(LAST, Page::Locked);
    let told = metadata.returns.lock().len();
    metadata.recall_write(rig.ino.0);
    while rig.kernel.shown().contains(&0) {
        yield_now().await;
    }
    // The first has passed it, the second will wait for it.
    rig.kernel.pages.lock().insert(0, Page::Locked);
    metadata.recall(rig.ino.0);
    for _ in 0..100 {
        rig.fs.stat_fs().await.unwrap();
    }
    rig.set(LAST, 7);
    while metadata.returns.lock().len() < told + 1 {
        yield_now().await;
    }
    rig.fs.write_via(rig.handle, PAGE, &[8; PAGE as usize], Via::Cache).await.unwrap();
    assert_eq!(metadata.returns.lock().len(), told + 2);
}
