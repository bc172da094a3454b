//! Tests of `process`.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TryRecvError;

/// [`holders`], however long a look takes.
fn all_holders(folder: &Path) -> Vec<(i32, String)> {
    holders_by(folder, |told| told.recv().map_err(|_| RecvTimeoutError::Disconnected))
}

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
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let process = Process::of(child.id() as i32).unwrap();
    let other = Process { started: process.started + 1, ..process.clone() };
    assert!(other.stop(Duration::ZERO).unwrap(), "another process counts as gone");
    assert!(process.alive(), "and is not signalled");
    assert!(!process.wait(Duration::from_millis(1)));
    assert!(process.stop(Duration::from_secs(60)).unwrap());
    assert!(!process.alive(), "a zombie has ended");
    child.wait().unwrap();
    assert!(process.wait(Duration::ZERO));
}

#[test]
fn a_look_that_waits_for_ever_holds_up_no_other() {
    let (go, wait) = channel::<()>();
    let (wait, hang) = (Mutex::new(wait), Arc::new(AtomicUsize::new(0)));
    let (hangs, mut given_up) = (hang.clone(), 0);
    // It is late when one hangs and all that were answered before are here, however long that is.
    let next = move |told: &Receiver<Option<i32>>| loop {
        let hangs = hangs.load(Ordering::SeqCst) > given_up;
        match told.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) if hangs => {
                given_up += 1;
                return Err(RecvTimeoutError::Timeout);
            }
            Err(TryRecvError::Empty) => thread::yield_now(),
        }
    };
    let found = each((0..100).collect(), next, move |i| {
        if i % 30 == 10 {
            hang.fetch_add(1, Ordering::SeqCst);
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
    assert_eq!(all_holders(dir.path()), []);
    let mut child = Command::new("sleep").arg("600").current_dir(dir.path()).spawn().unwrap();
    let file = File::create(dir.path().join("file")).unwrap();
    let found = all_holders(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    drop(file);
    assert!(found.contains(&(child.id() as i32, "sleep".to_owned())), "{found:?}");
    assert!(found.iter().any(|(pid, _)| *pid == std::process::id() as i32), "{found:?}");
    assert_eq!(all_holders(dir.path()), []);
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
