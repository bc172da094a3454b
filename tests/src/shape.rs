//! What a cluster of a test is made of.

/// How to start a [`Cluster`](crate::Cluster).
#[derive(Clone, Debug)]
pub struct Shape {
    pub metadata: u32,
    pub storage: u32,
    pub profile: &'static str,
    /// Empty: as `weft dev start` takes it when it is told nothing.
    pub target_size: &'static str,
    /// Everybody proves who he is, by certificates. By default if `WEFT_TEST_TLS` is set.
    pub tls: bool,
    /// Of all its daemons and its first mount.
    pub environment: Vec<(&'static str, String)>,
}

impl Default for Shape {
    fn default() -> Self {
        let tls = std::env::var_os("WEFT_TEST_TLS").is_some();
        Self {
            metadata: 3,
            storage: 6,
            profile: "4+2",
            target_size: "512MiB",
            tls,
            environment: Vec::new(),
        }
    }
}
