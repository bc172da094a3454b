//! Operation codes of the framed protocol. Wire format: never reuse one.

/// First request on a connection, and its answer: [`crate::v1::Hello`].
pub const HELLO: u16 = 1;
/// Empty; answers empty. Proves that the peer lives.
pub const PING: u16 = 2;

/// [`crate::v1::MetaRequest`] → [`crate::v1::MetaReply`].
pub const META: u16 = 16;
/// [`crate::v1::RaftBatch`] → [`crate::v1::RaftAck`].
pub const RAFT: u16 = 17;
/// [`crate::v1::SnapshotPieceRequest`] → [`crate::v1::SnapshotPiece`] and payload.
pub const SNAPSHOT_PIECE: u16 = 18;
/// [`crate::v1::JoinRequest`] → [`crate::v1::JoinReply`].
pub const JOIN: u16 = 19;

/// [`crate::v1::PutRequest`] and payload → [`crate::v1::PutReply`].
pub const PUT: u16 = 32;
/// [`crate::v1::GetRequest`] → [`crate::v1::GetReply`] and payload.
pub const GET: u16 = 33;
/// [`crate::v1::DeleteRequest`] → [`crate::v1::DeleteReply`].
pub const DELETE: u16 = 34;
/// [`crate::v1::ListRequest`] → [`crate::v1::ListReply`].
pub const LIST: u16 = 35;
/// [`crate::v1::TargetStatRequest`] → [`crate::v1::TargetStat`].
pub const TARGET_STAT: u16 = 36;
/// [`crate::v1::ReportCorruptRequest`] → [`crate::v1::ReportCorruptReply`].
pub const REPORT_CORRUPT: u16 = 37;
/// [`crate::v1::VerifyRequest`] → [`crate::v1::VerifyReply`].
pub const VERIFY: u16 = 38;
/// [`crate::v1::FenceRequest`] → [`crate::v1::FenceReply`].
pub const FENCE: u16 = 39;
