//! Submits entries, cancels them, and reaps their completions.

use super::life::weft_ring;
use super::queue::{Completion, Queues, Ring};
use super::run;
use crate::error::{Failure, call_int, failed};
use libc::{c_int, c_uint};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;
use weft_client::sync::MutexGuard;

/// A completion.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct weft_cqe {
    /// What the entry was prepared with.
    pub user_data: u64,
    /// What the call of the same kind answers: bytes or 0, or a negative errno.
    pub res: i64,
}

/// Hands over all that was prepared. Answers how many entries those were. They are done in any
/// order, also beside one another: an fsync covers the writes whose completions were reaped before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_submit(ring: *mut weft_ring) -> c_int {
    call_int("weft_ring_submit", || {
        // SAFETY: the caller's pointer, see `crate`.
        let ring = unsafe { weft_ring::of(ring)? };
        // There are no more of them than places, which an int can count.
        Ok(run::submit(ring)? as c_int)
    })
}

/// Puts up to max completions into cqes, and answers how many. Waits until there are min of them,
/// or as many as there will be by what was submitted, or timeout_ms are over: 0 is not to wait, -1
/// to wait for ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_reap(
    ring: *mut weft_ring,
    cqes: *mut weft_cqe,
    max: c_uint,
    min: c_uint,
    timeout_ms: c_int,
) -> c_int {
    const NAME: &str = "weft_ring_reap";
    call_int(NAME, || {
        // SAFETY: the caller's pointer, see `crate`.
        let ring = unsafe { weft_ring::of(ring)? };
        if cqes.is_null() && max != 0 {
            return failed(libc::EFAULT, "there is nowhere to put completions: NULL");
        }
        if min > max || c_int::try_from(max).is_err() {
            return failed(libc::EINVAL, format!("{min} to {max} is no number of completions"));
        }
        let reaped = ring.reap(max as usize, min as usize, timeout_ms);
        let count = reaped.len() as c_int;
        for (at, Completion { user_data, result }) in reaped.into_iter().enumerate() {
            let res = match result {
                Ok(count) => count as i64,
                Err(failure) => {
                    failure.tell(NAME);
                    -i64::from(failure.errno)
                }
            };
            // SAFETY: there is room for `max`, and no more were reaped.
            unsafe { cqes.add(at).write(weft_cqe { user_data, res }) };
        }
        Ok(count)
    })
}

/// Cancels what was submitted with this user_data and has not begun: it completes with -ECANCELED.
/// Answers how many entries those were; -EALREADY if all of them have begun, which then go on to
/// their end and complete with what became of them; -ENOENT if none is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_cancel(ring: *mut weft_ring, user_data: u64) -> c_int {
    call_int("weft_ring_cancel", || {
        // SAFETY: the caller's pointer, see `crate`.
        let ring = unsafe { weft_ring::of(ring)? };
        let queues = &mut *ring.queues.lock();
        let (cancelled, waiting): (VecDeque<_>, _) =
            queues.waiting.drain(..).partition(|entry| entry.user_data == user_data);
        queues.waiting = waiting;
        if cancelled.is_empty() {
            return match queues.begun.contains(&user_data) {
                true => failed(libc::EALREADY, format!("entry {user_data} has begun")),
                false => failed(libc::ENOENT, format!("no entry {user_data} is under way")),
            };
        }
        let count = cancelled.len();
        for _ in cancelled {
            let result = Err(Failure::new(libc::ECANCELED, "it was cancelled"));
            ring.complete(queues, Completion { user_data, result });
        }
        Ok(count as c_int)
    })
}

impl Ring {
    fn reap(&self, max: usize, min: usize, timeout_ms: c_int) -> Vec<Completion> {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let end = timeout.map(|timeout| Instant::now() + timeout);
        let mut queues = self.queues.lock();
        while queues.completions.len() < min && queues.under_way() > 0 {
            let more;
            (queues, more) = self.wait(queues, min, end);
            if !more {
                break;
            }
        }
        let count = max.min(queues.completions.len());
        let reaped = queues.completions.drain(..count).collect();
        match queues.completions.is_empty() {
            true => self.clear(),
            // The caller may have read it.
            false => self.signal(),
        }
        reaped
    }

    /// Waits for completions; whether there may be more than before.
    fn wait<'a>(
        &self,
        mut queues: MutexGuard<'a, Queues>,
        min: usize,
        end: Option<Instant>,
    ) -> (MutexGuard<'a, Queues>, bool) {
        queues.wanted = Some(queues.wanted.map_or(min, |wanted| wanted.min(min)));
        let Some(end) = end else { return (self.completed.wait(queues), true) };
        let left = end.saturating_duration_since(Instant::now());
        let (queues, late) = self.completed.wait_timeout(queues, left);
        (queues, !late)
    }
}
