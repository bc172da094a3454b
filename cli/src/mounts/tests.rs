//! Tests of mounts.

use super::*;

#[test]
fn a_record_without_a_good_word_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("record");
    let record =
        MountRecord::of_this_process("/m".into(), vec!["a:1".into()], vec![], None).unwrap();
    let write = |record: &MountRecord| {
        fs::write(&file, serde_json::to_vec(record).unwrap()).unwrap();
    };
    assert_eq!(last_word(&file, &record.process), Ok(()));
    write(&record);
    assert_eq!(last_word(&file, &record.process), Err(None));
    write(&MountRecord { failed: Some("no space".into()), ..record.clone() });
    assert_eq!(last_word(&file, &record.process), Err(Some("no space".into())));
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let other = Process::of(child.id() as i32).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(last_word(&file, &other), Ok(()), "the path has another mount now");
}

/// A takeover came to nothing.
#[test]
fn who_serves_on_is_remembered_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("record");
    let serves =
        MountRecord::of_this_process("/m".into(), vec!["a:1".into()], vec![], None).unwrap();
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let heir = MountRecord { process: Process::of(child.id() as i32).unwrap(), ..serves.clone() };
    let remembered = || read(&file).map(|record| record.process);
    serves.put_back_in(&file, &heir.process).unwrap();
    assert_eq!(remembered(), None, "it was unmounted");
    heir.save_in(&file).unwrap();
    serves.put_back_in(&file, &serves.process).unwrap();
    assert_eq!(remembered().as_ref(), Some(&heir.process), "another has it");
    serves.put_back_in(&file, &heir.process).unwrap();
    assert_eq!(remembered().as_ref(), Some(&serves.process));
    child.kill().unwrap();
    child.wait().unwrap();
    heir.put_back_in(&file, &serves.process).unwrap();
    assert_eq!(remembered().as_ref(), Some(&serves.process), "it has died");
}

#[test]
fn paths_make_distinct_names() {
    let names =
        ["/mnt/a", "/mnt-a", "/mnt/%2da", "/mnt//a b", "/mnt/ä"].map(|p| escape(Path::new(p)));
    assert_eq!(names[0], "mnt-a");
    assert_eq!(names[1], "mnt%2da");
    for (i, a) in names.iter().enumerate() {
        assert!(!a.contains('/') && names[i + 1..].iter().all(|b| a != b), "{names:?}");
    }
    assert!(escape(&Path::new("/").join("x".repeat(300))).len() <= 200);
}
