//! A wall clock that is wrong, for a program that loads this before all else (`LD_PRELOAD`): by as
//! many nanoseconds as are in the file that [`OFFSET`] names, eight bytes in the machine's order.
//! Who writes to them steps the clock of the program that runs. Other clocks are right.
//!
//! Invariant: nothing here allocates, or waits. An allocator looks at the time before it can serve
//! anybody, and a look that needed memory would wait for it for ever.

use libc::{O_CLOEXEC, O_RDONLY, clockid_t, time_t, timespec, timeval};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

/// The variable of the environment that names the file.
const OFFSET: &CStr = c"WEFT_CLOCK_OFFSET";
const SECOND: i64 = 1_000_000_000;

/// By how much the clock is wrong now, in nanoseconds; 0 while there is no file.
fn offset() -> i64 {
    static MAPPED: AtomicPtr<AtomicI64> = AtomicPtr::new(ptr::null_mut());
    let mut at = MAPPED.load(Ordering::Acquire);
    if at.is_null() {
        at = map();
        MAPPED.store(at, Ordering::Release);
    }
    // SAFETY: it is null or a mapping of a file of that length, which nobody takes away.
    unsafe { at.as_ref() }.map_or(0, |offset| offset.load(Ordering::Relaxed))
}

fn map() -> *mut AtomicI64 {
    const LEN: usize = size_of::<AtomicI64>();
    // SAFETY: only what is checked here is used. The environment does not change while it is read:
    // the program has no other thread when it looks at its clock for the first time.
    unsafe {
        let path = libc::getenv(OFFSET.as_ptr());
        let file = if path.is_null() { -1 } else { libc::open(path, O_RDONLY | O_CLOEXEC) };
        if file < 0 {
            return ptr::null_mut();
        }
        let at = libc::mmap(ptr::null_mut(), LEN, libc::PROT_READ, libc::MAP_SHARED, file, 0);
        libc::close(file);
        if at == libc::MAP_FAILED { ptr::null_mut() } else { at.cast() }
    }
}

/// As clock_gettime(2).
///
/// # Safety
/// `now` has room for a time, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, now: *mut timespec) -> libc::c_int {
    // SAFETY: the kernel checks what it is given.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, now) } as libc::c_int;
    if answer == 0 && matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        // SAFETY: the kernel has just written there.
        let now = unsafe { &mut *now };
        let nanos = now.tv_nsec + offset();
        now.tv_sec += nanos.div_euclid(SECOND);
        now.tv_nsec = nanos.rem_euclid(SECOND);
    }
    answer
}

/// As gettimeofday(2).
///
/// # Safety
/// `now` has room for a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(now: *mut timeval, _zone: *mut libc::c_void) -> libc::c_int {
    let mut precise = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for both.
    unsafe {
        let answer = clock_gettime(libc::CLOCK_REALTIME, &mut precise);
        *now = timeval { tv_sec: precise.tv_sec, tv_usec: precise.tv_nsec / 1000 };
        answer
    }
}

/// As time(2).
///
/// # Safety
/// `now` has room for a time, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(now: *mut time_t) -> time_t {
    let mut precise = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for it; and for the answer where the caller says so.
    unsafe {
        clock_gettime(libc::CLOCK_REALTIME, &mut precise);
        if !now.is_null() {
            *now = precise.tv_sec;
        }
    }
    precise.tv_sec
}
