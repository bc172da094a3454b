//! Doors to what reads the virtual attributes that programs set, for `tests/fuzz`. Each says
//! whether it took what it was given for good.

use crate::filesystem::{layout_xattr, quota_xattr};
use weft_proto::{Layout, Profile};

/// One that is taken.
pub const LAYOUT: &str = "4+2 unit=131072 segment=16777216 inline=0";
/// One that is taken.
pub const QUOTA: &str = "bytes=67108864 inodes=none path=/a b";

/// `user.weft.layout`.
pub fn layout(text: &[u8]) -> bool {
    let now = Layout::for_profile(Profile::Replica { copies: 1 });
    let Ok(layout) = layout_xattr::parse(text, &now) else { return false };
    let printed = layout_xattr::print(&layout);
    let again = layout_xattr::parse(printed.as_bytes(), &now);
    assert_eq!(again.expect("it was printed"), layout, "{printed}");
    true
}

/// `user.weft.quota`.
pub fn quota(text: &[u8]) -> bool {
    quota_xattr::parse(text, 1).is_ok()
}
