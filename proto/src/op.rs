//! The operations of the framed protocol: code, request and answer of each, here and nowhere else.
//!
//! Invariant: a code is wire format and never used for anything else again.

use crate::v1;
use prost::Message;

/// A request of the framed protocol.
pub trait Call: Message + Default {
    /// Its operation.
    const OP: u16;
    /// What it is answered with, if not with an error.
    type Answer: Message + Default;
}

/// First request on a connection, and its answer: [`v1::Hello`].
pub const HELLO: u16 = 1;
/// Empty; answers empty. Proves that the peer lives.
pub const PING: u16 = 2;

macro_rules! operations {
    ($($name:ident = $code:literal: $request:ident => $answer:ident $(, $payload:literal)?;)*) => {
        $(
            #[doc = concat!("[`v1::", stringify!($request), "`] → \
                [`v1::", stringify!($answer), "`]" $(, $payload)?)]
            pub const $name: u16 = $code;

            impl Call for v1::$request {
                const OP: u16 = $name;
                type Answer = v1::$answer;
            }
        )*
    };
}

operations! {
    // Between metadata servers and their clients.
    META = 16: MetaRequest => MetaReply;
    RAFT = 17: RaftBatch => RaftAck;
    SNAPSHOT_PIECE = 18: SnapshotPieceRequest => SnapshotPiece, " and payload";
    JOIN = 19: JoinRequest => JoinReply;

    // Of storage daemons.
    PUT = 32: PutRequest => PutReply, "; the request has a payload";
    GET = 33: GetRequest => GetReply, " and payload";
    DELETE = 34: DeleteRequest => DeleteReply;
    LIST = 35: ListRequest => ListReply;
    TARGET_STAT = 36: TargetStatRequest => TargetStat;
    REPORT_CORRUPT = 37: ReportCorruptRequest => ReportCorruptReply;
    VERIFY = 38: VerifyRequest => VerifyReply;
    FENCE = 39: FenceRequest => FenceReply;
    REBUILD = 40: RebuildRequest => RebuildReply;
    DISOWN = 41: DisownRequest => DisownReply;
    COMPACT = 42: CompactRequest => CompactReply;
}
