//! The blocking face: the same filesystem for programs that have no runtime of their own, as those
//! in C and Python.
//!
//! What holds here:
//! - A [`Connection`] has threads of its own. Any number of threads may call through it, and each
//!   call ends when what it asked for is done, in the thread that called.
//! - A process that was made by `fork(2)` has none of these threads: there, each call is refused
//!   (`Disconnected`) before it waits for anything, and nothing that is dropped speaks to the
//!   cluster. The child connects anew; what the parent has open and locked stays the parent's.
//! - What was written is durable when [`File::sync`] or [`Connection::disconnect`] has returned, as
//!   on a mount; [`File::close`] waits for it with `close_sync` only. A process that dies before
//!   loses no more than a mount that dies.

mod connection;
mod file;
mod forks;
mod user;

pub use connection::{ConnectOptions, Connection};
pub use file::File;
pub use user::User;
