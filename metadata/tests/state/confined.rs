//! What clients that are confined have stored.

use crate::ranges::{copied, copy, create, segment};
use crate::rig::{Rig, run};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::ErrorKind::CrossDevice;
use weft_proto::v1;

/// A client may delete what it has stored: with one that is confined, and that others do not trust,
/// they share nothing, whether its session lives or not.
#[test]
fn what_a_confined_client_may_still_delete_is_not_shared() {
    for confined in [false, true] {
        let mut rig = Rig::in_memory();
        let ours = rig.session;
        let open = v1::OpenSessionOp {
            client: "partner".into(),
            nonce: vec![7; 16].into(),
            owner: "client partner".into(),
            confined,
        };
        let open = v1::MetaRequest { op: Some(Op::OpenSession(open)), ..Default::default() };
        let Ok(Reply::OpenSession(opened)) = rig.request(open) else { panic!("no session") };
        let (a, b, c) = (create(&mut rig, "a"), create(&mut rig, "b"), create(&mut rig, "c"));
        rig.session = opened.session;
        let s = rig.segment(1, 100);
        let op = v1::CommitExtentsOp {
            ino: a,
            extents: vec![segment(&s, 0, 100, 0)],
            segments: vec![s],
            ..Default::default()
        };
        let mut number = 0;
        let mut theirs = |rig: &mut Rig, op| {
            number += 1;
            let session = opened.session;
            rig.request(v1::MetaRequest { session, number, acked_below: 1, op: Some(op) })
        };
        theirs(&mut rig, Op::CommitExtents(op)).unwrap();
        assert_eq!(copied(theirs(&mut rig, copy(a, 0, c, 0, 100))), Ok(100), "it may itself");
        rig.session = ours;
        let shared = copied(run(&mut rig, copy(a, 0, b, 0, 100)));
        assert_eq!(shared, if confined { Err(CrossDevice) } else { Ok(100) });
        theirs(&mut rig, Op::CloseSession(v1::CloseSessionOp {})).unwrap();
        let shared = copied(run(&mut rig, copy(a, 0, b, 0, 100)));
        assert_eq!(shared, if confined { Err(CrossDevice) } else { Ok(100) });
        rig.check();
    }
}
