//! What programs store in pages while the time of the leases is over, or their session ends: it is
//! written back at once, kept in doubt, and neither overwrites what others wrote nor is lost
//! without a word.

use super::*;

/// Who takes the pages back waits for that, and must not wait for servers that do not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stored_is_written_back_at_once_while_the_leases_are_over() {
    for keeps_write in [true, false] {
        let rig = Rig::that_lapses(|_| ()).await;
        let opened = rig.open_to_map().await;
        if !keeps_write {
            rig.give_back_write().await;
        }
        rig.read_all().await;
        // It waits with others that were written without the right to write.
        let waits = b"waits";
        let mut waiting = pin!(rig.fs.write_via(rig.handle, 0, waits, Via::Cache));
        rig.cluster.metadata.hold_commits.send_replace(true);
        rig.cut_off();
        if !keeps_write {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        rig.kernel.until_empty().await;
        let page = [8; PAGE as usize];
        let mut written = pin!(rig.fs.write_via(opened, PAGE, &page, Via::WriteBack));
        let written = written.as_mut().now_or_never().expect("it waits for servers");
        assert_eq!(written.unwrap(), page.len());
        // Nobody is shown what was there before, now that the leases are good again.
        rig.heals().await;
        let settle = async {
            rig.renewed().await;
            rig.cluster.metadata.hold_commits.send_replace(false);
        };
        let (read, ()) = tokio::join!(rig.read(1), settle);
        assert!(read.unwrap() == page, "write lease: {keeps_write}");
        waiting.await.unwrap();
        rig.fs.fsync(opened, false).await.unwrap();
        assert_eq!(rig.read(0).await.unwrap()[..waits.len()], waits[..]);
        rig.cluster.assert_no_violations();
    }
}

/// It was stored on a content that is no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_back_in_doubt_overwrites_nothing_of_others() {
    for (keeps_write, in_time) in [(true, true), (false, true), (false, false)] {
        let rig = Rig::that_lapses(|_| ()).await;
        let opened = rig.open_to_map().await;
        if !keeps_write {
            rig.give_back_write().await;
        }
        rig.read_all().await;
        let version = rig.fs.get_attr(rig.ino).await.unwrap().data_version;
        rig.cut_off();
        rig.kernel.until_empty().await;
        let page = [8; PAGE as usize];
        if in_time {
            rig.fs.write_via(opened, 0, &page, Via::WriteBack).await.unwrap();
        }
        rig.cluster.metadata.hold_renewals.send_replace(true);
        rig.cluster.metadata.expire_sessions();
        rig.cluster.metadata.overwrite(rig.ino.0, b"others");
        rig.cluster.metadata.leader.store(0, Ordering::SeqCst);
        *rig.cluster.metadata.on_return.lock() = None;
        if !in_time {
            // It hears of the new content before it does of the end of its session.
            let told = rig.fs.get_attr(rig.ino).await.unwrap();
            assert_ne!(told.data_version, version);
            rig.fs.write_via(opened, 0, &page, Via::WriteBack).await.unwrap();
        }
        rig.cluster.metadata.hold_renewals.send_replace(false);
        let synced = rig.fs.fsync(opened, false).await;
        assert_eq!(synced.map_err(|error| error.kind), Err(ErrorKind::Stale));
        assert_eq!(rig.read(0).await.unwrap()[..6], b"others"[..]);
    }
}

/// What programs stored goes with the session: others may have stored in the same pages since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stored_before_a_session_ended_is_not_written_back_after() {
    let rig = Rig::that_lapses(|_| ()).await;
    let opened = rig.open_to_map().await;
    rig.read_all().await;
    let append = rig.open_to_append().await;
    rig.fs.write(append, PAGE * PAGES, b"more").await.unwrap();
    rig.cut_off();
    // The leases are over.
    rig.kernel.until_empty().await;
    let page = [8; PAGE as usize];
    let mut written = pin!(rig.fs.write_via(opened, 0, &page, Via::WriteBack));
    assert!(
        written.as_mut().now_or_never().is_none(),
        "it cannot be committed with what is appended"
    );
    rig.cluster.metadata.expire_sessions();
    rig.cluster.metadata.leader.store(0, Ordering::SeqCst);
    assert_eq!(written.await.map_err(|error| error.kind), Err(ErrorKind::Io));
    rig.fs.fsync(opened, false).await.unwrap();
    assert_eq!(rig.read(0).await.unwrap(), [7; PAGE as usize]);
}

/// Others change the file when they have its lease, and what is in doubt is committed only onto
/// what it was stored on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_not_given_back_before_what_is_in_doubt_is_committed() {
    let rig = Rig::that_lapses(|_| ()).await;
    let metadata = &rig.cluster.metadata;
    let opened = rig.open_to_map().await;
    rig.give_back_write().await;
    rig.read_all().await;
    rig.cut_off();
    rig.kernel.until_empty().await;
    rig.fs.write_via(opened, 0, &[8; PAGE as usize], Via::WriteBack).await.unwrap();
    metadata.hold_commits.send_replace(true);
    let mut returns = rig.change_on_return();
    metadata.recall(rig.ino.0);
    rig.heals().await;
    let fs = rig.fs.clone();
    let synced = tokio::spawn(async move { fs.fsync(opened, false).await });
    while metadata.held.load(Ordering::SeqCst) == 0 {
        yield_now().await;
    }
    // An answer to the recall would come in this time.
    for _ in 0..100 {
        rig.fs.stat_fs().await.unwrap();
    }
    metadata.hold_commits.send_replace(false);
    synced.await.unwrap().unwrap();
    returns.wait_for(|n| *n == 1).await.unwrap();
}

/// Nobody needs to ask for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_doubt_is_committed_when_the_leases_turn_out_to_have_lasted() {
    let rig = Rig::that_lapses(|o| o.flush_age = NEVER).await;
    let metadata = &rig.cluster.metadata;
    let opened = rig.open_to_map().await;
    rig.give_back_write().await;
    rig.read_all().await;
    rig.cut_off();
    rig.kernel.until_empty().await;
    rig.fs.write_via(opened, 0, &[8; PAGE as usize], Via::WriteBack).await.unwrap();
    let commits = metadata.count("commit");
    metadata.leader.store(0, Ordering::SeqCst);
    let committed = async {
        while metadata.count("commit") == commits {
            yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, committed).await.expect("it stays in doubt");
    rig.fs.fsync(opened, false).await.unwrap();
}

/// Those were of other stores; whoever syncs is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_is_dropped_because_of_earlier_failures() {
    for shared in [false, true] {
        let rig = Rig::start().await;
        let refuse = &rig.cluster.metadata.refuse_commits;
        let opened = rig.open_to_map().await;
        let flags = OpenFlags { write: true, ..Default::default() };
        let other = rig.fs.open(rig.ino, flags).await.unwrap().handle;
        if shared {
            rig.give_back_write().await;
        }
        *refuse.lock() = Some(ErrorKind::Invalid);
        let lost = rig.fs.write(other, 0, b"lost").await;
        assert!(lost.is_err() || rig.fs.fsync(other, false).await.is_err());
        *refuse.lock() = None;
        let page = [8; PAGE as usize];
        let now = rig.fs.write_now(opened, PAGE, &page, Via::WriteBack);
        assert!(now.is_none_or(|now| now.is_ok()), "shared: {shared}");
        let written = rig.fs.write_via(opened, PAGE, &page, Via::WriteBack).await;
        assert!(written.is_ok(), "shared: {shared}: {written:?}");
        rig.tells_once(opened).await;
        assert_eq!(rig.read(1).await.unwrap(), page);
    }
}

/// It cannot be committed with what is appended, and is none of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_is_dropped_with_what_has_to_be_committed_before() {
    let rig = Rig::start().await;
    let refuse = &rig.cluster.metadata.refuse_commits;
    let opened = rig.open_to_map().await;
    let append = rig.open_to_append().await;
    rig.fs.write(append, PAGE * PAGES, b"more").await.unwrap();
    *refuse.lock() = Some(ErrorKind::Invalid);
    let page = [8; PAGE as usize];
    rig.fs.write_via(opened, PAGE, &page, Via::WriteBack).await.unwrap();
    *refuse.lock() = None;
    rig.tells_once(opened).await;
    assert_eq!(rig.read(1).await.unwrap(), page);
}

/// The leases were good meanwhile, and the content has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_doubt_is_of_the_content_when_the_leases_lapsed_last() {
    let rig = Rig::that_lapses(|_| ()).await;
    let metadata = &rig.cluster.metadata;
    let opened = rig.open_to_map().await;
    rig.give_back_write().await;
    rig.read_all().await;
    rig.cut_off();
    rig.kernel.until_empty().await;
    rig.heals().await;
    rig.read_all().await;
    let mut returns = rig.change_on_return();
    metadata.recall(rig.ino.0);
    returns.wait_for(|n| *n == 1).await.unwrap();
    rig.read_all().await;
    rig.cut_off();
    // It comes as soon as they have lapsed.
    let page = [8; PAGE as usize];
    let written = loop {
        match rig.fs.write_now(opened, 0, &page, Via::WriteBack) {
            Some(written) => break written,
            None => yield_now().await,
        }
    };
    written.unwrap();
    rig.kernel.until_empty().await;
    rig.heals().await;
    rig.fs.fsync(opened, false).await.unwrap();
    assert_eq!(rig.read(0).await.unwrap(), page);
}

/// What it has to wait for is given up while the leases are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_could_not_be_taken_in_at_once_is_when_it_can_be() {
    let rig = Rig::that_lapses(|o| o.op_deadline = Duration::from_secs(6)).await;
    let opened = rig.open_to_map().await;
    rig.read_all().await;
    let append = rig.open_to_append().await;
    rig.fs.write(append, PAGE * PAGES, &[9; PAGE as usize]).await.unwrap();
    let refuse = Fault::RefusePut(ErrorKind::Unavailable);
    rig.cluster.targets.iter().for_each(|target| target.set(refuse));
    rig.cut_off();
    rig.kernel.until_empty().await;
    let page = [8; PAGE as usize];
    rig.fs.write_via(opened, 0, &page, Via::WriteBack).await.unwrap();
    rig.cluster.targets.iter().for_each(|target| target.set(Fault::None));
    rig.heals().await;
    rig.tells_once(opened).await;
    assert_eq!(rig.read(0).await.unwrap(), page);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_write_buffer_keeps_no_page_shown_while_the_leases_are_over() {
    let rig = Rig::that_lapses(|o| {
        (o.write_buffer_bytes, o.flush_age) = (4 << 20, NEVER);
    })
    .await;
    let opened = rig.open_to_map().await;
    rig.read_all().await;
    let flags = OpenFlags { write: true, ..Default::default() };
    let by = Creator::default();
    let full = rig.fs.create(InodeId::ROOT, b"full", 0o644, by, flags).await.unwrap().handle;
    rig.cluster.metadata.hold_commits.send_replace(true);
    let (page, mut at) = ([8; PAGE as usize], 0);
    while let Some(written) = rig.fs.write_now(full, at, &page, Via::Cache) {
        at += written.unwrap() as u64;
    }
    assert!(at >= 2 << 20, "{at}");
    rig.cut_off();
    rig.kernel.until_empty().await;
    let mut written = pin!(rig.fs.write_via(opened, PAGE, &page, Via::WriteBack));
    let written = written.as_mut().now_or_never().expect("it waits for room");
    assert_eq!(written.unwrap(), page.len());
    rig.cluster.metadata.leader.store(0, Ordering::SeqCst);
    rig.cluster.metadata.hold_commits.send_replace(false);
    rig.renewed().await;
    rig.fs.fsync(opened, false).await.unwrap();
    assert_eq!(rig.read(1).await.unwrap(), page);
}
