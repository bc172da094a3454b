//! Tests of mounts.

use super::name::escape;
use super::*;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

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
    // However long they are, and whatever they have in common.
    let long = |first: &str| Path::new("/").join(first).join("ä".repeat(100));
    let (a, b) = (escape(&long("a")), escape(&long("b")));
    assert!(a != b && a.len() <= 200 && b.len() <= 200, "{a} {b}");
    assert_eq!(a, escape(&long("a")), "it is found again");
}

/// Its processes look for it there, and where another has that name it was never found.
#[test]
fn a_long_path_keeps_the_name_that_a_version_before_gave_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("mounts")).unwrap();
    let path = |first: &str| Path::new("/").join(first).join("x".repeat(250));
    let called = |first: &str| name_in(dir.path(), &[], &path(first));
    let before = "x".repeat(200);
    let record = MountRecord::of_this_process(path("a"), vec![], vec![], None).unwrap();
    record.save_in(&dir.path().join("mounts").join(format!("{before}.json"))).unwrap();
    assert_eq!(called("a"), before);
    assert_eq!(called("b"), escape(&path("b")), "that is another's");
    // A new one is noted beside it.
    let other = MountRecord { path: path("b"), ..record.clone() };
    other.save_new_among(dir.path(), &[]).unwrap();
    record.save_new_among(dir.path(), &[]).unwrap();
    let mut noted: Vec<_> = records_in(dir.path()).into_iter().map(|noted| noted.path).collect();
    noted.sort();
    assert_eq!(noted, [path("a"), path("b")]);
}

/// Others can make what they like where all may write.
#[test]
fn a_users_folder_is_his_own_and_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let (above, uid) = (dir.path(), nix::unistd::geteuid().as_raw());
    let name = |number: &str| above.join(format!("weft-{uid}{number}"));
    let of_user = || folder::of_user(above, uid).unwrap();
    symlink(above, name("")).unwrap();
    fs::write(name(".1"), "").unwrap();
    fs::create_dir(name(".2")).unwrap();
    fs::set_permissions(name(".2"), Permissions::from_mode(0o777)).unwrap();
    assert_eq!(of_user(), name(".3"));
    assert_eq!(fs::metadata(name(".3")).unwrap().mode() & 0o777, 0o700);
    // Whatever becomes of theirs.
    fs::remove_file(name("")).unwrap();
    assert_eq!(of_user(), name(".3"));
}

#[test]
fn what_a_version_before_has_noted_elsewhere_is_found() {
    let dirs: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let [own, session, swept] = dirs.each_ref().map(|dir| dir.path().to_owned());
    let others = [session, swept.clone()];
    for dir in [&own, &swept] {
        fs::create_dir(dir.join("mounts")).unwrap();
    }
    let place = || place_in(&own, &others, "m.json");
    assert_eq!(place(), own.join("mounts/m.json"), "it is to be there");
    let record = MountRecord::of_this_process("/m".into(), vec![], vec![], None).unwrap();
    record.save_in(&swept.join("mounts/m.json")).unwrap();
    assert_eq!(place(), swept.join("mounts/m.json"));
    assert_eq!(records_in(&swept).len(), 1);
    record.save_in(&own.join("mounts/m.json")).unwrap();
    assert_eq!(place(), own.join("mounts/m.json"), "it was mounted anew");
}

/// A process of a version before looks only where it has noted a mount itself.
#[test]
fn a_mount_stays_remembered_where_it_is_until_it_is_made_anew() {
    let dirs: [_; 2] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let [own, before] = dirs.each_ref().map(|dir| dir.path().to_owned());
    for dir in [&own, &before] {
        fs::create_dir(dir.join("mounts")).unwrap();
    }
    let others = [before.clone()];
    let file = before.join("mounts").join("m.json");
    let remembered = || {
        assert!(records_in(&own).is_empty(), "a version before does not look there");
        read(&file).map(|record| record.process)
    };
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let serves = MountRecord::of_this_process("/m".into(), vec![], vec![], None).unwrap();
    let mut heir =
        MountRecord { process: Process::of(child.id() as i32).unwrap(), ..serves.clone() };
    serves.save_in(&file).unwrap();
    // It is taken over, which comes to nothing.
    heir.save_among(&own, &others).unwrap();
    assert_eq!(remembered().as_ref(), Some(&heir.process));
    let place = place_in(&own, &others, "m.json");
    serves.put_back_in(&place, &heir.process).unwrap();
    assert_eq!(remembered().as_ref(), Some(&serves.process));
    // Whoever looks after it mounts it anew.
    let supervisor = Some(serves.process.clone());
    let died = MountRecord { supervisor: supervisor.clone(), making_room: true, ..serves.clone() };
    died.save_among(&own, &others).unwrap();
    heir.supervisor = supervisor;
    heir.save_new_among(&own, &others).unwrap();
    assert_eq!(remembered().as_ref(), Some(&heir.process));
    // And somebody else does.
    serves.save_new_among(&own, &others).unwrap();
    assert!(!file.exists());
    assert_eq!(records_in(&own).len(), 1);
    serves.save_among(&own, &others).unwrap();
    assert!(!file.exists());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_noted_looks_new_when_it_was_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (file, none) = (dir.path().join("m.json"), dir.path().join("none"));
    let old = SystemTime::UNIX_EPOCH + KEEP_INTERVAL;
    let times = FileTimes::new().set_accessed(old).set_modified(old);
    File::create(&file).unwrap().set_times(times).unwrap();
    File::open(dir.path()).unwrap().set_times(times).unwrap();
    touch_all(&[dir.path(), &file, &none]).unwrap();
    for touched in [dir.path(), &file] {
        let found = fs::metadata(touched).unwrap();
        assert!(found.modified().unwrap() > old && found.accessed().unwrap() > old);
    }
    assert!(!none.exists());
}

/// The folder of a session goes when its user logs out.
#[test]
fn what_is_mounted_is_noted_again_where_that_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("record");
    let serves = MountRecord::of_this_process("/m".into(), vec![], vec![], None).unwrap();
    serves.save_missing_in(&file, || false).unwrap();
    assert!(!file.exists(), "it was unmounted");
    serves.save_missing_in(&file, || true).unwrap();
    assert_eq!(read(&file).map(|record| record.process), Some(serves.process.clone()));
    let other = MountRecord { cluster: vec!["a:1".into()], ..serves.clone() };
    other.save_in(&file).unwrap();
    serves.save_missing_in(&file, || true).unwrap();
    assert_eq!(read(&file).map(|record| record.cluster), Some(other.cluster), "it is newer");
}
