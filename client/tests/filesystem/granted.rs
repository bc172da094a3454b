//! The right to write a file may come with an answer that the file is not told of: what others have
//! done before that is seen all the same, also when what the right came with is forgotten.

use crate::fixture::Cluster;
use crate::fixture::alone::{client, create};
use crate::spill::{SIZE, given_back_and_overwritten, large};
use std::sync::atomic::Ordering;
use weft_client::{Filesystem, SetAttr};
use weft_proto::InodeId;

/// The right to write what is there comes along, since a name is taken away; then, `lost`, it is
/// not known whether something was carried out, nor so what it did.
async fn granted(cluster: &Cluster, fs: &Filesystem, lost: bool) {
    fs.sync().await.unwrap();
    fs.read_dir(InodeId::ROOT, 0, 1000, false).await.unwrap();
    fs.unlink(InodeId::ROOT, b"other").await.unwrap();
    while cluster.metadata.count("lease_many") == 0 {
        tokio::task::yield_now().await;
    }
    // Its answer comes before those to what is asked next.
    for lost in [0, 0, 0, u32::from(lost)] {
        cluster.metadata.lose_replies.store(lost, Ordering::SeqCst);
        fs.set_xattr(InodeId::ROOT, b"user.x", b"x", 0, false).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_wrote_before_the_right_to_write_is_read() {
    for lost in [false, true] {
        let (cluster, fs) = client(|_| ()).await;
        let (other, _) = create(&fs, "other").await;
        fs.release(other).await.unwrap();
        let (handle, ino, mut model) = large(&fs).await;
        assert!(fs.read(handle, 0, SIZE).await.unwrap().into_bytes() == model);
        given_back_and_overwritten(&cluster, ino, &mut model).await;
        granted(&cluster, &fs, lost).await;
        assert!(fs.read(handle, 0, SIZE).await.unwrap().into_bytes() == model, "lost: {lost}");
        cluster.assert_no_violations();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_made_of_a_mode_before_the_right_to_write_stays() {
    for lost in [false, true] {
        let (cluster, fs) = client(|_| ()).await;
        let (other, _) = create(&fs, "other").await;
        fs.release(other).await.unwrap();
        let (handle, ino, mut model) = large(&fs).await;
        given_back_and_overwritten(&cluster, ino, &mut model).await;
        let theirs = {
            let state = &mut *cluster.metadata.state.lock();
            let attr = &mut state.inodes.get_mut(&ino.0).unwrap().attr;
            (attr.mode, attr.ctime_ns) = (attr.mode & !0o777 | 0o640, attr.ctime_ns + 1);
            attr.mode
        };
        granted(&cluster, &fs, lost).await;
        // The kernel asks for the owner alone; what that does to the mode is said here.
        let owner = SetAttr { uid: Some(5), ..Default::default() };
        let told = fs.set_attr(ino, Some(handle), owner).await.unwrap();
        fs.fsync(handle, false).await.unwrap();
        let attr = cluster.metadata.state.lock().inodes[&ino.0].attr;
        assert_eq!((told.mode, told.uid), (theirs, 5), "lost: {lost}");
        assert_eq!((attr.mode, attr.uid), (theirs, 5), "lost: {lost}");
        cluster.assert_no_violations();
    }
}
