//! What clients do on the filesystem while it suffers. Each workload is a thread of its own on each
//! mount, and records what it called and what was answered.

mod append;
mod counter;
mod locks;
mod pager;
mod registers;
mod sets;
mod worker;

pub use pager::{Pager, waited_in};
pub use worker::{Shared, Worker, Workload};

/// All of them.
pub const ALL: &[Workload] = &[
    Workload { name: "append", step: append::step, last: append::last },
    Workload { name: "in-place", step: registers::in_place, last: registers::last },
    Workload { name: "mapped", step: registers::mapped, last: registers::last },
    Workload { name: "replaced", step: registers::replaced, last: registers::last },
    Workload { name: "size", step: registers::size, last: registers::last },
    Workload { name: "xattr", step: registers::xattr, last: registers::last },
    Workload { name: "exclusive", step: locks::exclusive, last: locks::last },
    Workload { name: "link", step: locks::link, last: locks::last },
    Workload { name: "move", step: locks::moved, last: locks::last },
    Workload { name: "set", step: sets::step, last: sets::last },
    Workload { name: "counter", step: counter::step, last: counter::last },
];
