//! The kinds of daemons of a `weft dev` cluster.

/// A kind of daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Role {
    /// Prefix of folders, logs and configuration files.
    prefix: &'static str,
    /// Subcommand that runs it.
    pub command: &'static str,
}

pub const METADATA: Role = Role { prefix: "metadata", command: "metadata" };
pub const STORAGE: Role = Role { prefix: "storage", command: "storaged" };

impl Role {
    /// `metadata-1`, `storage-3`.
    pub fn name(self, id: u64) -> String {
        format!("{}-{id}", self.prefix)
    }
}
