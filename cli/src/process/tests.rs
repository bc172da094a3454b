//! Tests of `process`.

use super::*;

#[test]
fn a_process_is_itself_and_nobody_else() {
    let me = Process::this().unwrap();
    assert!(me.alive());
    assert!(!Process { started: me.started + 1, ..me.clone() }.alive());
    assert!(!Process { boot: "another".into(), ..me }.alive());
    assert!(Process::of(i32::MAX).is_none());
}

#[test]
fn stopping_waits_for_the_end_and_spares_a_recycled_id() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process::of(child.id() as i32).unwrap();
    let other = Process { started: process.started + 1, ..process.clone() };
    assert!(other.stop(Duration::ZERO).unwrap(), "another process counts as gone");
    assert!(process.alive(), "and is not signalled");
    assert!(!process.wait(Duration::from_millis(1)));
    assert!(process.stop(Duration::from_secs(10)).unwrap());
    assert!(!process.alive(), "a zombie has ended");
    child.wait().unwrap();
    assert!(process.wait(Duration::ZERO));
}

#[test]
fn a_look_that_waits_for_ever_holds_up_no_other() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let limit = Duration::from_millis(100);
    let found = each((0..100).collect(), limit, move |i| {
        if i % 30 == 10 {
            let _ = wait.lock().map(|wait| wait.recv());
        }
        Some(i)
    });
    drop(go);
    let expected: Vec<_> = (0..100).filter(|i| i % 30 != 10).collect();
    assert_eq!(found, expected);
}

#[test]
fn who_has_files_open_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(holders(dir.path()), []);
    let mut child = Command::new("sleep").arg("60").current_dir(dir.path()).spawn().unwrap();
    let file = File::create(dir.path().join("file")).unwrap();
    let found = holders(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    drop(file);
    assert!(found.contains(&(child.id() as i32, "sleep".to_owned())), "{found:?}");
    assert!(found.iter().any(|(pid, _)| *pid == std::process::id() as i32), "{found:?}");
    assert_eq!(holders(dir.path()), []);
}

#[test]
fn what_ignores_sigterm_is_killed() {
    let mut child = Command::new("sh")
        .args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0];
    io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    let process = Process::of(child.id() as i32).unwrap();
    assert!(!process.stop(Duration::from_millis(50)).unwrap());
    assert!(!process.alive());
    child.wait().unwrap();
}
