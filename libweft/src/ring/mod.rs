//! Batched asynchronous I/O, in the manner of io_uring: entries are prepared, submitted together,
//! and their completions reaped.
//!
//! What holds here:
//! - An entry occupies one of the ring's places from when it is prepared until its completion is
//!   reaped: there is always room for a completion.
//! - Each entry that was submitted completes exactly once: [`Begun`] does it also when the threads
//!   are stopped or what it ran panicked.
//! - An entry that has begun goes on to its end. Only one that has not is cancelled.
//! - What a completion tells of is over: no memory of the entry is touched any more.
//!
//! [`Begun`]: run::Begun

// In the order in which the header has them.
mod life;

mod buffers;
mod prepare;

mod entry;
mod queue;
mod reap;
mod run;
