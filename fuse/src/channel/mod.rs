//! The two ways in which requests come from the kernel and answers go back: reads and writes of
//! `/dev/fuse`, and io_uring. Which of them a request came by is known here only.

mod device;
mod gate;
mod ring;
mod ring_entry;
mod ring_queue;
mod route;
mod threads;

pub use device::Device;
pub use gate::Gate;
pub use ring::Rings;
pub use route::Route;
pub use threads::Threads;
