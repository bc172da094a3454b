//! The C face of the client: `libweft.so`, `libweft.a` and `weft.h`, which `cbindgen` makes from
//! what is here: doc comments of exported functions are those of the header.
//!
//! What holds here:
//! - Each call answers 0 or a count, or a negative errno, and leaves a sentence about what failed
//!   to its thread ([`error`]). No panic crosses into C.
//! - In a process that was forked, calls on what was inherited are refused before they wait for
//!   anything or take a lock, and what is freed there touches nothing of the parent's.
//! - Threads of the library take no signals ([`shield`]); calls are not interrupted by any.
//! - Memory of the caller is touched only within a call, and of a ring's entry only until its
//!   completion is there to be reaped.
//!
//! What every `unsafe` here relies on, as the header says: pointers that are not NULL point to what
//! their types say, valid for as long as the call takes; an object is not used once it was given to
//! the call that frees it; strings end with a NUL; a ring's buffers stay until it says so.

// In the order in which the header has them.
mod at;
mod connect;
mod error;
mod exit;
mod memory;
mod options;
mod pointers;
mod shield;
mod stat;

mod open;

mod file;
mod read_many;

mod ring;

mod cufile;
mod gpu;

mod attrs;
mod names;
mod xattrs;

mod dirs;
