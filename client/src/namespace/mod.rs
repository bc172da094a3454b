//! What goes to the metadata group on behalf of operations, in order with what was made and opened
//! here without asking.

mod hand_over;
mod make;
mod open_table;
mod opens;
mod pending;
mod publish;
mod publisher;
mod requests;

pub(crate) use opens::Opens;
pub(crate) use pending::Of;
pub(crate) use publisher::Publisher;
pub(crate) use requests::Requests;

#[cfg(test)]
mod tests;
