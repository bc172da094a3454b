//! What a client may not do whose certificate lets it only read, or squashes its root.

use v1::meta_request::Op;
use weft_proto::mode::{SET_IDS, SETUID};
use weft_proto::rename::WHITEOUT;
use weft_proto::{Error, ErrorKind, Kind, Result, v1};

pub(super) fn refuse<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::NotPermitted, what))
}

/// Who may only read locks, and looks.
pub(super) fn check_read_only(op: &Op) -> Result<()> {
    let changes = match op {
        Op::SetLock(_) => false,
        Op::Open(open) => open.write,
        Op::Lease(lease) => lease.write,
        Op::LeaseMany(_) | Op::Map(_) => true,
        op => op.kind() == Kind::Change,
    };
    match changes {
        true => Err(Error::new(ErrorKind::ReadOnly, "this client's certificate lets it only read")),
        false => Ok(()),
    }
}

/// Nothing comes to belong to root.
pub(super) fn check_owners(op: &Op) -> Result<()> {
    use v1::batch_op::step::Op as Step;
    let owners = match op {
        Op::Create(op) => vec![(op.uid, op.gid)],
        Op::TmpFile(op) => vec![(op.uid, op.gid)],
        Op::MkNod(op) => vec![(op.uid, op.gid)],
        Op::MkDir(op) => vec![(op.uid, op.gid)],
        Op::SymLink(op) => vec![(op.uid, op.gid)],
        Op::SetAttr(op) => vec![given(op)],
        Op::CommitExtents(op) => op.attr.iter().map(given).collect(),
        Op::MakeFiles(op) => {
            let given =
                op.files.iter().filter_map(|f| f.content.as_ref()?.attr.as_ref()).map(given);
            op.files.iter().map(|f| (f.uid, f.gid)).chain(given).collect()
        }
        Op::Batch(op) => {
            let owners = op.steps.iter().filter_map(|step| match step.op.as_ref()? {
                Step::Make(op) => Some((op.uid, op.gid)),
                Step::SetAttr(op) => Some(given(op)),
                Step::Commit(op) => op.attr.as_ref().map(given),
                _ => None,
            });
            owners.collect()
        }
        _ => Vec::new(),
    };
    let mode = |attr: &v1::SetAttrOp| attr.mode.unwrap_or(0) & SET_IDS != 0;
    let device =
        |kind: v1::FileKind| matches!(kind, v1::FileKind::CharDevice | v1::FileKind::BlockDevice);
    // A directory hands its group on, and no more.
    let made = |kind: v1::FileKind, mode: u32| match kind {
        v1::FileKind::Directory => mode & SETUID != 0,
        kind => mode & SET_IDS != 0 || device(kind),
    };
    let file = v1::FileKind::Regular;
    let labels = |op: &v1::SetXattrOp| op.name.starts_with(b"security.");
    let plants = match op {
        Op::SetAttr(op) => mode(op),
        Op::Rename(op) => op.flags & WHITEOUT != 0,
        Op::CommitExtents(op) => op.attr.as_ref().is_some_and(mode),
        Op::SetXattr(op) => labels(op),
        Op::Create(op) => made(file, op.mode),
        Op::TmpFile(op) => made(file, op.mode),
        Op::MkNod(op) => made(op.kind(), op.mode),
        Op::MkDir(op) => made(v1::FileKind::Directory, op.mode),
        Op::MakeFiles(op) => op.files.iter().any(|of| made(file, of.mode)),
        Op::Batch(op) => op.steps.iter().any(|step| match &step.op {
            Some(Step::Make(op)) => made(op.kind(), op.mode),
            Some(Step::SetAttr(op)) => mode(op),
            Some(Step::Rename(op)) => op.flags & WHITEOUT != 0,
            Some(Step::SetXattr(op)) => labels(op),
            Some(Step::Commit(op)) => op.attr.as_ref().is_some_and(mode),
            _ => false,
        }),
        _ => false,
    };
    if plants {
        return refuse("who is squashed makes no devices, and no programs that run as their owner");
    }
    match owners.iter().any(|(uid, gid)| *uid == 0 || *gid == 0) {
        true => refuse("this client's root owns nothing here: its certificate says squash=root"),
        false => Ok(()),
    }
}

/// Owners that attributes name, or nobody in particular.
fn given(attr: &v1::SetAttrOp) -> (u32, u32) {
    (attr.uid.unwrap_or(u32::MAX), attr.gid.unwrap_or(u32::MAX))
}
