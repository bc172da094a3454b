//! Messages of all types that are read from a network, a disk or another process.

use crate::draw::{self, Source};
use prost::{Message, Name};
use std::fmt::Debug;
use weft_proto::v1;

/// Reads it as the type that its first byte names.
pub fn read(bytes: &[u8]) -> bool {
    let Some((which, encoded)) = bytes.split_first() else { return false };
    TYPES[usize::from(*which) % TYPES.len()].0(encoded)
}

/// One of each type, drawn.
pub fn seeds() -> Vec<Vec<u8>> {
    let drawn = |(which, (_, name)): (usize, &Type)| {
        let entropy: Vec<u8> = (0..400u32).map(|i| (i * 37 + 11 + which as u32) as u8).collect();
        let mut message = vec![which as u8];
        message.extend(draw::encoded(&name(), &mut Source::new(&entropy)));
        message
    };
    TYPES.iter().enumerate().map(drawn).collect()
}

type Type = (fn(&[u8]) -> bool, fn() -> String);

macro_rules! types {
    ($($name:ident),+ $(,)?) => {
        const TYPES: &[Type] = &[$((as_type::<v1::$name>, || v1::$name::NAME.to_owned())),+];
    };
}

types![
    Hello,
    ErrorHead,
    MetaRequest,
    MetaReply,
    RaftBatch,
    RaftAck,
    SnapshotPieceRequest,
    SnapshotManifest,
    JoinRequest,
    JoinReply,
    PutRequest,
    PutReply,
    GetRequest,
    GetReply,
    GetManyRequest,
    GetManyReply,
    DeleteRequest,
    ListRequest,
    ListReply,
    TargetStat,
    ReportCorruptRequest,
    VerifyRequest,
    VerifyReply,
    FenceRequest,
    RebuildRequest,
    DisownRequest,
    CompactRequest,
    LogEntry,
    StoredReply,
    ClusterMap,
    MountState,
    TakeoverRequest,
    TakeoverOffer,
];

fn as_type<M: Message + Default + PartialEq + Debug>(encoded: &[u8]) -> bool {
    let Ok(read) = M::decode(encoded) else { return false };
    // Numbers that are no number equal nothing.
    let again = read.encode_to_vec();
    assert_eq!(M::decode(&again[..]).expect("it was written").encode_to_vec(), again);
    true
}
