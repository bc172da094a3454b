//! The client's filesystem, against servers of its own that fail, lose and hold back what a test
//! tells them to.

mod above;
mod appends;
mod basics;
mod batches;
mod bounds;
mod creates;
mod displaced;
#[path = "../fixture/mod.rs"]
mod fixture;
mod flush;
mod granted;
mod handover;
mod in_flight;
mod metadata_faults;
mod model;
mod paths;
mod refusals;
mod spill;
mod storage_faults;
mod subdir;
mod xattrs;

use weft_client::{Creator, Filesystem, HandleId, OpenFlags};
use weft_proto::InodeId;

/// Makes a file of this name in the root, or opens it.
async fn create(fs: &Filesystem, name: &str) -> (HandleId, InodeId) {
    let opened = fs
        .create(InodeId::ROOT, name.as_bytes(), 0o644, Creator::default(), OpenFlags::default())
        .await
        .unwrap();
    (opened.handle, opened.attr.ino)
}
