//! Threads that signals do not reach.

use std::io;
use std::panic::resume_unwind;
use std::ptr::null_mut;
use std::thread;

/// Does something in a thread of its own that has all signals blocked, as have the threads that it
/// starts. The caller waits, and takes signals meanwhile as ever. Errors: there can be no thread.
pub fn shielded<T: Send>(task: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let before = block();
        let started = thread::Builder::new().name("weft-connect".into()).spawn_scoped(scope, task);
        restore(&before);
        Ok(started?.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Blocks all signals in this thread; answers those that were blocked before.
fn block() -> libc::sigset_t {
    // SAFETY: a set of signals is plain bits, all of which may be 0; both sets live while they are
    // written to.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

fn restore(before: &libc::sigset_t) {
    // SAFETY: the set was answered by the same call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, null_mut()) };
}
