//! The operations of the framed protocol: code, request and answer of each, who serves it and who
//! may ask for it, here and nowhere else.
//!
//! Invariant: a code is wire format and never used for anything else again.

use crate::role::{Role, Roles};
use crate::v1;
use prost::{Message, Name};

/// A request of the framed protocol.
pub trait Call: Name + Default {
    /// Its operation.
    const OP: u16;
    /// What it is answered with, if not with an error.
    type Answer: Message + Default;
}

/// First request on a connection, and its answer: [`v1::Hello`].
pub const HELLO: u16 = 1;
/// Empty; answers empty. Proves that the peer lives.
pub const PING: u16 = 2;

macro_rules! roles {
    ([$($role:ident),*]) => { Roles::of(&[$(Role::$role),*]) };
}

macro_rules! operations {
    ($($server:ident {$(
        $name:ident = $code:literal by $asked:tt: $request:ident => $answer:ident
        $(, $payload:literal)?;
    )*})*) => {
        $($(
            #[doc = concat!("[`v1::", stringify!($request), "`] → \
                [`v1::", stringify!($answer), "`]" $(, $payload)?)]
            pub const $name: u16 = $code;

            impl Call for v1::$request {
                const OP: u16 = $name;
                type Answer = v1::$answer;
            }
        )*)*

        /// Who serves an operation; `None` if it is not known.
        pub const fn served_by(op: u16) -> Option<Role> {
            match op {
                $($($name => Some(Role::$server),)*)*
                _ => None,
            }
        }

        /// What an operation is called; `None` if it is not known.
        pub const fn name_of(op: u16) -> Option<&'static str> {
            match op {
                $($($name => Some(stringify!($name)),)*)*
                _ => None,
            }
        }

        /// Who may ask for an operation, where it is known who asks. `None` if it is not known.
        pub const fn asked_by(op: u16) -> Option<Roles> {
            match op {
                $($($name => Some(roles!($asked)),)*)*
                _ => None,
            }
        }
    };
}

operations! {
    Metadata {
        META = 16 by [Client, Admin]: MetaRequest => MetaReply;
        RAFT = 17 by [Metadata]: RaftBatch => RaftAck;
        SNAPSHOT_PIECE = 18 by [Metadata]: SnapshotPieceRequest => SnapshotPiece, " and payload";
        JOIN = 19 by [Metadata]: JoinRequest => JoinReply;
    }
    Storage {
        PUT = 32 by [Client, Admin, Storage]: PutRequest => PutReply, "; the request has a payload";
        GET = 33 by [Client, Admin, Storage]: GetRequest => GetReply, " and payload";
        DELETE = 34 by [Client, Admin, Storage, Metadata]: DeleteRequest => DeleteReply;
        LIST = 35 by [Client, Admin, Storage, Metadata]: ListRequest => ListReply;
        TARGET_STAT = 36 by [Client, Admin, Storage, Metadata]: TargetStatRequest => TargetStat;
        REPORT_CORRUPT = 37 by [Client, Admin, Storage, Metadata]:
            ReportCorruptRequest => ReportCorruptReply;
        VERIFY = 38 by [Admin, Storage, Metadata]: VerifyRequest => VerifyReply;
        FENCE = 39 by [Metadata]: FenceRequest => FenceReply;
        REBUILD = 40 by [Metadata]: RebuildRequest => RebuildReply;
        DISOWN = 41 by [Metadata]: DisownRequest => DisownReply;
        COMPACT = 42 by [Metadata]: CompactRequest => CompactReply;
        GET_MANY = 43 by [Client, Admin, Storage]: GetManyRequest => GetManyReply, " and payload";
    }
}
