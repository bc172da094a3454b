//! Files that sessions make on their own: with numbers that were set aside for them, and with
//! content.

use crate::rig::{ROOT, Rig, run};
use v1::extent::Source;
use v1::log_entry::Body;
use v1::make_files_op::File;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, v1};

/// What became of each file, and how it is then.
fn make(rig: &mut Rig, files: &[File]) -> Vec<Result<v1::Attr, ErrorKind>> {
    let reply = match run(rig, Op::MakeFiles(v1::MakeFilesOp { files: files.to_vec() })).unwrap() {
        Reply::MakeFiles(reply) => reply,
        other => panic!("make answered {other:?}"),
    };
    let made = files.iter().zip(reply.files).map(|(file, made)| match made.error {
        0 => {
            let attr = rig.attr(file.ino);
            assert_eq!(made.attr, file.content.is_some().then(|| attr.expect("a file")));
            attr
        }
        code => Err(ErrorKind::from_code(code)),
    });
    made.collect()
}

fn file(ino: u64, name: &str) -> File {
    let name = name.to_string().into();
    File { ino, parent: ROOT, name, mode: 0o666, umask: 0o22, uid: 5, gid: 6, ..Default::default() }
}

fn content(ino: u64, bytes: &'static [u8]) -> Option<v1::CommitExtentsOp> {
    let source = Some(Source::Inline(bytes.into()));
    let extents = vec![v1::Extent { file_off: 0, len: bytes.len() as u64, source }];
    Some(v1::CommitExtentsOp { ino, extents, mtime_ns: 77, ..Default::default() })
}

fn mk_dir(rig: &mut Rig, name: &str, mode: u32, gid: u32) -> u64 {
    let name = name.to_string().into();
    let op = v1::MkDirOp { parent: ROOT, name, mode, gid, ..Default::default() };
    match run(rig, Op::MkDir(op)) {
        Ok(Reply::Attr(attr)) => attr.ino,
        other => panic!("mkdir answered {other:?}"),
    }
}

#[test]
fn files_become_what_their_session_showed() {
    let mut rig = Rig::in_memory();
    let dir = mk_dir(&mut rig, "d", 0o2775, 9);
    let first = rig.reserve(10).unwrap();
    let before = rig.attr(dir).unwrap();
    let made_ns = before.ctime_ns + 1000;
    let empty = File { parent: dir, made_ns, ..file(first, "empty") };
    let content = content(first + 1, b"abc");
    let small = File { parent: dir, made_ns: made_ns - 1, content, ..file(first + 1, "small") };
    let made = make(&mut rig, &[empty, small]);
    let [empty, small] = [0, 1].map(|at: usize| made[at].unwrap());
    assert_eq!((empty.ino, empty.mode, empty.uid, empty.nlink), (first, 0o644, 5, 1));
    assert_eq!(empty.gid, 9, "of the directory");
    assert_eq!([empty.atime_ns, empty.mtime_ns, empty.ctime_ns, empty.btime_ns], [made_ns; 4]);
    assert_eq!((empty.size, empty.data_version), (0, 0));
    assert_eq!((small.size, small.data_version, small.mtime_ns), (3, 1, 77));
    assert_eq!([rig.attr(first), rig.attr(first + 1)], [Ok(empty), Ok(small)]);
    // Told in the other order, they make the directory's times no older.
    let after = rig.attr(dir).unwrap();
    assert_eq!((after.mtime_ns, after.ctime_ns, after.nlink), (made_ns, made_ns, 2));
    assert_eq!(rig.names(dir), [(first, "empty".into()), (first + 1, "small".into())]);
    rig.check();
    // Other numbers are given to others.
    assert!(mk_dir(&mut rig, "e", 0o755, 0) >= first + 10);
}

#[test]
fn what_is_told_twice_is_made_once() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(2).unwrap();
    make(&mut rig, &[file(first, "f")])[0].unwrap();
    // The answer was lost, and the content has come since.
    let again = File { content: content(first, b"abc"), ..file(first, "f") };
    assert_eq!(make(&mut rig, &[again])[0].unwrap().size, 3);
    assert_eq!(rig.names(ROOT), [(first, "f".into())]);
    // A number has one name.
    assert_eq!(make(&mut rig, &[file(first, "g")]), [Err(ErrorKind::Exists)]);
    rig.check();
}

#[test]
fn each_file_is_refused_by_itself_and_leaves_nothing() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(10).unwrap();
    let session = rig.session;
    let (other, taken) = (rig.open_session(2), mk_dir(&mut rig, "taken", 0o755, 0));
    let foreign = content(first + 1, b"abc");
    let long = v1::CommitExtentsOp { min_size: u64::MAX, ..content(first + 1, b"abc").unwrap() };
    let of = |ino, change: &dyn Fn(&mut File)| {
        let mut file = file(ino, "f");
        change(&mut file);
        file
    };
    let cases: Vec<(&str, ErrorKind, File)> = vec![
        ("not set aside", ErrorKind::Invalid, file(first + 10, "f")),
        ("before those", ErrorKind::Invalid, file(first - 1, "f")),
        ("another's", ErrorKind::Invalid, of(first, &|f| f.session = other)),
        ("another shard's", ErrorKind::Invalid, file(first | 1 << 60, "f")),
        ("taken", ErrorKind::Exists, file(first, "taken")),
        ("no name", ErrorKind::Invalid, file(first, "..")),
        ("no directory", ErrorKind::Stale, of(first, &|f| f.parent = 999)),
        ("content of another", ErrorKind::Invalid, of(first, &|f| f.content = foreign.clone())),
        ("bad content", ErrorKind::TooLarge, of(first + 1, &|f| f.content = Some(long.clone()))),
        (
            "content of a directory",
            ErrorKind::Invalid,
            File { content: content(taken, b"abc"), ..file(taken, "taken") },
        ),
    ];
    for (what, kind, bad) in &cases {
        let made = make(&mut rig, &[bad.clone(), file(first + 5, "good")]);
        assert_eq!(made[0].as_ref().err(), Some(kind), "{what}");
        assert!(made[1].is_ok(), "{what}");
        run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name: "good".into() })).unwrap();
        rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos: vec![first + 5] })).unwrap();
        assert_eq!(rig.names(ROOT), [(taken, "taken".into())], "{what}");
        rig.check();
    }
    let many = v1::MakeFilesOp { files: vec![file(first, "f"); 5000] };
    assert_eq!(run(&mut rig, Op::MakeFiles(many)), Err(ErrorKind::Invalid));
    assert_eq!(rig.reserve(0), Err(ErrorKind::Invalid));
    assert_eq!(rig.reserve(u32::MAX), Err(ErrorKind::Invalid));
    assert_eq!(rig.session, session);
}

/// A file waits while its session dies, and is made in the next one of its client.
#[test]
fn numbers_outlive_a_session_that_was_declared_dead() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(10).unwrap();
    let dead = rig.session;
    let next = rig.open_session(2);
    rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session: dead })).unwrap();
    (rig.session, rig.number) = (next, 0);
    assert_eq!(make(&mut rig, &[file(first, "f")]), [Err(ErrorKind::Invalid)]);
    let made = make(&mut rig, &[File { session: dead, ..file(first, "f") }]);
    assert_eq!(made[0].unwrap().ino, first);
    // Also if very many die together.
    for nonce in 3..=103 {
        let session = rig.open_session(nonce);
        (rig.session, rig.number) = (session, 0);
        rig.reserve(1).unwrap();
        rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session })).unwrap();
    }
    (rig.session, rig.number) = (next, 2);
    let late = |ino, name: &str| File { session: dead, ..file(ino, name) };
    assert_eq!(make(&mut rig, &[late(first + 1, "g")])[0].unwrap().ino, first + 1);
    // A week later, too: it may be the leader's clock only that says so.
    rig.time += 7 * 24 * 3600 * 1_000_000_000;
    die(&mut rig, 1);
    assert_eq!(make(&mut rig, &[late(first + 2, "h")])[0].unwrap().ino, first + 2);
    // But not for ever: when it is long ago, and many have died since.
    assert_eq!((records(&rig, 0x34), records(&rig, 0x35)), (103, 103));
    die(&mut rig, 1024);
    assert_eq!((records(&rig, 0x34), records(&rig, 0x35)), (1025, 1025), "who has just died");
    rig.time += 7 * 24 * 3600 * 1_000_000_000;
    die(&mut rig, 1);
    assert_eq!((records(&rig, 0x34), records(&rig, 0x35)), (1024, 1024));
    assert_eq!(make(&mut rig, &[late(first + 3, "i")]), [Err(ErrorKind::Invalid)]);
    rig.check();
}

/// Records with this tag.
fn records(rig: &Rig, tag: u8) -> usize {
    rig.machine.dump().unwrap().iter().filter(|(key, _)| key[2] == tag).count()
}

/// So many sessions are opened, set numbers aside, and are declared dead.
fn die(rig: &mut Rig, many: u32) {
    let (session, number) = (rig.session, rig.number);
    for _ in 0..many {
        let nonce = [&rig.time.to_be_bytes()[..], &[9; 8]].concat().into();
        let open = Op::OpenSession(v1::OpenSessionOp {
            client: "dies".into(),
            nonce,
            ..Default::default()
        });
        let opened = rig.request(v1::MetaRequest { op: Some(open), ..Default::default() });
        let Ok(Reply::OpenSession(opened)) = opened else { panic!("{opened:?}") };
        (rig.session, rig.number) = (opened.session, 0);
        rig.reserve(1).unwrap();
        let expire = v1::ExpireSessionEntry { session: opened.session };
        rig.entry(Body::ExpireSession(expire)).unwrap();
    }
    (rig.session, rig.number) = (session, number);
}

/// Numbers of one session are a few ranges, whoever else asks meanwhile, and are nobody else's.
#[test]
fn what_is_set_aside_is_in_few_ranges() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(4096).unwrap();
    for _ in 1..50 {
        rig.reserve(4096).unwrap();
    }
    assert_eq!(records(&rig, 0x35), 2, "a range, and where it is");
    for (ino, name) in [(first, "first"), (first + 50 * 4096 - 1, "last")] {
        assert!(make(&mut rig, &[file(ino, name)])[0].is_ok(), "{name}");
    }
    // It is not handed out yet.
    assert_eq!(make(&mut rig, &[file(first + 50 * 4096, "next")]), [Err(ErrorKind::Invalid)]);
    let mut sessions = [(rig.session, rig.number), (rig.open_session(2), 0)];
    let (mut given, mut most) = (Vec::new(), 0);
    for turn in 0..5000u32 {
        let who = turn as usize % 2;
        (rig.session, rig.number) = sessions[who];
        // Some ask for many more than others.
        let count = if turn % 100 == 7 { 1 << 16 } else { 1 + turn % 4096 };
        given.push((rig.reserve(count).unwrap(), u64::from(count), who));
        sessions[who].1 = rig.number;
        most = most.max(records(&rig, 0x35));
    }
    assert!(most < 30, "{most} ranges");
    for &(first, count, who) in given.iter().step_by(97) {
        (rig.session, rig.number) = sessions[who];
        let last = first + count - 1;
        assert!(make(&mut rig, &[file(last, &last.to_string())])[0].is_ok());
        sessions[who].1 = rig.number;
    }
    given.sort_unstable();
    assert!(given.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "one is given twice");
    rig.check();
}

/// A file may stay open, and untold, while its session makes very many others.
#[test]
fn numbers_are_good_for_as_long_as_their_session_lives() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(1).unwrap();
    let last = (0..100).map(|_| rig.reserve(4096).unwrap()).last().unwrap();
    for (ino, name) in [(first, "early"), (last + 4095, "late")] {
        assert!(make(&mut rig, &[file(ino, name)])[0].is_ok(), "{name}");
    }
    rig.check();
}

#[test]
fn who_closes_its_session_needs_no_numbers() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(10).unwrap();
    let (closed, next) = (rig.session, rig.open_session(2));
    run(&mut rig, Op::CloseSession(v1::CloseSessionOp {})).unwrap();
    (rig.session, rig.number) = (next, 0);
    let late = File { session: closed, ..file(first, "f") };
    assert_eq!(make(&mut rig, &[late]), [Err(ErrorKind::Invalid)]);
}
