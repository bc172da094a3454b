//! Tests of backups.

use super::*;
use crate::state::StateMachine;

/// Makes a backup of a cluster in a folder. One that is damaged has checksums of what is damaged.
pub(crate) fn make(dir: &Path, damaged: bool) -> Manifest {
    let state = dir.with_extension("state");
    let machine = StateMachine::open(&state).unwrap();
    machine.set_applied(8).unwrap();
    let cluster = v1::log_entry::Body::InitCluster(v1::InitClusterEntry {
        cluster: vec![7; 16].into(),
        profile: Some(v1::ProfileInfo { k: 2, m: 1 }),
        members: vec![v1::NodeInfo { id: 1, ..Default::default() }],
        shard: 0,
    });
    let entry = v1::LogEntry { time_ns: 1, body: Some(cluster), ..Default::default() };
    machine.apply(&[(9, entry)]).unwrap();
    machine.checkpoint(dir).unwrap();
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let tables: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "sst")).collect();
    assert!(!tables.is_empty());
    for path in tables.into_iter().filter(|_| damaged) {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[8] ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
    }
    let manifest = Manifest::of(dir, Uuid([7; 16]), (9, 2), 1, vec![1], &mut unheard).unwrap();
    std::fs::write(dir.join(MANIFEST), manifest.to_text().unwrap()).unwrap();
    manifest
}

/// Also one that was damaged before its files were measured.
#[test]
fn a_backup_is_whole_if_all_that_is_in_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, damaged) = (dir.path().join("whole"), dir.path().join("damaged"));
    let files = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    let manifest = make(&whole, false);
    let before = files(&whole);
    manifest.verify(&whole, &mut unheard).unwrap();
    assert_eq!(files(&whole), before, "nothing was written");
    // Of nothing else it is.
    let another = Uuid([8; 16]).to_string();
    for other in [
        Manifest { index: 8, ..manifest.clone() },
        Manifest { cluster: another, ..manifest.clone() },
    ] {
        let error = other.verify(&whole, &mut unheard).unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains(MANIFEST), "{error}");
    }
    let manifest = make(&damaged, true);
    manifest.verify_files(&damaged, &mut unheard).unwrap();
    let error = manifest.verify(&damaged, &mut unheard).unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("read"), "{error}");
}

#[test]
fn a_manifest_says_what_belongs_to_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.sst"), b"content").unwrap();
    let part = |f: v1::snapshot_manifest::File| Part { name: f.name, len: f.len, crc32: f.crc32 };
    let files = measure_all(dir.path(), &mut unheard).unwrap().into_iter().map(part).collect();
    let cluster = Uuid([7; 16]).to_string();
    let manifest = Manifest { cluster, index: 9, term: 2, files, ..Manifest::empty() };
    assert_eq!(Manifest::load(dir.path()).unwrap_err().kind, ErrorKind::NotFound);
    std::fs::write(dir.path().join(MANIFEST), manifest.to_text().unwrap()).unwrap();
    assert_eq!(Manifest::load(dir.path()).unwrap(), manifest);
    manifest.verify_files(dir.path(), &mut unheard).unwrap();
    std::fs::write(dir.path().join("a.sst"), b"Content").unwrap();
    let e = manifest.verify_files(dir.path(), &mut unheard).unwrap_err();
    assert!(e.kind == ErrorKind::Corrupt && e.message.contains("a.sst"), "{e}");
}

#[test]
fn a_manifest_that_makes_no_sense_is_refused() {
    let cluster = Uuid([7; 16]).to_string();
    let good = Manifest { cluster, ..Manifest::empty() };
    Manifest::parse(&good.to_text().unwrap()).unwrap();
    let file = |name: &str, len| Part { name: name.into(), len, crc32: 0 };
    for bad in [
        Manifest { files: vec![file("../x", 1)], ..good.clone() },
        Manifest { files: vec![file("x", u64::MAX / 2)], ..good.clone() },
        Manifest { cluster: "7".into(), ..good.clone() },
        Manifest { format: 2, ..good.clone() },
    ] {
        // A number that TOML has no room for is not written.
        assert!(bad.to_text().and_then(|text| Manifest::parse(&text)).is_err(), "{bad:?}");
    }
    assert!(Manifest::parse("garbage").is_err());
}
