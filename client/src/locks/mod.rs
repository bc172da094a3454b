//! Locks of files, as processes on this mount take them. They are kept in the replicated state, for
//! all clients; but those of a file that only this mount may write, and of which nobody else holds
//! or wants a lock, are known here alone, and cost no request, until the leader recalls that right.
//!
//! Invariant: locks end with the session that took them (I5). Its owner is told: whatever it does
//! with the file through that handle fails, until it closes it.

mod entry;
mod hand_over;
mod remote;
mod table;
mod take;
mod wait;
mod wire;

pub(crate) use remote::Locks;
pub(crate) use table::lost_locks;
pub(crate) use take::StillAsked;
