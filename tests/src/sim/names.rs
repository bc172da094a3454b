//! How hosts are called.

pub const SERVERS: [&str; 3] = ["m1", "m2", "m3"];
/// The server that takes the place of one of them, perhaps.
pub const NEW_SERVER: &str = "m4";
pub const NEW_SERVER_ID: u64 = 4;
pub const CLIENTS: [&str; 3] = ["c1", "c2", "c3"];
pub const DAEMONS: [&str; 4] = ["s1", "s2", "s3", "s4"];
