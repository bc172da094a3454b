//! Bugs that are planted on purpose, to see that our tests would find them.
//!
//! Each breaks one rule on which data or coherence rests, in the place that keeps it.
//! `sim --planted all` tells which of them the simulation finds, and after how many seeds
//! (docs/correctness.md).
//!
//! Only a build with the feature `planted` can have one, at most one in a process, and only if it
//! is asked to. Everywhere else [`is`] is `false` before anything is compiled.

#[cfg(feature = "planted")]
use std::sync::atomic::{AtomicUsize, Ordering};

/// Names, in its environment, what `weft` has planted in it.
pub const VARIABLE: &str = "WEFT_PLANTED";

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A rule that is broken.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name),+];

            /// What it does.
            pub fn what(self) -> &'static str {
                match self {
                    $(Bug::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}

bugs! {
    /// A server of the metadata group acknowledges entries before its disk has them.
    AnswerBeforeSync,
    /// The Raft log is written and not synced.
    LogUnsynced,
    /// The Raft log is shortened though the state that has it is not synced.
    StateUnsynced,
    /// Which database has the state is said by a file whose name is not synced.
    NameUnsynced,
    /// A server whose disk was replaced votes as if it had forgotten nothing.
    EmptyVoterVotes,
    /// A snapshot that is sent to another server lacks the sessions.
    SnapshotForgetsSessions,
    /// A request that is sent again is carried out again.
    DoubleApply,
    /// Commits of a session that is over are taken.
    FencingForgotten,
    /// What a session had buffered is committed though others changed the file since.
    LateCommitUnguarded,
    /// Attributes that a session had set are set though others set them since.
    LateAttrUnguarded,
    /// A session is declared dead while it may still trust its leases.
    ExpiredEarly,
    /// The right to write is granted beside other leases.
    DoubleGrant,
    /// A change is answered while others still use what they know under leases.
    RecallNotAwaited,
    /// A new leader does not wait to hear which leases its predecessor gave.
    LeaseForgottenAtFailover,
    /// Locks stay when their session is over.
    LockKept,
    /// An exclusive lock is granted beside another.
    LockTwice,
    /// What sessions had committed is collected as garbage when they are over.
    LiveSegmentCollected,
    /// What is cut off a file comes back when it grows.
    TruncateKeepsData,
    /// A file that a rename replaces keeps its link.
    RenameLosesInode,
    /// A file without a name is removed while it is open.
    OpenFilePurged,
    /// Segments are committed to a placement group whose seats are being given away.
    SeatGivenAwayTakes,
    /// A blank drive is taken for the one in whose place it is.
    BlankTargetKnown,
    /// A mount uses a lease that was granted before a recall and arrived after it.
    GrantOutlivesRecall,
    /// A mount uses what it knew under a lease that was recalled.
    CacheOutlivesRecall,
    /// A mount answers a recall before it has committed what it had buffered.
    RecallBeforeFlush,
    /// A mount uses what it knew of what a change of its own, not answered yet, is about.
    OldWhileChanging,
    /// A mount that cannot reach the group trusts its leases for longer than the leader does.
    LeaseOutlivesSession,
    /// Buffered data that cannot be committed is dropped, and nobody is told.
    FailureNotTold,
    /// `fsync` does not wait for the commit.
    SyncBeforeCommit,
    /// `fsync` does not wait for what was done before it, and the group has not heard of.
    SyncForgetsLog,
    /// An append goes where its mount believes the end to be.
    AppendAtOldEnd,
    /// A write counts as durable though parity could not be stored.
    ParitySkipped,
    /// Bytes are used that do not match their checksums.
    ChecksumIgnored,
    /// A degraded read decodes shards that have not arrived.
    PendingShardDecoded,
    /// A rebuilt chunk has the bytes of another shard.
    OtherShardRebuilt,
    /// A target acknowledges before its drive has flushed.
    FlushSkipped,
    /// A target acknowledges a chunk of which only the record is durable.
    RecordBeforeData,
    /// Space of deleted chunks is used again though the deletion is not durable.
    DeleteNotDurable,
    /// Journal that cannot be read when a target is opened counts as empty.
    UnreadCountsAsAbsent,
    /// A target takes chunks of a session that is over.
    FenceIgnored,
}

impl std::str::FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|bug| format!("{bug:?}") == name);
        found.copied().ok_or_else(|| format!("{name}: there is no such bug to plant"))
    }
}

/// The number of the bug that is planted, from 1 on; 0: none.
#[cfg(feature = "planted")]
static PLANTED: AtomicUsize = AtomicUsize::new(0);

/// Whether this bug is planted here.
#[cfg(feature = "planted")]
#[inline]
pub fn is(bug: Bug) -> bool {
    PLANTED.load(Ordering::Relaxed) == bug as usize + 1
}

/// Whether this bug is planted here: never, in such a build.
#[cfg(not(feature = "planted"))]
#[inline]
pub const fn is(_: Bug) -> bool {
    false
}

/// Plants a bug in this process. An error says that this build takes none.
pub fn plant(bug: Bug) -> Result<(), String> {
    #[cfg(feature = "planted")]
    {
        PLANTED.store(bug as usize + 1, Ordering::Relaxed);
        Ok(())
    }
    #[cfg(not(feature = "planted"))]
    Err(format!("{bug:?}: bugs can be planted in builds for tests only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_are_known_by_their_names() {
        for bug in Bug::ALL {
            assert_eq!(format!("{bug:?}").parse(), Ok(*bug));
            assert!(bug.what().ends_with('.'), "{bug:?}");
        }
        assert!("None".parse::<Bug>().is_err());
    }
}
