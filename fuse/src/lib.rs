//! Mounts a [`weft_client::Filesystem`] through FUSE.
//!
//! A request comes by one of two channels (`channel`), is decoded (`abi`), handed to the client
//! (`adapter`) and answered; nothing is decided here. What holds:
//! - A FUSE thread never waits for the cluster, so one slow request holds up no other. What needs
//!   no waiting is answered on the thread that took it.
//! - The kernel keeps names and attributes while the client has a lease on them, and they are taken
//!   back from it before the lease is given back (`dcache`); and no file data past an open unless
//!   the client says that it is still good.
//! - The kernel checks permissions (`default_permissions`), with the attributes that the client
//!   answers.
//! - A caller that is killed does not wait for the cluster; what it had begun is finished without
//!   it.
//! - Where Linux goes by the end of file that it remembers, nothing is lost that others wrote
//!   behind that (`writes`).

pub mod abi;
mod adapter;
mod appends;
mod attach;
mod attr;
mod call;
mod channel;
mod copies;
mod dcache;
mod descriptor;
mod flags;
mod hand_over;
mod handler;
mod lanes;
mod mount;
mod mount_error;
mod mount_table;
mod notifier;
mod proc;
mod reply;
mod root;
mod session;
mod set_ids;
mod take_over;
mod undone;
mod unwanted;
mod writes;

pub use adapter::Adapter;
pub use descriptor::{receive_descriptor, send_descriptor};
pub use flags::MountFlags;
pub use hand_over::Handover;
pub use handler::{Handler, Outcome, Waiter, Work};
pub use mount::{IoUring, Mounted, Options, check_mount_point, mount, mount_handler};
pub use mount_error::MountError;
pub use mount_table::{
    Connection, MountEntry, SOURCE_PREFIX, mount_at, mounts, resolve_mount_point, unmount,
};
pub use notifier::Notifier;
pub use root::Root;
pub use take_over::{Inherited, Prepared};
