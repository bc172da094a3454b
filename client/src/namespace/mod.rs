//! What goes to the metadata group on behalf of operations, in order with what was made and opened
//! here without asking.

mod batch;
mod content;
mod entries;
mod hand_over;
mod log;
mod lost;
mod make;
mod numbers;
mod open_table;
mod opens;
mod owed;
mod publish;
mod removed;
mod requests;
mod told;

pub(crate) use content::Slot;
pub(crate) use entries::Of;
pub(crate) use log::ChangeLog;
pub(crate) use lost::Synced;
pub(crate) use opens::Opens;
pub(crate) use owed::Owing;
pub(crate) use requests::Requests;

#[cfg(test)]
mod tests;
