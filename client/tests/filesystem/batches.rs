//! Many small reads in one call: they go together, and what one of them meets is its own.

use crate::fixture::storage::{Fault, Target};
use crate::fixture::{Cluster, pattern, small_layout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use weft_client::{Caller, Credentials, Filesystem, OpenFlags, Options, ReadItem};
use weft_proto::ErrorKind;

const FILES: usize = 30;
const LEN: usize = 100_000;

fn name(file: usize) -> String {
    format!("f{file}")
}

/// Files that were written by another client; and one that has read a block of each.
async fn written(cluster: &Cluster, options: Options) -> (Filesystem, Caller) {
    let writer = cluster.client().await;
    let user = writer.as_user(Credentials::new(0, 0));
    for file in 0..FILES {
        let flags = OpenFlags { write: true, ..Default::default() };
        let to = user.create(name(file).as_bytes(), 0o644, flags).await.unwrap();
        to.write(0, &pattern(LEN, file as u64)).await.unwrap();
        to.close().await.unwrap();
    }
    writer.shutdown().await.unwrap();
    let fs = Filesystem::connect(options).await.unwrap();
    let user = fs.as_user(Credentials::new(0, 0));
    // What a target can do is known once there is a connection.
    check(&user, (0..FILES).map(|file| (file, 0, LEN))).await;
    (fs, user)
}

/// Reads parts of files in one call, and compares each.
async fn check(user: &Caller, parts: impl Iterator<Item = (usize, usize, usize)>) {
    let parts: Vec<_> = parts.collect();
    let item = |&(file, off, len): &(usize, usize, usize)| ReadItem {
        path: name(file).into(),
        off: off as u64,
        len: Some(len),
    };
    let mut answers = vec![None; parts.len()];
    user.read_many(parts.iter().map(item).collect(), |at, read| {
        assert!(answers[at].replace(read.unwrap().into_bytes()).is_none(), "{at} twice");
    })
    .await;
    for (&(file, off, len), answer) in parts.iter().zip(answers) {
        let expected = &pattern(LEN, file as u64)[off..off + len];
        assert!(answer.unwrap() == expected, "file {file} {off}+{len}");
    }
}

/// Short parts all over the files, short runs among them.
fn scattered() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..400).map(|i| (i * 7 % FILES, i * 7919 % (LEN - 9000), 1 + i * 31 % 9000))
}

fn sum(cluster: &Cluster, count: impl Fn(&Target) -> &AtomicU64) -> u64 {
    cluster.targets.iter().map(|target| count(target).load(Ordering::Relaxed)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_reads_of_a_target_go_in_one_request() {
    let cluster = Cluster::start(6, small_layout("4+2")).await;
    let (fs, user) = written(&cluster, cluster.options()).await;
    let counted = || {
        let parts = sum(&cluster, |t| &t.gets);
        [parts, sum(&cluster, |t| &t.gets_of_one), sum(&cluster, |t| &t.gets_of_many)]
    };
    let before = counted();
    // A block of each file is one part. Who begins with the first has more read ahead.
    check(&user, (0..FILES).map(|file| (file, 8192, 4096))).await;
    let after = counted();
    let [parts, ones, manys] = [0, 1, 2].map(|i| after[i] - before[i]);
    assert_eq!(parts, FILES as u64);
    // More than one a target only where some opens had to wait.
    assert!(ones + manys <= 12 && manys > 0, "{ones} and {manys} requests for {parts} parts");
    // Daemons that were started anew, with the version before.
    cluster.targets.iter().for_each(|target| target.forgets_many.store(true, Ordering::Relaxed));
    check(&user, (0..FILES).map(|file| (file, 20_480, 4096))).await;
    assert_eq!(counted()[1] - after[1], FILES as u64, "each part alone");
    fs.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_reads_of_one_file_begin_together() {
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 2048;
    let cluster = Cluster::start(6, small_layout("4+2")).await;
    let (fs, user) = written(&cluster, cluster.options()).await;
    let flags = OpenFlags { write: true, ..Default::default() };
    let file = user.create(b"large", 0o644, flags).await.unwrap();
    let content = pattern(BLOCKS * BLOCK, 0);
    file.write(0, &content).await.unwrap();
    file.close().await.unwrap();
    fs.sync().await.unwrap();
    let counted = || sum(&cluster, |t| &t.gets_of_one) + sum(&cluster, |t| &t.gets_of_many);
    let before = counted();
    // Far apart, so that nothing is read ahead.
    let offs: Vec<_> = (1..=250).map(|i| i * 797 % BLOCKS * BLOCK).collect();
    let item = |off: &usize| ReadItem { path: "large".into(), off: *off as u64, len: Some(BLOCK) };
    let mut read = 0;
    user.read_many(offs.iter().map(item).collect(), |at, data| {
        assert!(data.unwrap().into_bytes() == content[offs[at]..][..BLOCK], "block {at}");
        read += 1;
    })
    .await;
    assert_eq!(read, offs.len());
    let requests = counted() - before;
    assert!((1..=12).contains(&requests), "{requests} requests to six targets");
    fs.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_of_six_targets_do_wrong_is_made_good_in_batches_too() {
    let faults = [
        Fault::Corrupt,
        Fault::Empty,
        Fault::Refuse(ErrorKind::Io),
        Fault::Refuse(ErrorKind::Unavailable),
        Fault::Slow(Duration::from_millis(300)),
        Fault::Hang,
    ];
    for (i, fault) in faults.into_iter().enumerate() {
        let cluster = Cluster::start(6, small_layout("4+2")).await;
        let hasty = Options { hedge_floor: Duration::from_millis(10), ..cluster.options() };
        let (fs, user) = written(&cluster, hasty).await;
        cluster.targets[i].set(fault);
        cluster.targets[(i + 2) % 6].set(faults[(i + 1) % faults.len()]);
        let before = sum(&cluster, |t| &t.gets_of_many);
        check(&user, scattered()).await;
        check(&user, scattered()).await;
        assert!(sum(&cluster, |t| &t.gets_of_many) > before, "{fault:?}: nothing went together");
        fs.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_given_up_does_not_stop_the_next() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (fs, user) = written(&cluster, cluster.options()).await;
    cluster.targets.iter().for_each(|target| target.set(Fault::Hang));
    let items: Vec<_> = (0..FILES).map(|file| ReadItem::whole(name(file))).collect();
    let hangs = user.read_many(items, |_, _| panic!("nothing can be read"));
    let asked = async {
        while sum(&cluster, |target| &target.hung) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = hangs => panic!("it ended"),
        asked = timeout(Duration::from_secs(60), asked) => asked.expect("it was asked for"),
    }
    cluster.targets.iter().for_each(|target| target.set(Fault::None));
    check(&user, scattered()).await;
    fs.shutdown().await.unwrap();
}
