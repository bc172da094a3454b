//! Disconnects what is connected still when the process ends by `exit(3)`, or the library is
//! unloaded. What is lost is told on standard error: no call is left to answer it.

use crate::shield::shielded;
use std::fmt::Display;
use std::io::{Write, stderr};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use weft_client::blocking::Connection;
use weft_client::sync::Mutex;

/// Names a connection that is to be ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u64);

/// What one process is connected to.
struct Registry {
    pid: libc::pid_t,
    connections: Mutex<Vec<(Ticket, Connection)>>,
}

/// That of the process which connected last. It may be the one that this one was forked from: then
/// it is not looked into, for its lock may be held for ever. Never freed: there is one for each
/// process in a line of forks that connects.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(null_mut());

/// That of this process, if it has one.
fn current() -> Option<&'static Registry> {
    // SAFETY: it is null, or was leaked by `of_this_process`.
    let registry = unsafe { REGISTRY.load(Ordering::Acquire).as_ref() };
    registry.filter(|registry| registry.pid == pid())
}

fn of_this_process() -> &'static Registry {
    loop {
        if let Some(registry) = current() {
            return registry;
        }
        let before = REGISTRY.load(Ordering::Acquire);
        let new = Box::into_raw(Box::new(Registry { pid: pid(), connections: Mutex::default() }));
        let won = REGISTRY.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
        if won.is_err() {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

fn pid() -> libc::pid_t {
    // SAFETY: it only answers a number.
    unsafe { libc::getpid() }
}

/// Notes a connection that is to be ended with the process.
pub fn enter(connection: &Connection) -> Ticket {
    static WATCH: Once = Once::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    WATCH.call_once(|| {
        // SAFETY: the handler is a function of this library, and is called before it is unloaded.
        // If there is no memory for it, what is not synced is lost at the end, as after a kill.
        unsafe { libc::atexit(at_exit) };
    });
    let ticket = Ticket(NEXT.fetch_add(1, Ordering::Relaxed));
    of_this_process().connections.lock().push((ticket, connection.clone()));
    ticket
}

/// Forgets a connection, which is being ended.
pub fn leave(ticket: Ticket) {
    if let Some(registry) = current() {
        registry.connections.lock().retain(|(noted, _)| *noted != ticket);
    }
}

extern "C" fn at_exit() {
    let Some(registry) = current() else { return };
    let connections = std::mem::take(&mut *registry.connections.lock());
    if connections.is_empty() {
        return;
    }
    // In a thread of its own: what the runtime keeps for the thread that exits is gone already.
    let ended = shielded(move || {
        for (_, connection) in connections {
            if let Err(error) = connection.disconnect() {
                tell(&error);
            }
        }
    });
    if let Err(error) = ended {
        tell(&format!("what was not synced, for there can be no thread to do it: {error}"));
    }
}

fn tell(lost: &dyn Display) {
    // The program may have closed it.
    let _ = writeln!(stderr(), "weft: what was written before the exit was lost: {lost}");
}
