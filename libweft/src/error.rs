//! What a call answers when it fails, and the sentence that it leaves.

use crate::shield::shielded;
use libc::{c_char, c_int, ssize_t};
use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::runtime::Handle;
use weft_client::blocking::Connection;
use weft_proto::ErrorKind;

/// An errno, and what people are told.
#[derive(Clone, Debug)]
pub struct Failure {
    pub errno: c_int,
    what: String,
}

/// What a call answers, before it is a number.
pub type Answer<T> = Result<T, Failure>;

impl Failure {
    pub fn new(errno: c_int, what: impl Into<String>) -> Self {
        Self { errno, what: what.into() }
    }

    /// With the place where it happened before it.
    pub fn at(self, place: &str) -> Self {
        let Self { errno, what } = self;
        Self { errno, what: format!("{place}: {what}") }
    }

    /// Of code that panicked.
    pub fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no text");
        let what = format!("a defect of the library, please report it: it panicked: {text}");
        Self::new(libc::EIO, what)
    }

    /// There can be no thread.
    pub fn no_thread(error: io::Error) -> Self {
        Self::new(libc::EAGAIN, format!("cannot start a thread: {error}"))
    }

    /// Makes it what [`weft_strerror_last`] answers in this thread.
    pub fn tell(&self, call: &str) {
        let errno = io::Error::from_raw_os_error(self.errno);
        let mut text = format!("{call}: {}: {errno}", self.what).into_bytes();
        text.retain(|byte| *byte != 0);
        text.push(0);
        // A thread that ends may have it no more.
        let _ = LAST.try_with(|last| {
            if let Ok(mut last) = last.try_borrow_mut() {
                *last = text;
            }
        });
    }
}

impl From<weft_proto::Error> for Failure {
    fn from(error: weft_proto::Error) -> Self {
        let what = match advice(error.kind) {
            None => error.to_string(),
            Some(advice) => format!("{error} ({advice})"),
        };
        Self::new(error.errno(), what)
    }
}

/// What to do, where the errno does not say it.
fn advice(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::NotLeader => {
            "the cluster did not do it in time, and may do it yet: ask `weft status` what is away"
        }
        ErrorKind::SessionExpired => {
            "the cluster gave this client up and what was not synced is lost: open the file again"
        }
        ErrorKind::Stale => "it was removed: look its path up again",
        ErrorKind::NoSpace => {
            "remove something, or add targets: ask `weft status` where there is room"
        }
        ErrorKind::Quota => "remove something, or have the quota raised",
        ErrorKind::WrongCluster => "check the address of the cluster",
        ErrorKind::Protocol => "check that library and servers are of versions that go together",
        ErrorKind::Internal => "a defect, please report it",
        _ => return None,
    })
}

/// A failure that this library finds itself.
pub fn failed<T>(errno: c_int, what: impl Into<String>) -> Answer<T> {
    Err(Failure::new(errno, what))
}

/// Refuses calls on what a forked process inherited, before anything of it is locked.
pub fn of_this_process(connection: &Connection) -> Answer<()> {
    if connection.is_of_this_process() {
        return Ok(());
    }
    failed(libc::ENOTCONN, "this process was forked from the one that connected: connect here, too")
}

/// Does what a call does: no panic leaves it, and what fails is noted.
pub fn call<T: TryInto<ssize_t>>(name: &str, body: impl FnOnce() -> Answer<T>) -> ssize_t {
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let too_large = |_| Failure::new(libc::EOVERFLOW, "the answer is too large a number");
        let body = || body().and_then(|count| count.try_into().map_err(too_large));
        if is_ending() { in_another_thread(body) } else { body() }
    }));
    match answer.unwrap_or_else(|panic| Err(Failure::panicked(&*panic))) {
        Ok(count) => count,
        Err(failure) => {
            failure.tell(name);
            -(failure.errno as ssize_t)
        }
    }
}

/// Whether this thread ends, and what it kept for itself is gone: a handler of `atexit(3)` runs
/// then, and so do the destructors of objects in C++. It cannot wait for what is asynchronous.
fn is_ending() -> bool {
    Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

/// What a thread does for another that waits for it.
struct Lent<F>(F);

// SAFETY: what a call does holds nothing that belongs to its thread, and that waits for its end.
unsafe impl<F> Send for Lent<F> {}

impl<T, F: FnOnce() -> T> Lent<F> {
    fn call(self) -> T {
        (self.0)()
    }
}

fn in_another_thread(body: impl FnOnce() -> Answer<ssize_t>) -> Answer<ssize_t> {
    let body = Lent(body);
    shielded(move || body.call()).map_err(Failure::no_thread)?
}

/// [`call`], for one that answers 0 or a small count.
pub fn call_int(name: &str, body: impl FnOnce() -> Answer<c_int>) -> c_int {
    // An errno and what was an `int` before fit.
    call(name, || body().map(|count| count as ssize_t)) as c_int
}

/// [`call`], for one that answers 0.
pub fn call_unit(name: &str, body: impl FnOnce() -> Answer<()>) -> c_int {
    call_int(name, || body().map(|()| 0))
}

thread_local! {
    /// Ends with a NUL.
    static LAST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What the last call of this thread that failed has to say: what failed, where, and what to do.
///
/// Never NULL; "" if none has failed. It stays until the next call of this thread fails. After
/// weft_ring_reap and weft_read_many it tells of the last entry that failed.
#[unsafe(no_mangle)]
pub extern "C" fn weft_strerror_last() -> *const c_char {
    let text = LAST.try_with(|last| {
        let last = last.try_borrow().ok().filter(|last| !last.is_empty())?;
        Some(last.as_ptr().cast())
    });
    text.ok().flatten().unwrap_or(c"".as_ptr())
}
