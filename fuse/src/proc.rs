//! What `/proc` tells of the processes that make requests.
//!
//! Who reads there holds the memory of the process for a moment. If the process ends meanwhile, the
//! reader takes that memory down: it writes back what was stored in mappings of this very mount,
//! and waits for asynchronous writes to it. So that is left to threads that may block, a bounded
//! number of them, and no request waits for one for ever.

use std::fs::{DirEntry, File, read_dir, read_to_string};
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
static STATUSES: Semaphore = Semaphore::const_new(MOST_LOOKS);
static CALLS: Semaphore = Semaphore::const_new(MOST_LOOKS);
static GROUPS: Semaphore = Semaphore::const_new(MOST_GROUPS);

/// Is the thread gone, does it end, or does SIGKILL wait for it? Linux turns every signal that ends
/// a process without a core into that. "No" if that cannot be told now.
pub async fn is_killed(pid: u32) -> bool {
    // 0 is of a namespace that this process does not see.
    pid != 0 && look(&KILLS, move || killed(pid).unwrap_or(true)).await.unwrap_or(false)
}

/// [`is_killed`] of who waits for what a thread of this process has begun: the thread, or if that
/// is gone the others. "No" if the process is not known then, or gone.
pub async fn is_killed_there(pid: u32, process: Option<u32>) -> bool {
    let killed = move || killed(pid).unwrap_or_else(|| process.is_some_and(ends));
    pid != 0 && look(&KILLS, killed).await.unwrap_or(false)
}

/// The process of a thread that is there.
pub async fn process_of(thread: u32) -> Option<u32> {
    let status = read_of(&STATUSES, thread, "status").await?;
    field(&status, "Tgid:")?.parse().ok().filter(|process| *process != 0)
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

/// `truncate`, `ftruncate`, and those of 64 bits, as 32-bit programs call them. What has these
/// numbers otherwise changes no size.
const CUTS_OF_32_BITS: [i64; 4] = [92, 93, 193, 194];

/// Whether a thread that waits for an answer is in a call that changes the size of a file; `None`
/// if that cannot be told.
pub async fn cuts(thread: u32) -> Option<bool> {
    let call = call_of(thread).await?;
    let cuts = [libc::SYS_ftruncate, libc::SYS_truncate].contains(&call);
    Some(cuts || CUTS_OF_32_BITS.contains(&call))
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
            match call_in(&read_of(&CALLS, thread, "syscall").await?)? {
                Call::Running => sleep(ABOUT_TO_WAIT).await,
                Call::Number(number) => return Some(number),
            }
        }
    };
    timeout(LOOK_TIMEOUT, call).await.ok().flatten()
}

/// What `/proc/TID/syscall` says.
#[derive(PartialEq, Eq, Debug)]
enum Call {
    Running,
    Number(i64),
}

/// `None` of a thread that io_uring has made: it has a copy of the registers, and is in no call.
fn call_in(says: &str) -> Option<Call> {
    let words: Vec<&str> = says.split_ascii_whitespace().collect();
    match words[..] {
        ["running"] => Some(Call::Running),
        [.., "0x0", "0x0"] => None,
        [number, ..] => number.parse().ok().map(Call::Number),
        [] => None,
    }
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

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn is_gone(status: &str) -> bool {
    field(status, "State:").is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// Whether a process ends that is not gone: the last of its threads waits for what any of them has
/// begun.
fn ends(process: u32) -> bool {
    let Ok(threads) = read_dir(format!("/proc/{process}/task")) else { return false };
    let status = |thread: DirEntry| read_to_string(thread.path().join("status")).ok();
    all_over(threads.map_while(Result::ok).filter_map(status))
}

/// Of the threads of a process.
fn all_over(statuses: impl Iterator<Item = String>) -> bool {
    let mut there = statuses.filter(|status| !is_gone(status)).peekable();
    there.peek().is_some() && there.all(|status| is_over(&status))
}

/// Whether `/proc/PID/status` is of a thread that SIGKILL waits for, or that ends: it has no memory
/// any more when its files are closed, as no thread of the kernel ever has. Its flags in
/// `/proc/PID/stat` would say the same, but nobody can read those of a process that begins a
/// program, which first closes files and waits for that.
fn is_over(status: &str) -> bool {
    let field = |name| field(status, name);
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
mod tests;
