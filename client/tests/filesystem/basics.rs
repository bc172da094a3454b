//! Files on a healthy cluster: what is written is read, by whom and with how many requests.

use crate::create;
use crate::fixture::{Cluster, PATIENCE, pattern, small_layout};
use std::sync::atomic::Ordering;
use std::time::Duration;
use weft_client::{Allocate, Filesystem, OpenFlags, Seek, SetAttr, SetTime};
use weft_proto::{ErrorKind, InodeId, Layout};

async fn content(fs: &Filesystem, ino: InodeId) -> Vec<u8> {
    let opened = fs.open(ino, OpenFlags::default()).await.unwrap();
    let mut out = Vec::new();
    loop {
        let part = fs.read(opened.handle, out.len() as u64, 100_000).await.unwrap();
        if part.is_empty() {
            break;
        }
        part.parts().iter().for_each(|p| out.extend_from_slice(p));
    }
    fs.release(opened.handle).await.unwrap();
    assert_eq!(out.len() as u64, opened.attr.size);
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_geometry_reads_back_from_another_client() {
    for profile in ["1+0", "2+0", "replica=3", "2+1", "4+2", "5+3", "3+1"] {
        let layout = small_layout(profile);
        let width = usize::from(layout.profile.width());
        let cluster = Cluster::start(width, layout).await;
        cluster.metadata.extents_at_once.store(3, Ordering::Relaxed);
        let (writer, reader) = (cluster.client().await, cluster.client().await);
        let segment = layout.segment_len as usize;
        for len in
            [0, 1, 2048, 2049, 4096, 4097, segment - 1, segment, segment + 1, 3 * segment + 12_345]
        {
            let data = pattern(len, len as u64);
            let (handle, ino) = create(&writer, &format!("f{len}")).await;
            assert_eq!(writer.write(handle, 0, &data).await.unwrap(), len);
            writer.flush(handle).await.unwrap();
            writer.release(handle).await.unwrap();
            assert!(content(&reader, ino).await == data, "{profile} {len}");
        }
        cluster.assert_no_violations();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_costs_one_commit_and_one_request_to_read() {
    let cluster = Cluster::start(6, Layout::for_profile("4+2".parse().unwrap())).await;
    let (writer, reader) = (cluster.client().await, cluster.client().await);
    let (handle, ino) = create(&writer, "small").await;
    writer.write(handle, 0, &[5; 1000]).await.unwrap();
    writer.flush(handle).await.unwrap();
    writer.flush(handle).await.unwrap();
    assert_eq!(cluster.metadata.count("commit"), 1);
    let opened = reader.open(ino, OpenFlags::default()).await.unwrap();
    assert_eq!(reader.read(opened.handle, 0, 4096).await.unwrap().into_bytes(), [5; 1000][..]);
    assert_eq!((cluster.metadata.count("open"), cluster.metadata.count("get_extents")), (1, 0));
    assert!(cluster.targets.iter().all(|t| t.puts.load(Ordering::Relaxed) == 0));
    // A file above the inline limit, but of one unit: copies, of which one is asked once.
    let (handle, ino) = create(&writer, "larger").await;
    writer.write(handle, 0, &[6; 40_000]).await.unwrap();
    writer.flush(handle).await.unwrap();
    let opened = reader.open(ino, OpenFlags::default()).await.unwrap();
    assert_eq!(reader.read(opened.handle, 1, 4096).await.unwrap().into_bytes(), [6; 4096][..]);
    let sum = |f: fn(&crate::fixture::storage::Target) -> u64| {
        cluster.targets.iter().map(|t| f(t)).sum::<u64>()
    };
    assert_eq!(sum(|t| t.puts.load(Ordering::Relaxed)), 3);
    assert_eq!(sum(|t| t.gets.load(Ordering::Relaxed)), 1);
    assert_eq!(
        sum(|t| t.bytes_read.load(Ordering::Relaxed)),
        8192,
        "only the blocks that are needed"
    );
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_read_is_one_request_a_shard() {
    let cluster = Cluster::start(6, Layout::for_profile("4+2".parse().unwrap())).await;
    let fs = cluster.client().await;
    let data = pattern(16 << 20, 3);
    let (handle, ino) = create(&fs, "large").await;
    fs.write(handle, 0, &data).await.unwrap();
    fs.fsync(handle, false).await.unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!(cluster.metadata.state.lock().segments.len(), 1);
    let opened = fs.open(ino, OpenFlags::default()).await.unwrap();
    // Away from the start, so that it does not look like a stream.
    let read = fs.read(opened.handle, 4 << 20, 8 << 20).await.unwrap();
    assert_eq!(read.parts().len(), 1, "in one buffer");
    assert!(read.into_bytes() == data[4 << 20..12 << 20]);
    let gets: u64 = cluster.targets.iter().map(|t| t.gets.load(Ordering::Relaxed)).sum();
    assert_eq!(gets, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_read_ahead() {
    let cluster = Cluster::start(6, Layout::for_profile("4+2".parse().unwrap())).await;
    let fs = cluster.client().await;
    let data = pattern((40 << 20) + 777, 3);
    let (handle, ino) = create(&fs, "stream").await;
    fs.write(handle, 0, &data).await.unwrap();
    fs.release(handle).await.unwrap();
    let gets = || cluster.targets.iter().map(|t| t.gets.load(Ordering::Relaxed)).sum::<u64>();
    assert!(content(&fs, ino).await == data);
    // 411 reads of 100 kB, in far fewer requests; and nothing is read twice.
    assert!(gets() < 100, "{} requests", gets());
    let bytes: u64 = cluster.targets.iter().map(|t| t.bytes_read.load(Ordering::Relaxed)).sum();
    assert!(bytes < data.len() as u64 + (1 << 20), "{bytes} bytes");
}

/// More files than the budget has room for, each of them read to its end and kept open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_ahead_and_read_is_not_kept() {
    let cluster = Cluster::start(3, Layout::for_profile("2+1".parse().unwrap())).await;
    let mut options = cluster.options();
    options.cache_bytes = 16 << 20;
    let fs = Filesystem::connect(options).await.unwrap();
    let data = pattern(6 << 20, 9);
    let gets = || cluster.targets.iter().map(|t| t.gets.load(Ordering::Relaxed)).sum::<u64>();
    let mut asked = Vec::new();
    for i in 0..8 {
        let (handle, _) = create(&fs, &format!("f{i}")).await;
        fs.write(handle, 0, &data).await.unwrap();
        fs.flush(handle).await.unwrap();
        let before = gets();
        for off in (0..data.len()).step_by(64 << 10) {
            let part = fs.read(handle, off as u64, 64 << 10).await.unwrap().into_bytes();
            assert!(part == data[off..off + part.len()]);
        }
        asked.push(gets() - before);
    }
    // Without read-ahead, each read is a request.
    assert!(asked.iter().all(|asked| *asked < 40), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_show_what_is_not_committed() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 10_000, &[1; 5]).await.unwrap();
    let attr = fs.get_attr(ino).await.unwrap();
    assert_eq!((attr.size, cluster.metadata.count("commit")), (10_005, 0));
    assert!(attr.mtime_ns > 1_000_000);
    assert_eq!(fs.lookup(InodeId::ROOT, b"f").await.unwrap().size, 10_005);
    // A time that is set after a write stays, although the data is committed later.
    let change = SetAttr { mtime: Some(SetTime::At(777)), ..Default::default() };
    assert_eq!(fs.set_attr(ino, None, change).await.unwrap().mtime_ns, 777);
    fs.flush(handle).await.unwrap();
    assert_eq!(fs.get_attr(ino).await.unwrap().mtime_ns, 777);
    // Cutting drops what lies beyond without writing it.
    fs.write(handle, 20_000, &[2; 5]).await.unwrap();
    let commits = cluster.metadata.count("commit");
    let cut =
        fs.set_attr(ino, None, SetAttr { size: Some(3), ..Default::default() }).await.unwrap();
    fs.flush(handle).await.unwrap();
    assert_eq!((cut.size, cluster.metadata.count("commit")), (3, commits));
    assert_eq!(content(&fs, ino).await, [0; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_two_clients_do_not_overwrite_each_other() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (a, b) = (cluster.client().await, cluster.client().await);
    let (handle, ino) = create(&a, "log").await;
    a.release(handle).await.unwrap();
    let append = OpenFlags { append: true, ..Default::default() };
    let (ha, hb) =
        (a.open(ino, append).await.unwrap().handle, b.open(ino, append).await.unwrap().handle);
    for i in 0..20u8 {
        a.write(ha, 0, &[i; 3000]).await.unwrap();
        b.write(hb, 0, &[100 + i; 5000]).await.unwrap();
        if i % 3 == 0 {
            a.fsync(ha, true).await.unwrap();
        }
        if i % 4 == 0 {
            b.fsync(hb, true).await.unwrap();
            // Own data is read where it will land.
            let size = b.get_attr(ino).await.unwrap().size;
            let last = b.read(hb, size - 1, 1).await.unwrap().into_bytes();
            assert_eq!(last, [100 + i][..]);
        }
    }
    a.release(ha).await.unwrap();
    b.release(hb).await.unwrap();
    let mut data = &content(&a, ino).await[..];
    assert_eq!(data.len(), 20 * 8000);
    let (mut next_a, mut next_b) = (0, 100);
    while let Some(&first) = data.first() {
        let (len, next) = if first < 100 { (3000, &mut next_a) } else { (5000, &mut next_b) };
        assert_eq!(first, *next, "records of one client stay in order");
        assert!(data[..len].iter().all(|&x| x == first), "a record is whole");
        *next += 1;
        data = &data[len..];
    }
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appended_data_moves_to_where_its_first_part_landed() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let mut options = cluster.options();
    // So that a part is committed while the rest is still being appended.
    options.write_buffer_bytes = 4 << 20;
    options.flush_age = Duration::from_secs(3600);
    let (a, b) = (Filesystem::connect(options).await.unwrap(), cluster.client().await);
    let (handle, ino) = create(&a, "log").await;
    a.release(handle).await.unwrap();
    let append = OpenFlags { append: true, ..Default::default() };
    let ha = a.open(ino, append).await.unwrap().handle;
    let hb = b.open(ino, append).await.unwrap().handle;
    // Behind a's back the end of file moves.
    b.write(hb, 0, &[9; 777]).await.unwrap();
    b.release(hb).await.unwrap();
    let mut want = vec![9; 777];
    let commits = cluster.metadata.count("commit");
    while cluster.metadata.count("commit") == commits {
        let record = pattern(10_000, want.len() as u64);
        a.write(ha, 0, &record).await.unwrap();
        want.extend_from_slice(&record);
    }
    // Some is committed, some is not; all is read where it is or will be.
    let record = pattern(5000, 1);
    a.write(ha, 0, &record).await.unwrap();
    want.extend_from_slice(&record);
    let moved = async {
        while a.get_attr(ino).await.unwrap().size != want.len() as u64 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, moved).await.expect("the view moves along");
    let got = a.read(ha, 0, want.len()).await.unwrap().into_bytes();
    assert!(got == want);
    a.release(ha).await.unwrap();
    assert!(content(&b, ino).await == want);
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caches_are_kept_only_while_nobody_else_writes() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let grant = |grant| cluster.metadata.grant_lookups.store(grant, Ordering::Relaxed);
    grant(true);
    let (a, b) = (cluster.client().await, cluster.client().await);
    let (handle, ino) = create(&a, "f").await;
    a.write(handle, 0, &[1; 9000]).await.unwrap();
    a.close(handle, 0).await.unwrap();
    a.release(handle).await.unwrap();
    // As the kernel opens a file: by its name, with which a lease comes.
    let reopen = async |fs: &Filesystem| {
        fs.lookup(InodeId::ROOT, b"f").await.unwrap();
        let opened = fs.open(ino, OpenFlags::default()).await.unwrap();
        fs.close(opened.handle, 0).await.unwrap();
        fs.release(opened.handle).await.unwrap();
        opened.keep_cache
    };
    assert!(reopen(&a).await, "own writes do not spoil the cache");
    a.forgotten(ino);
    assert!(!reopen(&a).await, "what is gone is not kept");
    assert!(reopen(&a).await);
    // The cache forgets what it has when it is told so, and it may be told late, or never.
    let (late, lost) = (b.open(ino, OpenFlags::default()), b.open(ino, OpenFlags::default()));
    let (late, lost) = (late.await.unwrap(), lost.await.unwrap());
    assert!(!late.keep_cache && !lost.keep_cache);
    b.release(lost.handle).await.unwrap();
    assert!(!reopen(&b).await);
    assert!(reopen(&b).await);
    b.release(late.handle).await.unwrap();
    let opened = b.open(ino, OpenFlags::default()).await.unwrap();
    b.write(opened.handle, 5, &[2; 10]).await.unwrap();
    b.release(opened.handle).await.unwrap();
    assert!(reopen(&b).await);
    cluster.metadata.recall(ino.0);
    while cluster.metadata.count("return_leases") < 2 {
        tokio::task::yield_now().await;
    }
    assert!(!reopen(&a).await, "another client wrote");
    assert!(reopen(&a).await);
    grant(false);
    assert!(!reopen(&b).await, "without a lease others may write at any time");
    let mut want = vec![1; 9000];
    want[5..15].fill(2);
    assert_eq!(content(&a, ino).await, want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_grows_elsewhere_is_not_read_as_zeros() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (a, b) = (cluster.client().await, cluster.client().await);
    let (ha, ino) = create(&a, "f").await;
    let hb = b.open(ino, OpenFlags::default()).await.unwrap().handle;
    a.write(ha, 0, &[9; 50_000]).await.unwrap();
    a.fsync(ha, false).await.unwrap();
    assert_eq!(b.get_attr(ino).await.unwrap().size, 50_000);
    assert_eq!(b.read(hb, 0, 50_000).await.unwrap().into_bytes(), vec![9; 50_000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opens_are_declared_and_closed() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let (first, ino) = create(&fs, "f").await;
    let second = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
    fs.release(first).await.unwrap();
    assert_eq!(fs.read(first, 0, 1).await.unwrap_err().kind, ErrorKind::Invalid);
    assert!(cluster.metadata.opens().contains(&ino.0));
    fs.release(second).await.unwrap();
    while cluster.metadata.opens().contains(&ino.0) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_data_is_committed_on_its_own() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let mut options = cluster.options();
    options.flush_age = Duration::from_millis(50);
    let fs = Filesystem::connect(options).await.unwrap();
    let (handle, ino) = create(&fs, "f").await;
    fs.write(handle, 0, &[1; 100]).await.unwrap();
    while cluster.metadata.count("commit") == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(content(&cluster.client().await, ino).await, [1; 100]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_the_write_buffer_can_be_written() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let mut options = cluster.options();
    options.write_buffer_bytes = 4 << 20;
    let fs = Filesystem::connect(options).await.unwrap();
    let mut files = Vec::new();
    // Many files with little each: the buffer is full although no segment is.
    for i in 0..400u64 {
        let (handle, ino) = create(&fs, &format!("f{i}")).await;
        fs.write(handle, 0, &pattern(30_000, i)).await.unwrap();
        files.push((handle, ino));
    }
    for (i, (handle, ino)) in files.into_iter().enumerate() {
        assert!(content(&fs, ino).await == pattern(30_000, i as u64));
        fs.release(handle).await.unwrap();
    }
    fs.shutdown().await.unwrap();
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_came_with_a_name_is_on_what_the_file_holds_now() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (fs, other) = (cluster.client().await, cluster.client().await);
    cluster.metadata.grant_lookups.store(true, Ordering::Relaxed);
    let files = [("inline", 1000, false), ("segments", 50_000, false), ("changed", 50_000, true)];
    for (name, len, change) in files {
        let (writer, ino) = create(&other, name).await;
        let reader = fs.open(ino, OpenFlags::default()).await.unwrap().handle;
        for round in 0..2 {
            let data = pattern(len, round);
            other.write(writer, 0, &data).await.unwrap();
            other.flush(writer).await.unwrap();
            // Nothing is ever recalled here: a lease comes with the last round alone.
            if round == 1 {
                fs.lookup(InodeId::ROOT, name.as_bytes()).await.unwrap();
                // After this, the attributes that came with the lease hold no more.
                if change {
                    fs.set_xattr(ino, b"user.a", b"b", 0, false).await.unwrap();
                }
            }
            let got = fs.read(reader, 0, len).await.unwrap().into_bytes();
            assert!(got == data, "{name} in round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_moves_no_data() {
    let layout = small_layout("4+2");
    let cluster = Cluster::start(6, layout).await;
    let fs = cluster.client().await;
    let ((from, _), (to, ino)) = (create(&fs, "from").await, create(&fs, "to").await);
    let data = pattern(5 * layout.segment_len as usize + 99, 1);
    fs.write(from, 0, &data).await.unwrap();
    fs.flush(from).await.unwrap();
    let chunks = || cluster.targets.iter().map(|t| t.chunks.lock().len()).sum::<usize>();
    let before = chunks();
    assert_eq!(fs.copy_range(from, 1, to, 10, u64::MAX).await.unwrap(), data.len() as u64 - 1);
    assert_eq!((chunks(), cluster.metadata.count("copy_range")), (before, 1));
    assert!(content(&fs, ino).await == [&[0; 10][..], &data[1..]].concat());
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_copy_goes_with_what_is_written() {
    let cluster = Cluster::start(6, small_layout("4+2")).await;
    let fs = cluster.client().await;
    let ((from, _), (to, ino)) = (create(&fs, "from").await, create(&fs, "to").await);
    let (mut model, data) = (vec![0; 10], pattern(100_000, 1));
    fs.write(from, 0, &data).await.unwrap();
    fs.write(to, 0, &model).await.unwrap();
    let requests = || fs.counters().metadata_requests;
    let before = requests();
    // Neither is committed yet, and a part beyond the end is none.
    assert_eq!(fs.copy_range(from, 1, to, 10, u64::MAX).await.unwrap(), 99_999);
    assert_eq!(fs.copy_range(from, 100_000, to, 0, 5).await.unwrap(), 0);
    model.extend(&data[1..]);
    assert!(content(&fs, ino).await == model);
    assert_eq!(requests(), before);
    fs.sync().await.unwrap();
    assert!(content(&cluster.client().await, ino).await == model);
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_data_that_does_not_fit_is_moved() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let ((from, _), (to, ino)) = (create(&fs, "from").await, create(&fs, "to").await);
    let (first, second) = (pattern(1500, 1), pattern(1400, 2));
    let more = pattern(200_000, 3);
    for (handle, off, data) in [(from, 0, &first), (to, 0, &second), (from, 4096, &more)] {
        fs.write(handle, off, data).await.unwrap();
        fs.fsync(handle, false).await.unwrap();
    }
    let model = [&second[..], &first, &[0; 4096 - 1500], &more].concat();
    let mut done = 0;
    while let n @ 1.. = fs.copy_range(from, done, to, 1400 + done, u64::MAX).await.unwrap() {
        done += n;
    }
    assert!(content(&fs, ino).await == model);
    assert!(cluster.metadata.count("copy_range") > 1, "what is inline is refused first");
    fs.flush(to).await.unwrap();
    assert!(content(&cluster.client().await, ino).await == model);
    cluster.assert_no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_that_is_not_there_is_not_promised() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    let (handle, ino) = create(&fs, "f").await;
    let free = crate::fixture::metadata::FREE;
    fs.fallocate(handle, 0, free, Allocate::Room, false).await.unwrap();
    let full = fs.fallocate(handle, 0, free + 1, Allocate::Room, false).await.unwrap_err();
    assert_eq!(full.kind, ErrorKind::NoSpace);
    // What is there already needs no room, and a hole needs none.
    fs.write(handle, 77, &[1]).await.unwrap();
    fs.fallocate(handle, 0, free + 1, Allocate::Room, false).await.unwrap();
    fs.fallocate(handle, 0, free + 100, Allocate::Hole, false).await.unwrap();
    let attr = fs.get_attr(ino).await.unwrap();
    assert_eq!((attr.size, attr.blocks), (free + 100, 0));
    assert_eq!(fs.seek(handle, 0, Seek::Data).await.unwrap_err().kind, ErrorKind::NoData);
    assert_eq!(fs.seek(handle, 7, Seek::Hole).await.unwrap(), 7);
}

/// Else the pages that the kernel keeps of what was written would be under no lease, and nobody
/// would recall them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_writes_without_a_lease_asks_for_one_every_time() {
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let (fs, other) = (cluster.client().await, cluster.client().await);
    let (_, ino) = create(&other, "f").await;
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let handle = fs.open(ino, flags).await.unwrap().handle;
    // None is ever granted here; that one to buffer was refused a moment ago spares no question.
    let before = cluster.metadata.count("lease");
    for i in 0..10 {
        fs.write(handle, i * 10, &[7; 10]).await.unwrap();
    }
    assert_eq!(cluster.metadata.count("lease") - before, 10);
    fs.release(handle).await.unwrap();
}

/// Ten thousand targets of 4+2, and some generations of groups that are in use yet: over the 4 MiB
/// that gRPC takes if it is told nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_of_very_many_targets_is_taken() {
    use prost::Message;
    let cluster = Cluster::start(3, small_layout("2+1")).await;
    let fs = cluster.client().await;
    cluster.metadata.change_map(|map| {
        let target = |id| weft_proto::v1::TargetInfo {
            id,
            uuid: vec![1; 16].into(),
            daemon: format!("storage-{id}.example.org"),
            address: format!("storage-{id}.example.org:7440"),
            domain: format!("rack-{}", id % 100),
            state: weft_proto::v1::TargetState::Down.into(),
            ..Default::default()
        };
        map.targets.extend((4..=10_000).map(target));
        let pg = |id| {
            let targets = (0..6).map(|i| 1 + (id * 7 + i) % 10_000).collect();
            weft_proto::v1::PgInfo { id, targets, retired: true, ..Default::default() }
        };
        map.pools[0].pgs.extend((2..200_000).map(pg));
        map.next_pg = 200_000;
        assert!(map.encoded_len() > 4 << 20 && map.encoded_len() < weft_proto::map::MAX_BYTES / 4);
    });
    let epoch = cluster.metadata.map.borrow().epoch;
    while fs.cluster_map().epoch < epoch {
        tokio::task::yield_now().await;
    }
    // And by who comes then.
    for fs in [fs, cluster.client().await] {
        assert!(*fs.cluster_map() == *cluster.metadata.map.borrow());
        fs.shutdown().await.unwrap();
    }
}
