//! How a filesystem client is set up.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_hot::HotOptions;
use weft_net::Transport;
use weft_proto::Uuid;

/// Is told the key of each session.
pub type KeepSession = Arc<dyn Fn(Uuid) + Send + Sync>;

/// Longer than any mount lives.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Settings of one mount. Start with [`Options::new`] and change what differs.
#[derive(Clone)]
pub struct Options {
    /// `host:port` of metadata servers; one that answers is enough to find the others.
    pub metadata: Vec<String>,
    /// The directory that is the root, below that of the filesystem or of the client's certificate:
    /// a path with slashes; empty for that itself. It has to be there.
    pub subdir: Vec<u8>,
    /// Nothing is changed, whatever the client's certificate allows.
    pub read_only: bool,
    /// What people see in the list of sessions.
    pub client_name: String,
    /// How servers are reached.
    pub transport: Arc<dyn Transport>,
    /// Most bytes of read-ahead that the mount keeps, all files together.
    pub cache_bytes: usize,
    /// Most bytes that were written and are not committed yet; writers wait above it. Up to 64 MiB
    /// more may have been stored through mappings and written back while no metadata leader
    /// answered.
    pub write_buffer_bytes: usize,
    /// An operation that finds no way to succeed for this long fails. By default none does: they
    /// wait for the cluster, however long, as NFS does when it is mounted "hard".
    pub op_deadline: Duration,
    /// One request to one storage target may take this long before the target is passed over.
    pub target_deadline: Duration,
    /// Written data is committed on its own after this long.
    pub flush_age: Duration,
    /// What was done here without asking is told on its own after this long.
    pub publish_age: Duration,
    /// Most bytes that one sequential reader has read ahead.
    pub read_ahead_bytes: u64,
    /// A read is hedged no earlier than this.
    pub hedge_floor: Duration,
    /// The wall clock: nanoseconds since 1970, for the times of files.
    pub clock: fn() -> i64,
    /// Access times are kept, by the rule that Linux calls relatime.
    pub access_times: bool,
    /// A name that is made, moved or taken away is durable before that is answered; else when
    /// something is synced, or within a second.
    pub dir_sync: bool,
    /// What was written is durable before the close is answered; else when it is synced, or within
    /// a second.
    pub close_sync: bool,
    /// How long to look for a cluster that answers, and that has room for one more client.
    pub connect_timeout: Duration,
    /// Keys of the sessions of clients that are dead for certain, in whose place this one is: ended
    /// first, so that nobody waits for what those held until their time is over.
    pub dead_sessions: Vec<Uuid>,
    /// Told the key of each session before it is opened; the last one counts. Whoever has it, once
    /// this client is dead, ends the session with it ([`Self::dead_sessions`]).
    pub keep_session: Option<KeepSession>,
    /// Keeps content that was read on a drive of this machine.
    pub hot: Option<HotOptions>,
    /// Seed of all random choices, for simulations; `None`: from the operating system.
    pub seed: Option<u64>,
}

impl Options {
    /// Defaults, for a mount of the cluster that `metadata` serves.
    pub fn new(metadata: Vec<String>, transport: Arc<dyn Transport>) -> Self {
        Self {
            metadata,
            subdir: Vec::new(),
            read_only: false,
            client_name: String::from("client"),
            transport,
            cache_bytes: 256 << 20,
            write_buffer_bytes: 256 << 20,
            op_deadline: Duration::MAX,
            target_deadline: Duration::from_secs(10),
            flush_age: Duration::from_secs(5),
            publish_age: Duration::from_millis(500),
            read_ahead_bytes: 16 << 20,
            hedge_floor: Duration::from_millis(20),
            clock: wall_clock,
            access_times: true,
            dir_sync: false,
            close_sync: false,
            connect_timeout: Duration::from_secs(60),
            dead_sessions: Vec::new(),
            keep_session: None,
            hot: None,
            seed: None,
        }
    }
}

/// When this much time is over; there may be no end to it.
pub(crate) fn after(patience: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(patience).unwrap_or(now + FOR_EVER)
}

#[expect(clippy::disallowed_methods, reason = "this is the seam: simulations set another clock")]
fn wall_clock() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}
