//! What a mount does on its own, each in a task that ends with the mount.

pub(crate) mod atime;
pub(crate) mod keep_alive;
pub(crate) mod lapse;
pub(crate) mod publish;
pub(crate) mod recalls;
mod release;
mod supervisor;
pub(crate) mod surplus;
pub(crate) mod write_back;

pub(crate) use release::Releaser;
pub(crate) use supervisor::Supervisor;
