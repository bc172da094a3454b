//! What lies in the data folder of a server.

/// Folders of the Raft log and of the state, beside the identity.
pub const LOG: &str = "log";
pub const STATE: &str = "state";

/// What to do with a folder of which a part is lost.
pub const MOVE_AWAY: &str =
    "move the whole data folder away and start this server; the others bring it up to date";
