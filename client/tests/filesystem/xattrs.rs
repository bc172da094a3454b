//! Extended attributes that are changed under leases, and what the group makes of them.

use crate::fixture::Cluster;
use crate::fixture::alone::{client, create, quiet};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use weft_client::Filesystem;
use weft_proto::{ErrorKind, InodeId, Result};

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What the group has.
fn told(cluster: &Cluster, ino: InodeId) -> Xattrs {
    let state = cluster.metadata.state.lock();
    let xattrs = state.inodes.get(&ino.0).map(|inode| inode.xattrs.clone()).unwrap_or_default();
    xattrs.into_iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

/// What a mount shows.
async fn shown(fs: &Filesystem, ino: InodeId) -> Result<Xattrs> {
    let mut shown = Xattrs::new();
    for name in fs.list_xattr(ino).await? {
        shown.insert(name.to_vec(), fs.get_xattr(ino, &name).await?.to_vec());
    }
    Ok(shown)
}

fn xattrs(of: &[(&str, &str)]) -> Xattrs {
    of.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

fn kind<T>(result: Result<T>) -> Result<T, ErrorKind> {
    result.map_err(|error| error.kind)
}

/// As `tar` and `rsync` do: behind the data, and before the times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_a_new_file_are_told_with_it() {
    for lost_replies in [0, 2] {
        let (cluster, fs) = client(quiet).await;
        let before = cluster.metadata.requests.lock().len();
        let (handle, ino) = create(&fs, "f").await;
        fs.write(handle, 0, b"abc").await.unwrap();
        let was = fs.get_attr(ino).await.unwrap().ctime_ns;
        fs.set_xattr(ino, b"user.b", b"2", 1, false).await.unwrap();
        fs.set_xattr(ino, b"user.a", b"0", 0, false).await.unwrap();
        fs.set_xattr(ino, b"user.a", b"1", 2, false).await.unwrap();
        fs.set_xattr(ino, b"user.c", b"3", 0, false).await.unwrap();
        fs.remove_xattr(ino, b"user.c").await.unwrap();
        let all = xattrs(&[("user.a", "1"), ("user.b", "2")]);
        assert_eq!(shown(&fs, ino).await, Ok(all.clone()));
        assert_eq!(kind(fs.get_xattr(ino, b"user.c").await), Err(ErrorKind::NoAttribute));
        let attr = fs.get_attr(ino).await.unwrap();
        assert_eq!((attr.size, attr.ctime_ns > was), (3, true));
        let asked = cluster.metadata.requests.lock()[before..].to_vec();
        let tells = |op: &&&str| matches!(**op, "batch" | "set_xattr" | "get_xattr" | "commit");
        assert_eq!(asked.iter().filter(tells).count(), 0, "{asked:?}");
        cluster.metadata.lose_replies.store(lost_replies, Ordering::SeqCst);
        fs.fsync(handle, false).await.unwrap();
        assert_eq!(told(&cluster, ino), all);
        assert_eq!(shown(&fs, ino).await, Ok(all.clone()));
        fs.release(handle).await.unwrap();
        // Others see them.
        let other = cluster.client().await;
        assert_eq!(shown(&other, ino).await, Ok(all));
        cluster.assert_no_violations();
    }
}

/// Nothing is told of what went with its file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_what_came_and_went_cost_nothing() {
    let (cluster, fs) = client(quiet).await;
    let before = cluster.metadata.count("batch");
    let (handle, ino) = create(&fs, "f").await;
    fs.set_xattr(ino, b"user.a", b"1", 0, false).await.unwrap();
    fs.remove_xattr(ino, b"user.a").await.unwrap();
    fs.set_xattr(ino, b"user.a", b"2", 0, false).await.unwrap();
    fs.release(handle).await.unwrap();
    fs.unlink(InodeId::ROOT, b"f").await.unwrap();
    assert_eq!(kind(fs.get_attr(ino).await), Err(ErrorKind::NotFound));
    assert_eq!(cluster.metadata.count("batch"), before);
}

/// What cannot be said here is the group's to say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_the_groups() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    let before = cluster.metadata.count("set_xattr");
    assert_eq!(kind(fs.remove_xattr(ino, b"user.a").await), Err(ErrorKind::NoAttribute));
    // Longer than what is known of one inode.
    fs.set_xattr(ino, b"user.a", &[1; 20_000], 0, false).await.unwrap();
    assert_eq!(cluster.metadata.count("set_xattr") - before, 2);
    assert_eq!(told(&cluster, ino)[&b"user.a"[..]].len(), 20_000);
    assert_eq!(fs.get_xattr(ino, b"user.a").await.unwrap().len(), 20_000);
    fs.release(handle).await.unwrap();
}

/// I8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_refused_after_all_is_told_to_who_syncs() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.set_xattr(ino, b"user.a", b"1", 0, false).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    // Which nobody may do under the lease.
    cluster.metadata.state.lock().inodes.get_mut(&ino.0).unwrap().xattrs.clear();
    fs.remove_xattr(ino, b"user.a").await.unwrap();
    fs.set_xattr(ino, b"user.b", b"2", 0, false).await.unwrap();
    assert_eq!(kind(fs.fsync(handle, false).await), Err(ErrorKind::NoAttribute));
    assert_eq!(kind(fs.fsync(handle, false).await), Ok(()), "once");
    // What comes behind it is done.
    let left = xattrs(&[("user.b", "2")]);
    assert_eq!((told(&cluster, ino), shown(&fs, ino).await), (left.clone(), Ok(left)));
    fs.release(handle).await.unwrap();
}

/// The session ends before anybody was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_outlive_their_session() {
    let (cluster, fs) = client(|_| ()).await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, b"abc").await.unwrap();
    fs.set_xattr(ino, b"user.a", b"1", 0, false).await.unwrap();
    fs.release(handle).await.unwrap();
    cluster.metadata.expire_sessions();
    fs.sync().await.unwrap();
    let all = xattrs(&[("user.a", "1")]);
    assert_eq!((told(&cluster, ino), shown(&fs, ino).await), (all.clone(), Ok(all)));
    cluster.assert_no_violations();
}
