//! Mounts of a part: a directory as the root, only to read, and with root as nobody.

use crate::fixture::{Cluster, small_layout};
use weft_client::{Creator, Credentials, Filesystem, OpenFlags, Options, SetAttr};
use weft_proto::{ErrorKind, InodeId, Result};

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind)
}

/// A cluster with `/a/b`, and the inodes of both.
async fn cluster() -> (Cluster, InodeId, InodeId) {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let root = cluster.client().await.as_user(Credentials::root());
    let a = root.mkdir(b"/a", 0o777).await.unwrap().ino;
    let b = root.mkdir(b"/a/b", 0o777).await.unwrap().ino;
    (cluster, a, b)
}

async fn mount(cluster: &Cluster, subdir: &[u8]) -> Result<Filesystem> {
    Filesystem::connect(Options { subdir: subdir.to_vec(), ..cluster.options() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_begin_at_the_subdirectory_and_do_not_leave_it() {
    let (cluster, a, b) = cluster().await;
    for subdir in ["/a", "a/", "//a/."] {
        assert_eq!(mount(&cluster, subdir.as_bytes()).await.unwrap().root(), a, "{subdir}");
    }
    let fs = mount(&cluster, b"/a").await.unwrap();
    let root = fs.as_user(Credentials::root());
    root.symlink(b"/b", b"b/up").await.unwrap();
    for (path, ino) in [("/", a), ("..", a), ("/../..", a), ("b", b), ("b/..", a), ("/b/up/", b)] {
        assert_eq!(root.lookup(path.as_bytes()).await.unwrap(), ino, "{path}");
    }
    assert_eq!(kind(root.stat(b"/a").await), Some(ErrorKind::NotFound));
    for after in [0, u64::MAX] {
        assert_eq!(fs.read_dir(a, after, 10, false).await.unwrap().parent, a);
    }
    assert_eq!(fs.read_dir(b, 0, 10, false).await.unwrap().parent, a);
    assert_eq!(fs.lookup(a, b"..").await.unwrap().ino, a);
    // Another session, and another process, have it too.
    cluster.metadata.expire_sessions();
    root.mkdir(b"/c", 0o755).await.unwrap();
    assert_eq!((fs.root(), root.lookup(b"/..").await.unwrap()), (a, a));
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_root_is_refused_and_leaves_no_session() {
    let (cluster, ..) = cluster().await;
    let root = cluster.client().await.as_user(Credentials::root());
    let write = OpenFlags { write: true, ..OpenFlags::default() };
    root.create(b"/file", 0o644, write).await.unwrap().close().await.unwrap();
    root.symlink(b"/a", b"/link").await.unwrap();
    let closed = cluster.metadata.count("close_session");
    let wrong = [
        ("/x", ErrorKind::NotFound),
        ("/a/x/y", ErrorKind::NotFound),
        ("/file", ErrorKind::NotDirectory),
        ("/link", ErrorKind::NotDirectory),
        ("/a/..", ErrorKind::Invalid),
    ];
    for (subdir, error) in &wrong {
        let failed = mount(&cluster, subdir.as_bytes()).await.err().unwrap();
        assert_eq!(failed.kind, *error, "{subdir}");
        assert!(failed.to_string().contains(subdir), "{failed}");
    }
    assert_eq!(cluster.metadata.count("close_session"), closed + wrong.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_says_where_the_root_is() {
    let (cluster, a, b) = cluster().await;
    cluster.metadata.confinement.lock().root = a.0;
    assert_eq!(mount(&cluster, b"").await.unwrap().root(), a);
    let fs = mount(&cluster, b"/b").await.unwrap();
    assert_eq!(fs.root(), b);
    // The directory of that name is another by then: the mount keeps to its own.
    cluster.metadata.confinement.lock().root = b.0;
    cluster.metadata.expire_sessions();
    fs.as_user(Credentials::root()).mkdir(b"/new", 0o755).await.unwrap();
    assert_eq!(fs.root(), b);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_only_read_changes_nothing() {
    let (cluster, ..) = cluster().await;
    let root = cluster.client().await.as_user(Credentials::root());
    let write = OpenFlags { write: true, ..OpenFlags::default() };
    let made = root.create(b"/f", 0o666, write).await.unwrap();
    made.write(0, b"some").await.unwrap();
    made.close().await.unwrap();
    let asked = Options { read_only: true, ..cluster.options() };
    let asked = Filesystem::connect(asked).await.unwrap();
    cluster.metadata.confinement.lock().read_only = true;
    let granted = cluster.client().await;
    for fs in [asked, granted] {
        assert!(fs.is_read_only());
        let user = fs.as_user(Credentials::root());
        let read = user.open(b"/f", OpenFlags::default()).await.unwrap();
        assert_eq!(read.read(0, 9).await.unwrap().into_bytes(), &b"some"[..]);
        read.close().await.unwrap();
        let before = cluster.metadata.requests.lock().len();
        let cut = OpenFlags { truncate: true, ..OpenFlags::default() };
        for refused in [
            kind(user.open(b"/f", write).await),
            kind(user.open(b"/f", cut).await),
            kind(user.create(b"/g", 0o644, OpenFlags::default()).await),
            kind(user.mkdir(b"/d", 0o755).await),
            kind(user.symlink(b"f", b"/l").await),
            kind(user.link(b"/f", b"/l").await),
            kind(user.unlink(b"/f").await),
            kind(user.rmdir(b"/a/b").await),
            kind(user.rename(b"/f", b"/g", 0).await),
            kind(user.chmod(b"/f", 0o600).await),
            kind(user.set_xattr(b"/f", b"user.x", b"1", 0).await),
            kind(user.remove_xattr(b"/f", b"user.x").await),
            kind(fs.tmp_file(fs.root(), 0o600, Creator::default(), write).await),
        ] {
            assert_eq!(refused, Some(ErrorKind::ReadOnly));
        }
        // There is one already: who would make it opens it.
        user.create(b"/f", 0o644, OpenFlags::default()).await.unwrap().close().await.unwrap();
        let asked = cluster.metadata.requests.lock()[before..].to_vec();
        let changes = ["other", "create", "batch", "commit", "reserve"];
        assert!(!asked.iter().any(|name| changes.contains(name)), "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_that_is_nobody_owns_nothing_and_stands_above_nothing() {
    let (cluster, ..) = cluster().await;
    let root = cluster.client().await.as_user(Credentials::root());
    root.chmod(b"/", 0o777).await.unwrap();
    root.mkdir(b"/private", 0o700).await.unwrap();
    cluster.metadata.confinement.lock().squash_root = true;
    let fs = cluster.client().await;
    let squashed = fs.as_user(Credentials { uid: 0, gid: 0, groups: vec![0, 5] });
    assert_eq!(
        *squashed.credentials(),
        Credentials { uid: 65_534, gid: 65_534, groups: vec![65_534, 5] }
    );
    let made = squashed.mkdir(b"/d", 0o755).await.unwrap();
    assert_eq!((made.uid, made.gid), (65_534, 65_534));
    assert_eq!(
        kind(squashed.create(b"/private/f", 0o644, OpenFlags::default()).await),
        Some(ErrorKind::AccessDenied)
    );
    let by = Creator { uid: 0, gid: 7, umask: 0 };
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let made = fs.create(fs.root(), b"f", 0o644, by, flags).await.unwrap();
    assert_eq!((made.attr.uid, made.attr.gid), (65_534, 7));
    for change in [
        SetAttr { uid: Some(0), ..Default::default() },
        SetAttr { gid: Some(0), ..Default::default() },
    ] {
        let refused = fs.set_attr(made.attr.ino, None, change).await;
        assert_eq!(kind(refused), Some(ErrorKind::NotPermitted));
    }
}
