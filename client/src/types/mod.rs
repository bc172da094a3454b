//! What callers of the facade give and get: attributes, handles, flags. Plain values, no wire
//! types.

mod attr;
mod data;
mod dir;
mod lock;
mod mode_list;
mod open;
mod stat;

pub use attr::{Attr, Creator, FileKind, SetAttr, SetTime};
pub use data::{Placed, ReadData};
pub use dir::{DirEntry, DirPage};
pub use lock::{Lock, LockKind};
pub(crate) use mode_list::{ModeList, is_list};
pub use open::{Allocate, HandleId, OpenFlags, Opened, Seek, Via, Writing};
pub use stat::{Counters, StatFs, Warmed};
