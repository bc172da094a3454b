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
mod offered_again;
mod paths;
mod refusals;
mod sessions;
mod spill;
mod storage_faults;
mod subdir;
mod xattrs;

use fixture::in_time;
use weft_client::{Creator, Filesystem, HandleId, OpenFlags};
use weft_proto::InodeId;

/// Makes a file of this name in the root, or opens it.
async fn create(fs: &Filesystem, name: &str) -> (HandleId, InodeId) {
    let (name, by, flags) = (name.as_bytes(), Creator::default(), OpenFlags::default());
    let made = in_time(async || fs.create(InodeId::ROOT, name, 0o644, by, flags).await);
    let opened = made.await.unwrap();
    (opened.handle, opened.attr.ino)
}
