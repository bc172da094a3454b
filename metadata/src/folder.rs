//! What lies in the data folder of a server.

/// Folders of the Raft log and of the state, beside the identity.
pub const LOG: &str = "log";
pub const STATE: &str = "state";
/// Folder of copies that are made for others; what an earlier run left in it is removed.
pub const SNAPSHOTS: &str = "snapshots";

/// What to do with a folder of which a part is lost.
pub const MOVE_AWAY: &str =
    "move the whole data folder away and start this server; the others bring it up to date";
