//! Content of files in the memory of GPUs, without CUDA being needed to build or to run.
//!
//! The memory that payloads land in ([`weft_net::regions`]) is made known to the driver once, so
//! that it copies from there, and to there, by itself while more is read: the bytes of a read are
//! touched by no core after they were checked (I3). With more than one piece under way, the network
//! and the bus are busy at the same time.
//!
//! Where memory was made direct ([`Memory::make_direct`]), servers that are reached over RDMA write
//! whole blocks into it by themselves ([`weft_net::DeviceMemory`]). Those are brought back to be
//! verified, as what a core cannot read; what is not right, or did not come so, is copied as above.
//!
//! What holds here:
//! - No memory of a GPU is touched after its [`Memory`] is gone: who drops that waits for the
//!   copies that are under way, those of calls that were dropped included, and has network cards
//!   forget it.
//! - What a copy reads from, or writes to, on this side stays until the driver says that it is
//!   over.
//! - When a read has returned, no copy of it is under way.
//! - A driver that fails, or is not there, is an error that says so.
//!
//! Calls of the driver are made by who polls: most return at once, that which pins a region the
//! first time, and copies of what is not pinned, do not.

#![warn(missing_docs)]

mod context;
mod direct;
mod driver;
mod event;
mod lane;
mod memory;
mod pinned;
mod read;
mod scope;
mod shared;
mod stream;
mod write;

pub use context::{Gpu, gpus};
pub use memory::{Memory, Slice, after_each, is_of_gpu};
pub use read::{read, read_many};
pub use stream::Stream;
pub use write::write;

/// How bytes come to a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Written by network cards, and verified as it is there.
    Direct,
    /// Through memory of this host that the driver reads by itself.
    Pinned,
    /// Through memory that the driver may not keep where it is: it copies it once more.
    Pageable,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Pinned => "pinned host memory",
            Self::Pageable => "pageable host memory",
        })
    }
}
