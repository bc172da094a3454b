//! What `/proc` tells of the processes that make requests.
//!
//! Who reads there holds the memory of the process for a moment. If the process ends meanwhile, the
//! reader takes that memory down: it writes back what was stored in mappings of this very mount,
//! and waits for asynchronous writes to it. So that is left to threads that may block, a bounded
//! number of them, and no request waits for one for ever.

use std::fs::{File, read_to_string};
use std::io::{self, BufRead, BufReader};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Threads that look at a time whether somebody was killed, where who finds none looks again later;
/// and where somebody is, for which is waited.
const MOST_LOOKS: usize = 16;
/// Threads that read groups at a time.
const MOST_GROUPS: usize = 16;
/// What is not known after so long does not count.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Who has made a request, and does not wait for its answer yet, soon does.
const ABOUT_TO_WAIT: Duration = Duration::from_millis(1);

/// Threads that look at a time where others are, and in which calls.
static STACKS: Semaphore = Semaphore::const_new(MOST_LOOKS);
static KILLS: Semaphore = Semaphore::const_new(MOST_LOOKS);
static CALLS: Semaphore = Semaphore::const_new(MOST_LOOKS);
static GROUPS: Semaphore = Semaphore::const_new(MOST_GROUPS);

/// Is the thread gone, does it end, or does SIGKILL wait for it? Linux turns every signal that ends
/// a process without a core into that. "No" if that cannot be told now.
pub async fn is_killed(pid: u32) -> bool {
    // 0 is of a namespace that this process does not see.
    pid != 0 && look(&KILLS, move || killed(pid).unwrap_or(true)).await.unwrap_or(false)
}

/// [`is_killed`] of a thread that is there.
pub async fn is_killed_there(pid: u32) -> bool {
    pid != 0 && look(&KILLS, move || killed(pid).unwrap_or(false)).await.unwrap_or(false)
}

/// What the kernel calls its walk along a path.
const WALK: &str = "link_path_walk";

/// Whether a thread that waits for an answer is on its way along a path, in which it holds no
/// directory; `None` if that cannot be told now.
pub async fn walks(thread: u32) -> Option<bool> {
    let stack = read_of(&STACKS, thread, "stack").await?;
    (!stack.is_empty()).then(|| stack.contains(WALK))
}

/// Whether [`walks`] can tell it of threads: as root, and of a kernel that names its functions.
pub fn sees_walks() -> bool {
    let stack = read_to_string("/proc/thread-self/stack").unwrap_or_default();
    let Ok(names) = File::open("/proc/kallsyms") else { return false };
    let is_walk = |line: String| line.split_ascii_whitespace().nth(2).is_some_and(is_walk);
    !stack.is_empty() && BufReader::new(names).lines().map_while(Result::ok).any(is_walk)
}

/// Whether a function is that walk, or the part of it that a compiler has split off.
fn is_walk(function: &str) -> bool {
    function.strip_prefix(WALK).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a thread that waits for an answer is in a call that changes the size of a file. No if
/// that cannot be told.
pub async fn cuts(thread: u32) -> bool {
    matches!(call_of(thread).await, Some(libc::SYS_ftruncate | libc::SYS_truncate))
}

/// Whether a thread that waits for an answer is in a call that has written, when it ends, and waits
/// for one request after the other. No if that cannot be told.
pub async fn writes_in_order(thread: u32) -> bool {
    use libc::{SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_sendfile, SYS_splice};
    use libc::{SYS_write, SYS_writev};
    let waits = [SYS_write, SYS_writev, SYS_pwrite64, SYS_pwritev, SYS_pwritev2];
    let call = call_of(thread).await;
    call.is_some_and(|call| waits.contains(&call) || [SYS_sendfile, SYS_splice].contains(&call))
}

/// The number of the system call that a thread is in which waits for an answer, or is about to.
async fn call_of(thread: u32) -> Option<i64> {
    let call = async {
        loop {
            let call = read_of(&CALLS, thread, "syscall").await?;
            match call.split_ascii_whitespace().next()? {
                "running" => sleep(ABOUT_TO_WAIT).await,
                number => return number.parse().ok(),
            }
        }
    };
    timeout(LOOK_TIMEOUT, call).await.ok().flatten()
}

/// What a file of a thread says, if it can be read soon.
async fn read_of(room: &'static Semaphore, thread: u32, file: &'static str) -> Option<String> {
    let read = async {
        let place = room.acquire().await.ok()?;
        let read = spawn_blocking(move || {
            let _place = place;
            read_to_string(format!("/proc/{thread}/{file}"))
        });
        read.await.ok()?.ok()
    };
    // 0 is of a namespace that this process does not see.
    if thread == 0 { None } else { timeout(LOOK_TIMEOUT, read).await.ok()? }
}

/// Groups of a process beside its own: the kernel tells only that one. None of what has ended, or
/// is not seen from here.
pub async fn groups(pid: u32) -> Vec<u32> {
    let read = async {
        let place = GROUPS.acquire().await.ok()?;
        spawn_blocking(move || {
            let _place = place;
            groups_now(pid)
        })
        .await
        .ok()
    };
    timeout(LOOK_TIMEOUT, read).await.ok().flatten().unwrap_or_default()
}

/// Answers what `ask` does, on a thread that may block; `None` if there is no room for one.
async fn look<T: Send + 'static>(
    room: &'static Semaphore,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let place = room.try_acquire().ok()?;
    let asked = spawn_blocking(move || {
        let _place = place;
        ask()
    });
    asked.await.ok()
}

/// `None` if the thread is gone: there is nothing, or only a status for who waits for its process.
fn killed(pid: u32) -> Option<bool> {
    match read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => (!is_gone(&status)).then(|| is_over(&status)),
        Err(error) => (error.kind() != io::ErrorKind::NotFound).then_some(false),
    }
}

fn is_gone(status: &str) -> bool {
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with(['Z', 'X']))
}

/// Whether `/proc/PID/status` is of a thread that SIGKILL waits for, or that ends: it has no memory
/// any more when its files are closed, as no thread of the kernel ever has. Its flags in
/// `/proc/PID/stat` would say the same, but nobody can read those of a process that begins a
/// program, which first closes files and waits for that.
fn is_over(status: &str) -> bool {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let kills = |mask: &str| {
        u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & (1 << (libc::SIGKILL - 1)) != 0)
    };
    let killed = ["SigPnd:", "ShdPnd:"].into_iter().filter_map(field).any(kills);
    killed || (field("VmSize:").is_none() && field("Kthread:") == Some("0"))
}

fn groups_now(pid: u32) -> Vec<u32> {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    list.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn who_ends_has_no_memory_or_a_kill_that_waits() {
        let status = |memory: &str, pending: &str| {
            format!(
                "Name:\ta\nKthread:\t0\n{memory}SigPnd:\t{pending}\nShdPnd:\t0000000000000000\n"
            )
        };
        let (memory, none) = ("VmSize:\t    2920 kB\n", "0000000000000000");
        assert!(!is_over(&status(memory, none)));
        assert!(is_over(&status("", none)) && is_over(&status(memory, "0000000000000100")));
        // Threads of the kernel close files, too.
        assert!(!is_over(&status("", none).replace("Kthread:\t0", "Kthread:\t1")));
        assert!(!is_over("") && !is_over("SigPnd:\tx"));
        assert!(is_gone("Name:\ta\nState:\tZ (zombie)\n") && !is_gone("State:\tD (disk sleep)\n"));
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
        assert!(!is_killed(std::process::id()).await && !is_killed(0).await);
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
}
