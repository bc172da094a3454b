//! The client's filesystem, against servers of its own that fail, lose and hold back what a test
//! tells them to.

mod above;
mod basics;
mod creates;
#[path = "../fixture/mod.rs"]
mod fixture;
mod flush;
mod handover;
mod metadata_faults;
mod model;
mod paths;
mod storage_faults;
mod subdir;
