//! The tests of the state machine (`../state`) on one that owns another shard: nothing there
//! assumes the first.

#[path = "../state/cluster.rs"]
mod cluster;
#[path = "../state/commits.rs"]
mod commits;
#[path = "../state/durability.rs"]
mod durability;
#[path = "../state/garbage.rs"]
mod garbage;
#[path = "../state/groups.rs"]
mod groups;
#[path = "../state/history.rs"]
mod history;
#[path = "../state/locks.rs"]
mod locks;
#[path = "../state/made.rs"]
mod made;
#[path = "../state/model.rs"]
mod model;
#[path = "../state/moves.rs"]
mod moves;
#[path = "../state/namespace.rs"]
mod namespace;
#[path = "../state/ranges.rs"]
mod ranges;
#[path = "../state/requests.rs"]
mod requests;
#[path = "../state/rig.rs"]
mod rig;
#[path = "../state/sessions.rs"]
mod sessions;
#[path = "../state/tmp_files.rs"]
mod tmp_files;

const SHARD: u16 = 7;
