//! Tests of the replicated state machine through its public interface.

mod batches;
mod cluster;
mod commits;
mod compaction;
mod confined;
mod durability;
mod garbage;
mod groups;
mod history;
mod locks;
mod made;
mod model;
mod moves;
mod namespace;
mod quotas;
mod ranges;
mod requests;
mod rig;
mod sessions;
mod tmp_files;
mod usage;

/// The shard of the namespace that the state machine owns.
const SHARD: u16 = 0;
