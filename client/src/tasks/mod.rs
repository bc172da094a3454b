//! What a mount does on its own, each in a task that ends with the mount.

pub(crate) mod atime;
mod give_back;
pub(crate) mod keep_alive;
pub(crate) mod lapse;
pub(crate) mod publish;
pub(crate) mod recalls;
mod supervisor;
pub(crate) mod surplus;
pub(crate) mod write_back;

pub(crate) use give_back::GiveBack;
pub(crate) use supervisor::Supervisor;
