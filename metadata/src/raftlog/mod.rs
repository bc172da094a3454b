//! The Raft log of one server: on disk ([`LogDb`]) and as Raft sees it ([`LogStorage`]).

pub(crate) mod db;
mod lengths;
mod storage;
mod unread;

pub use db::{Append, LogDb, Position};
pub use storage::LogStorage;
pub use unread::Unread;
