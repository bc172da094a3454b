//! Stops the threads that take requests, between two of them, and lets them go on.
//!
//! A thread that waits in the kernel for a request is woken by a signal that does nothing else; it
//! may come just before the thread begins to wait, and so is sent until the thread has stopped.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Threads that have not stopped are woken once more.
const WAKE_INTERVAL: Duration = Duration::from_millis(1);
/// One that does not stop within this is stuck in the kernel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Pass {
    #[default]
    Open,
    Closed,
    /// Another process takes the requests.
    Over,
}

#[derive(Default)]
struct State {
    pass: Pass,
    /// Numbers of the threads that live, as the kernel has them.
    threads: BTreeSet<libc::pid_t>,
    stopped: usize,
}

#[derive(Default)]
pub struct Gate {
    /// It is not open.
    shut: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// A thread that passes the gate, until this is dropped.
pub struct Passing<'a> {
    gate: &'a Gate,
    thread: libc::pid_t,
}

impl Gate {
    /// This thread begins.
    pub fn enter(&self) -> Passing<'_> {
        // SAFETY: takes nothing and cannot fail.
        let thread = unsafe { libc::gettid() };
        self.state.lock().threads.insert(thread);
        Passing { gate: self, thread }
    }

    /// One that is closed from the beginning.
    pub fn closed() -> Self {
        let gate = Self::default();
        gate.set(Pass::Closed);
        gate
    }

    /// Stops all threads: when this returns, none is at a request, and none takes any. Blocks for
    /// the moment that this takes. Errors: `TimedOut`, with the gate open.
    pub fn close(&self) -> io::Result<()> {
        let signal = wake_signal()?;
        self.set(Pass::Closed);
        let mut state = self.state.lock();
        let until = Instant::now() + CLOSE_TIMEOUT;
        while state.stopped < state.threads.len() {
            if Instant::now() >= until {
                drop(state);
                self.open();
                let what = "a thread that takes requests does not stop";
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            for &thread in &state.threads {
                // SAFETY: takes numbers. The thread lives: it leaves the table before it ends.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
            }
            self.changed.wait_for(&mut state, WAKE_INTERVAL);
        }
        Ok(())
    }

    /// Threads go on.
    pub fn open(&self) {
        self.set(Pass::Open);
    }

    /// Threads that were stopped end.
    pub fn end(&self) {
        self.set(Pass::Over);
    }

    /// Whether the threads have ended because another process takes the requests.
    pub fn is_over(&self) -> bool {
        self.state.lock().pass == Pass::Over
    }

    fn set(&self, pass: Pass) {
        let mut state = self.state.lock();
        state.pass = pass;
        self.shut.store(pass != Pass::Open, Ordering::Release);
        self.changed.notify_all();
    }
}

impl Passing<'_> {
    /// Waits while the gate is closed. Answers whether to take another request.
    pub fn pass(&self) -> bool {
        if !self.gate.shut.load(Ordering::Acquire) {
            return true;
        }
        let mut state = self.gate.state.lock();
        state.stopped += 1;
        self.gate.changed.notify_all();
        while state.pass == Pass::Closed {
            self.gate.changed.wait(&mut state);
        }
        state.stopped -= 1;
        state.pass == Pass::Open
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.gate.state.lock().threads.remove(&self.thread);
        self.gate.changed.notify_all();
    }
}

/// A signal that ends system calls, and does nothing else.
fn wake_signal() -> io::Result<libc::c_int> {
    extern "C" fn nothing(_: libc::c_int) {}
    let signal = libc::SIGRTMIN() + 3;
    // SAFETY: all zeros is a valid value; the handler does nothing, which is safe at any time.
    // Without SA_RESTART the call ends.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    match set {
        0 => Ok(signal),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// Threads that wait in the kernel stop, none takes what comes meanwhile, and all goes on.
    #[test]
    fn closed_threads_take_nothing_until_they_go_on() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let gate = Arc::new(Gate::default());
        let taken = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (gate, taken) = (gate.clone(), taken.clone());
                let theirs = theirs.try_clone().unwrap();
                std::thread::spawn(move || {
                    let passing = gate.enter();
                    let mut byte = [0];
                    while passing.pass() {
                        match (&theirs).read(&mut byte) {
                            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                            Ok(1) => taken.lock().push(byte[0]),
                            other => panic!("{other:?}"),
                        }
                    }
                })
            })
            .collect();
        let all_taken = |count| {
            while taken.lock().len() < count {
                std::thread::yield_now();
            }
        };
        (&ours).write_all(b"a").unwrap();
        all_taken(1);
        for round in 0..50 {
            gate.close().unwrap();
            (&ours).write_all(b"b").unwrap();
            assert_eq!(taken.lock().len(), 1 + round);
            gate.open();
            all_taken(2 + round);
        }
        gate.close().unwrap();
        (&ours).write_all(b"c").unwrap();
        gate.end();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(gate.is_over());
        assert!(!taken.lock().contains(&b'c'));
    }
}
