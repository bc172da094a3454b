//! Threads and processes of a machine, as `/proc` shows them.

use super::*;
use std::sync::mpsc::channel;

#[test]
fn who_ends_has_no_memory_or_a_kill_that_waits() {
    let status = |memory: &str, pending: &str| {
        format!("Name:\ta\nKthread:\t0\n{memory}SigPnd:\t{pending}\nShdPnd:\t0000000000000000\n")
    };
    let (memory, none) = ("VmSize:\t    2920 kB\n", "0000000000000000");
    assert!(!is_over(&status(memory, none)));
    assert!(is_over(&status("", none)) && is_over(&status(memory, "0000000000000100")));
    // Threads of the kernel close files, too.
    assert!(!is_over(&status("", none).replace("Kthread:\t0", "Kthread:\t1")));
    assert!(!is_over("") && !is_over("SigPnd:\tx"));
    assert!(is_gone("Name:\ta\nState:\tZ (zombie)\n") && !is_gone("State:\tD (disk sleep)\n"));
    // Of several, the last waits; if there is none, nobody does.
    let (over, lives) = (status("", none), status(memory, none));
    let gone = "State:\tZ (zombie)\n".to_owned();
    let of = |threads: &[&String]| all_over(threads.iter().map(|status| (*status).clone()));
    assert!(of(&[&gone, &over]) && of(&[&over, &over]));
    assert!(!of(&[&over, &lives]) && !of(&[&gone]) && !of(&[]));
}

/// What a thread has copied of who made it tells nothing.
#[test]
fn a_call_is_told_of_who_is_in_one() {
    let says = |number, stack, at| format!("{number} 0x3 0x0 0x0 0x0 0x0 0x0 {stack} {at}\n");
    assert_eq!(call_in(&says("77", "0x7ffd", "0x7f12")), Some(Call::Number(77)));
    assert_eq!(call_in(&says("77", "0x0", "0x0")), None);
    assert_eq!(call_in("running\n"), Some(Call::Running));
    assert_eq!(call_in("-1 0x7ffd 0x7f12\n"), Some(Call::Number(-1)));
    assert!(call_in("").is_none() && call_in("x 0x1 0x1").is_none());
}

#[test]
fn a_part_of_the_walk_is_the_walk() {
    assert!(is_walk("link_path_walk") && is_walk("link_path_walk.part.0.constprop.0"));
    assert!(!is_walk("link_path_walker") && !is_walk("__pfx_link_path_walk"));
}

#[tokio::test]
async fn groups_of_this_process_are_found() {
    let own = nix::unistd::getgroups().unwrap();
    let found = groups(std::process::id()).await;
    assert!(own.iter().all(|group| found.contains(&group.as_raw())), "{own:?} {found:?}");
    assert_eq!(groups(0).await, []);
    let id = std::process::id();
    assert!(!is_killed(id).await && !is_killed(0).await);
    assert_eq!((process_of(id).await, process_of(0).await), (Some(id), None));
}

/// The thread that has begun something is gone, and others of its process are not.
#[tokio::test]
async fn who_is_gone_has_others_that_wait() {
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    assert!(!is_killed_there(gone.id(), Some(std::process::id())).await);
    assert!(!is_killed_there(gone.id(), Some(gone.id())).await);
    assert!(!is_killed_there(gone.id(), None).await);
}

/// The runtime has one thread, which goes on while looks block, as many as there may be.
#[tokio::test]
async fn looks_that_block_hold_up_nothing_and_do_not_pile_up() {
    static ROOM: Semaphore = Semaphore::const_new(2);
    let mut blocked = Vec::new();
    for _ in 0..2 {
        let (go, wait) = channel::<()>();
        let (began, begin) = tokio::sync::oneshot::channel();
        let look = tokio::spawn(look(&ROOM, move || {
            began.send(()).unwrap();
            wait.recv().is_err()
        }));
        begin.await.unwrap();
        blocked.push((go, look));
    }
    assert_eq!(look(&ROOM, || true).await, None);
    for (go, look) in blocked {
        drop(go);
        assert_eq!(look.await.unwrap(), Some(true));
    }
    assert_eq!(look(&ROOM, || true).await, Some(true));
}
