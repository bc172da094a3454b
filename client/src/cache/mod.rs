//! What this mount may use without asking: attributes, names and content of the inodes on which the
//! metadata leader granted it a lease; the pages that are cached above this library; and the access
//! times that the group was not told of yet.

mod above;
mod atime;
mod hand_over;
mod in_flight;
mod known;
mod learn;
mod leases;
mod listing;
mod make;
mod name_cache;
mod named;
mod pages;
mod quotas;
mod ranges;
mod recall;
mod table;
mod undone;
mod xattrs;
mod zones;

pub(crate) use atime::AccessTimes;
pub(crate) use leases::Leases;
pub(crate) use make::Changed;
pub use name_cache::{Forgotten, NameCache};
pub use pages::ContentCache;
pub(crate) use pages::{ALL, Coherence, Pages};
pub(crate) use quotas::Spent;
pub(crate) use recall::Answering;
pub(crate) use table::{Mode, Right, Start};
pub(crate) use xattrs::ACLS;

#[cfg(test)]
mod tests;
