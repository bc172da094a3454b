//! Appended data: where it lands, whoever else writes and whatever is lost.

use crate::fixture::alone::{client, create};
use crate::fixture::pattern;
use crate::fixture::storage::Fault;
use crate::spill::{SIZE, SMALL, assert_content, given_back_and_overwritten, kept};
use std::sync::atomic::{AtomicBool, Ordering};
use weft_client::{Creator, Filesystem, HandleId, OpenFlags, Via, Writing};
use weft_proto::v1::extent::Source;
use weft_proto::{ErrorKind, InodeId, v1};

async fn log(fs: &Filesystem) -> (HandleId, InodeId) {
    let append = OpenFlags { append: true, ..Default::default() };
    let by = Creator::default();
    let opened = fs.create(InodeId::ROOT, b"log", 0o644, by, append).await.unwrap();
    (opened.handle, opened.attr.ino)
}

/// Others have filled what may be inline, and the first answer that says so is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_is_told_twice_that_it_does_not_fit_is_not_lost() {
    let (cluster, fs) = client(|_| ()).await;
    let append = OpenFlags { append: true, ..Default::default() };
    let opened = fs.create(InodeId::ROOT, b"log", 0o644, Creator::default(), append).await.unwrap();
    let (handle, ino) = (opened.handle, opened.attr.ino);
    fs.write(handle, 0, &[1; 1000]).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    let mut model = vec![1; 1000];
    given_back_and_overwritten(&cluster, ino, &mut model).await;
    let metadata = &cluster.metadata;
    metadata.hold_commits.send_replace(true);
    let writer = fs.clone();
    let write = tokio::spawn(async move { writer.write(handle, 0, &[3; SMALL]).await });
    while metadata.held.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let source = Some(Source::Inline(vec![2; 900].into()));
    let theirs = v1::Extent { file_off: 1000, len: 900, source };
    metadata.state.lock().inodes.get_mut(&ino.0).unwrap().insert(theirs);
    metadata.lose_replies.store(1, Ordering::SeqCst);
    metadata.hold_commits.send_replace(false);
    assert_eq!(write.await.unwrap(), Ok(SMALL));
    model.extend([[2; 900].as_slice(), &[3; SMALL]].concat());
    assert_content(&cluster, ino, &model).await;
    cluster.assert_no_violations();
}

/// Each line is synced, and is there once, whatever becomes of the session that wrote it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_a_log_share_segments() {
    for sessions_end in [false, true] {
        let (cluster, fs) = client(|_| ()).await;
        let (handle, ino) = log(&fs).await;
        let mut model = Vec::new();
        for i in 0..300_u64 {
            if sessions_end && i % 7 == 3 {
                cluster.metadata.expire_sessions();
            }
            let line = pattern(100, i);
            assert_eq!(fs.write(handle, 0, &line).await, Ok(100));
            fs.fsync(handle, false).await.unwrap();
            model.extend(line);
        }
        let (segments, inline) = kept(&cluster, ino);
        assert!(inline <= 2048);
        let most = if sessions_end { 300 } else { model.len() / 2048 + 1 };
        assert!(segments <= most, "{segments} segments for 300 lines");
        assert!(fs.read(handle, 0, SIZE).await.unwrap().into_bytes() == model);
        assert_content(&cluster, ino, &model).await;
        cluster.assert_no_violations();
    }
}

/// The session dies, and others append, while a line is on its way with what was inline before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_inline_stays_where_it_is_when_an_append_goes_elsewhere() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = log(&fs).await;
    let mut model = Vec::new();
    for i in 0..4 {
        let line = pattern(SMALL, i);
        fs.write(handle, 0, &line).await.unwrap();
        fs.fsync(handle, false).await.unwrap();
        model.extend(line);
    }
    // The next one does not fit.
    let metadata = &cluster.metadata;
    metadata.hold_commits.send_replace(true);
    let line = pattern(SMALL, 9);
    fs.write(handle, 0, &line).await.unwrap();
    let syncer = fs.clone();
    let sync = tokio::spawn(async move { syncer.fsync(handle, false).await });
    while metadata.held.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    metadata.expire_sessions();
    let source = Some(Source::Inline(b"theirs".as_slice().into()));
    let theirs = v1::Extent { file_off: model.len() as u64, len: 6, source };
    {
        let state = &mut *metadata.state.lock();
        let inode = state.inodes.get_mut(&ino.0).unwrap();
        inode.insert(theirs);
        inode.attr.data_version += 1;
    }
    metadata.hold_commits.send_replace(false);
    sync.await.unwrap().unwrap();
    model.extend(b"theirs");
    model.extend(line);
    assert_content(&cluster, ino, &model).await;
    cluster.assert_no_violations();
}

/// The right to write came with those to other files: where this one ends it does not say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_lands_behind_what_came_before_the_right_to_write() {
    let (cluster, fs) = client(|_| ()).await;
    let (other, _) = create(&fs, "other").await;
    fs.release(other).await.unwrap();
    let (handle, ino) = log(&fs).await;
    fs.write(handle, 0, &[1; SMALL]).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    let mut model = vec![1; SMALL];
    given_back_and_overwritten(&cluster, ino, &mut model).await;
    let source = Some(Source::Inline(b"appended".as_slice().into()));
    let theirs = v1::Extent { file_off: SMALL as u64, len: 8, source };
    cluster.metadata.state.lock().inodes.get_mut(&ino.0).unwrap().insert(theirs);
    model.extend(b"appended");
    fs.sync().await.unwrap();
    fs.read_dir(InodeId::ROOT, 0, 1000, false).await.unwrap();
    fs.unlink(InodeId::ROOT, b"other").await.unwrap();
    while cluster.metadata.count("lease_many") == 0 {
        tokio::task::yield_now().await;
    }
    fs.write(handle, 0, &[2; SMALL]).await.unwrap();
    model.extend([2; SMALL]);
    // In its place in the log, as every close.
    fs.close(handle, 7).await.unwrap();
    fs.sync().await.unwrap();
    assert_content(&cluster, ino, &model).await;
    cluster.assert_no_violations();
}

/// Nobody knew any more whether a line was appended, which its writer was told; it comes after all,
/// when the next one is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_lands_behind_one_that_came_late() {
    // The first answer that says so is lost, too, in the last of them.
    for (logged, lost) in [(false, 0), (true, 0), (false, 1)] {
        let (cluster, fs) = client(|_| ()).await;
        let (handle, ino) = log(&fs).await;
        let mut model = Vec::new();
        for i in 0..4 {
            let line = pattern(SMALL, i);
            fs.write(handle, 0, &line).await.unwrap();
            fs.fsync(handle, false).await.unwrap();
            model.extend(line);
        }
        let source = Some(Source::Inline(b"late".as_slice().into()));
        let late = v1::Extent { file_off: model.len() as u64, len: 4, source };
        {
            let state = &mut *cluster.metadata.state.lock();
            let inode = state.inodes.get_mut(&ino.0).unwrap();
            inode.insert(late);
            inode.attr.data_version += 1;
        }
        model.extend(b"late");
        // It does not fit inline, and the next one does.
        for i in 4..6 {
            let line = pattern(SMALL, i);
            fs.write(handle, 0, &line).await.unwrap();
            model.extend(line);
            cluster.metadata.lose_replies.store(lost, Ordering::SeqCst);
            match logged {
                true => {
                    fs.close(handle, 7).await.unwrap();
                    fs.sync().await.unwrap();
                }
                false => fs.fsync(handle, false).await.unwrap(),
            }
        }
        assert_content(&cluster, ino, &model).await;
        cluster.assert_no_violations();
    }
}

/// A new leader has attributes forgotten: where the file ends is not certain, but what is done
/// after a close still comes after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_keeps_its_place_among_changes_when_another_leads() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = log(&fs).await;
    fs.write(handle, 0, &[1; 100]).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    let metadata = &cluster.metadata;
    metadata.forgets.store(true, Ordering::Relaxed);
    while metadata.count("declare") == 0 {
        tokio::task::yield_now().await;
    }
    metadata.forgets.store(false, Ordering::Relaxed);
    fs.write(handle, 0, &[2; 100]).await.unwrap();
    fs.close(handle, 7).await.unwrap();
    // Another name in the log, and no content is asked for but by its place.
    fs.sync_dir(InodeId::ROOT).await.unwrap();
    assert_eq!(metadata.state.lock().inodes[&ino.0].attr.size, 200);
    assert_content(&cluster, ino, &[[1; 100], [2; 100]].concat()).await;
    cluster.assert_no_violations();
}

/// One buffer of an append is lost, and who wrote is told: the next one comes where it would have.
#[tokio::test]
async fn what_follows_a_lost_append_leaves_no_hole() {
    let (cluster, fs) = client(|_| ()).await;
    let segment = cluster.metadata.state.lock().layout.segment_len as usize;
    let (handle, ino) = log(&fs).await;
    let full = || Fault::RefusePut(ErrorKind::NoSpace);
    cluster.targets.iter().for_each(|target| target.set(full()));
    for len in [segment, SMALL] {
        let written = fs.write_now(handle, 0, &vec![len as u8; len], Via::Direct);
        assert_eq!(written.unwrap().unwrap(), len);
    }
    // Nobody has run meanwhile: the first is on its way, the second waits.
    let waiting = fs.get_attr(ino).await.unwrap().blocks;
    let lost = async {
        while fs.get_attr(ino).await.unwrap().blocks == waiting {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::fixture::PATIENCE, lost).await.expect("the first is not lost");
    cluster.targets.iter().for_each(|target| target.set(Fault::None));
    let error = fs.fsync(handle, false).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace);
    assert_content(&cluster, ino, &[SMALL as u8; SMALL]).await;
    cluster.assert_no_violations();
}

/// A line was committed, which was not answered; the session dies, and the next line waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_may_be_there_already_takes_the_next_one_not_with_it() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = log(&fs).await;
    fs.write(handle, 0, &[1; 100]).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    let metadata = &cluster.metadata;
    metadata.hold_commits.send_replace(true);
    fs.write(handle, 0, &[2; 100]).await.unwrap();
    let syncer = fs.clone();
    let sync = tokio::spawn(async move { syncer.fsync(handle, false).await });
    while metadata.held.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    fs.write(handle, 0, &[3; 100]).await.unwrap();
    // It is carried out, and the session is over when it is asked for again.
    metadata.expire_after_commit.store(true, Ordering::SeqCst);
    metadata.hold_commits.send_replace(false);
    assert!(sync.await.unwrap().is_err(), "nobody knows");
    fs.fsync(handle, false).await.unwrap();
    assert_content(&cluster, ino, &[[1; 100], [2; 100], [3; 100]].concat()).await;
    cluster.assert_no_violations();
}

/// It may rely on that what it still waits for is there then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_appends_is_not_asked_before_it_is_taken_in() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.fsync(handle, false).await.unwrap();
    // Not to be committed with what is appended.
    fs.write(handle, 0, &[1; 100]).await.unwrap();
    *cluster.metadata.refuse_commits.lock() = Some(ErrorKind::NoSpace);
    let asked = AtomicBool::new(false);
    let waits = || {
        asked.store(true, Ordering::SeqCst);
        true
    };
    let append = Writing { append: Some(true), ..Via::Direct.into() };
    let written = fs.write_while(handle, 0, &[2; 100], append, waits).await;
    assert_eq!(written.unwrap_err().kind, ErrorKind::NoSpace);
    assert!(!asked.load(Ordering::SeqCst), "it is not taken in");
    *cluster.metadata.refuse_commits.lock() = None;
    // It is told.
    fs.fsync(handle, false).await.unwrap_err();
    assert_eq!(fs.write_while(handle, 0, &[3; 100], append, waits).await, Ok(100));
    assert!(asked.load(Ordering::SeqCst));
    fs.fsync(handle, false).await.unwrap();
    assert_content(&cluster, ino, &[3; 100]).await;
    cluster.assert_no_violations();
}
