//! Open files: their handles, and the bytes that are read and written through them.
//!
//! A write is taken into the dirty buffers ([`mod@write`], [`dirty`]), flies to storage when a
//! buffer is full or a flush closes it ([`flight`]), and is committed when it is durable
//! ([`commit`]).

mod above;
mod ahead;
mod allocate;
mod batch;
mod buffer;
mod commit;
mod committed;
mod context;
mod copy;
mod defer;
mod directories;
mod dirty;
mod extents;
mod failures;
mod fate;
mod flight;
mod hand_over;
mod handle;
mod hot;
mod inode;
mod lapse;
mod lease;
mod losses;
mod map;
mod mapped;
mod next;
mod open;
mod outcome;
mod owing;
mod past;
mod pattern;
mod piece;
mod placed;
mod read;
mod seek;
mod set_attr;
mod spill;
mod state;
mod table;
mod take_back;
mod waiting;
mod whole;
mod write;

pub(crate) use above::{End, Ticket};
pub(crate) use context::Context;
pub(crate) use copy::copy_range;
pub(crate) use fate::Fate;
pub(crate) use handle::Handle;
pub(crate) use inode::File;
pub(crate) use set_attr::set_attr;
pub(crate) use table::{Entered, Files};
pub(crate) use take_back::Taken;
pub(crate) use write::{Way, WritePast, Written};
