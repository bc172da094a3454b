//! Paths, as a user walks them.

use crate::fixture::{Cluster, small_layout};
use weft_client::{Access, Caller, Credentials, OpenFlags, ReadItem};
use weft_proto::{ErrorKind, InodeId, Result, v1};

const WRITE: OpenFlags = OpenFlags { write: true, ..READ };
const READ: OpenFlags = OpenFlags {
    append: false,
    truncate: false,
    exclusive: false,
    sync: false,
    write: false,
    both: false,
    no_atime: false,
    no_follow: false,
};

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind)
}

/// The root's view and that of a user, of a cluster in which that user may make names everywhere.
async fn callers() -> (Cluster, Caller, Caller) {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let root = fs.as_user(Credentials::new(0, 0));
    root.chmod(b"/", 0o777).await.unwrap();
    (cluster, root, fs.as_user(Credentials::new(1000, 1000)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_links_are_followed_and_no_more() {
    let (_cluster, _, user) = callers().await;
    user.mkdir(b"d", 0o755).await.unwrap();
    user.symlink(b"d", b"1").await.unwrap();
    for i in 2..=41 {
        user.symlink(format!("{}", i - 1).as_bytes(), format!("{i}").as_bytes()).await.unwrap();
    }
    let dir = user.lookup(b"d").await.unwrap();
    assert_eq!(user.lookup(b"40").await.unwrap(), dir);
    assert_eq!(kind(user.lookup(b"41").await), Some(ErrorKind::TooDeep));
    // The one at the end is not followed, but for what comes after it.
    assert_ne!(user.lstat(b"41").await.unwrap().ino, dir);
    assert_eq!(kind(user.lstat(b"41/").await), Some(ErrorKind::TooDeep));
    assert_eq!(kind(user.lstat(b"41/x").await), Some(ErrorKind::TooDeep));
    // All links of a path count.
    let steps = |n: usize| format!("{}2", "20/../".repeat(n));
    assert_eq!(user.lookup(steps(1).as_bytes()).await.unwrap(), dir);
    assert_eq!(kind(user.lookup(steps(2).as_bytes()).await), Some(ErrorKind::TooDeep));
    user.symlink(b"loop/x", b"loop").await.unwrap();
    assert_eq!(kind(user.stat(b"loop").await), Some(ErrorKind::TooDeep));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dots_and_slashes_lead_where_they_should() {
    let (_cluster, _, user) = callers().await;
    let d = user.mkdir(b"/d/", 0o755).await.unwrap().ino;
    let e = user.mkdir(b"d/./e", 0o755).await.unwrap().ino;
    user.create(b"d/f", 0o644, WRITE).await.unwrap().close().await.unwrap();
    user.symlink(b"d/e", b"to-e").await.unwrap();
    user.symlink(b"/d", b"d/e/up").await.unwrap();
    for (path, ino) in [
        ("/", InodeId::ROOT),
        ("///", InodeId::ROOT),
        (".", InodeId::ROOT),
        ("..", InodeId::ROOT),
        ("/../..", InodeId::ROOT),
        ("d/..", InodeId::ROOT),
        ("d//e///", e),
        ("d/e/..", d),
        // Not where the link lies.
        ("to-e/..", d),
        ("to-e/up", d),
        ("to-e/up/../to-e/", e),
    ] {
        assert_eq!(user.lookup(path.as_bytes()).await.unwrap(), ino, "{path}");
    }
    for (path, error) in [
        ("", ErrorKind::NotFound),
        ("d/f/", ErrorKind::NotDirectory),
        ("d/f/.", ErrorKind::NotDirectory),
        ("d/f/..", ErrorKind::NotDirectory),
        ("d/x/..", ErrorKind::NotFound),
        ("d/f\0", ErrorKind::Invalid),
    ] {
        assert_eq!(kind(user.stat(path.as_bytes()).await), Some(error), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_long_is_refused() {
    let (cluster, _, user) = callers().await;
    let longest = [b'n'; 255];
    user.mkdir(&longest, 0o755).await.unwrap();
    let before = cluster.metadata.requests.lock().len();
    for name in [[b'n'; 256].to_vec(), [b"x/", &[b'n'; 256][..]].concat()] {
        let last = if name.len() == 256 { ErrorKind::NameTooLong } else { ErrorKind::NotFound };
        assert_eq!(kind(user.mkdir(&name, 0o755).await), Some(last));
    }
    let path = |len: usize| [&longest[..], &vec![b'/'; len - 255]].concat();
    user.stat(&path(4095)).await.unwrap();
    assert_eq!(kind(user.stat(&path(4096)).await), Some(ErrorKind::NameTooLong));
    let asked = cluster.metadata.requests.lock()[before..].to_vec();
    assert!(!asked.contains(&"other"), "a directory was to be made: {asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relative_paths_start_at_a_directory() {
    let (_cluster, _, user) = callers().await;
    let d = user.mkdir(b"d", 0o700).await.unwrap().ino;
    let in_d = user.at(d);
    let f = in_d.create(b"f", 0o600, WRITE).await.unwrap();
    assert_eq!(user.lookup(b"d/f").await.unwrap(), f.ino());
    assert_eq!(in_d.lookup(b"..").await.unwrap(), InodeId::ROOT);
    assert_eq!(in_d.lookup(b"/d").await.unwrap(), d);
    assert_eq!(kind(user.at(f.ino()).stat(b"x").await), Some(ErrorKind::NotDirectory));
    // Whoever has got there without a walk may not search it for that.
    let fs = Credentials::new(1001, 1001);
    let other = _cluster.client().await.as_user(fs).at(d);
    assert_eq!(kind(other.stat(b"f").await), Some(ErrorKind::AccessDenied));
    assert_eq!(kind(other.stat(b".").await), Some(ErrorKind::AccessDenied));
    assert_eq!(kind(other.stat(b"..").await), Some(ErrorKind::AccessDenied));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_directory_on_the_way_is_to_be_searched() {
    let (_cluster, root, user) = callers().await;
    for dir in ["a", "a/b", "a/b/c"] {
        root.mkdir(dir.as_bytes(), 0o755).await.unwrap();
    }
    root.symlink(b"a/b/c", b"link").await.unwrap();
    for path in ["a/b/c", "link", "/a/./b/../b/c/"] {
        let path = path.as_bytes();
        for (closed, seen) in [("a", false), ("a/b", false), ("a/b/c", true)] {
            root.chmod(closed.as_bytes(), 0o766).await.unwrap();
            let refused = (!seen).then_some(ErrorKind::AccessDenied);
            assert_eq!(kind(user.stat(path).await), refused, "{closed}");
            assert_eq!(kind(root.stat(path).await), None);
            root.chmod(closed.as_bytes(), 0o755).await.unwrap();
        }
    }
    assert_eq!(kind(user.access(b"a", Access::WRITE).await), Some(ErrorKind::AccessDenied));
    assert_eq!(kind(user.mkdir(b"a/x", 0o755).await), Some(ErrorKind::AccessDenied));
    // What is there is told first.
    assert_eq!(kind(user.mkdir(b"a/b", 0o755).await), Some(ErrorKind::Exists));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_for_what_it_was_opened_for() {
    let (cluster, _, user) = callers().await;
    let made = user.with_umask(0o077).create(b"f", 0o277, WRITE).await.unwrap();
    assert_eq!(made.write(0, b"content").await.unwrap(), 7);
    assert_eq!(kind(made.read(0, 7).await), Some(ErrorKind::NotPermitted));
    made.close().await.unwrap();
    assert_eq!(user.stat(b"f").await.unwrap().mode, 0o200);
    assert_eq!(kind(user.open(b"f", READ).await), Some(ErrorKind::AccessDenied));
    user.chmod(b"f", 0o400).await.unwrap();
    let read = user.open(b"f", READ).await.unwrap();
    assert_eq!(read.read(0, 100).await.unwrap().into_bytes(), &b"content"[..]);
    assert_eq!(kind(read.write(0, b"x").await), Some(ErrorKind::NotPermitted));
    assert_eq!(kind(read.truncate(0).await), Some(ErrorKind::Invalid));
    let cut = OpenFlags { truncate: true, ..READ };
    assert_eq!(kind(user.open(b"f", cut).await), Some(ErrorKind::AccessDenied));
    assert_eq!(kind(user.truncate(b"f", 0).await), Some(ErrorKind::AccessDenied));
    // Whoever has it open keeps it.
    user.chmod(b"f", 0).await.unwrap();
    assert_eq!(read.read(0, 100).await.unwrap().len(), 7);
    read.close().await.unwrap();
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_at_the_end_are_followed_unless_they_must_not_be() {
    let (_cluster, _, user) = callers().await;
    let stay = OpenFlags { no_follow: true, ..WRITE };
    let new = OpenFlags { exclusive: true, ..WRITE };
    user.mkdir(b"d", 0o755).await.unwrap();
    user.symlink(b"d/f", b"link").await.unwrap();
    assert_eq!(kind(user.open(b"link", READ).await), Some(ErrorKind::NotFound));
    assert_eq!(kind(user.create(b"link", 0o600, new).await), Some(ErrorKind::Exists));
    assert_eq!(kind(user.create(b"link", 0o600, stay).await), Some(ErrorKind::TooDeep));
    let made = user.create(b"link", 0o600, WRITE).await.unwrap();
    assert_eq!(user.lookup(b"d/f").await.unwrap(), made.ino());
    assert_eq!(kind(user.open(b"link", stay).await), Some(ErrorKind::TooDeep));
    user.open(b"d/f", stay).await.unwrap().close().await.unwrap();
    assert_eq!(user.open(b"link", WRITE).await.unwrap().ino(), made.ino());
    assert_eq!(user.readlink(b"link").await.unwrap(), &b"d/f"[..]);
    assert_eq!(kind(user.readlink(b"d").await), Some(ErrorKind::Invalid));
    user.unlink(b"link").await.unwrap();
    assert_eq!(user.lookup(b"d/f").await.unwrap(), made.ino());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_made_meanwhile_is_opened_by_whom_it_allows_only() {
    let (cluster, _, user) = callers().await;
    let new = OpenFlags { exclusive: true, ..WRITE };
    for (ino, mode, flags, refused) in [
        (500, 0o644, WRITE, Some(ErrorKind::AccessDenied)),
        (501, 0o666, WRITE, None),
        (502, 0o666, new, Some(ErrorKind::Exists)),
    ] {
        let name = format!("f{ino}");
        let kind_of = v1::FileKind::Regular.into();
        let attr = v1::Attr { ino, kind: kind_of, mode, nlink: 1, ..Default::default() };
        *cluster.metadata.appears.lock() = Some((name.clone().into_bytes(), attr));
        let opened = user.create(name.as_bytes(), 0o600, flags).await;
        assert!(cluster.metadata.appears.lock().is_none(), "nobody looked");
        assert_eq!(kind(opened), refused, "{mode:o}");
        assert_eq!(user.stat(name.as_bytes()).await.unwrap().mode, mode);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_answer_what_each_would() {
    let (_cluster, root, user) = callers().await;
    user.mkdir(b"d", 0o755).await.unwrap();
    let content = |i: usize| vec![i as u8; i * 700];
    for i in 0..40 {
        let file = user.create(format!("d/{i}").as_bytes(), 0o644, WRITE).await.unwrap();
        file.write(0, &content(i)).await.unwrap();
        file.close().await.unwrap();
    }
    root.chmod(b"d/7", 0o600).await.unwrap();
    root.chown(b"d/7", Some(0), Some(0)).await.unwrap();
    let mut items: Vec<_> = (0..40).map(|i| ReadItem::whole(format!("d/{i}"))).collect();
    items.push(ReadItem { path: "d/../d/39".into(), off: 10_000, len: Some(5) });
    items.extend(["d/none", "none/x", "d", "", "/", "d/1/"].map(ReadItem::whole));
    let mut answers = vec![None; items.len()];
    user.read_many(items, |at, read| {
        let answer = read.map(|data| data.into_bytes().to_vec()).map_err(|e| e.kind);
        assert!(answers[at].replace(answer).is_none(), "{at} was answered twice");
    })
    .await;
    let answers: Vec<_> = answers.into_iter().map(Option::unwrap).collect();
    for (i, answer) in answers[..40].iter().enumerate() {
        let expected = if i == 7 { Err(ErrorKind::AccessDenied) } else { Ok(content(i)) };
        assert_eq!(*answer, expected, "{i}");
    }
    assert_eq!(answers[40], Ok(vec![39; 5]));
    use ErrorKind::{IsDirectory, NotDirectory, NotFound};
    let failed = [NotFound, NotFound, IsDirectory, NotFound, IsDirectory, NotDirectory];
    assert_eq!(answers[41..], failed.map(Err));
}
