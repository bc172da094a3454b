//! Appends that are offered once more, as by who buffers and was told of an error: each byte is
//! there, and is there once.

use crate::fixture::alone::{client, create};
use crate::fixture::storage::Fault;
use crate::fixture::{Cluster, PATIENCE, pattern, until};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::runtime::Handle;
use tokio::time::timeout;
use weft_client::{
    AppendTo, Appends, Credentials, Filesystem, HandleId, Lock, LockKind, OpenFile, OpenFlags,
    Options, Via,
};
use weft_proto::locks::LAST;
use weft_proto::{ErrorKind, InodeId, Result};

/// A file that was opened to append.
struct Appended {
    cluster: Cluster,
    fs: Filesystem,
    ino: InodeId,
    /// To write anywhere.
    handle: HandleId,
    file: Arc<OpenFile>,
    appends: Appends,
}

impl Appended {
    async fn new(options: impl FnOnce(&mut Options), sync: bool) -> Self {
        let (cluster, fs) = client(options).await;
        let (handle, ino) = create(&fs, "log").await;
        fs.fsync(handle, false).await.unwrap();
        let user = fs.as_user(Credentials::new(0, 0));
        let flags = OpenFlags { write: true, append: true, sync, ..Default::default() };
        let file = Arc::new(user.open(b"log", flags).await.unwrap());
        Self { cluster, fs, ino, handle, file, appends: Appends::default() }
    }

    fn to(&self) -> AppendTo<'_> {
        AppendTo { fs: &self.fs, file: self.file.clone(), begun: None }
    }

    async fn append(&self, data: &[u8]) -> Result<usize> {
        let mut call = self.appends.begin(data, true);
        call.run(self.to()).await?;
        Ok(call.end())
    }

    fn segment(&self) -> usize {
        self.cluster.metadata.state.lock().layout.segment_len as usize
    }

    fn set(&self, fault: Fault) {
        self.cluster.targets.iter().for_each(|target| target.set(fault));
    }

    /// Says whether the targets take new chunks, of which the client has heard then. Those that
    /// refuse them would be remembered for a while.
    async fn fill(&self, full: bool) {
        let metadata = &self.cluster.metadata;
        metadata.change_map(|map| map.targets.iter_mut().for_each(|target| target.full = full));
        let epoch = metadata.map.borrow().epoch;
        until(|| self.fs.cluster_map().epoch >= epoch).await;
    }

    fn refuse(&self, kind: Option<ErrorKind>) {
        *self.cluster.metadata.refuse_commits.lock() = kind;
    }

    async fn ends(self, model: &[u8]) {
        self.file.sync().await.unwrap();
        let other = self.cluster.client().await;
        let handle = other.open(self.ino, OpenFlags::default()).await.unwrap().handle;
        let found = other.read(handle, 0, model.len() + 1).await.unwrap().into_bytes();
        assert!(found == model, "{} bytes, and not {}", found.len(), model.len());
        self.cluster.assert_no_violations();
    }
}

/// What is to be committed before it cannot be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_taken_in_is_not_missed() {
    let to = Appended::new(|_| (), false).await;
    to.fs.write(to.handle, 0, &[1; 100]).await.unwrap();
    to.refuse(Some(ErrorKind::Io));
    let line = pattern(200, 1);
    assert_eq!(to.append(&line).await.unwrap_err().kind, ErrorKind::Io);
    to.refuse(None);
    to.file.sync().await.unwrap_err();
    assert_eq!(to.append(&line).await, Ok(200));
    to.ends(&line).await;
}

/// They were taken in one after the other, and had no room on the targets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_that_were_lost_are_offered_again() {
    const FULL: usize = 4 << 20;
    let to = Appended::new(|options| options.write_buffer_bytes = FULL, false).await;
    to.fill(true).await;
    // More than waits at a time.
    let data = pattern(2 * FULL, 2);
    assert_eq!(to.append(&data).await.unwrap_err().kind, ErrorKind::NoSpace);
    // So are those that were under way.
    let _ = to.file.sync().await;
    to.fill(false).await;
    to.file.sync().await.unwrap();
    assert_eq!(to.append(&data).await, Ok(data.len()));
    assert_eq!(to.append(b"behind").await, Ok(6));
    to.ends(&[&data, &b"behind"[..]].concat()).await;
}

/// What others wrote to the same file is lost, which is told here, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_there_is_not_appended_again_for_what_others_lost() {
    let to = Appended::new(|_| (), true).await;
    let (metadata, line) = (&to.cluster.metadata, pattern(100, 3));
    metadata.hold_commits.send_replace(true);
    let append = to.append(&line);
    let lost = async {
        until(|| metadata.held.load(Ordering::SeqCst) > 0).await;
        to.set(Fault::RefusePut(ErrorKind::NoSpace));
        let user = to.fs.as_user(Credentials::new(0, 0));
        let flags = OpenFlags { write: true, append: true, ..Default::default() };
        let theirs = user.open(b"log", flags).await.unwrap();
        let before = to.fs.get_attr(to.ino).await.unwrap().blocks;
        let full = vec![4; to.segment()];
        let written = to.fs.write_now(theirs.handle(), 0, &full, Via::Direct);
        assert_eq!(written.unwrap(), Ok(full.len()));
        let lost = async {
            while to.fs.get_attr(to.ino).await.unwrap().blocks > before {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, lost).await.expect("it is not lost");
        to.set(Fault::None);
        metadata.hold_commits.send_replace(false);
        theirs
    };
    let (appended, theirs) = tokio::join!(append, lost);
    assert_eq!(appended.unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(to.append(&line).await, Ok(100));
    theirs.close().await.unwrap_err();
    to.ends(&line).await;
}

/// Nobody waited for it any more when it was taken in already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_under_way_is_not_offered_again() {
    let to = Appended::new(|_| (), true).await;
    let (metadata, line) = (&to.cluster.metadata, pattern(100, 5));
    let left_under_way = async || {
        metadata.hold_commits.send_replace(true);
        tokio::select! {
            _ = to.append(&line) => panic!("it is not committed"),
            () = until(|| metadata.held.load(Ordering::SeqCst) > 0) => {}
        }
        metadata.hold_commits.send_replace(false);
    };
    left_under_way().await;
    assert_eq!(to.append(&line).await, Ok(100));
    left_under_way().await;
    // Other memory is another call.
    let longer = [&line[..], &[6; 100]].concat();
    assert_eq!(to.append(&longer).await, Ok(200));
    to.ends(&[&line, &line, &longer[..]].concat()).await;
}

/// Two threads append through one file; the call of one comes between those of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_appends_meanwhile_hides_no_call() {
    let to = Appended::new(|_| (), true).await;
    let (line, theirs) = (pattern(100, 9), pattern(100, 10));
    to.cluster.metadata.expire_after_commit.store(true, Ordering::SeqCst);
    assert!(to.append(&line).await.is_err(), "nobody knows");
    let runtime = Handle::current();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| runtime.block_on(to.append(&theirs)));
        assert_eq!(other.join().unwrap(), Ok(100));
        let again = scope.spawn(|| runtime.block_on(to.append(&line)));
        assert_eq!(again.join().unwrap(), Ok(100), "whoever makes it again");
    });
    to.ends(&[line, theirs].concat()).await;
}

/// It is carried out, and the session is over when it is asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_be_there_is_not_offered_again() {
    let to = Appended::new(|_| (), true).await;
    let line = pattern(100, 7);
    to.cluster.metadata.expire_after_commit.store(true, Ordering::SeqCst);
    assert!(to.append(&line).await.is_err(), "nobody knows");
    assert_eq!(to.append(&line).await, Ok(100));
    to.ends(&line).await;
}

/// It was refused, whyever, and is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_is_offered_again() {
    let to = Appended::new(|_| (), true).await;
    let line = pattern(100, 8);
    for kind in [ErrorKind::Quota, ErrorKind::Io] {
        to.refuse(Some(kind));
        assert_eq!(to.append(&line).await.unwrap_err().kind, kind);
    }
    to.refuse(None);
    assert_eq!(to.append(&line).await, Ok(100));
    to.ends(&line).await;
}

/// With the session went a lock of the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_with_its_session_is_offered_again() {
    let to = Appended::new(|_| (), true).await;
    let lock = Lock { flock: true, owner: 7, kind: LockKind::Write, start: 0, end: LAST, pid: 1 };
    to.fs.set_lock(to.handle, lock).await.unwrap();
    let line = pattern(100, 11);
    to.cluster.metadata.expire_at_commit.store(1, Ordering::SeqCst);
    assert_eq!(to.append(&line).await.unwrap_err().kind, ErrorKind::Io);
    assert_eq!(to.append(&line).await, Ok(100));
    to.ends(&line).await;
}
