//! The way to the metadata group: who leads it, the session with it, numbers of requests, retries.
//!
//! All inodes are of one group today. Nothing above asks which.

mod calls;
mod confinement;
mod group;
mod open_session;
mod renew;
mod servers;
mod session;
mod sessions;

pub(crate) use group::{Failed, Group, unexpected};
pub(crate) use open_session::{begin_session, open_session};
pub(crate) use renew::{RENEWAL_INTERVAL, renew};
pub(crate) use session::Session;
pub(crate) use sessions::Sessions;
