//! What is on a drive: superblocks, indexes, strange and damaged ones, and the space that they
//! take.

use super::*;

#[test]
fn superblocks_are_repaired_from_each_other_or_refused() {
    run(async {
        let dir = tempdir().unwrap();
        let options = options(dir.path(), SIZE);
        let engine = open(dir.path(), SIZE);
        put(&engine, id(1, 1, 0), 8).await;
        let cluster = Uuid([9; 16]);
        engine.join(cluster, TargetId(4)).await.unwrap();
        engine.join(cluster, TargetId(4)).await.unwrap();
        for (cluster, target) in [(Uuid([8; 16]), TargetId(4)), (cluster, TargetId(5))] {
            assert_eq!(
                engine.join(cluster, target).await.unwrap_err().kind,
                ErrorKind::WrongCluster
            );
        }
        assert_eq!(refusal(&options).0, ErrorKind::Busy);
        let uuid = engine.uuid();
        drop(engine);
        let whole = peek(&options.path, 0);
        let copies = [0, SIZE - 4096];
        for torn in copies {
            for at in [0, 100, 511, 4095] {
                poke(&options.path, torn + at, &[0x5a]);
                let engine = open_with(&options).unwrap();
                assert_eq!(
                    (engine.uuid(), engine.cluster(), engine.id()),
                    (uuid, Some(cluster), Some(TargetId(4)))
                );
                check(&engine, id(1, 1, 0), 8, 0, 0, 8).await;
                drop(engine);
                copies.iter().for_each(|&at| assert!(peek(&options.path, at) == whole, "repaired"));
            }
        }
        copies.iter().for_each(|&at| poke(&options.path, at, &[0; 4096]));
        poke(&options.path, 4096, &[1]);
        assert!(refusal(&options).1.contains("not blank"));
        copies.iter().for_each(|&at| poke(&options.path, at, &whole));

        let file = OpenOptions::new().write(true).open(&options.path).unwrap();
        file.set_len(SIZE / 2 + SIZE).unwrap();
        drop(open_with(&options).unwrap());
        file.set_len(SIZE - 4096).unwrap();
        assert!(refusal(&options).1.contains("truncated"));
        file.set_len(1 << 20).unwrap();
        assert!(refusal(&options).1.contains("truncated"));
    });
}

#[test]
fn what_is_not_a_target_is_not_touched() {
    let dir = tempdir().unwrap();
    let options = options(dir.path(), SIZE);
    let mut content = vec![0; SIZE as usize];
    content[777_777] = 1;
    fs::write(&options.path, &content).unwrap();
    assert!(refusal(&options).1.contains("not blank"));
    assert!(fs::read(&options.path).unwrap() == content);

    let zeros = vec![0; SIZE as usize];
    fs::write(&options.path, &zeros).unwrap();
    assert!(refusal(&options).1.contains("it is blank"));
    assert!(fs::read(&options.path).unwrap() == zeros);

    let missing = TargetOptions::new(dir.path().join("none"), Some(SIZE));
    let (kind, message) = refusal(&missing);
    assert!(kind == ErrorKind::NotFound && message.contains("weft target add"), "{message}");
    assert!(!missing.path.exists());
    let folder = TargetOptions { path: dir.path().into(), ..options };
    assert_eq!(refusal(&folder).0, ErrorKind::Invalid);
}

/// What could not be made does not stay behind half made.
#[test]
fn a_file_that_cannot_be_made_is_taken_away_again() {
    let dir = tempdir().unwrap();
    let refused = |path: &str, size| {
        let options = TargetOptions::new(dir.path().join(path), Some(size));
        let e = Engine::format(&options, &Content::Blank).unwrap_err();
        assert!(!options.path.exists(), "{e}");
        (e.kind, e.message)
    };
    let (kind, message) = refused("small", 1 << 20);
    assert!(kind == ErrorKind::Invalid && message.contains("too few"), "{message}");
    let (kind, message) = refused("large", 1 << 50);
    assert!(kind == ErrorKind::NoSpace && message.contains("bytes free"), "{message}");
    assert_eq!(refused("no/folder", SIZE).0, ErrorKind::Io);
    let unsized_one = TargetOptions::new(dir.path().join("x"), None);
    let e = Engine::format(&unsized_one, &Content::Blank).unwrap_err();
    assert!(e.kind == ErrorKind::NotFound && e.message.contains("--size"), "{e}");
}

#[test]
fn the_index_of_another_target_is_refused_and_a_lost_or_old_one_is_rebuilt() {
    run(async {
        let dir = tempdir().unwrap();
        let options = options(dir.path(), SIZE);
        let index = options.path.with_extension("index");
        let engine = open(dir.path(), SIZE);
        for seq in 0..20 {
            put(&engine, id(1, seq, 0), 10 + seq as usize).await;
        }
        engine.delete(vec![id(1, 3, 0)]).await.unwrap();
        let before = engine.list(None, None, 100).await.unwrap().items;
        engine.close().await.unwrap();
        let (used, opened) = (engine.stat().used_bytes, engine.stat().opened);
        drop(engine);

        let other = tempdir().unwrap();
        drop(open(other.path(), SIZE));
        let stranger =
            TargetOptions { index: Some(other.path().join("target.index")), ..options.clone() };
        let refused = open_with(&stranger).err().unwrap();
        assert!(refused.message.contains("belongs to target"), "{refused}");

        // The header of what was deleted last is still there and comes back: it is garbage, not
        // loss. Who cleans up sees that there may be some.
        fs::rename(&index, dir.path().join("old")).unwrap();
        let engine = open_with(&options).unwrap();
        assert_eq!(engine.stat().chunks, before.len() as u64 + 1);
        assert_ne!(engine.stat().opened, opened);
        engine.delete(vec![id(1, 3, 0)]).await.unwrap();
        assert_eq!(engine.list(None, None, 100).await.unwrap().items, before);
        assert_eq!(engine.stat().used_bytes, used);
        // More than the journal holds, then the old index again: it does not know, and is rebuilt.
        for seq in 100..200 {
            put(&engine, id(1, seq, 0), 1).await;
        }
        drop(engine);
        fs::remove_dir_all(&index).unwrap();
        fs::rename(dir.path().join("old"), &index).unwrap();
        let engine = open_with(&options).unwrap();
        for seq in 100..200 {
            check(&engine, id(1, seq, 0), 1, 0, 0, 1).await;
        }
        drop(engine);
        // Garbage in it.
        for entry in fs::read_dir(&index).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("MANIFEST") {
                fs::write(path, [0x55; 300]).unwrap();
            }
        }
        let engine = open_with(&options).unwrap();
        check(&engine, id(1, 7, 0), 17, 0, 0, 17).await;
    });
}

/// A block of its tables has rotted, or it was removed in part: it is one that is lost. While it is
/// open nothing of it can be made good, and its target is not to look as if it were well.
#[test]
fn a_damaged_index_is_made_anew() {
    run(async {
        let dir = tempdir().unwrap();
        let options = options(dir.path(), SIZE);
        let index = options.path.with_extension("index");
        let named = |what: &str| -> Vec<_> {
            let all = fs::read_dir(&index).unwrap().map(|entry| entry.unwrap().path());
            all.filter(|path| path.to_string_lossy().contains(what)).collect()
        };
        let has_all = async |engine: &Engine| {
            for seq in 0..300 {
                check(engine, id(1, seq, 0), 1, 0, 0, 1).await;
            }
            assert_eq!(engine.failure(), None);
        };
        let engine = open(dir.path(), SIZE);
        for seq in 0..300 {
            put(&engine, id(1, seq, 0), 1).await;
        }
        engine.close().await.unwrap();
        drop(engine);

        for table in named(".sst") {
            poke(&table, fs::metadata(&table).unwrap().len() / 2, &[0x55; 16]);
        }
        let engine = open_with(&options).unwrap();
        has_all(&engine).await;
        drop(engine);

        for what in ["MANIFEST", "CURRENT"] {
            named(what).iter().for_each(|path| fs::remove_file(path).unwrap());
            has_all(&open_with(&options).unwrap()).await;
        }

        let first = id(1, 0, 0);
        let look_up = async |engine: &Engine| engine.get(first, 0, 4096).await.map(drop);
        let list = async |engine: &Engine| engine.list(None, None, 10).await.map(drop);
        let delete = async |engine: &Engine| engine.delete(vec![first]).await.map(drop);
        for way in 0..3 {
            let engine = open_with(&options).unwrap();
            named(".sst").iter().for_each(|table| poke(table, 100, &[0x55; 16]));
            assert_eq!(engine.failure(), None);
            let met = match way {
                0 => look_up(&engine).await,
                1 => list(&engine).await,
                _ => delete(&engine).await,
            };
            // Nothing is known to be wrong with the chunk.
            assert_eq!(met.unwrap_err().kind, ErrorKind::Io);
            assert!(engine.failure().unwrap().contains("a restart makes the index anew"));
            drop(engine);
            has_all(&open_with(&options).unwrap()).await;
        }
    });
}

/// What it says of one chunk is damaged, and no checksum of its own tells.
#[test]
fn an_index_with_a_damaged_entry_is_made_anew() {
    run(async {
        let dir = tempdir().unwrap();
        let options = options(dir.path(), SIZE);
        let engine = open(dir.path(), SIZE);
        for seq in 0..3 {
            put(&engine, id(1, seq, 0), 5).await;
        }
        engine.close().await.unwrap();
        drop(engine);
        let index = rocksdb::DB::open_default(options.index_path()).unwrap();
        let key = [&b"c"[..], &id(1, 1, 0).to_bytes()].concat();
        let entry = index.get(&key).unwrap().unwrap();
        index.put(&key, &entry[..entry.len() - 4]).unwrap();
        index.flush().unwrap();
        drop(index);
        let engine = open_with(&options).unwrap();
        for seq in 0..3 {
            check(&engine, id(1, seq, 0), 5, 0, 0, 5).await;
        }
        assert_eq!(engine.failure(), None);
    });
}

/// A drive that put one chunk where another belongs.
#[test]
fn a_misplaced_chunk_is_noticed_and_not_taken_for_another() {
    run(async {
        let dir = tempdir().unwrap();
        let options = options(dir.path(), SIZE);
        let engine = open(dir.path(), SIZE);
        put(&engine, id(1, 1, 0), 8).await;
        put(&engine, id(1, 2, 0), 8).await;
        let image = fs::read(&options.path).unwrap();
        let (a, b) = (data(id(1, 1, 0), 8, 0).0, data(id(1, 2, 0), 8, 0).0);
        let at = |bytes: &[u8]| {
            let first = image.chunks(4096).position(|block| block == &bytes[..4096]).unwrap();
            (first - 1) as u64 * 4096 // its header
        };
        let (from, to) = (at(&a), at(&b));
        poke(&options.path, to, &image[from as usize..from as usize + 9 * 4096]);
        assert_eq!(engine.verify(id(1, 2, 0), 0, 0).await.unwrap(), Some(0));
        assert_eq!(engine.verify(id(1, 1, 0), 0, 0).await.unwrap(), None);
        assert_eq!(engine.stat().checksum_errors, 1);
        drop(engine);

        fs::remove_dir_all(options.path.with_extension("index")).unwrap();
        let engine = open_with(&options).unwrap();
        check(&engine, id(1, 1, 0), 8, 0, 0, 8).await;
        let lost = engine.get(id(1, 2, 0), 0, 4096).await.unwrap_err();
        assert_eq!(lost.kind, ErrorKind::NotFound);
    });
}

#[test]
fn formatting_needs_to_be_told_what_it_destroys() {
    let dir = tempdir().unwrap();
    let options = options(dir.path(), SIZE);
    let mut image = vec![0; SIZE as usize];
    image[..4].copy_from_slice(b"XFSB");
    fs::write(&options.path, &image).unwrap();
    let found = inspect(&options.path).unwrap().content;
    assert_eq!(found, Content::Known("an XFS filesystem"));
    let refused = Engine::format(&options, &Content::Blank).unwrap_err();
    assert!(refused.kind == ErrorKind::Exists && refused.message.contains("XFS"), "{refused}");
    assert!(fs::read(&options.path).unwrap() == image);
    let superblock = Engine::format(&options, &found).unwrap();
    let engine = open_with(&options).unwrap();
    assert_eq!(engine.uuid(), superblock.uuid);
    // While it is served, nobody formats it.
    let found = inspect(&options.path).unwrap().content;
    assert_eq!(Engine::format(&options, &found).unwrap_err().kind, ErrorKind::Busy);
}

#[test]
fn formatting_leaves_the_index_of_another_target_alone() {
    let (dir, other) = (tempdir().unwrap(), tempdir().unwrap());
    let first = options(dir.path(), SIZE);
    let uuid = open(dir.path(), SIZE).uuid();
    let index = Some(first.index_path());
    let second = TargetOptions { index: index.clone(), ..options(other.path(), SIZE) };
    let refused = Engine::format(&second, &Content::Blank).unwrap_err();
    let said = refused.message.contains(&uuid.to_string());
    assert!(refused.kind == ErrorKind::Exists && said, "{refused}");
    assert!(!second.path.exists());
    // Nor is a drive touched that is there.
    let mut image = vec![0; SIZE as usize];
    image[..4].copy_from_slice(b"XFSB");
    fs::write(&second.path, &image).unwrap();
    let found = inspect(&second.path).unwrap().content;
    assert_eq!(Engine::format(&second, &found).unwrap_err().kind, ErrorKind::Exists);
    // While it is open, who may take it does not get it.
    let engine = open(dir.path(), SIZE);
    let held = Engine::format_and_take_index(&second, &found).unwrap_err();
    assert!(held.message.contains("has it open"), "{held}");
    assert!(fs::read(&second.path).unwrap() == image);
    assert_eq!(engine.uuid(), uuid);
    drop(engine);

    // With the target whose it is, it goes; and with its place, for who says so.
    let found = inspect(&first.path).unwrap().content;
    let again = Engine::format(&TargetOptions { index, ..first.clone() }, &found).unwrap();
    assert_ne!(again.uuid, uuid);
    assert_eq!(open_with(&first).unwrap().uuid(), again.uuid);
    fs::remove_file(&second.path).unwrap();
    let taken = Engine::format_and_take_index(&second, &Content::Blank).unwrap();
    assert_eq!(open_with(&second).unwrap().uuid(), taken.uuid);
}

/// As a command leaves it that was cut off.
#[test]
fn a_blank_file_gets_the_size_that_is_asked_for() {
    let dir = tempdir().unwrap();
    let options = options(dir.path(), SIZE);
    for size in [0, SIZE / 2, 2 * SIZE] {
        fs::File::create(&options.path).unwrap().set_len(size).unwrap();
        assert_eq!(Engine::format(&options, &Content::Blank).unwrap().size, SIZE);
        assert_eq!(fs::metadata(&options.path).unwrap().len(), SIZE);
        drop(open_with(&options).unwrap());
    }
    // One that holds something stays as it is.
    let found = inspect(&options.path).unwrap().content;
    let larger = TargetOptions { size: Some(2 * SIZE), ..options };
    let refused = Engine::format(&larger, &found).unwrap_err();
    assert!(refused.message.contains("were asked for"), "{refused}");
    assert_eq!(inspect(&larger.path).unwrap().content, found);
}

/// A sparse file takes what is written to it, and gives back what is freed, unasked.
#[test]
fn a_sparse_target_takes_the_space_of_its_chunks_only() {
    run(async {
        let dir = tempdir().unwrap();
        let options = TargetOptions { sparse: true, ..options(dir.path(), 4 * SIZE) };
        make(&options);
        let bytes = || fs::metadata(&options.path).unwrap().blocks() * 512;
        let engine = open_with(&options).unwrap();
        let empty = bytes();
        assert!(empty < SIZE / 4, "{empty} bytes for an empty target");
        assert!(engine.stat().capacity_bytes > 3 * SIZE);
        put(&engine, id(1, 1, 0), 2000).await;
        assert!(bytes() >= empty + 2000 * 4096);
        engine.delete(vec![id(1, 1, 0)]).await.unwrap();
        let soon = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        while bytes() > empty + (1 << 20) {
            assert!(tokio::time::Instant::now() < soon, "nothing was given back");
            tokio::task::yield_now().await;
        }
        put(&engine, id(1, 2, 0), 2000).await;
        check(&engine, id(1, 2, 0), 2000, 0, 0, 2000).await;
    });
}

#[test]
fn discarded_space_is_given_back_to_the_filesystem_and_used_again() {
    run(async {
        let dir = tempdir().unwrap();
        let mut options = options(dir.path(), SIZE);
        options.tuning.discard = Some(u64::MAX);
        make(&options);
        let engine = open_with(&options).unwrap();
        put(&engine, id(1, 1, 0), 8).await;
        put(&engine, id(1, 2, 0), 2000).await;
        let blocks = || fs::metadata(&options.path).unwrap().blocks();
        let before = blocks();
        engine.delete(vec![id(1, 2, 0)]).await.unwrap();
        let soon = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        while blocks() >= before {
            assert!(tokio::time::Instant::now() < soon, "nothing was discarded");
            tokio::task::yield_now().await;
        }
        for seq in 3..8 {
            put(&engine, id(1, seq, 0), 500).await;
            check(&engine, id(1, seq, 0), 500, 0, 0, 500).await;
        }
        check(&engine, id(1, 1, 0), 8, 0, 0, 8).await;
    });
}
